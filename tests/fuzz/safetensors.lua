-- SPDX-License-Identifier: Apache-2.0
--
-- lua5.4 tests/fuzz/safetensors.lua [seconds] [seed]: mutated safetensors files and indexes, from the repository root.
-- Invariant: reading a checkpoint and asking for weights either works or ends in fail(); no other error, and no single try
-- takes longer than a second. Prints the seed of the first violation and leaves its file behind.

package.path = "gen/?.lua;tests/lib/?.lua;" .. package.path
local checkpoint = require "checkpoint"
local encode = require "encode"
local fail = require "fail"
local pack = require "pack"
local write = require "safetensors_write"

local seconds, seed <const> = tonumber(arg[1]) or 10, math.tointeger(tonumber(arg[2])) or 1
local folder <const> = "build/tests/fuzz"
os.execute("mkdir -p " .. folder)
math.randomseed(seed)

local e = encode.new(seed)
local random <const> = math.random

-- Asks in the way that family descriptions do; shapes are right for the unchanged file.
local LAYERS <const> = {
    { "q", function() return e.nvfp4(16, 64) end }, { "k", function() return e.mxfp8(16, 64) end },
    { "v", function() return e.fp8_block(16, 64) end }, { "o", function() return e.fp8(16, 64) end },
    { "u", function() return e.affine(16, 64, 4, 32) end }, { "w", function() return e.int4(16, 64, 32) end },
    { "b", function() return e.bf16(16, 64) end },
}

local function tensors()
    local list = {}
    for _, layer in ipairs(LAYERS) do encode.add(list, "model." .. layer[1], (layer[2]())) end
    for x = 0, 1 do encode.add(list, "model.mlp.experts." .. x .. ".up_proj", (e.nvfp4(16, 32))) end
    encode.add(list, "model.t.ngram_embedding.shard_0", (e.bf16(4, 16)))
    encode.add(list, "model.input_layernorm", { weight = { "F32", { 4 }, string.pack("<ffff", 0, 0, 0, 0) } })
    return list
end

local function read_all()
    local census = checkpoint.open(folder)
    local records = {}
    for i, layer in ipairs(LAYERS) do records[i] = census:matrix{ name = layer[1], n = 16, k = 64 } end
    records[#records + 1] = census:experts{ prefix = "mlp.experts", which = "up", experts = 2, n = 16, k = 32 }
    records[#records + 1] = census:rows{ prefix = "t.ngram_embedding", rows = 4, dim = 16, section = "table" }
    records[#records + 1] = census:vector{ name = "input_layernorm", count = 4, transform = "plus_one" }
    census:finish()
    local layout = pack.layout(records)
    pack.write_plan(folder .. "/plan", layout, census)
end

local WORDS <const> = {
    "0", "-1", "1e400", "9007199254740993", "18446744073709551616", "null", "true", "[]", "{}", '"F32"', '"U8"', '"BF16"',
    '"F8_E4M3"', '"U32"', '"I32"', "[0,0]", "[1,64]", "[16,64]", "[64,16]", "[16,32]", "[2,8,64]", "1.5", '"\\u0000"', "[[[[", ',', ':',
    '"', "NaN", '"data_offsets"', '"shape"', '"dtype"',
}

-- Replaces the i-th JSON number, string or list of numbers by something else.
local function edit(text)
    local kind = random(5)
    if kind == 1 then -- a number
        local spots = {}
        for from, to in text:gmatch("()%d+()") do spots[#spots + 1] = { from, to } end
        local spot = spots[random(#spots)]
        if not spot then return text end
        local old = tonumber(text:sub(spot[1], spot[2] - 1))
        local new = ({ old + 1, old - 1, old * 2, old // 2, 0, 1 << random(62) })[random(6)]
        return text:sub(1, spot[1] - 1) .. string.format("%.0f", new) .. text:sub(spot[2])
    elseif kind == 2 then -- bytes
        local at = random(#text)
        return text:sub(1, at - 1) .. string.char(random(0, 255)) .. text:sub(at + 1)
    elseif kind == 3 then -- a word in place of a stretch
        local at = random(#text)
        return text:sub(1, at - 1) .. WORDS[random(#WORDS)] .. text:sub(at + random(0, 12))
    elseif kind == 4 then -- a stretch cut or doubled
        local at, length = random(#text), random(40)
        return text:sub(1, at) .. (random(2) == 1 and text:sub(at + 1, at + length):rep(2) or "") .. text:sub(at + length + 1)
    end
    local dtypes = { "BF16", "F16", "F32", "U8", "F8_E4M3", "F8_E5M2", "U32", "I32", "I64", "F4" }
    return (text:gsub('"dtype":"(%w+)"', function(old)
        return '"dtype":"' .. (random(8) == 1 and dtypes[random(#dtypes)] or old) .. '"'
    end))
end

local header, data = write.header(tensors())
local tries, accepted, slowest = 0, 0, 0
local finish <const> = os.time() + seconds
while os.time() < finish do
    tries = tries + 1
    local text = header
    for _ = 1, random(3) do text = edit(text) end
    local length = random(20) == 1 and random(0, 1 << 40) or #text
    local body = random(10) == 1 and data:sub(1, random(#data)) or data
    write.text(folder .. "/model.safetensors", string.pack("<I8", length) .. text .. body)
    os.remove(folder .. "/model.safetensors.index.json")
    if random(4) == 1 then
        local map = '{"weight_map":{"model.q.weight":"model.safetensors","model.b.weight":"model.safetensors"}}'
        write.text(folder .. "/model.safetensors.index.json", random(2) == 1 and map or edit(map))
    end
    local config = '{"quantization_config":{"quant_method":"modelopt","group_size":16,"weight_block_size":[128,128]},"quantization":null}'
    write.text(folder .. "/config.json", random(2) == 1 and "{}" or edit(config))
    local before = os.clock()
    local ok, problem = xpcall(read_all, function(x) return fail.is(x) and x or debug.traceback(tostring(x)) end)
    slowest = math.max(slowest, os.clock() - before)
    if ok then accepted = accepted + 1 end
    if not ok and (not fail.is(problem) or problem.message:find("\n")) or slowest > 1 then
        print(string.format("seed %d, try %d: %s", seed, tries, fail.is(problem) and problem.message or tostring(problem)))
        os.exit(1)
    end
end
print(string.format("%d tries, %d accepted, slowest %.3f s, seed %d: no violation", tries, accepted, slowest, seed))
