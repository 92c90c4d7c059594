#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- Changed and missing bytes everywhere in a small checkpoint, and numbers that no pack may hold. Invariant under test: the
-- outcome is a pack or one line and exit code 2; never a crash, never a partial pack, never the old pack spoiled.

-- luacheck: no max line length

package.path = "tests/lib/?.lua;" .. package.path
local tools = require "pack_tools"
local checkpoint = require "checkpoint"
local encode = require "encode"
local write = require "safetensors_write"

tools.build()
local e = encode.new(99)

local function build(folder)
    local list = {}
    local function add(name, parts) encode.add(list, "model." .. name, parts) end
    add("layers.0.self_attn.q_proj", (e.nvfp4(24, 64)))
    add("layers.0.self_attn.k_proj", (e.mxfp8(8, 64)))
    add("layers.0.self_attn.v_proj", (e.fp8_block(8, 130)))
    add("layers.0.self_attn.o_proj", (e.fp8(8, 32)))
    add("layers.0.mlp.up_proj", (e.bf16(8, 32)))
    for x = 0, 1 do add("layers.0.mlp.experts." .. x .. ".up_proj", (e.nvfp4(8, 32))) end
    add("layers.0.input_layernorm", { weight = { "BF16", { 32 }, ("\0\0"):rep(32) } })
    for s = 0, 1 do add("t.ngram_embedding.shard_" .. s, (e.bf16(6, 16))) end
    write.text(folder .. "/config.json", "{}")
    write.file(folder .. "/model.safetensors", list)
    return list
end

local folder = tools.make_folder("sweep")
build(folder)
local path = folder .. "/model.safetensors"
local file = assert(io.open(path, "rb"))
local whole = file:read("a")
file:close()
local header_end = 8 + string.unpack("<I8", whole)

-- What a family description would ask for.
local function read_all()
    local census = checkpoint.open(folder)
    local records = {
        census:matrix{ name = "layers.0.self_attn.q_proj", n = 24, k = 64 },
        census:matrix{ name = "layers.0.self_attn.k_proj", n = 8, k = 64 },
        census:matrix{ name = "layers.0.self_attn.v_proj", n = 8, k = 130 },
        census:matrix{ name = "layers.0.self_attn.o_proj", n = 8, k = 32 },
        census:matrix{ name = "layers.0.mlp.up_proj", n = 8, k = 32 },
        census:experts{ prefix = "layers.0.mlp.experts", which = "up", experts = 2, n = 8, k = 32 },
        census:vector{ name = "layers.0.input_layernorm", count = 32, transform = "plus_one" },
        census:rows{ prefix = "t.ngram_embedding", rows = 12, dim = 16, section = "table" },
    }
    census:finish()
    require("pack").layout(records)
    for _, record in ipairs(records) do record.entry = nil end
    return census, records
end

-- ---- headers: in this process --------------------------------------------------------------------------------------------

local crashes, accepted, refused, long = {}, 0, 0, 0

