-- SPDX-License-Identifier: Apache-2.0
--
-- lua5.4 tests/fuzz/tokenizer_json.lua [seconds] [seed]: mutated tokenizer.json and tokenizer_config.json, from the repository
-- root. Invariant: compiling either works, and then the tables can be written, or ends in fail() with one line; no other error,
-- no try longer than two seconds, no output of a failed try. Prints the seed of the first violation and leaves its file behind.

package.path = "gen/?.lua;" .. package.path
local cjson = require "cjson"
local fail = require "fail"
local tokenizer = require "tokenizer"

local seconds <const>, seed <const> = tonumber(arg[1]) or 10, math.tointeger(tonumber(arg[2])) or 1
local folder <const> = "build/tests/fuzz"
os.execute("mkdir -p " .. folder)
local random <const> = math.random

local function base()
    local json = {
        version = "1.0",
        model = { type = "BPE", dropout = cjson.null, vocab = {}, merges = { "a b", { "ab", "c" }, { "Ġ", "a" } }, ignore_merges = true },
        added_tokens = {
            { id = 259, content = "<x>", special = true, lstrip = false, rstrip = false, normalized = false, single_word = false },
            { id = 260, content = "<y>", special = false, lstrip = true, rstrip = true, normalized = true, single_word = true },
        },
        normalizer = { type = "Sequence", normalizers = { { type = "NFC" } } },
        pre_tokenizer = { type = "Sequence", pretokenizers = {
            { type = "Split", behavior = "Isolated", invert = false,
              pattern = { Regex = [[(?i:'s|'t)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}]+[\r\n]*|\s+(?!\S)|\s+]] } },
            { type = "Digits", individual_digits = true },
            { type = "ByteLevel", add_prefix_space = false, trim_offsets = false, use_regex = false },
        } },
        post_processor = { type = "ByteLevel" }, decoder = { type = "ByteLevel" },
    }
    local after = 256
    for byte = 0, 255 do
        local plain = byte > 32 and byte < 127 or byte > 160 and byte ~= 173
        json.model.vocab[utf8.char(plain and byte or after)] = byte
        if not plain then after = after + 1 end
    end
    json.model.vocab.ab, json.model.vocab.abc, json.model.vocab["Ġa"] = 256, 257, 258
    return json
end

local function settings()
    return {
        eos_token = { content = "<x>" }, bos_token = "<y>", add_bos_token = true,
        added_tokens_decoder = { ["259"] = { content = "<x>", special = true }, ["261"] = { content = "<z>" } },
    }
end

local function deep(levels)
    local value = {}
    for _ = 1, levels do value = { value } end
    return value
end

local STRINGS <const> = {
    "", "a", "<x>", "BPE", "NFC", "Sequence", "ByteLevel", "Split", "Digits", "a b", "a  b", "\0", "\xFF\xFE", "\xED\xA0\x80", "Ġ", "é\n",
    ("z"):rep(5000), "[", "(((((", "\\", "\\p{", "{,}", "a{1001}", "(?i)", "[^]", "\\x{110000}", "\\u", "%s%d", "\u{10FFFF}",
}
local function anything()
    local what = random(9)
    if what == 1 then return STRINGS[random(#STRINGS)] end
    if what == 2 then return ({ 0, -1, 1.5, 2097151, 2097152, 1e300, 9007199254740993, -1e18, 255, 259 })[random(10)] end
    if what == 3 then return random(2) == 1 end
    if what == 4 then return cjson.null end
    if what == 5 then return {} end
    if what == 6 then return deep(random(100)) end
    if what == 7 then return { type = STRINGS[random(#STRINGS)] } end
    if what == 8 then return { STRINGS[random(#STRINGS)], STRINGS[random(#STRINGS)] } end
    return random(300)
end

-- A random place: its table and key. Keys are sorted, so that a seed always gives the same tries.
local function place(value)
    local object = value
    repeat
        local keys = {}
        for k in pairs(object) do keys[#keys + 1] = k end
        if #keys == 0 then return object, "new" end
        table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
        local key = keys[random(#keys)]
        if type(object[key]) ~= "table" or random(4) == 1 then return object, key end
        object = object[key]
    until false
end

local function splice(text)
    local at = random(#text + 1)
    return text:sub(1, at - 1) .. STRINGS[random(#STRINGS)] .. text:sub(at + random(0, 3))
end

local function mutate(json)
    for _ = 1, random(3) do
        local object, key = place(json)
        local what = random(6)
        if what == 1 then
            object[key] = nil
        elseif what == 2 and type(object[key]) == "string" then
            object[key] = splice(object[key])
        elseif what == 3 then
            object[STRINGS[random(#STRINGS)]] = anything()
        elseif what == 4 then
            local other, name = place(json)
            object[key] = cjson.decode(cjson.encode { other[name] })[1]
        else
            object[key] = anything()
        end
    end
    return json
end

local function encoded(json)
    local text = cjson.encode(json)
    local what = random(8)
    if what == 1 then return text:sub(1, random(0, #text)) end
    if what == 2 then return splice(text) end
    if what == 3 then
        local at = random(#text)
        return text:sub(1, at - 1) .. string.char(random(0, 255)) .. text:sub(at + 1)
    end
    return text
end

local function write(path, text)
    local file <close> = assert(io.open(path, "wb"))
    file:write(text)
end

local function exists(path)
    local file = io.open(path)
    if file then file:close() end
    return file ~= nil
end

local PATH <const>, CONFIG <const>, OUT <const> = folder .. "/tokenizer.json", folder .. "/tokenizer_config.json", folder .. "/tokenizer.c"

local function try(number)
    math.randomseed(seed, number)
    local json, config = base(), settings()
    if random(4) == 1 then mutate(config) else mutate(json) end
    -- A mixed table or a copied part may not be JSON at all; such a try counts for nothing.
    local good, text = pcall(encoded, json)
    local good_config, config_text = pcall(encoded, config)
    if not good or not good_config then return nil end
    write(PATH, text)
    write(CONFIG, config_text)
    os.remove(OUT)
    local started = os.clock()
    local done, problem = pcall(function() tokenizer.emit(tokenizer.compile(PATH, random(2) == 1 and CONFIG or nil), OUT) end)
    local took = os.clock() - started
    local sound = done and exists(OUT) or fail.is(problem) and not tostring(problem):find("\n") and not exists(OUT)
    if not sound or took > 2 or exists(OUT .. ".tmp") then
        print(("violation: seed %d, try %d, %.2f s: %s; see %s and %s"):format(seed, number, took, tostring(problem), PATH, CONFIG))
        os.exit(1)
    end
    return done
end

local stop <const> = os.time() + seconds
local tries, accepted, refused = 0, 0, 0
while os.time() < stop do
    tries = tries + 1
    local done = try(tries)
    if done then accepted = accepted + 1 elseif done == false then refused = refused + 1 end
end
print(("tokenizer_json: %d tries, %d accepted, %d refused"):format(tries, accepted, refused))
