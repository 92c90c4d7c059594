-- SPDX-License-Identifier: Apache-2.0
--
-- Rewrites a pre-tokenizer pattern from the dialect of tokenizer.json (Oniguruma with Ruby syntax) to PCRE2 with UTF and UCP.
-- Invariant: the result compiles and matches the same text; a construct whose meaning differs, or is not known here, stops
-- the build. The whole pattern is parsed, so that no malformed pattern is left for run time.

local fail = require "fail"
local additions = require "tokenizer_unicode"

local regex = {}

-- White_Space, which is what \s means in the source dialect. PCRE2's own \s takes U+180E as well.
local SPACE = [[\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]]
local NOT_SPACE = [[\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}]]
    .. [[\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}]]

local function set(words)
    local result = {}
    for word in words:gmatch("%S+") do result[word] = true end
    return result
end

local CATEGORIES = set "Cc Cf Co L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs"
local SCRIPTS = set [[Arabic Armenian Bengali Cyrillic Devanagari Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew Hiragana Kannada
    Katakana Khmer Lao Latin Malayalam Myanmar Oriya Sinhala Tamil Telugu Thai Tibetan]]
local CONTROLS = { r = 13, n = 10, t = 9, f = 12, v = 11, a = 7, e = 27 }
local GROUPS = { "(?:", "(?i:", "(?=", "(?!", "(?>" }
local MAX_DEPTH, MAX_REPEAT = 64, 1000

local Parser = {}
Parser.__index = Parser

function Parser:fail(what, ...)
    local arguments = { ... }
    for i, value in ipairs(arguments) do
        if type(value) == "string" then arguments[i] = value:gsub("[^\x20-\x7e]", function(c) return ("\\x%02x"):format(c:byte()) end) end
    end
    fail("%s: pre-tokenizer pattern, byte %d: " .. what, self.file, self.at, table.unpack(arguments))
end

