#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- The tokenizer from tokenizer.json to ids and back: stored answers of the `tokenizers` library, a slow encoder written apart
-- from it, long and ill-formed input, and what the generator refuses. Run from the repository root.

package.path = "tests/lib/?.lua;gen/?.lua;tests/?.lua;" .. package.path
local cjson = require "cjson"
local tap = require "tap"
local fail = require "fail"
local reference = require "tokenizer_reference"
local tokenizer = require "tokenizer"

local DIR, FIXTURES, EMBEDDED = "build/test/tokenizer", "tests/fixtures/tokenizer/", "models/embedded/tokenizer.json"
local CC = os.getenv("CC") or "cc"
local CFLAGS = os.getenv("CFLAGS") or "-std=gnu11 -O1"

local ok = tap.ok

local function run(command)
    local good, how, code = os.execute(command)
    return good, how == "exit" and code or -1
end
local function must(command)
    if not run(command) then error("failed: " .. command) end
end

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end
local function write(path, text)
    local file = assert(io.open(path, "wb"))
    file:write(text)
    file:close()
end
local function unpacked(path)
    local pipe = assert(io.popen("xz -dc " .. path))
    local text = pipe:read("a")
    assert(pipe:close())
    return text
end

local function hex(text) return (text:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end
local function numbers(list)
    local out = {}
    for i, value in ipairs(list) do out[i] = ("%d"):format(value) end
    return table.concat(out, " ")
end

must("mkdir -p " .. DIR)
for _, source in ipairs {
    "runtime/tokenizer", "runtime/tokenizer_bpe", "runtime/tokenizer_decode", "runtime/tokenizer_text", "tests/tokenizer_lines",
} do
    must(("%s %s -I. -c %s.c -o %s/%s.o"):format(CC, CFLAGS, source, DIR, source:match("[^/]*$")))
end

-- Compiles a tokenizer.json into a line filter and returns its path.
local function build(name, path, config)
    local base = DIR .. "/" .. name:gsub("%W", "_")
    local compiled = tokenizer.compile(path, config)
    tokenizer.emit(compiled, base .. ".c")
    must(("%s %s -I. %s.c %s/tokenizer*.o -o %s -lpcre2-8 -lutf8proc"):format(CC, CFLAGS, base, DIR, base))
    return base, compiled
end

-- One answer for each line.
local function ask(exe, lines)
    write(exe .. ".in", table.concat(lines, "\n") .. "\n")
    must(("timeout 20 %s < %s.in > %s.out"):format(exe, exe, exe))
    local answers = {}
    for line in io.lines(exe .. ".out") do answers[#answers + 1] = line end
    return answers
end

-- Asks all questions and says which answer differs first.
local function agree(name, exe, questions, expected)
    local answers = ask(exe, questions)
    for i, want in ipairs(expected) do
        if answers[i] ~= want then
            return ok(false, name, ("%s\nexpected %s\nfound    %s"):format(questions[i], want, tostring(answers[i])))
        end
    end
    ok(#answers == #expected and #expected > 0, name)
end

local function qwen3()
    write(DIR .. "/qwen3.json", unpacked(FIXTURES .. "qwen3.json.xz"))
    local exe, compiled = build("qwen3", DIR .. "/qwen3.json", FIXTURES .. "qwen3_config.json")
    local cases = cjson.decode(unpacked(FIXTURES .. "qwen3_tokens.json.xz"))
    local encode, decode, stream, ids, text = {}, {}, {}, {}, {}
    for i, case in ipairs(cases) do
        ids[i], text[i] = numbers(case.ids), hex(case.decoded)
        encode[i], decode[i], stream[i] = "S " .. hex(case.text), "D " .. ids[i], "T " .. ids[i]
    end
    ok(#cases == 856, "qwen3: 856 stored strings")
    agree("qwen3: encode", exe, encode, ids)
    agree("qwen3: decode", exe, decode, text)
    agree("qwen3: decode by stream", exe, stream, text)
    ok(#compiled.eos == 1 and compiled.eos[1] == 151645, "qwen3: the end token of tokenizer_config.json")
    agree("qwen3: ids outside the vocabulary", exe, { "D 151669", "T 1 -1", "K 2000000000" }, {
        "! tokenizer: id 151669 is not in the vocabulary of 151669", "22! tokenizer: id -1 is not in the vocabulary of 151669",
        "! tokenizer: id 2000000000 is not in the vocabulary of 151669",
    })
end

local function patched(patch, json)
    for key, value in pairs(patch) do
        if key == "ignore_merges" then json.model[key] = value else json[key] = value end
    end
    return json
end

local function variants()
    for _, variant in ipairs(cjson.decode(read(FIXTURES .. "variants.json"))) do
        local path = DIR .. "/" .. variant.name:gsub("%W", "_") .. ".json"
        write(path, cjson.encode(patched(variant.patch, cjson.decode(read(EMBEDDED)))))
        local exe = build(variant.name, path)
        local questions, expected = {}, {}
        for _, case in ipairs(variant.cases) do
            local ids = numbers(case.ids)
            for question, answer in pairs {
                ["S " .. hex(case.text)] = ids, ["E " .. hex(case.text)] = numbers(case.plain), ["K " .. ids] = hex(case.skipped),
            } do
                questions[#questions + 1], expected[#expected + 1] = question, answer
            end
        end
        agree("variant: " .. variant.name, exe, questions, expected)
    end
end

-- The executables of these variants exist by now.
local function slow_encoder()
    math.randomseed(20250101)
    local json = cjson.decode(read(EMBEDDED))
    for name, options in pairs {
        ["as given"] = { marks = true, nfc = true }, ["no marks in words"] = { nfc = true }, ["no normaliser"] = { marks = true },
    } do
        local encode, questions, expected = reference.new(json, options), {}, {}
        for i = 1, 1500 do
            local codes = reference.random(math.random(40))
            questions[i], expected[i] = "E " .. hex(utf8.char(table.unpack(codes))), numbers(encode(codes))
        end
        agree("slow encoder: " .. name, DIR .. "/" .. name:gsub("%W", "_"), questions, expected)
    end
end

local function ill_formed()
    local exe = DIR .. "/as_given"
    local r = "\u{FFFD}"
    local pairs_of = {
        { "a\xFFb", "a" .. r .. "b" }, { "\xC3", r }, { "\xE2\x82", r }, { "\xE2\x82x", r .. "x" }, { "\xF0\x9F\x98", r },
        { "\xED\xA0\x80", r .. r .. r }, { "\xC0\x80", r .. r }, { "\xF4\x90\x80\x80", r .. r .. r .. r }, { "\x80\x80z", r .. r .. "z" },
        { "\xE0\x80\x80", r .. r .. r }, { "e\xCC", "e" .. r }, { "a\0b", "a\0b" },
        { "<|im_end|>\xF5<|im_end|>", "<|im_end|>" .. r .. "<|im_end|>" },
    }
    local bad, good = {}, {}
    for i, p in ipairs(pairs_of) do bad[i], good[i] = "S " .. hex(p[1]), "S " .. hex(p[2]) end
    agree("ill-formed UTF-8 counts as U+FFFD", exe, bad, ask(exe, good))
    local spelled = ask(exe, { "E " .. hex "<|im_end|>", "S " .. hex "<|im_end|>" })
    ok(#spelled[1] > 10 and spelled[2] == "6137", "special tokens are plain text unless they are asked for")
    for i, p in ipairs(pairs_of) do good[i] = hex(p[2]) end
    for i, answer in ipairs(ask(exe, bad)) do bad[i] = "D " .. answer end
    agree("what was encoded decodes to the repaired text", exe, bad, good)
end

local function long_words()
    local exe, questions, expected = DIR .. "/as_given", {}, {}
    for i, text in ipairs {
        ("a"):rep(200000), (" "):rep(200000), ("\n"):rep(200000), ("ab"):rep(100000), ("<|im_start"):rep(20000),
        ("\u{301}\u{323}"):rep(50000),
        ("\u{301}"):rep(50000) .. ("\u{323}"):rep(50000), (" \n"):rep(100000), ("1"):rep(200000),
    } do
        questions[i] = "E " .. hex(text)
        expected[i] = text
    end
    local decode = {}
    for i, answer in ipairs(ask(exe, questions)) do decode[i] = "D " .. answer end
    -- The marks come back in canonical order.
    expected[6] = ("\u{323}"):rep(50000) .. ("\u{301}"):rep(50000)
    expected[7] = expected[6]
    for i, text in ipairs(expected) do expected[i] = hex(text) end
    agree("long runs of one kind take linear time and come back", exe, decode, expected)
end

local function toy()
    local json = {
        model = { type = "BPE", vocab = {}, merges = { "a b", { "ab", "c" } } },
        added_tokens = { { id = 258, content = "<x>", special = true } },
        normalizer = { type = "NFC" }, decoder = { type = "ByteLevel" },
        pre_tokenizer = { type = "ByteLevel", add_prefix_space = false },
    }
    local after = 256
    for byte = 0, 255 do
        local plain = byte > 32 and byte < 127 or byte > 160 and byte ~= 173
        json.model.vocab[utf8.char(plain and byte or after)] = byte
        if not plain then after = after + 1 end
    end
    json.model.vocab.ab, json.model.vocab.abc = 256, 257
    return json
end

local function refused(name, change, message, config)
    local json, path, config_path = toy(), DIR .. "/toy.json", config and DIR .. "/toy_config.json"
    local text = change(json)
    write(path, text or cjson.encode(json))
    if config then write(config_path, config) end
    local good, problem = pcall(tokenizer.compile, path, config_path)
    local said = tostring(problem)
    if message == nil then return ok(good, "accepted: " .. name, said) end
    ok(not good and fail.is(problem) and said:find(message, 1, true) and not said:find("\n"), "refused: " .. name, said)
end

local function pattern(source)
    return function(j)
        j.pre_tokenizer = { type = "Sequence", pretokenizers = {
            { type = "Split", pattern = { Regex = source }, behavior = "Isolated" },
            { type = "ByteLevel", add_prefix_space = false, use_regex = false },
        } }
    end
end

local function refusals()
    refused("the toy itself", function() end, nil)
    refused("not JSON", function() return "{" end, "toy.json: not JSON")
    refused("a list", function() return "3" end, "expected an object, found 3")
    refused("deep nesting", function() return ("["):rep(10000) end, "not JSON")
    refused("no model", function(j) j.model = nil end, "key model is missing")
    refused("another model", function(j) j.model.type = "Unigram" end, 'model.type: "Unigram" is not supported')
    refused("two tokens with one id", function(j) j.model.vocab.ab = 257 end, 'id 257 is given to both "ab" and "abc"')
    refused("a huge id", function(j) j.model.vocab.ab = 1e15 end, 'model.vocab["ab"]: expected a token id')
    refused("a negative id", function(j) j.model.vocab.ab = -1 end, "expected a token id")
    refused("a fractional id", function(j) j.model.vocab.ab = 1.5 end, "expected a token id")
    refused("a byte without a token", function(j) j.model.vocab.q = nil end, "byte 0x71 has no token")
    refused("a token of 5000 bytes", function(j) j.model.vocab[("y"):rep(5000)] = 300 end, "at most 4096 are supported")
    refused("a merge of an unknown token", function(j) j.model.merges[1] = "a zz" end, 'merges[0]: "zz" is not in the vocabulary')
    refused("a merge into an unknown token", function(j) j.model.merges[1] = { "b", "a" } end, '"ba" is not in the vocabulary')
    refused("a merge of three", function(j) j.model.merges[1] = "a b c" end, 'expected "left right"')
    refused("merges in an object", function(j) j.model.merges = { x = 1 } end, "expected a list")
    refused("byte fallback", function(j) j.model.byte_fallback = true end, "byte_fallback")
    refused("a suffix", function(j) j.model.end_of_word_suffix = "</w>" end, "end_of_word_suffix")
    refused("an added id in use", function(j) j.added_tokens[1].id = 5 end, "id 5 of \"<x>\" is taken")
    refused("an added token with two ids", function(j) j.added_tokens[1].content = "ab" end, "has id 258 here and 256 in model.vocab")
    refused("an added token twice", function(j) j.added_tokens[2] = { id = 259, content = "<x>" } end, "is added twice")
    refused("an empty added token", function(j) j.added_tokens[1].content = "" end, "is empty")
    refused("a flag that is no boolean", function(j) j.added_tokens[1].lstrip = "yes" end, "lstrip: expected a boolean")
    refused("another normaliser", function(j) j.normalizer.type = "NFKC" end, '"NFKC" is not supported')
    refused("another decoder", function(j) j.decoder.type = "WordPiece" end, '"WordPiece" is not supported')
    refused("another post-processor", function(j) j.post_processor = { type = "Bert" } end, '"Bert" is not supported')
    refused("another pre-tokenizer", function(j) j.pre_tokenizer.type = "Metaspace" end, '"Metaspace" is not supported')
    refused("a prefix space", function(j) j.pre_tokenizer.add_prefix_space = true end, "only false is supported")
    for _, bad in ipairs {
        "(", ")", "[", "[]", "a**", "*", "(?<=a)b", "a|\\", "\\p{Foo}", "[a[b]]", "[a&&b]", "^a", "\\w", "\\1", "[z-a]", "(?x:a)", "a{5,2}",
    } do
        refused("pattern " .. bad, pattern(bad), "pre-tokenizer pattern, byte")
    end
    refused("pattern (a|b)?+[\\S\\-]{2,3}?(?i:\\u0041)", pattern("(a|b)?+[\\S\\-]{2,3}?(?i:\\u0041)"), nil)
    local function same() end
    refused("an unknown end token", same, 'eos_token: "<y>" is not in the tokenizer', '{"eos_token":"<y>"}')
    refused("an end token by object", same, nil, '{"eos_token":{"content":"<x>"}}')
    refused("another id in the configuration", same, "is added twice", '{"added_tokens_decoder":{"300":{"content":"<x>"}}}')
    refused("an id that is no number", same, "expected a token id", '{"added_tokens_decoder":{"x":{"content":"<y>"}}}')
end

local function command_line()
    local out = DIR .. "/never.c"
    os.remove(out)
    write(DIR .. "/bad.json", "{}")
    local _, code = run(("lua5.4 gen/tokenizer.lua %s/bad.json %s 2> %s/message"):format(DIR, out, DIR))
    ok(code == 2 and select(2, read(DIR .. "/message"):gsub("\n", "")) == 1, "stand-alone: bad input is one line and exit code 2")
    ok(not io.open(out) and not io.open(out .. ".tmp"), "stand-alone: no file is left behind")
    tokenizer.emit_none(DIR .. "/none.c")
    must(("%s %s -I. %s/none.c %s/tokenizer*.o -o %s/none -lpcre2-8 -lutf8proc"):format(CC, CFLAGS, DIR, DIR, DIR))
    _, code = run(("%s/none < /dev/null 2> %s/message"):format(DIR, DIR))
    ok(code == 2 and read(DIR .. "/message"):find("this build has no tokenizer", 1, true), "a build without a tokenizer says so")
    tokenizer.emit(tokenizer.compile(EMBEDDED), DIR .. "/again.c")
    local first = read(DIR .. "/again.c")
    must(("lua5.4 gen/tokenizer.lua %s %s/again.c"):format(EMBEDDED, DIR))
    ok(first == read(DIR .. "/again.c"), "the same input gives the same tables")
end

qwen3()
variants()
slow_encoder()
ill_formed()
long_words()
refusals()
command_line()
tap.done()