local function try(text, what)
    write.text(path, text)
    local ok, e2 = xpcall(tools.refusal, debug.traceback, read_all)
    if not ok then
        crashes[#crashes + 1] = what .. ": " .. tostring(e2)
    elseif e2 then
        refused = refused + 1
        if e2:find("\n") or #e2 > 900 then long = long + 1 end
    else
        accepted = accepted + 1
    end
end

for at = 1, header_end, 2 do
    local byte = whole:byte(at)
    local other = at % 3 == 0 and 0x39 or at % 3 == 1 and 0x22 or byte ~ (1 << at % 7)
    if other ~= byte then try(whole:sub(1, at - 1) .. string.char(other) .. whole:sub(at + 1), "byte " .. at) end
end
tools.ok(#crashes == 0, "changed header bytes end in a pack or in one line", crashes[1])
tools.ok(refused > header_end // 4 and long == 0, "most are refused, in one line each", refused .. " refused, " .. accepted .. " accepted")

refused, accepted = 0, 0
for at = 1, #whole, 97 do
    for _, length in ipairs({ 1, 7, 64, 1000 }) do
        if at + length - 1 <= #whole then try(whole:sub(1, at - 1) .. whole:sub(at + length), "cut " .. at) end
    end
end
tools.ok(#crashes == 0 and accepted == 0, "every range cut out is refused", crashes[1] or accepted .. " accepted")
refused, accepted = 0, 0
for at = 0, #whole - 1, 83 do try(whole:sub(1, at), "length " .. at) end
tools.ok(#crashes == 0 and accepted == 0, "every shorter file is refused", crashes[1] or accepted .. " accepted")

-- ---- data: through the packer --------------------------------------------------------------------------------------------

write.text(path, whole)
local pack = tools.path("sweep.pack")
do
    local census, records = read_all()
    local code, text = tools.pack(census, records, "sweep")
    tools.ok(code == 0, "the unchanged checkpoint packs", text)
end

local function exists(name)
    local f = io.open(name, "rb")
    if f then f:close() end
    return f ~= nil
end

-- Packs with the plan at hand: exit code, text.
local function run() return tools.shell(tools.path("packer") .. " " .. tools.path("sweep.plan") .. " " .. pack) end

local codes, odd = { [0] = 0, [2] = 0 }, nil
for at = header_end + 1, #whole, 197 do
    write.text(path, whole:sub(1, at - 1) .. string.char(at % 2 == 0 and 0x7f or whole:byte(at) ~ 0x55) .. whole:sub(at + 1))
    os.remove(pack)
    local code, text = run()
    if not codes[code] or (code == 2) == exists(pack) or exists(pack .. ".tmp") or (code == 2 and select(2, text:gsub("\n", "")) ~= 1) then
        odd = odd or string.format("byte %d: code %s, %s", at, code, text)
    end
    codes[code] = (codes[code] or 0) + 1
end
tools.ok(not odd, "changed data packs or is refused, and leaves no partial pack", odd)
tools.ok(codes[0] > 0 and codes[2] > 0, "both happen", codes[0] .. " and " .. codes[2])

write.text(path, whole)
run()
local good = io.open(pack, "rb"):read("a")
write.text(path, whole:sub(1, -2))
do
    local code, text = run()
    tools.ok(code == 2 and text:find("expected %d+ bytes, found %d+") and io.open(pack, "rb"):read("a") == good,
        "a file that shrank after the plan is refused, the old pack stays", text)
end
os.remove(path)
do
    local code, text = run()
    tools.ok(code == 2 and text:find("cannot be opened"), "a file that went away is refused", text)
end
write.text(path, whole)
do
    local code, text = tools.shell(tools.path("packer") .. " " .. tools.path("sweep.plan") .. " build/tests/pack/no/such/folder/x.pack")
    tools.ok(code == 2 and text:find("cannot be written"), "a place that cannot be written is refused", text)
    local plan = io.open(tools.path("sweep.plan"), "rb"):read("a")
    for name, edit in pairs({
        ["a truncated plan"] = function(t) return t:sub(1, #t // 2) end,
        ["a plan of another packer"] = function(t) return (t:gsub("pianola%-plan 1", "pianola-plan 9")) end,
        ["a plan with other sizes"] = function(t) return (t:gsub("(entry panel resident nvfp4 4 16 )24", "%140")) end,
        ["a plan that reads outside"] = function(t) return (t:gsub("tensor data 0 %d+", "tensor data 0 999999999")) end,
        ["a plan that names a file too many"] = function(t) return (t:gsub("tensor data 0", "tensor data 7")) end,
        ["a plan with places in disorder"] = function(t) return (t:gsub("(entry panel resident bf16 16 0 8 32 0) %d+", "%1 0")) end,
    }) do
        write.text(tools.path("bad.plan"), edit(plan))
        os.remove(tools.path("bad.pack"))
        code, text = tools.shell(tools.path("packer") .. " " .. tools.path("bad.plan") .. " " .. tools.path("bad.pack"))
        tools.ok(code == 2 and not exists(tools.path("bad.pack")) and not exists(tools.path("bad.pack.tmp")), name .. " is refused", text)
    end
end

-- ---- numbers that no pack may hold ---------------------------------------------------------------------------------------

local function bad_number(name, pattern, kind, edit, ...)
    local list = {}
    local k = name:find("block") and 192 or 64
    local parts = e[kind](16, k, ...)
    edit(parts)
    encode.add(list, "model.layers.0.mlp.up_proj", parts)
    local case = tools.make_folder("case")
    write.text(case .. "/config.json", "{}")
    write.file(case .. "/model.safetensors", list)
    local census = checkpoint.open(case)
    local record = census:matrix{ name = "layers.0.mlp.up_proj", n = 16, k = k }
    os.remove(tools.path("case.pack"))
    local code, text = tools.pack(census, { record }, "case")
    tools.ok(code == 2 and text:find("weight layers%.0%.mlp%.up_proj") and text:find(pattern) and not exists(tools.path("case.pack")), name, text)
end

local function set(key, at, bytes)
    return function(parts)
        local part = parts[key]
        part[3] = part[3]:sub(1, at) .. bytes .. part[3]:sub(at + #bytes + 1)
    end
end

bad_number("NaN scale of NVFP4", "NaN scale at row 1, column 1", "nvfp4", set("weight_scale", 5, "\127"))
bad_number("infinite global of NVFP4", "global scale is inf", "nvfp4", set("weight_scale_2", 0, string.pack("<f", math.huge)))
bad_number("NaN global of NVFP4", "global scale is %-?nan", "nvfp4", set("weight_scale_2", 0, string.pack("<f", 0.0 / 0.0)))
bad_number("zero divisor", "global scale is 0", "nvfp4", set("weight_global_scale", 0, string.pack("<f", 0.0)), "compressed")
bad_number("NaN scale of MXFP8", "NaN scale at row 1, column 0", "mxfp8", set("weight_scale", 2, "\255"))
bad_number("NaN code of MXFP8", "NaN code at row 1, column 0", "mxfp8", set("weight", 64, "\127"))
bad_number("infinite scale of a block", "NaN or infinite scale", "fp8_block", set("weight_scale_inv", 0, "\128\127"))
bad_number("NaN scale of FP8", "global scale is %-?nan", "fp8", set("weight_scale", 0, "\192\127"))
bad_number("NaN scale of a channel", "NaN or infinite code or scale at row 1", "fp8", set("weight_scale", 2, "\192\127"), "channel")
bad_number("infinite scale of an affine group", "scale that is not a finite", "affine", set("scales", 0, "\128\127"), 4, 32)
bad_number("NaN bias of an affine group", "bias that is not a finite", "affine", set("biases", 0, "\192\127"), 4, 32)
bad_number("infinite scale of int4", "scale that is not a finite", "int4", set("scales", 0, "\0\124"), 32)
bad_number("int4 in activation order", "activation order", "int4", set("g_idx", 0, string.pack("<i4", 1)), 32)
bad_number("NaN in bf16", "NaN or infinite number at row 0, column 3", "bf16", set("weight", 6, "\192\127"))
tools.done()
