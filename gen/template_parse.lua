-- SPDX-License-Identifier: Apache-2.0
--
-- Builds the syntax tree of a chat template from its tokens. Every node is { k = KIND, line = N, ... }. What the language has but the
-- compiler does not is refused here or in template_emit, by name and line; nothing is skipped silently.

local fail = require "fail"
local lex = require "template_lex"

local M = { max_depth = 64 }

local Parser = {}
Parser.__index = Parser

local CONSTANTS = {
    ["true"] = { k = "Bool", value = true }, ["True"] = { k = "Bool", value = true },
    ["false"] = { k = "Bool", value = false }, ["False"] = { k = "Bool", value = false },
    ["none"] = { k = "None" }, ["None"] = { k = "None" },
}
local COMPARE = { ["=="] = "eq", ["!="] = "ne", ["<"] = "lt", ["<="] = "le", [">"] = "gt", [">="] = "ge" }

local function node(kind, line, fields)
    fields = fields or {}
    fields.k, fields.line = kind, line
    return fields
end

function Parser:peek(ahead) return self.tokens[math.min(self.at + (ahead or 0), #self.tokens)] end

function Parser:fail(format, ...)
    fail("%s:%d: " .. format, self.name, self:peek().line, ...)
end

local function describe(token)
    if token.kind == "name" then return "'" .. token.value .. "'" end
    return ({ ["end"] = "the end of the template", block_end = "the end of a tag", variable_end = "the end of a tag",
        string = "a string", integer = "a number", float = "a number" })[token.kind] or "'" .. token.kind .. "'"
end

function Parser:next()
    local token = self:peek()
    self.at = self.at + 1
    return token
end

function Parser:is(kind, value, ahead)
    local token = self:peek(ahead)
    return token.kind == kind and (value == nil or token.value == value)
end

function Parser:skip(kind, value)
    if not self:is(kind, value) then return false end
    self.at = self.at + 1
    return true
end

function Parser:expect(kind, value)
    if not self:is(kind, value) then
        self:fail("expected %s, found %s", value and "'" .. value .. "'" or describe({ kind = kind, value = "a name" }),
            describe(self:peek()))
    end
    return self:next()
end

-- Runs f one level deeper; nesting has a limit, since the C compiler and the renderer recurse too.
function Parser:nested(f, ...)
    self.depth = self.depth + 1
    if self.depth > M.max_depth then self:fail("nested deeper than %d", M.max_depth) end
    local result = f(self, ...)
    self.depth = self.depth - 1
    return result
end

-- Expressions, loosest binding first ------------------------------------------------------------------------------------------

function Parser:expression() return self:nested(self.conditional) end

function Parser:conditional()
    local result = self:disjunction()
    while self:is("name", "if") do
        local line = self:next().line
        local test = self:disjunction()
        local otherwise
        if self:skip("name", "else") then otherwise = self:expression() end
        result = node("Conditional", line, { test = test, value = result, otherwise = otherwise })
    end
    return result
end

function Parser:disjunction()
    local left = self:conjunction()
    while self:is("name", "or") do
        local line = self:next().line
        left = node("Or", line, { left = left, right = self:conjunction() })
    end
    return left
end

function Parser:conjunction()
    local left = self:negation()
    while self:is("name", "and") do
        local line = self:next().line
        left = node("And", line, { left = left, right = self:negation() })
    end
    return left
end

function Parser:negation()
    if self:is("name", "not") then
        local line = self:next().line
        return node("Not", line, { operand = self:nested(self.negation) })
    end
    return self:comparison()
end

function Parser:comparison()
    local line = self:peek().line
    local first, rest = self:sum(), {}
    while true do
        local op = COMPARE[self:peek().kind]
        if op then
            self:next()
        elseif self:skip("name", "in") then
            op = "in"
        elseif self:is("name", "not") and self:is("name", "in", 1) then
            self:next()
            self:next()
            op = "notin"
        else
            break
        end
        rest[#rest + 1] = { op = op, operand = self:sum() }
    end
    if #rest == 0 then return first end
    return node("Compare", line, { first = first, rest = rest })
end

local function binary(name, operators, inner)
    return function(self)
        local left = self[inner](self)
        while operators[self:peek().kind] do
            local token = self:next()
            left = node(name, token.line, { op = operators[token.kind], left = left, right = self[inner](self) })
        end
        return left
    end
end

Parser.sum = binary("Binary", { ["+"] = "add", ["-"] = "sub" }, "concatenation")
Parser.product = binary("Binary", { ["*"] = "mul", ["/"] = "div", ["//"] = "floordiv", ["%"] = "mod" }, "power")
Parser.power = binary("Binary", { ["**"] = "pow" }, "unary")

function Parser:concatenation()
    local line = self:peek().line
    local parts = { self:product() }
    while self:skip("~") do parts[#parts + 1] = self:product() end
    if #parts == 1 then return parts[1] end
    return node("Concat", line, { parts = parts })
end

function Parser:unary(without_filter)
    local line = self:peek().line
    local result
    if self:skip("-") then
        result = node("Unary", line, { op = "neg", operand = self:nested(self.unary, true) })
    elseif self:skip("+") then
        result = node("Unary", line, { op = "pos", operand = self:nested(self.unary, true) })
    else
        result = self:primary()
    end
    result = self:postfix(result)
    if without_filter then return result end
    while true do
        if self:is("|") then
            result = self:filter(result)
        elseif self:is("name", "is") then
            result = self:test(result)
        elseif self:is("(") then
            result = self:call(result)
        else
            return result
        end
    end
end

function Parser:primary()
    local token = self:peek()
    local line = token.line
    if token.kind == "name" then
        self:next()
        local constant = CONSTANTS[token.value]
        if constant then return node(constant.k, line, { value = constant.value }) end
        return node("Name", line, { name = token.value })
    elseif token.kind == "string" then
        local parts = {}
        while self:is("string") do parts[#parts + 1] = self:next().value end
        return node("String", line, { value = table.concat(parts) })
    elseif token.kind == "integer" then
        return node("Integer", line, { value = self:next().value })
    elseif token.kind == "float" then
        return node("Float", line, { value = self:next().value })
    elseif token.kind == "(" then
        self:next()
        local result = self:tuple(true)
        self:expect(")")
        return result
    elseif token.kind == "[" then
        return self:list()
    elseif token.kind == "{" then
        return self:dict()
    end
    return self:fail("unexpected %s", describe(token))
end

function Parser:tuple_end()
    local kind = self:peek().kind
    return kind == "variable_end" or kind == "block_end" or kind == ")"
end

-- One expression, or a tuple where commas follow.
function Parser:tuple(parenthesised)
    local line, items, is_tuple = self:peek().line, {}, false
    while not self:tuple_end() do
        items[#items + 1] = self:expression()
        if not self:is(",") then break end
        self:next()
        is_tuple = true
    end
    if not is_tuple then
        if items[1] then return items[1] end
        if not parenthesised then self:fail("expected an expression, found %s", describe(self:peek())) end
    end
    return node("Tuple", line, { items = items })
end

function Parser:list()
    local line, items = self:expect("[").line, {}
    while not self:is("]") do
        if #items > 0 then self:expect(",") end
        if self:is("]") then break end
        items[#items + 1] = self:expression()
    end
    self:expect("]")
    return node("List", line, { items = items })
end

function Parser:dict()
    local line, pairs_ = self:expect("{").line, {}
    while not self:is("}") do
        if #pairs_ > 0 then self:expect(",") end
        if self:is("}") then break end
        local key = self:expression()
        self:expect(":")
        pairs_[#pairs_ + 1] = { key = key, value = self:expression() }
    end
    self:expect("}")
    return node("Dict", line, { pairs = pairs_ })
end

function Parser:postfix(result)
    while true do
        if self:is(".") or self:is("[") then
            result = self:subscript(result)
        elseif self:is("(") then
            result = self:call(result)
        else
            return result
        end
    end
end

function Parser:subscript(object)
    local token = self:next()
    if token.kind == "." then
        local key = self:next()
        if key.kind == "name" then
            return node("Attribute", token.line, { object = object, name = key.value })
        elseif key.kind == "integer" then
            return node("Item", token.line, { object = object, key = node("Integer", key.line, { value = key.value }) })
        end
        self.at = self.at - 1
        self:fail("expected a name or number after '.', found %s", describe(key))
    end
    local parts = {}
    if not self:is(":") then
        local key = self:expression()
        if self:skip("]") then return node("Item", token.line, { object = object, key = key }) end
        if self:is(",") then self:fail("unsupported: an index with commas") end
        parts[1] = key
    end
    local slot = 1
    while self:skip(":") do
        slot = slot + 1
        if slot > 3 then self:fail("a slice has at most three parts") end
        if not self:is(":") and not self:is("]") then parts[slot] = self:expression() end
    end
    self:expect("]")
    return node("Slice", token.line, { object = object, from = parts[1], to = parts[2], step = parts[3] })
end

-- The arguments of a call: positional in `args`, keywords in `kwargs` as { name, value }.
function Parser:arguments()
    local args, kwargs = {}, {}
    self:expect("(")
    local first = true
    while not self:is(")") do
        if not first then
            self:expect(",")
            if self:is(")") then break end
        end
        first = false
        if self:is("*") or self:is("**") then self:fail("unsupported: %s arguments", self:peek().kind) end
        if self:is("name") and self:is("=", nil, 1) then
            local name = self:next().value
            self:next()
            for _, other in ipairs(kwargs) do
                if other.name == name then self:fail("the argument %s is given twice", name) end
            end
            kwargs[#kwargs + 1] = { name = name, value = self:expression() }
        else
            if #kwargs > 0 then self:fail("a positional argument follows a named one") end
            args[#args + 1] = self:expression()
        end
    end
    self:expect(")")
    return args, kwargs
end

function Parser:call(callee)
    local line = self:peek().line
    local args, kwargs = self:arguments()
    return node("Call", line, { callee = callee, args = args, kwargs = kwargs })
end

function Parser:dotted_name()
    local name = self:expect("name").value
    while self:skip(".") do name = name .. "." .. self:expect("name").value end
    return name
end

function Parser:filter(object)
    local line = self:expect("|").line
    local name, args, kwargs = self:dotted_name(), {}, {}
    if self:is("(") then args, kwargs = self:arguments() end
    return node("Filter", line, { object = object, name = name, args = args, kwargs = kwargs })
end

local TEST_ARGUMENT = { name = true, string = true, integer = true, float = true, ["("] = true, ["["] = true, ["{"] = true }
local NO_ARGUMENT = { ["else"] = true, ["or"] = true, ["and"] = true }

function Parser:test(object)
    local line = self:expect("name", "is").line
    local negated = self:skip("name", "not")
    local name, args, kwargs = self:dotted_name(), {}, {}
    local token = self:peek()
    if token.kind == "(" then
        args, kwargs = self:arguments()
    elseif TEST_ARGUMENT[token.kind] and not (token.kind == "name" and NO_ARGUMENT[token.value]) then
        if token.kind == "name" and token.value == "is" then self:fail("tests cannot be chained with 'is'") end
        args[1] = self:postfix(self:primary())
    end
    local result = node("Test", line, { object = object, name = name, args = args, kwargs = kwargs })
    if negated then return node("Not", line, { operand = result }) end
    return result
end

-- Statements ------------------------------------------------------------------------------------------------------------------

local Statements = {}

-- The statements up to a tag whose name is in `ends`; leaves that name as the next token.
function Parser:body(ends, opened)
    local list = {}
    while true do
        local token = self:next()
        if token.kind == "end" then
            if not ends then return list end
            fail("%s:%d: {%% %s %%} is not closed", self.name, opened.line, opened.value)
        elseif token.kind == "data" then
            list[#list + 1] = node("Data", token.line, { value = token.value })
        elseif token.kind == "variable_begin" then
            list[#list + 1] = node("Output", token.line, { value = self:tuple(false) })
            self:expect("variable_end")
        else
            local name = self:peek()
            if name.kind ~= "name" then self:fail("expected the name of a tag, found %s", describe(name)) end
            if ends and ends[name.value] then return list end
            local statement = Statements[name.value]
            if not statement then
                if name.value:find("^end") or name.value:find("^el") then self:fail("unexpected {%% %s %%}", name.value) end
                self:fail("unsupported tag {%% %s %%}", name.value)
            end
            self:next()
            list[#list + 1] = self:nested(statement, name)
            self:expect("block_end")
        end
    end
end

-- A body that follows a tag: expects that tag's end first.
function Parser:block(ends, opened)
    self:expect("block_end")
    return self:body(ends, opened)
end

Statements["if"] = function(self, opened)
    local result = node("If", opened.line)
    local at = result
    local ends = { ["elif"] = true, ["else"] = true, ["endif"] = true }
    while true do
        at.test = self:tuple(false)
        at.body = self:block(ends, opened)
        local token = self:next()
        if token.value == "elif" then
            local inner = node("If", token.line)
            at.otherwise = { inner }
            at = inner
        elseif token.value == "else" then
            at.otherwise = self:block({ ["endif"] = true }, opened)
            self:next()
            return result
        else
            return result
        end
    end
end

-- Names that a `for` or `set` assigns: a Name, or a tuple of targets.
function Parser:target(with_attribute)
    local line, items, is_tuple = self:peek().line, {}, false
    repeat
        if #items > 0 and (self:is("name", "in") or self:is("=") or self:is(")")) then break end
        if self:skip("(") then
            items[#items + 1] = self:nested(self.target, with_attribute)
            self:expect(")")
        else
            local name = self:expect("name")
            if CONSTANTS[name.value] then self:fail("cannot assign to %s", name.value) end
            if with_attribute and self:is(".") then
                self:next()
                items[#items + 1] = node("SetAttribute", name.line, { object = name.value, name = self:expect("name").value })
            else
                items[#items + 1] = node("Target", name.line, { name = name.value })
            end
        end
        local comma = self:skip(",")
        is_tuple = is_tuple or comma
    until not comma
    if not is_tuple then return items[1] end
    return node("TargetTuple", line, { items = items })
end

Statements["for"] = function(self, opened)
    local target = self:target(false)
    self:expect("name", "in")
    -- The iterated expression has no inline if: an `if` here is the loop's filter.
    local line, items, is_tuple = self:peek().line, {}, false
    repeat
        if self:is("block_end") then break end
        items[#items + 1] = self:nested(self.disjunction)
        local comma = self:skip(",")
        is_tuple = is_tuple or comma
    until not comma
    if #items == 0 then self:fail("expected an expression, found %s", describe(self:peek())) end
    local iterated = is_tuple and node("Tuple", line, { items = items }) or items[1]
    local filter
    if self:skip("name", "if") then filter = self:expression() end
    if self:is("name", "recursive") then self:fail("unsupported: a recursive loop") end
    local body = self:block({ ["endfor"] = true, ["else"] = true }, opened)
    local otherwise
    if self:next().value == "else" then
        otherwise = self:block({ ["endfor"] = true }, opened)
        self:next()
    end
    return node("For", opened.line, { target = target, iterated = iterated, filter = filter, body = body, otherwise = otherwise })
end

Statements["set"] = function(self, opened)
    local target = self:target(true)
    if self:skip("=") then return node("Set", opened.line, { target = target, value = self:tuple(false) }) end
    if target.k == "TargetTuple" then self:fail("a block set has one target") end
    local filters = node("Captured", opened.line)
    while self:is("|") do filters = self:filter(filters) end
    local body = self:block({ ["endset"] = true }, opened)
    self:next()
    return node("SetBlock", opened.line, { target = target, filters = filters, body = body })
end

Statements["macro"] = function(self, opened)
    local name = self:expect("name").value
    local parameters, seen = {}, {}
    self:expect("(")
    while not self:is(")") do
        if #parameters > 0 then self:expect(",") end
        if self:is(")") then break end
        local parameter = { name = self:expect("name").value, line = self:peek().line }
        if seen[parameter.name] then self:fail("the parameter %s is given twice", parameter.name) end
        seen[parameter.name] = true
        if self:skip("=") then
            parameter.default = self:expression()
        elseif #parameters > 0 and parameters[#parameters].default then
            self:fail("a parameter without default follows one with")
        end
        parameters[#parameters + 1] = parameter
    end
    self:expect(")")
    local body = self:block({ ["endmacro"] = true }, opened)
    self:next()
    return node("Macro", opened.line, { name = name, parameters = parameters, body = body })
end

Statements["with"] = function(self, opened)
    local targets, values = {}, {}
    while not self:is("block_end") do
        if #targets > 0 then self:expect(",") end
        targets[#targets + 1] = self:target(false)
        self:expect("=")
        values[#values + 1] = self:expression()
    end
    local body = self:block({ ["endwith"] = true }, opened)
    self:next()
    return node("With", opened.line, { targets = targets, values = values, body = body })
end

Statements["generation"] = function(self, opened)
    local body = self:block({ ["endgeneration"] = true }, opened)
    self:next()
    return node("Generation", opened.line, { body = body })
end

Statements["break"] = function(_, opened) return node("Break", opened.line) end
Statements["continue"] = function(_, opened) return node("Continue", opened.line) end

-- parse(source, name): the list of top-level statements.
function M.parse(source, name)
    local parser = setmetatable({ tokens = lex.lex(source, name), at = 1, name = name, depth = 0 }, Parser)
    return parser:body(nil)
end

return M
