-- SPDX-License-Identifier: Apache-2.0
--
-- lua5.4 tests/fuzz/config_json.lua [seconds] [seed]: mutated config.json and generation_config.json of every family, from the
-- repository root. Invariant: the generator either builds the programs or ends in fail(); no other error, and no single try
-- takes longer than 5 seconds. Prints the seed of the first violation and leaves its files behind.

package.path = "gen/?.lua;models/?.lua;tests/lib/?.lua;" .. package.path
local cjson = require "cjson"
local checkpoint = require "checkpoint"
local config = require "config"
local emit_c = require "emit_c"
local fail = require "fail"
local graph = require "graph"
local ops = require "ops"
local pack = require "pack"
local report = require "report"
local shapes = require "shapes"
local write = require "safetensors_write"

local seconds, seed <const> = tonumber(arg[1]) or 10, math.tointeger(tonumber(arg[2])) or 1
local folder <const> = "build/tests/fuzz/config"
os.execute("mkdir -p " .. folder)
local random <const> = math.random

local FAMILIES <const> = {}
for i, name in ipairs { "flashnext", "qwen3_5", "qwen3_5_moe", "qwen3_next", "nemotron_h" } do FAMILIES[i] = require(name) end
local CASES <const> = { "fn-tiny", "q35-tiny", "q35moe-tiny-nvfp4-modelopt", "qnext-tiny", "nemo-tiny" }

local function read(path)
    local f = assert(io.open(path, "rb"), path)
    local text = f:read("a")
    f:close()
    return text
end

local SEEDS <const> = {}
for i, name in ipairs(CASES) do SEEDS[i] = read("tests/fixtures/reference/" .. name .. "/config.json") end
local GENERATION <const> = '{"eos_token_id": [2, 3], "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.1}'

local VALUES <const> = {
    0, 1, 2, 3, 7, -1, 64, 65, 1024, 65536, 2 ^ 31, 2 ^ 53, 1e300, -0.5, 0.25, 1.5, 0 / 0, math.huge, true, false, "", "x",
    "silu", "default", cjson.null, {}, { 1 }, { "full_attention" }, { a = 1 }, { { } }, "MEM*E", { -1, 2.5, "x" },
}
local KEYS <const> = {
    "layer_types", "mtp", "num_nextn_predict_layers", "rope_scaling", "layers_block_type", "hybrid_override_pattern", "quantization_config",
    "mtp_num_hidden_layers", "tie_word_embeddings", "text_config", "mlp_only_layers", "unheard_of", "eos_token_id", "rope_theta",
}

local function keys_of(t)
    local keys = {}
    for k in pairs(t) do keys[#keys + 1] = k end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    return keys
end

-- Changes, drops or adds one member somewhere in the tree.
local function mutate(t)
    local keys = keys_of(t)
    local k = keys[random(math.max(1, #keys))]
    local choice = random(10)
    if k == nil or choice == 1 then
        t[#t > 0 and #t + 1 or KEYS[random(#KEYS)]] = VALUES[random(#VALUES)]
    elseif type(t[k]) == "table" and choice <= 8 then
        mutate(t[k])
    elseif choice == 2 then
        if type(k) == "number" then table.remove(t, k) else t[k] = nil end
    elseif choice <= 5 and type(t[k]) == "number" then
        t[k] = t[k] * ({ 2, 0.5, -1, 3, 1000 })[random(5)] + ({ 0, 0, 1, -1 })[random(4)]
    else
        t[k] = VALUES[random(#VALUES)]
    end
end

-- Cuts, doubles or replaces a stretch of the text.
local function scramble(text)
    local a = random(#text)
    local b = math.min(#text, a + random(40))
    local middle = ({ "", text:sub(a, b):rep(2), "[", "}", "\0", "1e999", '"', "nul", (" "):rep(random(9)) })[random(9)]
    return text:sub(1, a - 1) .. middle .. text:sub(b + 1)
end

cjson.encode_invalid_numbers(true)
cjson.encode_sparse_array(true)

local function mutation(text)
    if random(6) == 1 then return scramble(text) end
    local tree = cjson.decode(text)
    for _ = 1, random(3) do mutate(tree) end
    local ok, out = pcall(cjson.encode, tree)
    return ok and out or scramble(text)
end

-- Everything that main.lua does up to the programs' text.
local function build()
    local family, c = config.load(folder, FAMILIES, nil)
    local census = checkpoint.synthetic(c.root, "bf16")
    local model = graph.build(family, c, census, ops.scratch, { lanes = 2, window = 2, chunk = 16, tail = 16, max_window = 16 })
    model.name, model.checkpoint, model.command, model.census = "x", "x", "x", census
    model.layout = pack.layout(model.store.list)
    for _, r in ipairs(model.store.list) do
        local e = r.entry
        r.data_offset, r.scale_offset, r.global_offset, r.data_stride, r.scale_stride = e.data_offset, e.scale_offset, e.global_offset,
            e.data_stride, e.scale_stride
        r.bytes = e.bytes
    end
    model.facts = report.facts(model)
    emit_c.programs(model, function(_, text)
        assert(not text:find("%.%w+ = %-?nan") and not text:find("%.%w+ = %-?inf"), "not a number")
    end)
    shapes.text(model.programs)
end

local finish, tries, built, now = os.time() + seconds, 0, 0, seed
while os.time() < finish do
    math.randomseed(now)
    write.text(folder .. "/config.json", mutation(SEEDS[random(#SEEDS)]))
    write.text(folder .. "/generation_config.json", random(3) == 1 and mutation(GENERATION) or GENERATION)
    local start, deadline = os.clock(), os.clock() + 5
    debug.sethook(function() if os.clock() > deadline then error("a try takes longer than 5 seconds") end end, "", 1000000)
    local ok, message = xpcall(build, function(e) return fail.is(e) and e or debug.traceback(tostring(e), 2) end)
    debug.sethook()
    if not ok and not fail.is(message) then
        print(string.format("seed %d: %s\nfiles: %s (%.1f s)", now, message, folder, os.clock() - start))
        os.exit(1)
    end
    if not ok and tostring(message):find("\n") then
        print(string.format("seed %d: more than one line: %s", now, tostring(message)))
        os.exit(1)
    end
    tries, built, now = tries + 1, built + (ok and 1 or 0), now + 1
end
print(string.format("%d tries, %d built", tries, built))
assert(tries > 20 and built > 0 and built < tries, "the mutations are no test")
