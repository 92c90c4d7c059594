-- SPDX-License-Identifier: Apache-2.0
--
-- Splits a chat template (Jinja2 with trim_blocks, lstrip_blocks and no trailing newline, as transformers sets it up) into tokens.
-- All white-space rules of the language are settled here: a later pass sees text exactly as it is printed.

local fail = require "fail"

local M = { max_bytes = 1 << 20 }

local SPACE = "[ \t\n\r\f\v]"
local OPERATORS = {}
for op in ("// ** == != >= <= + - / * % ~ [ ] ( ) { } > < = . : | , ;"):gmatch("%S+") do OPERATORS[op] = true end
local CLOSER = { ["("] = ")", ["["] = "]", ["{"] = "}" }

local SIMPLE_ESCAPES = {
    n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\", ["'"] = "'", ['"'] = '"', ["\n"] = "",
}
local HEX_ESCAPES = { x = 2, u = 4, U = 8 }

-- The text of a quoted string, with Python's escapes replaced; an unknown escape keeps its backslash.
local function unescape(body, where)
    local out, at = {}, 1
    while at <= #body do
        local slash = body:find("\\", at, true)
        if not slash then break end
        out[#out + 1] = body:sub(at, slash - 1)
        local c = body:sub(slash + 1, slash + 1)
        local octal = body:match("^[0-7][0-7]?[0-7]?", slash + 1)
        if SIMPLE_ESCAPES[c] then
            out[#out + 1] = SIMPLE_ESCAPES[c]
            at = slash + 2
        elseif HEX_ESCAPES[c] then
            local digits = body:sub(slash + 2, slash + 1 + HEX_ESCAPES[c])
            local code = #digits == HEX_ESCAPES[c] and digits:match("^%x+$") and tonumber(digits, 16)
            if not code or code > 0x10FFFF or code >= 0xD800 and code <= 0xDFFF then
                fail("%s: the escape \\%s%s is not a character", where, c, digits)
            end
            out[#out + 1] = utf8.char(code)
            at = slash + 2 + #digits
        elseif octal then
            out[#out + 1] = utf8.char(tonumber(octal, 8))
            at = slash + 1 + #octal
        elseif c == "N" then
            fail("%s: unsupported string escape \\N{name}", where)
        else
            out[#out + 1] = "\\"
            at = slash + 1
            out[#out + 1] = c
            at = at + #c
        end
    end
    out[#out + 1] = body:sub(at)
    return table.concat(out)
end

local Lexer = {}
Lexer.__index = Lexer
M.Lexer = Lexer -- so that a test can break a rule

function Lexer:where(line) return ("%s:%d"):format(self.name, line or self.line) end

function Lexer:push(kind, value)
    self.tokens[#self.tokens + 1] = { kind = kind, value = value, line = self.line }
end

-- Moves to `to`, counting lines.
function Lexer:advance(to)
    local _, lines = self.source:sub(self.at, to - 1):gsub("\n", "")
    self.line = self.line + lines
    if to > self.at then self.line_starting = self.source:sub(to - 1, to - 1) == "\n" end
    self.at = to
end

-- Emits the text up to `stop` (exclusive), cut as the tag that begins there asks: '-' takes all white space, an ordinary block or
-- comment takes the indentation of its line.
function Lexer:text(stop, sign, variable)
    local text = self.source:sub(self.at, stop - 1)
    if sign == "-" then
        text = text:gsub(SPACE .. "+$", "")
    elseif sign ~= "+" and not variable then
        local line_start = text:match(".*\n()") or 1
        if (line_start > 1 or self.line_starting) and text:find("^[ \t\r\f\v]*$", line_start) then
            text = text:sub(1, line_start - 1)
        end
    end
    if text ~= "" then self:push("data", text) end
    self:advance(stop)
end

-- Matches the end of a block or comment at `at`: "+%}" keeps the newline, "-%}" takes all white space, "%}" takes one newline.
function Lexer:closing(at, tail)
    local s = self.source
    local kept = s:match("^%+" .. tail .. "()", at)
    if kept then return kept end
    local stripped = s:match("^%-" .. tail .. SPACE .. "*()", at)
    if stripped then return stripped end
    return s:match("^" .. tail .. "\n?()", at)
end

function Lexer:number()
    local s, at = self.source, self.at
    local previous = self.tokens[#self.tokens]
    local after_dot = previous and previous.kind == "." and s:sub(at - 1, at - 1) == "."
    local stop
    local whole = s:match("^[%d_]*%d()", at)
    if not after_dot then
        local fraction = s:match("^%.%d[%d_]*()", whole)
        stop = s:match("^[eE][+-]?%d[%d_]*()", fraction or whole) or fraction
    end
    if stop then
        local digits = s:sub(at, stop - 1):gsub("_", "")
        self:push("float", tonumber(digits) + 0.0)
        return self:advance(stop)
    end
    local prefix, digits, last = s:match("^0([xXoObB])([%x_]+)()", at)
    local value
    if prefix then
        local base = ({ x = 16, o = 8, b = 2 })[prefix:lower()]
        digits = digits:gsub("_", "")
        value = #digits <= 15 and tonumber(digits, base)
        stop = last
    else
        digits, stop = s:match("^([%d_]*%d)()", at)
        digits = digits:gsub("_", "")
        value = math.tointeger(tonumber(digits))
        if #digits > 1 and digits:sub(1, 1) == "0" and digits:find("[1-9]") then value = nil end
    end
    if not value then fail("%s: the number %s does not fit 64 bits or is malformed", self:where(), s:sub(at, stop - 1)) end
    self:push("integer", value)
    self:advance(stop)
end

-- One token of an expression; false when nothing fits.
function Lexer:expression_token(stack)
    local s, at = self.source, self.at
    local blank = s:match("^" .. SPACE .. "+()", at)
    if blank then return self:advance(blank) end
    local c = s:sub(at, at)
    if c:find("%d") then return self:number() end
    local name, stop = s:match("^([%a_][%w_]*)()", at)
    if name then
        self:push("name", name)
        return self:advance(stop)
    end
    if c == "'" or c == '"' then
        local from = at + 1
        local last
        while true do
            last = s:find("[\\" .. c .. "]", from)
            if not last then fail("%s: a string is not closed", self:where()) end
            if s:sub(last, last) == c then break end
            from = last + 2
        end
        self:push("string", unescape(s:sub(at + 1, last - 1), self:where()))
        return self:advance(last + 1)
    end
    local op = OPERATORS[s:sub(at, at + 1)] and s:sub(at, at + 1) or c
    if not OPERATORS[op] then fail("%s: unexpected character %q", self:where(), c) end
    if CLOSER[op] then
        stack[#stack + 1] = CLOSER[op]
    elseif op == ")" or op == "]" or op == "}" then
        if stack[#stack] ~= op then fail("%s: unexpected '%s'", self:where(), op) end
        stack[#stack] = nil
    end
    self:push(op)
    self:advance(at + #op)
end

-- The tokens of one {{ }} or {% %} up to and with its end.
function Lexer:expression(kind)
    local opened, stack = self.line, {}
    while true do
        if self.at > #self.source then fail("%s: a tag is not closed", self:where(opened)) end
        local stop
        if #stack == 0 then
            if kind == "block" then
                stop = self:closing(self.at, "%%}")
            else
                stop = self.source:match("^%-}}" .. SPACE .. "*()", self.at) or self.source:match("^}}()", self.at)
            end
        end
        if stop then
            self:push(kind .. "_end")
            return self:advance(stop)
        end
        self:expression_token(stack)
    end
end

function Lexer:comment()
    local mark = self.source:find("#}", self.at, true)
    if not mark then fail("%s: a comment is not closed", self:where()) end
    local before = self.source:sub(mark - 1, mark - 1)
    local signed = (before == "-" or before == "+") and mark - 1 >= self.at
    self:advance(self:closing(signed and mark - 1 or mark, "#}"))
end

-- {% raw %} ... {% endraw %}; `body` is where the raw text begins.
function Lexer:raw(body)
    self:advance(body)
    local from = body
    while true do
        local open = self.source:find("{%", from, true)
        if not open then fail("%s: {%% raw %%} is not closed", self:where()) end
        local sign, tail = self.source:match("^{%%([-+]?)" .. SPACE .. "*endraw" .. SPACE .. "*()", open)
        local stop = tail and self:closing(tail, "%%}")
        if stop then
            self:text(open, sign, false)
            return self:advance(stop)
        end
        from = open + 2
    end
end

function Lexer:run()
    local s = self.source
    while self.at <= #s do
        local open = s:find("{[{%%#]", self.at)
        if not open then
            self:push("data", s:sub(self.at))
            self:advance(#s + 1)
            break
        end
        local kind = s:sub(open + 1, open + 1)
        local sign = s:match("^[-+]", open + 2) or ""
        local inside = open + 2 + #sign
        local raw = kind == "%" and (s:match("^" .. SPACE .. "*raw" .. SPACE .. "*%-%%}" .. SPACE .. "*()", inside)
            or s:match("^" .. SPACE .. "*raw" .. SPACE .. "*%%}()", inside))
        self:text(open, sign, kind == "{")
        if raw then
            self:raw(raw)
        elseif kind == "#" then
            self:advance(inside)
            self:comment()
        else
            local name = kind == "{" and "variable" or "block"
            self:push(name .. "_begin")
            self:advance(inside)
            self:expression(name)
        end
    end
    self:push("end")
    return self.tokens
end

-- lex(source, name): the tokens { kind, value, line } of the template called `name` in messages.
function M.lex(source, name)
    if #source > M.max_bytes then fail("%s: %d bytes, a template may have %d", name, #source, M.max_bytes) end
    local valid, bad = utf8.len(source)
    if not valid then fail("%s: not valid UTF-8 at byte %d", name, bad) end
    source = source:gsub("\r\n?", "\n"):gsub("\n$", "")
    local lexer = setmetatable({ source = source, name = name, at = 1, line = 1, tokens = {}, line_starting = true }, Lexer)
    return lexer:run()
end

return M
