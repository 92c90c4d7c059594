#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- Packs a checkpoint that holds every encoding in every layout of experts and tables, and compares each number with what the
-- encoding's description says. Invariant under test: reading, packing, loading and decoding lose nothing.

package.path = "tests/lib/?.lua;" .. package.path
local tools = require "pack_tools"
local checkpoint = require "checkpoint"
local encode = require "encode"
local write = require "safetensors_write"

tools.build()
local e = encode.new(20240611)
local folder = tools.make_folder("encodings")

local shards = { {}, {} } -- two files
local asks = {}           -- { what, function(census) -> record, values }
local P <const> = "model.language_model."

local function plan(what, ask, values) asks[#asks + 1] = { what, ask, values } end

local function matrix(what, name, n, k, parts, values)
    encode.add(shards[#asks % 2 + 1], P .. name, parts)
    plan(what, function(census) return census:matrix{ name = name, n = n, k = k } end, values)
end

-- ---- matrices ------------------------------------------------------------------------------------------------------------

local layer = -1
local function next_name(last)
    layer = layer + 1
    return string.format("layers.%d.%s", layer, last or "self_attn.q_proj")
end

for _, case in ipairs({
    { "bf16", 40, 48 }, { "f16", 33, 64 }, { "f32", 20, 36 },
    { "nvfp4", 40, 64 }, { "nvfp4", 17, 48, "compressed" }, { "nvfp4", 24, 64, "mlx" },
    { "mxfp8", 40, 96 }, { "mxfp8", 16, 64, "mlx" }, { "fp8_block", 200, 300 }, { "fp8_block", 300, 128, "f32" }, { "fp8_block", 16, 32 },
    { "fp8", 20, 40 }, { "fp8", 18, 64, "channel" }, { "int4", 24, 128, 64 }, { "int4", 16, 128, 128, "symmetric" },
    { "int4", 24, 64, 32, "compressed" }, { "affine", 20, 128, 4, 32 }, { "affine", 20, 128, 4, 64 }, { "affine", 9, 256, 2, 128 },
    { "affine", 20, 64, 3, 32 }, { "affine", 20, 128, 5, 64 }, { "affine", 20, 128, 6, 64 }, { "affine", 20, 64, 8, 64 },
    { "affine", 4, 32, 4, 32 },
}) do
    local kind, n, k = case[1], case[2], case[3]
    local parts, values = e[kind](n, k, table.unpack(case, 4))
    matrix(table.concat(case, " "), next_name(), n, k, parts, values)
end

-- Large enough for several chunks and threads.
do
    local parts, values = e.bf16(1100, 32)
    matrix("bf16 of many rows", next_name("mlp.up_proj"), 1100, 32, parts, values)
end

-- Rows of a tensor in another order, and a slice.
do
    local parts, values = e.affine(64, 64, 4, 32)
    local name, order, wanted = next_name("linear_attn.in_proj_qkvz"), {}, {}
    for i = 0, 63 do order[i + 1] = i % 4 * 16 + i // 4 end
    for i = 0, 47 do
        for c = 1, 64 do wanted[i * 64 + c] = values[order[i + 1] * 64 + c] end
    end
    encode.add(shards[1], P .. name, parts)
    plan("permuted rows", function(census)
        return census:matrix{ name = name, n = 48, k = 64, row_order = function(i) return order[i + 1] end }
    end, wanted)
    local rest = {}
    for i = 48, 63 do
        for c = 1, 64 do rest[(i - 48) * 64 + c] = values[order[i + 1] * 64 + c] end
    end
    plan("the other rows, as a list", function(census)
        return census:matrix{ name = name, n = 16, k = 64, row_order = { table.unpack(order, 49, 64) } }
    end, rest)
end

-- Block scales: whole tiles move as they are, split tiles are decoded.
for _, case in ipairs({
    { "fp8_block in whole tiles", { 128, 0 }, 128, "fp8_block" }, { "fp8_block with split tiles", { 64, 0, 192, 128 }, 64, "f32" },
}) do
    local parts, values = e.fp8_block(256, 160)
    local name, wanted, order = next_name(), {}, {}
    for _, first in ipairs(case[2]) do
        for i = first, first + case[3] - 1 do order[#order + 1] = i end
    end
    for i, row in ipairs(order) do
        for c = 1, 160 do wanted[(i - 1) * 160 + c] = values[row * 160 + c] end
    end
    encode.add(shards[2], P .. name, parts)
    plan(case[1], function(census)
        local record = census:matrix{ name = name, n = 256, k = 160, row_order = order }
        assert(record.encoding == case[4], record.encoding)
        return record
    end, wanted)
end

-- ---- experts -------------------------------------------------------------------------------------------------------------

local E <const> = 3

local function make_experts(n, k, make)
    local modules, values = {}, {}
    for x = 1, E do
        local part
        modules[x], part = make(n, k)
        table.move(part, 1, #part, #values + 1, values)
    end
    return modules, values
end

local function ask_experts(prefix, which, n, k)
    return function(census) return census:experts{ prefix = prefix, which = which, experts = E, n = n, k = k } end
end

local MAKERS <const> = {
    { "bf16", e.bf16 }, { "nvfp4", e.nvfp4 }, { "fp8_block", e.fp8_block }, { "fp8", e.fp8 }, { "mxfp8", e.mxfp8 },
    { "affine", function(n, k) return e.affine(n, k, 4, 32) end },
}

local SINGLE <const> = { { "int4", function(n, k) return e.int4(n, k, 32) end }, table.unpack(MAKERS) }

for _, maker in ipairs(SINGLE) do
    local prefix = next_name("mlp.experts")
    for _, which in ipairs({ "gate", "up", "down" }) do
        local modules, values = make_experts(24, 64, maker[2])
        for x, parts in ipairs(modules) do
            encode.add(shards[x % 2 + 1], string.format("%s%s.%d.%s_proj", P, prefix, x - 1, which), parts)
        end
        plan(maker[1] .. " experts one by one, " .. which, ask_experts(prefix, which, 24, 64), values)
    end
end

for _, maker in ipairs(MAKERS) do
    local prefix = next_name("mlp.experts")
    local switch = prefix:gsub("experts$", "switch_mlp")
    local modules, values = make_experts(24, 64, maker[2])
    encode.add(shards[1], P .. switch .. ".down_proj", encode.stack(modules))
    plan(maker[1] .. " experts stacked (switch_mlp)", ask_experts(prefix, "down", 24, 64), values)
end

-- Fused: gate rows, then up rows of each expert; as bare parameters.
do
    local prefix = next_name("mlp.experts")
    local modules, gate, up = {}, {}, {}
    for x = 1, E do
        local parts, values = e.bf16(40, 32)
        modules[x] = parts
        table.move(values, 1, 20 * 32, #gate + 1, gate)
        table.move(values, 20 * 32 + 1, 40 * 32, #up + 1, up)
    end
    local fused = encode.stack(modules).weight
    shards[1][#shards[1] + 1] = { name = P .. prefix .. ".gate_up_proj", dtype = fused[1], shape = fused[2], data = fused[3] }
    plan("fused gate", ask_experts(prefix, "gate", 20, 32), gate)
    plan("fused up", ask_experts(prefix, "up", 20, 32), up)
    local down, values = make_experts(32, 20, e.bf16)
    local stacked = encode.stack(down).weight
    shards[2][#shards[2] + 1] = { name = P .. prefix .. ".down_proj", dtype = stacked[1], shape = stacked[2], data = stacked[3] }
    plan("stacked down", ask_experts(prefix, "down", 32, 20), values)
end

-- ---- tables --------------------------------------------------------------------------------------------------------------

local function table_of(what, rows, dim, make, extra)
    local prefix, values = next_name("ple.ple_embedding.ngram_embedding"), {}
    for s = 0, 2 do
        local parts, part = make(rows, dim)
        encode.add(shards[s % 2 + 1], string.format("%s%s.shard_%d", P, prefix, s), parts)
        table.move(part, 1, #part, #values + 1, values)
    end
    if extra then
        shards[1][#shards[1] + 1] = { name = P .. prefix .. "." .. extra[1], dtype = extra[2], shape = { 1 }, data = extra[3] }
    end
    plan(what .. " table", function(census)
        return census:rows{ prefix = prefix, rows = 3 * rows, dim = dim, section = "table" }
    end, values)
end

table_of("bf16", 30, 16, e.bf16)
table_of("fp8", 30, 16, function(n, k) return e.fp8_rows(n, k, 0.03125) end, { "weight_scale", "BF16", string.pack("<I2", 0x3d00) })
table_of("nvfp4", 30, 32, function(n, k) return e.nvfp4(n, k, "table", 0.125) end, { "weight_scale_2", "F32", string.pack("<f", 0.125) })
table_of("affine with a factor", 30, 64, function(n, k)
    local parts, values = e.affine(n, k, 4, 32)
    for i = 1, n * k do values[i] = values[i] * 0.03125 end
    return parts, values
end, { "weight_scale", "F32", string.pack("<f", 0.03125) })
table_of("affine", 30, 64, function(n, k) return e.affine(n, k, 4, 32) end)
do
    local parts, values = e.affine(50, 64, 4, 64)
    encode.add(shards[1], P .. "embed_tokens", parts)
    plan("embedding", function(census) return census:rows{ name = "embed_tokens", rows = 50, dim = 64 } end, values)
end

-- ---- vectors -------------------------------------------------------------------------------------------------------------

for _, name in ipairs({ "A_log", "conv1d.weight", "conv1d.bias" }) do
    local parts, values = e.bf16(6, 4)
    shards[1][#shards[1] + 1] = {
        name = P .. "layers.0.linear_attn." .. name, dtype = "BF16", shape = name:match("weight") and { 6, 4, 1 } or { 24 },
        data = parts.weight[3],
    }
    local short = name:gsub("%.weight$", "")
    plan(short, function(census) return census:vector{ name = "layers.0.linear_attn." .. short, count = 24 } end, values)
end

-- ---- run -----------------------------------------------------------------------------------------------------------------

write.text(folder .. "/config.json", "{}")
local map = {}
for s, list in ipairs(shards) do
    local name = string.format("model-%05d-of-00002.safetensors", s)
    write.file(folder .. "/" .. name, list)
    for _, tensor in ipairs(list) do map[tensor.name] = name end
end
write.index(folder .. "/model.safetensors.index.json", map)

local census = checkpoint.open(folder)
local records = {}
for i, ask in ipairs(asks) do records[i] = ask[2](census) end
tools.ok(not tools.refusal(census.finish, census), "every tensor is consumed")
local code, text = tools.pack(census, records, "encodings")
tools.ok(code == 0, "packs", text)

local function compare(data)
    local at, order, by_record = 1, {}, {}
    for i, record in ipairs(records) do order[i], by_record[record] = record, asks[i] end
    table.sort(order, function(a, b) return a.entry.index < b.entry.index end)
    for _, record in ipairs(order) do
        local ask = by_record[record]
        local wrong, total = nil, record.n * record.k * (record.experts or 1)
        for i = 1, total do
            local value = string.unpack("<f", data, at)
            at = at + 4
            -- the description's number, rounded once to fp32
            local wanted = string.unpack("<f", string.pack("<f", ask[3][i] or 1e30))
            if value ~= wanted and not wrong then wrong = string.format("value %d is %.9g, not %.9g", i, value, wanted) end
        end
        tools.ok(total == #ask[3] and not wrong, ask[1], wrong or (total .. " values"))
    end
    tools.ok(at == #data + 1, "nothing else is in the pack")
end

local data, message = tools.dump("encodings")
if tools.ok(data, "opens", message) then compare(data) end
tools.ok(tools.dump("encodings", "map") == data, "mapped equals read")

local first = io.open(tools.path("encodings.pack"), "rb"):read("a")
tools.pack(checkpoint.open(folder), (function()
    local again, other = {}, checkpoint.open(folder)
    for i, ask in ipairs(asks) do again[i] = ask[2](other) end
    return again
end)(), "again")
tools.ok(first == io.open(tools.path("again.pack"), "rb"):read("a"), "the same inputs give the same bytes")
tools.done()
