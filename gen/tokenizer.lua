-- SPDX-License-Identifier: Apache-2.0
--
-- tokenizer.json (byte-level BPE) to one C source of constant tables. compile() reads and checks everything; emit() writes what
-- runtime/tokenizer.h declares. Invariant: what the tables cannot express exactly stops the build with one line that names the key.
--
-- Stand-alone: lua5.4 gen/tokenizer.lua TOKENIZER.json OUT.c [TOKENIZER_CONFIG.json]

local STANDALONE = arg and arg[0] and arg[0]:find("tokenizer%.lua$") and (...) ~= "tokenizer"
if STANDALONE then package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path end

local cjson = require "cjson"
local fail = require "fail"
local regex = require "tokenizer_regex"

local tokenizer = {}

local MAX_FILE = 1 << 28
local MAX_IDS = 1 << 21
local MAX_MERGES = 1 << 22
local MAX_TOKEN = 4096 -- TOKENIZER_TOKEN_BYTES
local MAX_SPLITS = 16
local FLAGS = { { "special", 1 }, { "normalized", 2 }, { "lstrip", 4 }, { "rstrip", 8 }, { "single_word", 16 } }
-- The split that ByteLevel makes by itself.
local GPT2 = [['s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+]]

-- Text from the file as it may stand in a one-line message.
local function show(value)
    if value == cjson.null then value = nil end
    if type(value) == "table" then return "a list or object" end
    local text = tostring(value):gsub("[^\x21-\x7e ]", function(c) return ("\\x%02x"):format(c:byte()) end)
    if #text > 60 then text = text:sub(1, 60) .. "..." end
    return type(value) == "string" and '"' .. text .. '"' or text
end

-- The member of an object, nil where absent or null; another type than `kind` is an error.
local function member(object, key, kind, where)
    local value = object[key]
    if value == nil or value == cjson.null then return nil end
    if type(value) ~= kind then fail("%s.%s: expected a %s, found %s", where, key, kind, show(value)) end
    return value
end

local function needed(object, key, kind, where)
    local value = member(object, key, kind, where)
    if value == nil then fail("%s: key %s is missing", where, key) end
    return value
end

local function list(value, where)
    local count = 0
    for _ in pairs(value) do count = count + 1 end
    if count ~= #value then fail("%s: expected a list, found an object", where) end
    return value
end

local function token_id(value, where)
    local id = type(value) == "number" and math.tointeger(value)
    if not id or id < 0 or id >= MAX_IDS then
        fail("%s: expected a token id in 0..%d, found %s", where, MAX_IDS - 1, show(value))
    end
    return id
end

local function read_json(path)
    local file, reason = io.open(path, "rb")
    if not file then fail("%s: cannot be opened: %s", path, tostring(reason):gsub("^.*: ", "")) end
    local text = file:read(MAX_FILE + 1)
    file:close()
    if not text then fail("%s: is empty or cannot be read", path) end
    if #text > MAX_FILE then fail("%s: larger than %d bytes", path, MAX_FILE) end
    local json = cjson.new()
    json.decode_invalid_numbers(false)
    json.decode_max_depth(64)
    local ok, value = pcall(json.decode, text)
    if not ok then fail("%s: not JSON: %s", path, show(value)) end
    if type(value) ~= "table" then fail("%s: expected an object, found %s", path, show(value)) end
    return value
end

-- The alphabet of byte-level vocabularies: printable Latin-1 stands for itself, the other bytes for U+0100 onwards in order.
local byte_of, char_of = {}, {}
do
    local next_code = 256
    for byte = 0, 255 do
        local code = byte
        if not (byte >= 33 and byte <= 126 or byte >= 161 and byte ~= 173) then
            code, next_code = next_code, next_code + 1
        end
        char_of[byte] = utf8.char(code)
        byte_of[char_of[byte]] = string.char(byte)
    end
end

-- The bytes that a vocabulary entry decodes to: through the alphabet, or as it stands where a character is outside of it.
local outside = false
setmetatable(byte_of, { __index = function() outside = true end })
local function bytes_of(entry)
    outside = entry:find("[%c ]") ~= nil
    local bytes = entry:gsub("[\xC2-\xF4][\x80-\xBF]*", byte_of)
    if outside then return entry, false end
    return bytes, true
end

local function check_entry(entry, where)
    if entry == "" then fail("%s: an entry is empty", where) end
    if #entry > 2 * MAX_TOKEN or not utf8.len(entry) then
        fail("%s: entry %s is too long or not valid UTF-8", where, show(entry))
    end
end

local function add_token(result, entry, id, where)
    local bytes, mapped = bytes_of(entry)
    if #bytes > MAX_TOKEN then fail("%s: token %d is %d bytes long, at most %d are supported", where, id, #bytes, MAX_TOKEN) end
    result.tokens[id] = bytes
    if mapped then result.mapped[id] = true end
    if id >= result.vocabulary then result.vocabulary = id + 1 end
end

local function read_vocabulary(result, model, where)
    local vocab, entry_of = needed(model, "vocab", "table", where), {}
    result.id_of = {}
    where = where .. ".vocab"
    for entry, value in pairs(vocab) do
        if type(entry) ~= "string" then fail("%s: expected an object, found a list", where) end
        check_entry(entry, where)
        local id = token_id(value, where .. "[" .. show(entry) .. "]")
        if entry_of[id] then
            local first, second = entry_of[id], entry
            if second < first then first, second = second, first end
            fail("%s: id %d is given to both %s and %s", where, id, show(first), show(second))
        end
        entry_of[id] = entry
        result.id_of[entry] = id
        add_token(result, entry, id, where)
    end
    result.byte_id = {}
    for byte = 0, 255 do
        local id = result.id_of[char_of[byte]]
        if not id then fail("%s: byte 0x%02x has no token (%s), so this is not a byte-level vocabulary", where, byte, char_of[byte]) end
        result.byte_id[byte + 1] = id
    end
end

local function halves(merge, where)
    if type(merge) == "table" then
        if #merge == 2 and type(merge[1]) == "string" and type(merge[2]) == "string" then return merge[1], merge[2] end
    elseif type(merge) == "string" then
        local left, right = merge:match("^([^ ]+) ([^ ]+)$")
        if left then return left, right end
    end
    return fail('%s: expected "left right" or ["left","right"], found %s', where, show(merge))
end

local function read_merges(result, model, where)
    local merges = list(needed(model, "merges", "table", where), where .. ".merges")
    if #merges > MAX_MERGES then fail("%s.merges: more than %d", where, MAX_MERGES) end
    local id_of, flat = result.id_of, {}
    for i, merge in ipairs(merges) do
        local place = where .. ".merges[" .. i - 1 .. "]"
        local left, right = halves(merge, place)
        for _, part in ipairs { left, right, left .. right } do
            if not id_of[part] then fail("%s: %s is not in the vocabulary", place, show(part)) end
        end
        flat[3 * i - 2], flat[3 * i - 1], flat[3 * i] = id_of[left], id_of[right], id_of[left .. right]
    end
    result.merge, result.merges = flat, #merges
end

local function read_model(result, json, path)
    local model, where = needed(json, "model", "table", path), path .. ": model"
    local kind = needed(model, "type", "string", where)
    if kind ~= "BPE" then fail("%s.type: %s is not supported, only BPE is", where, show(kind)) end
    for _, key in ipairs { "continuing_subword_prefix", "end_of_word_suffix" } do
        if (member(model, key, "string", where) or "") ~= "" then fail("%s.%s: only an empty one is supported", where, key) end
    end
    if (member(model, "dropout", "number", where) or 0) ~= 0 then fail("%s.dropout: only 0 or null is supported", where) end
    if member(model, "byte_fallback", "boolean", where) then fail("%s.byte_fallback: true is not supported", where) end
    result.ignore_merges = member(model, "ignore_merges", "boolean", where) or false
    read_vocabulary(result, model, where)
    read_merges(result, model, where)
end

-- One added token; `strict` refuses a content that is there already, otherwise its flags are replaced.
local function add_added(result, entry, id, where, strict)
    if type(entry) ~= "table" then fail("%s: expected an object, found %s", where, show(entry)) end
    local content = needed(entry, "content", "string", where)
    check_entry(content, where .. ".content")
    if #content > MAX_TOKEN then fail("%s.content: longer than %d bytes", where, MAX_TOKEN) end
    local flags, special = 0, member(entry, "special", "boolean", where) or false
    for _, flag in ipairs(FLAGS) do
        local on = member(entry, flag[1], "boolean", where)
        if on == nil then on = flag[1] == "normalized" and not special end
        if on then flags = flags | flag[2] end
    end
    local known = result.added_of[content]
    if known and (strict or known.id ~= id) then fail("%s: %s is added twice", where, show(content)) end
    if known then
        known.flags = flags
        return
    end
    local own = result.id_of[content]
    if own and own ~= id then fail("%s: %s has id %d here and %d in model.vocab", where, show(content), id, own) end
    if not own and result.tokens[id] then fail("%s: id %d of %s is taken by another token", where, id, show(content)) end
    add_token(result, content, id, where)
    local added = { text = content, id = id, flags = flags }
    result.added_of[content] = added
    result.added[#result.added + 1] = added
end

local function read_added(result, json, path)
    result.added, result.added_of = {}, {}
    local where = path .. ": added_tokens"
    for i, entry in ipairs(list(member(json, "added_tokens", "table", path) or {}, where)) do
        local place = where .. "[" .. i - 1 .. "]"
        if type(entry) ~= "table" then fail("%s: expected an object, found %s", place, show(entry)) end
        add_added(result, entry, token_id(entry.id, place .. ".id"), place, true)
    end
end

local function read_normalizer(result, normalizer, where)
    if not normalizer then return end
    local kind = needed(normalizer, "type", "string", where)
    if kind == "NFC" then
        result.nfc = true
    elseif kind == "Sequence" then
        for _, part in ipairs(list(needed(normalizer, "normalizers", "table", where), where)) do
            if type(part) ~= "table" or part.type ~= "NFC" then fail("%s: only NFC is supported in a Sequence", where) end
            result.nfc = true
        end
    else
        fail("%s.type: %s is not supported, only NFC or null is", where, show(kind))
    end
end

local readers = {}

function readers.ByteLevel(part, where)
    if member(part, "add_prefix_space", "boolean", where) ~= false then fail("%s.add_prefix_space: only false is supported", where) end
    if member(part, "use_regex", "boolean", where) ~= false then return regex.translate(GPT2, where) end
end

function readers.Split(part, where)
    local pattern, behavior = needed(part, "pattern", "table", where), needed(part, "behavior", "string", where)
    if behavior ~= "Isolated" then fail("%s.behavior: %s is not supported, only Isolated is", where, show(behavior)) end
    local source = member(pattern, "Regex", "string", where .. ".pattern")
    if source then return regex.translate(source, where) end
    return regex.literal(needed(pattern, "String", "string", where .. ".pattern"), where)
end

function readers.Digits(part, where)
    return regex.translate(member(part, "individual_digits", "boolean", where) and "\\p{N}" or "\\p{N}+", where)
end

local function read_pre_tokenizer(result, json, path)
    local pre, where = needed(json, "pre_tokenizer", "table", path), path .. ": pre_tokenizer"
    local parts = { pre }
    if pre.type == "Sequence" then parts = list(needed(pre, "pretokenizers", "table", where), where .. ".pretokenizers") end
    if #parts > MAX_SPLITS then fail("%s: more than %d parts", where, MAX_SPLITS) end
    result.split = {}
    for i, part in ipairs(parts) do
        local place = parts[1] == pre and where or where .. ".pretokenizers[" .. i - 1 .. "]"
        if type(part) ~= "table" then fail("%s: expected an object, found %s", place, show(part)) end
        local kind = needed(part, "type", "string", place)
        if not readers[kind] then fail("%s.type: %s is not supported", place, show(kind)) end
        if (kind == "ByteLevel") ~= (i == #parts) then fail("%s: ByteLevel must come once and last", place) end
        result.split[#result.split + 1] = readers[kind](part, place)
    end
    if #parts == 0 then fail("%s: ByteLevel is missing", where) end
end

local function only(part, where, key, kinds)
    local kind = needed(part, "type", "string", where)
    if kind == "Sequence" then
        for _, inner in ipairs(list(needed(part, key, "table", where), where)) do
            if type(inner) ~= "table" or not kinds[inner.type] then fail("%s: a part of the Sequence is not supported", where) end
        end
    elseif not kinds[kind] then
        fail("%s.type: %s is not supported", where, show(kind))
    end
end

-- The id of a token that the configuration names by its text or by an object with its content.
local function named(result, config, key, path)
    local value = config[key]
    if value == nil or value == cjson.null then return nil end
    local where = path .. ": " .. key
    if type(value) == "table" then value = needed(value, "content", "string", where) end
    if type(value) ~= "string" then fail("%s: expected a string, found %s", where, show(value)) end
    local id = result.added_of[value] and result.added_of[value].id or result.id_of[value]
    if not id then fail("%s: %s is not in the tokenizer", where, show(value)) end
    return id
end

local function read_config(result, path)
    local config = read_json(path)
    local decoder, ids = member(config, "added_tokens_decoder", "table", path .. ": top level") or {}, {}
    for key in pairs(decoder) do
        if type(key) ~= "string" then fail("%s: added_tokens_decoder: expected an object, found a list", path) end
        ids[#ids + 1] = key
    end
    table.sort(ids, function(a, b) return #a < #b or #a == #b and a < b end)
    for _, key in ipairs(ids) do
        local where = path .. ": added_tokens_decoder[" .. show(key) .. "]"
        add_added(result, decoder[key], token_id(key:find("^%d+$") and tonumber(key), where), where, false)
    end
    result.eos[1] = named(result, config, "eos_token", path)
    if config.add_bos_token == true then result.bos = named(result, config, "bos_token", path) or -1 end
end

-- Reads and checks `path`, and `config_path` (tokenizer_config.json) where given. Returns tables for emit(); any fault is a
-- fail(). Fields of interest to others: vocabulary, tokens[id] (bytes), id_of[entry], added (text, id, flags), eos, bos.
function tokenizer.compile(path, config_path)
    local json = read_json(path)
    local result = { path = path, vocabulary = 0, tokens = {}, mapped = {}, eos = {}, bos = -1, nfc = false }
    read_normalizer(result, member(json, "normalizer", "table", path), path .. ": normalizer")
    read_pre_tokenizer(result, json, path)
    only(needed(json, "decoder", "table", path), path .. ": decoder", "decoders", { ByteLevel = true })
    local post = member(json, "post_processor", "table", path)
    if post then only(post, path .. ": post_processor", "processors", { ByteLevel = true, TemplateProcessing = true }) end
    read_model(result, json, path)
    read_added(result, json, path)
    if config_path then read_config(result, config_path) end
    return result
end

local GOLDEN = 0x9E3779B97F4A7C15

local function bits_for(count)
    local bits = 4
    while 1 << bits < count + count // 2 do bits = bits + 1 end
    return bits
end

local function filled(size)
    local slots = {}
    for i = 1, size do slots[i] = -1 end
    return slots
end

-- Open addressing over ranks; of equal pairs the last one counts.
local function merge_slots(compiled)
    local bits, merge = bits_for(compiled.merges), compiled.merge
    local slots, mask = filled(1 << bits), (1 << bits) - 1
    for rank = 0, compiled.merges - 1 do
        local left, right = merge[3 * rank + 1], merge[3 * rank + 2]
        local slot = (left << 32 | right) * GOLDEN >> (64 - bits)
        while true do
            local held = slots[slot + 1]
            if held < 0 or merge[3 * held + 1] == left and merge[3 * held + 2] == right then break end
            slot = slot + 1 & mask
        end
        slots[slot + 1] = rank
    end
    return slots, bits
end

-- Open addressing over the ids of the model's own vocabulary, by the bytes of the token.
local function word_slots(compiled)
    local ids = {}
    for _, id in pairs(compiled.id_of) do
        if compiled.mapped[id] then ids[#ids + 1] = id end
    end
    table.sort(ids)
    local bits = bits_for(#ids)
    local slots, mask = filled(1 << bits), (1 << bits) - 1
    for _, id in ipairs(ids) do
        local hash = 0xCBF29CE484222325
        for i = 1, #compiled.tokens[id] do hash = (hash ~ compiled.tokens[id]:byte(i)) * 0x100000001B3 end
        local slot = hash * GOLDEN >> (64 - bits)
        while slots[slot + 1] >= 0 do slot = slot + 1 & mask end
        slots[slot + 1] = id
    end
    return slots, bits
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["?"] = "\\?" }
for byte = 0, 255 do
    if byte < 32 or byte > 126 then escapes[string.char(byte)] = ("\\%03o"):format(byte) end
end
local function c_string(text)
    return '"' .. text:gsub('[%c\x7f-\xff"\\?]', escapes) .. '"'
end

local function write_numbers(out, name, kind, values)
    out:write("static const ", kind, " ", name, "[", math.max(#values, 1), "] = {\n")
    for i = 1, #values, 16 do out:write(table.concat(values, ",", i, math.min(i + 15, #values)), ",\n") end
    if #values == 0 then out:write("0\n") end
    out:write("};\n\n")
end

local function write_tokens(out, compiled)
    local offset, at, line = { 0 }, 0, {}
    out:write("// the bytes of all tokens, eight a line\nstatic const char bytes[] =\n")
    for id = 0, compiled.vocabulary - 1 do
        local bytes = compiled.tokens[id] or ""
        at = at + #bytes
        offset[id + 2] = at
        line[#line + 1] = bytes
        if #line == 8 or id == compiled.vocabulary - 1 then
            out:write(c_string(table.concat(line)), "\n")
            line = {}
        end
    end
    out:write(";\n\n// where the bytes of a token begin\n")
    write_numbers(out, "offset", "uint32_t", offset)
end

local function write_added(out, compiled)
    out:write("static const struct tokenizer_added added[", math.max(#compiled.added, 1), "] = {\n")
    for _, token in ipairs(compiled.added) do
        out:write(("{%s, %d, %d, %d},\n"):format(c_string(token.text), #token.text, token.id, token.flags))
    end
    if #compiled.added == 0 then out:write('{"", 0, 0, 0}\n') end
    out:write("};\n\nstatic const char *const split[", math.max(#compiled.split, 1), "] = {\n")
    for _, pattern in ipairs(compiled.split) do out:write(c_string(pattern), ",\n") end
    if #compiled.split == 0 then out:write('""\n') end
    out:write("};\n\n")
end

-- Runs write(file) on a temporary name beside `path`, then renames: `path` is complete or untouched.
local function write_file(path, write)
    local temporary = path .. ".tmp"
    local out, reason = io.open(temporary, "wb")
    if not out then fail("%s: cannot be written: %s", path, tostring(reason):gsub("^.*: ", "")) end
    out:write("// SPDX-License-Identifier: Apache-2.0\n//\n",
        "// Written by gen/tokenizer.lua; runtime/tokenizer.h says what the tables mean.\n\n",
        '#include "runtime/tokenizer.h"\n\n')
    write(out)
    local good = out:flush()
    good = out:close() and good and os.rename(temporary, path)
    if not good then
        os.remove(temporary)
        fail("%s: cannot be written: is the disk full?", path)
    end
end

-- Writes the C source that defines tokenizer_tables.
function tokenizer.emit(compiled, c_path)
    write_file(c_path, function(out)
        local slots, bits = merge_slots(compiled)
        local words, word_bits
        if compiled.ignore_merges then words, word_bits = word_slots(compiled) end
        out:write("// from ", (compiled.path:match("[^/]*$"):gsub("[^%w._-]", "_")), ": ", compiled.vocabulary, " ids, ",
            compiled.merges, " merges, ", #compiled.added, " added tokens\n\n")
        write_tokens(out, compiled)
        write_numbers(out, "byte_id", "int32_t", compiled.byte_id)
        out:write("// left, right, joined; by rank\n")
        write_numbers(out, "merge", "int32_t", compiled.merge)
        write_numbers(out, "merge_slot", "int32_t", slots)
        if words then write_numbers(out, "word_slot", "int32_t", words) end
        write_added(out, compiled)
        write_numbers(out, "eos", "int32_t", compiled.eos)
        out:write("const struct tokenizer_tables tokenizer_tables = {\n")
        for _, line in ipairs {
            ".vocabulary = " .. compiled.vocabulary, ".offset = offset", ".bytes = bytes", ".byte_id = byte_id", ".merge = merge",
            ".merge_slot = merge_slot", ".word_slot = " .. (words and "word_slot" or "NULL"), ".added = added", ".split = split",
            ".eos = eos", ".merges = " .. compiled.merges, ".merge_bits = " .. bits, ".word_bits = " .. (word_bits or 0),
            ".added_count = " .. #compiled.added, ".split_count = " .. #compiled.split, ".eos_count = " .. #compiled.eos,
            ".bos = " .. compiled.bos, ".nfc = " .. tostring(compiled.nfc),
        } do
            out:write("    ", line, ",\n")
        end
        out:write("};\n")
    end)
end

-- Writes the C source of a build without a tokenizer: opening it says so.
function tokenizer.emit_none(c_path)
    write_file(c_path, function(out)
        out:write("const struct tokenizer_tables tokenizer_tables = {.vocabulary = 0, .bos = -1};\n")
    end)
end

if STANDALONE then
    local ok, problem = xpcall(function()
        if #arg < 2 or #arg > 3 then fail("usage: lua5.4 gen/tokenizer.lua TOKENIZER.json OUT.c [TOKENIZER_CONFIG.json]") end
        tokenizer.emit(tokenizer.compile(arg[1], arg[3]), arg[2])
    end, function(e) return fail.is(e) and e or debug.traceback(e) end)
    if not ok then
        io.stderr:write(tostring(problem), "\n")
        os.exit(fail.is(problem) and 2 or 1)
    end
end

return tokenizer