function Parser:peek(text)
    return self.source:sub(self.at, self.at + #text - 1) == text
end

function Parser:take(pattern)
    local first, last, capture = self.source:find("^" .. pattern, self.at)
    if not first then return nil end
    self.at = last + 1
    return capture or self.source:sub(first, last)
end

local function code_point(code)
    return string.format("\\x{%x}", code)
end

-- The class of a category or script inside brackets: what PCRE2 knows, and what later versions of Unicode added.
local function members(name)
    local parts = { SCRIPTS[name] and "\\p{sc:" .. name .. "}" or "\\p{" .. name .. "}" }
    local leaves = {}
    for leaf in pairs(additions) do
        if leaf == name or #name == 1 and #leaf == 2 and leaf:sub(1, 1) == name then leaves[#leaves + 1] = leaf end
    end
    table.sort(leaves)
    for _, leaf in ipairs(leaves) do
        for low, high in additions[leaf]:gmatch("(%x+)%-?(%x*)") do
            parts[#parts + 1] = string.format(high == "" and "\\x{%s}" or "\\x{%s}-\\x{%s}", low, high)
        end
    end
    return table.concat(parts)
end

function Parser:class_of(name, negated, in_class)
    if not in_class then return (negated and "[^" or "[") .. members(name) .. "]" end
    if negated then self:fail("a negated property inside a class is not supported") end
    return members(name)
end

-- After \p or \P.
function Parser:property(negated, in_class)
    local caret, name = self.source:match("^{(%^?)([%a_]+)}", self.at)
    if not name then self:fail("\\p without {name}") end
    if not CATEGORIES[name] and not SCRIPTS[name] then self:fail("the property %s is not supported", name) end
    self.at = self.at + #caret + #name + 2
    return self:class_of(name, negated ~= (caret ~= ""), in_class)
end

-- After a backslash. Returns the code point of a literal, or nil and the text of a class; in_class says whether it stands
-- inside brackets.
function Parser:escape(in_class)
    local letter = self:take(".")
    if not letter then self:fail("ends in a backslash") end
    if letter == "p" or letter == "P" then return nil, self:property(letter == "P", in_class) end
    if letter == "d" or letter == "D" then return nil, self:class_of("Nd", letter == "D", in_class) end
    if letter == "s" then return nil, in_class and SPACE or "[" .. SPACE .. "]" end
    if letter == "S" then return nil, in_class and NOT_SPACE or "[^" .. SPACE .. "]" end
    if CONTROLS[letter] then return CONTROLS[letter] end
    if letter == "x" or letter == "u" then
        local digits
        if letter == "u" then
            digits = self:take("(%x%x%x%x)")
        else
            digits = self:take("{(%x%x?%x?%x?%x?%x?)}") or self:take("([0-7]%x)")
        end
        local code = digits and tonumber(digits, 16)
        if not code or code > 0x10FFFF or code >= 0xD800 and code < 0xE000 then self:fail("bad code point after \\%s", letter) end
        return code
    end
    if letter:find("%w") or letter:byte() >= 128 then self:fail("\\%s is not supported", letter) end
    return letter:byte()
end

-- One character of a class or of plain text: its code point, or nil and the text of a class.
function Parser:character(in_class)
    if self:take("\\") then return self:escape(in_class) end
    local text = self:take(utf8.charpattern)
    return utf8.codepoint(text)
end

-- After "[". Nested classes and intersections mean something else in PCRE2.
function Parser:class()
    local parts = { self:take("%^") and "[^" or "[" }
    if self:peek("]") then self:fail("empty class") end
    while not self:take("%]") do
        if self.at > #self.source then self:fail("class without ]") end
        if self:peek("[") or self:peek("&&") then self:fail("a class inside a class is not supported") end
        local low, text = self:character(true)
        if low then
            text = code_point(low)
            if self:peek("-") and not self:peek("-]") then
                self.at = self.at + 1
                if self:peek("[") then self:fail("a class inside a class is not supported") end
                local high = self.at <= #self.source and self:character(true)
                if not high or high < low then self:fail("bad range in a class") end
                text = text .. "-" .. code_point(high)
            end
        end
        parts[#parts + 1] = text
    end
    parts[#parts + 1] = "]"
    return table.concat(parts)
end

function Parser:group()
    for _, head in ipairs(GROUPS) do
        if self:peek(head) then
            self.at = self.at + #head
            return head .. self:alternatives() .. ")"
        end
    end
    if self:peek("(?") or self:peek("(*") then self:fail("the group %s is not supported", self.source:sub(self.at, self.at + 3)) end
    self.at = self.at + 1
    return "(?:" .. self:alternatives() .. ")"
end

-- The quantifier at this place, or "".
function Parser:quantifier()
    local mark = self:take("[*+?]")
    if mark then return mark .. (self:take("[+?]") or "") end
    if not self:peek("{") then return "" end
    local low, comma, high = self.source:match("^{(%d*)(,?)(%d*)}", self.at)
    if not low or low == "" and high == "" then return "" end
    self:take("{%d*,?%d*}")
    local least, most = tonumber(low) or 0, tonumber(high) or 0
    if least > MAX_REPEAT or most > MAX_REPEAT or high ~= "" and least > most then self:fail("bad repeat count") end
    return string.format("{%d%s%s}", least, comma, high == "" and "" or most) .. (self:take("%?") or "")
end

function Parser:atom()
    if self:peek("(") then return self:group() end
    if self:take("%[") then return self:class() end
    if self:take("%.") then return "[^\\n]" end
    if self:peek("^") or self:peek("$") then self:fail("an anchor is not supported") end
    if self.source:find("^[*+?]", self.at) then self:fail("nothing to repeat") end
    local code, text = self:character(false)
    if not code then return text end
    if code < 128 and string.char(code):find("[%w ']") then return string.char(code) end
    return code_point(code)
end

-- Alternatives up to the ")" of the group, which is consumed, or up to the end of the pattern.
function Parser:alternatives()
    self.depth = self.depth + 1
    if self.depth > MAX_DEPTH then self:fail("more than %d groups deep", MAX_DEPTH) end
    local parts = {}
    while true do
        if self.at > #self.source then
            if self.depth > 1 then self:fail("group without )") end
            break
        elseif self:peek(")") then
            if self.depth == 1 then self:fail(") without a group") end
            self.at = self.at + 1
            break
        elseif self:take("|") then
            parts[#parts + 1] = "|"
        else
            parts[#parts + 1] = self:atom()
            parts[#parts + 1] = self:quantifier()
            if self:quantifier() ~= "" then self:fail("a repeat of a repeat is not supported") end
        end
    end
    self.depth = self.depth - 1
    return table.concat(parts)
end

-- The PCRE2 pattern that matches what `source` matches. `file` names the place in errors.
function regex.translate(source, file)
    if not utf8.len(source) then fail("%s: the pre-tokenizer pattern is not valid UTF-8", file) end
    if #source > 65536 then fail("%s: the pre-tokenizer pattern is longer than 65536 bytes", file) end
    local parser = setmetatable({ source = source, file = file, at = 1, depth = 0 }, Parser)
    local head = parser:take("%(%?i%)") and "(?i)" or ""
    return head .. parser:alternatives()
end

-- The pattern that matches the literal text.
function regex.literal(text, file)
    if not utf8.len(text) or text == "" then fail("%s: the text to split at is empty or not valid UTF-8", file) end
    local parts = {}
    for _, code in utf8.codes(text) do parts[#parts + 1] = code_point(code) end
    return table.concat(parts)
end

return regex
