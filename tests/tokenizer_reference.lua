-- SPDX-License-Identifier: Apache-2.0
--
-- A slow encoder to compare the tokenizer with, written apart from it: its own normaliser over a few listed characters, the
-- pre-tokenizer rule as plain code, and merging by scanning strings. Only characters of `alphabet` may be given to it.

local reference = {}

local class, decomposition, order, composition, alphabet = {}, {}, {}, {}, {}

local function add(kind, text)
    for _, code in utf8.codes(text) do
        if not class[code] then alphabet[#alphabet + 1] = code end
        class[code] = kind
    end
end
add("L", "abcdlmrestvuoABCDLMRESTVUOXYZéáöüǘẹžйкאבשابآกขคकखगअ中文日語かカ가각나한각\u{11A7}ßſ")
add("L", "\u{212B}\u{C5}\u{958}\u{FB2A}")
add("M", "\u{301}\u{323}\u{308}\u{30A}\u{30C}\u{5B7}\u{5BC}\u{5C1}\u{64E}\u{651}\u{653}\u{93C}\u{93F}\u{94D}\u{E31}\u{E48}\u{FE0F}")
add("N", "0123456789٣१๒①½Ⅷ")
add("S", " \t\n\r\u{A0}\u{2028}\u{3000}\u{85}")
add("O", "!'.,<|>(){}_-/€😀👩👧🏽🇨🇭“”、\u{200D}\u{180E}\u{200B}")

local function mark(class_number, ...)
    for _, code in ipairs { ... } do order[code] = class_number end
end
mark(230, 0x301, 0x308, 0x30A, 0x30C, 0x653)
mark(220, 0x323)
mark(17, 0x5B7)
mark(21, 0x5BC)
mark(24, 0x5C1)
mark(30, 0x64E)
mark(33, 0x651)
mark(7, 0x93C)
mark(9, 0x94D)
mark(107, 0xE48)

local function pair(whole, first, second, excluded)
    decomposition[whole] = { first, second }
    class[whole] = "L"
    if not excluded then composition[first << 32 | second] = whole end
end
pair(0xE9, 0x65, 0x301)
pair(0xE1, 0x61, 0x301)
pair(0xF3, 0x6F, 0x301)
pair(0xFA, 0x75, 0x301)
pair(0xC9, 0x45, 0x301)
pair(0xC1, 0x41, 0x301)
pair(0xD3, 0x4F, 0x301)
pair(0xDA, 0x55, 0x301)
pair(0xF6, 0x6F, 0x308)
pair(0xFC, 0x75, 0x308)
pair(0x1D8, 0xFC, 0x301)
pair(0x1EB9, 0x65, 0x323)
pair(0x17E, 0x7A, 0x30C)
pair(0x439, 0x438, 0x306)
pair(0xC5, 0x41, 0x30A)
pair(0x1FA, 0xC5, 0x301)
pair(0x622, 0x627, 0x653)
pair(0x958, 0x915, 0x93C, true)
pair(0xFB2A, 0x5E9, 0x5C1, true)
pair(0xAC00, 0x1100, 0x1161)
pair(0xAC01, 0xAC00, 0x11A8)
decomposition[0x212B] = { 0xC5 }
-- Letters that compose with every listed mark are many; the random text puts marks after these only.
reference.bases = { 0x65, 0x61, 0x6F, 0x75, 0x5E9, 0x627, 0x915, 0xE01, 0x4E2D, 0x20, 0x41 }
local known = {
    [0x65] = { 0x301, 0x323 }, [0x61] = { 0x301 }, [0x6F] = { 0x301, 0x308 }, [0x75] = { 0x301, 0x308 }, [0x41] = { 0x30A, 0x301 },
    [0x5E9] = { 0x5B7, 0x5BC, 0x5C1 }, [0x627] = { 0x653, 0x64E, 0x651 }, [0x915] = { 0x93C, 0x94D, 0x93F }, [0xE01] = { 0xE31, 0xE48 },
    [0x4E2D] = { 0x301, 0x323, 0x308 }, [0x20] = { 0x301, 0x323, 0x94D },
}

local function decompose(code, out)
    local parts = decomposition[code]
    if not parts then
        out[#out + 1] = code
        return
    end
    for _, part in ipairs(parts) do decompose(part, out) end
end

function reference.nfc(codes)
    local flat, out = {}, {}
    for _, code in ipairs(codes) do decompose(code, flat) end
    for i = 2, #flat do -- move each mark left past marks of a higher class
        local at = i
        while at > 1 and order[flat[at]] and order[flat[at - 1]] and order[flat[at - 1]] > order[flat[at]] do
            flat[at - 1], flat[at] = flat[at], flat[at - 1]
            at = at - 1
        end
    end
    local starter, last = nil, -1
    for _, code in ipairs(flat) do
        local now = order[code] or 0
        local joined = starter and (last < now) and composition[out[starter] << 32 | code]
        if joined then
            out[starter] = joined
        else
            out[#out + 1] = code
            last = now
            if now == 0 then starter, last = #out, -1 end
        end
    end
    return out
end

-- The end of the piece that begins at `at`, by the rule of the pattern whose words include marks (or not).
local function piece_end(codes, at, marks)
    local function is(i, kinds)
        local kind = codes[i] and class[codes[i]]
        return kind ~= nil and kinds:find(kind, 1, true) ~= nil
    end
    local function run(i, kinds)
        while is(i, kinds) do i = i + 1 end
        return i
    end
    local function newline(i) return codes[i] == 10 or codes[i] == 13 end
    if codes[at] == 39 then
        local one, two = codes[at + 1], codes[at + 2]
        local a = one and (one == 0x17F and "s" or one < 128 and string.char(one):lower()) or ""
        if a == "s" or a == "t" then return at + 2 end
        local b = two and two < 128 and string.char(two):lower() or ""
        if a .. b == "re" or a .. b == "ve" then return at + 3 end
        if a == "m" then return at + 2 end
        if a .. b == "ll" then return at + 3 end
        if a == "d" then return at + 2 end
    end
    local word = marks and "LM" or "L"
    if not newline(at) and not is(at, "LN") and run(at + 1, word) > at + 1 then return run(at + 1, word) end
    if run(at, word) > at then return run(at, word) end
    if is(at, "N") then return at + 1 end
    local other = marks and "O" or "OM"
    local start = codes[at] == 32 and is(at + 1, other) and at + 1 or at
    if is(start, other) then
        local stop = run(start, other)
        while newline(stop) do stop = stop + 1 end
        return stop
    end
    local stop = run(at, "S")
    for i = stop - 1, at, -1 do
        if newline(i) then return i + 1 end
    end
    return stop > #codes and stop or stop - at > 1 and stop - 1 or stop
end

local letter_of, after = {}, 256
for byte = 0, 255 do
    local plain = byte > 32 and byte < 127 or byte > 160 and byte ~= 173
    letter_of[byte] = utf8.char(plain and byte or after)
    if not plain then after = after + 1 end
end

local function merge(word, ranks)
    local parts = {}
    for i = 1, #word do parts[i] = letter_of[word:byte(i)] end
    while true do
        local best, where = math.huge, nil
        for i = 1, #parts - 1 do
            local rank = ranks[parts[i] .. " " .. parts[i + 1]]
            if rank and rank < best then best, where = rank, i end
        end
        if not where then return parts end
        parts[where] = parts[where] .. table.remove(parts, where + 1)
    end
end

-- The encoder of a decoded tokenizer.json without its added tokens. options: marks (words take marks), nfc.
function reference.new(json, options)
    local ranks = {}
    for i, m in ipairs(json.model.merges) do ranks[type(m) == "table" and m[1] .. " " .. m[2] or m] = i end
    return function(codes)
        if options.nfc then codes = reference.nfc(codes) end
        local ids, at = {}, 1
        while at <= #codes do
            local stop = piece_end(codes, at, options.marks)
            assert(stop > at, "a character that the slow encoder does not know")
            for _, part in ipairs(merge(utf8.char(table.unpack(codes, at, stop - 1)), ranks)) do
                ids[#ids + 1] = json.model.vocab[part]
            end
            at = stop
        end
        return ids
    end
end

-- Random code points of the alphabet: words with marks, CRLF runs, digits, and anything.
function reference.random(length)
    local codes = {}
    while #codes < length do
        local what = math.random(6)
        if what == 1 then
            local base = reference.bases[math.random(#reference.bases)]
            codes[#codes + 1] = base
            for _ = 1, math.random(0, 4) do codes[#codes + 1] = known[base][math.random(#known[base])] end
            codes[#codes + 1] = 0x2E
        elseif what == 2 then
            for _ = 1, math.random(4) do codes[#codes + 1] = ({ 13, 10, 32, 9 })[math.random(4)] end
        elseif what == 3 then
            codes[#codes + 1] = 39
            codes[#codes + 1] = ("stredvmlSTREDVML"):byte(math.random(16))
        else
            local code = alphabet[math.random(#alphabet)]
            local before = codes[#codes]
            -- A mark after a letter that this table knows no composition for goes after a full stop instead.
            if order[code] and before then codes[#codes + 1] = 0x2E end
            codes[#codes + 1] = code
        end
    end
    return codes
end

return reference
