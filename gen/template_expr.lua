-- SPDX-License-Identifier: Apache-2.0
--
-- Writes the expressions of a chat template as C. Each operation becomes one statement, in the template's order of evaluation;
-- what is handed on is always a leaf (a variable, a temporary or a literal), so that C's freedom to reorder arguments is never used.

local fail = require "fail"
local signatures = require "template_signatures"

local M = {}
M.__index = M

function M:fail(node, format, ...)
    fail("%s:%d: " .. format, self.name, node.line or 0, ...)
end

function M:line(format, ...)
    local text = select("#", ...) > 0 and format:format(...) or format
    self.lines[#self.lines + 1] = ("    "):rep(self.indent) .. text
end

function M:temporary(prefix)
    self.count = self.count + 1
    return prefix .. self.count
end

-- Declares a temporary that holds the C expression.
function M:keep(format, ...)
    local name = self:temporary("t")
    self:line("struct value %s = %s;", name, format:format(...))
    return name
end

-- The C name of a constant string.
function M:text(bytes)
    if not self.texts[bytes] then
        self.texts[#self.texts + 1] = bytes
        self.texts[bytes] = "text_" .. #self.texts
    end
    return self.texts[bytes]
end

function M:string(bytes) return "value_text(&" .. self:text(bytes) .. ")" end

local function quoted(text) return '"' .. text:gsub('[\\"]', "\\%0"):gsub("[^\32-\126]", "?") .. '"' end
M.quoted = quoted

-- The C variable of a name in the current scope.
function M:variable(name, node)
    local scope = self.scope:find(name)
    if not scope then self:fail(node, "internal: the name %s is in no scope", name) end
    if scope.level == 0 then return "s->v_" .. name end
    if scope.loads[name] == "input" and not scope.stores[name] then
        self.inputs[name] = true
        return "s->g_" .. name
    end
    return ("v%d_%s"):format(scope.level, name)
end

-- Binds arguments to a signature: an array of C leaves, UNSET where none was given.
function M:bind(node, what, signature, args, kwargs)
    local bound, parameters = {}, signature.parameters
    if #args > #parameters then
        self:fail(node, "%s takes %d arguments, found %d", what, #parameters, #args)
    end
    for i, arg in ipairs(args) do bound[i] = self:value(arg) end
    for _, kwarg in ipairs(kwargs) do
        local at
        for i, parameter in ipairs(parameters) do if parameter == kwarg.name then at = i end end
        if not at or bound[at] then self:fail(node, "%s: unexpected argument %s", what, kwarg.name) end
        bound[at] = self:value(kwarg.value)
    end
    for i = 1, #parameters do
        if not bound[i] and signature.required[i] and not (signature.name == "replace" and i == 3) then
            self:fail(node, "%s: the argument %s is missing", what, parameters[i])
        end
        bound[i] = bound[i] or "UNSET"
    end
    return bound
end

local function array(leaves)
    return #leaves == 0 and "NULL" or "(const struct value[]){" .. table.concat(leaves, ", ") .. "}"
end

-- A leaf with the value of the expression.
function M:value(node)
    local method = M["value_" .. node.k]
    if not method then self:fail(node, "internal: no code for %s", node.k) end
    return method(self, node)
end

function M:value_String(node) return self:string(node.value) end
function M.value_Integer(_, node) return ("value_int(INT64_C(%d))"):format(node.value) end
function M.value_Bool(_, node) return node.value and "value_bool(true)" or "value_bool(false)" end
function M.value_None() return "NONE" end

function M:value_Float(node)
    if node.value ~= node.value or node.value == math.huge then self:fail(node, "a number is too large") end
    return ("value_float(%a)"):format(node.value)
end

function M:value_Name(node)
    if node.name == "loop" and self.loop ~= nil then self:fail(node, "unsupported: loop used as a value") end
    local special = node.name == "varargs" or node.name == "kwargs" or node.name == "caller"
    if self.in_macro and special and not self.scope:find(node.name).stores[node.name] then
        self:fail(node, "unsupported: %s in a macro", node.name)
    end
    return self:variable(node.name, node)
end

function M.value_Captured(_, node) return node.leaf end

function M:items(node, kind)
    local name = self:keep("value_list(run, %s, %d)", kind, #node.items)
    for _, item in ipairs(node.items) do self:line("list_push(run, %s, %s);", name, self:value(item)) end
    return name
end

function M:value_List(node) return self:items(node, "VALUE_LIST") end
function M:value_Tuple(node) return self:items(node, "VALUE_TUPLE") end

function M:value_Dict(node)
    local name = self:keep("value_dict(run, VALUE_DICT)")
    for _, pair in ipairs(node.pairs) do
        local key = self:value(pair.key)
        self:line("dict_set(run, %s, %s, %s);", name, key, self:value(pair.value))
    end
    return name
end

function M:value_Binary(node)
    local left = self:value(node.left)
    return self:keep("value_%s(run, %s, %s)", node.op, left, self:value(node.right))
end

function M:value_Unary(node) return self:keep("value_%s(run, %s)", node.op, self:value(node.operand)) end

function M:value_Concat(node)
    local parts = {}
    for i, part in ipairs(node.parts) do parts[i] = self:value(part) end
    return self:keep("value_concat(run, %s, %d)", array(parts), #parts)
end

-- Runs f with a deeper indent and returns the lines that it wrote, and its result.
function M:captured(f)
    local lines, before = {}, self.lines
    self.lines, self.indent = lines, self.indent + 1
    local result = f()
    self.lines, self.indent = before, self.indent - 1
    return lines, result
end

function M:append(lines)
    for _, line in ipairs(lines) do self.lines[#self.lines + 1] = line end
end

function M:short_value(node, test)
    local name = self:keep("%s", self:value(node.left))
    self:line("if (%svalue_truth(run, %s)) {", test, name)
    self.indent = self.indent + 1
    self:line("%s = %s;", name, self:value(node.right))
    self.indent = self.indent - 1
    self:line("}")
    return name
end

function M:value_And(node) return self:short_value(node, "") end
function M:value_Or(node) return self:short_value(node, "!") end

function M:value_Conditional(node)
    local name = self:keep('value_undefined("an inline if without else")')
    self:line("if (%s) {", self:condition(node.test))
    self.indent = self.indent + 1
    self:line("%s = %s;", name, self:value(node.value))
    self.indent = self.indent - 1
    if node.otherwise then
        self:line("} else {")
        self.indent = self.indent + 1
        self:line("%s = %s;", name, self:value(node.otherwise))
        self.indent = self.indent - 1
    end
    self:line("}")
    return name
end

function M:value_Item(node)
    local object = self:value(node.object)
    return self:keep("value_item(run, %s, %s)", object, self:value(node.key))
end

function M:value_Slice(node)
    local object, parts = self:value(node.object), {}
    for i, part in ipairs({ node.from or false, node.to or false, node.step or false }) do
        parts[i] = part and self:value(part) or "UNSET"
    end
    return self:keep("value_slice(run, %s, %s, %s, %s)", object, parts[1], parts[2], parts[3])
end

-- loop.NAME as a C expression of type value.
local LOOP = {
    index = "value_int(%s.index0 + 1)", index0 = "value_int(%s.index0)", first = "value_bool(%s.index0 == 0)",
    last = "value_bool(%s.position == %s.count)", length = "value_int((int64_t)%s.count)",
    revindex = "value_int((int64_t)%s.count - %s.index0)", revindex0 = "value_int((int64_t)%s.count - %s.index0 - 1)",
    previtem = "%s.previous", nextitem = "loop_nextitem(&%s)",
}

function M:value_Attribute(node)
    if node.object.k == "Name" and node.object.name == "loop" and self.loop then
        if node.name == "depth" or node.name == "depth0" then return node.name == "depth" and "value_int(1)" or "value_int(0)" end
        local format = LOOP[node.name]
        if not format then self:fail(node, "unsupported: loop.%s", node.name) end
        return (format:gsub("%%s", self.loop))
    end
    if node.name:find("^__") then self:fail(node, "unsupported: the attribute %s", node.name) end
    return self:keep("value_attribute(run, %s, &%s)", self:value(node.object), self:text(node.name))
end

-- Filters ---------------------------------------------------------------------------------------------------------------------

function M:apply_filter(node, leaf, name, args, kwargs)
    local signature = signatures.filters[name]
    if not signature then self:fail(node, "unsupported filter |%s", name) end
    local bound = self:bind(node, "|" .. name, signature, args, kwargs)
    return self:keep("filter_%s(run, %s, %s)", signature.name, leaf, array(bound))
end

local function constant_string(node) return node and node.k == "String" and node.value end

-- Walks `leaf`, filling the generator that is returned; each(item) writes the body and returns the leaf to push, or nil.
function M:walk(leaf, each, elements)
    local result, id = self:keep("value_list(run, VALUE_GENERATOR, 0)"), self:temporary("e")
    self:line("const struct list *%s = %s(run, %s);", id, elements or "value_elements_if_true", leaf)
    self:line("for (size_t i_%s = 0; i_%s < %s->count; i_%s++) {", id, id, id, id)
    self.indent = self.indent + 1
    self:line("template_steps(run, 1);")
    local item = self:keep("%s->items[i_%s]", id, id)
    each(item, result)
    self.indent = self.indent - 1
    self:line("}")
    return result
end

-- The leaf at a constant attribute path of item.
function M:path(item, path)
    if type(path) == "number" then return self:keep("value_item(run, %s, value_int(%d))", item, path) end
    for part in (path .. "."):gmatch("(.-)%.") do
        local key = part:find("^%d+$") and ("value_int(%s)"):format(part) or self:string(part)
        item = self:keep("value_item(run, %s, %s)", item, key)
    end
    return item
end

-- Arguments of a walking filter are evaluated once, ahead of the walk.
function M:frozen(nodes)
    local result = {}
    for i, node in ipairs(nodes) do result[i] = { k = "Captured", leaf = self:value(node), line = node.line } end
    return result
end

function M:filter_map(node, leaf)
    local attribute, default
    for _, kwarg in ipairs(node.kwargs) do
        if kwarg.name == "attribute" and #node.args == 0 then
            attribute = constant_string(kwarg.value) or kwarg.value.k == "Integer" and kwarg.value.value
        elseif kwarg.name == "default" and #node.args == 0 then
            default = self:value(kwarg.value)
        end
    end
    if attribute then
        return self:walk(leaf, function(item, result)
            local found = self:path(item, attribute)
            if default then self:line("if (%s.kind == VALUE_UNDEFINED)", found) self:line("    %s = %s;", found, default) end
            self:line("list_push(run, %s, %s);", result, found)
        end)
    end
    local name = constant_string(node.args[1])
    if not name then self:fail(node, "unsupported: |map needs attribute='...' or the name of a filter as a string") end
    local args = self:frozen({ table.unpack(node.args, 2) })
    return self:walk(leaf, function(item, result)
        self:line("list_push(run, %s, %s);", result, self:apply_filter(node, item, name, args, node.kwargs))
    end)
end

-- select, reject, selectattr, rejectattr
local function selection(by_attribute, wanted)
    return function(self, node, leaf)
        local first = by_attribute and 2 or 1
        local attribute = by_attribute and node.args[1] and (constant_string(node.args[1])
            or node.args[1].k == "Integer" and node.args[1].value)
        if by_attribute and not attribute then self:fail(node, "unsupported: |%s needs an attribute name as a string", node.name) end
        local test = constant_string(node.args[first])
        if node.args[first] and not test then self:fail(node, "unsupported: |%s needs a test name as a string", node.name) end
        local args = self:frozen({ table.unpack(node.args, first + 1) })
        return self:walk(leaf, function(item, result)
            local tested = attribute and self:path(item, attribute) or item
            local condition = test and self:apply_test(node, tested, test, args, node.kwargs)
                or ("value_truth(run, %s)"):format(tested)
            self:line("if (%s%s)", wanted, condition)
            self:line("    list_push(run, %s, %s);", result, item)
        end)
    end
end

M.filter_select, M.filter_reject = selection(false, ""), selection(false, "!")
M.filter_selectattr, M.filter_rejectattr = selection(true, ""), selection(true, "!")

local WALKING = { map = true, select = true, reject = true, selectattr = true, rejectattr = true }

function M:value_Filter(node)
    local leaf = self:value(node.object)
    if WALKING[node.name] then return M["filter_" .. node.name](self, node, leaf) end
    return self:apply_filter(node, leaf, node.name, node.args, node.kwargs)
end

-- Calls -----------------------------------------------------------------------------------------------------------------------

function M:call_macro(node, name)
    local macro = self.macros[name]
    local signature = { name = name, parameters = {}, required = {} }
    for i, parameter in ipairs(macro.parameters) do signature.parameters[i] = parameter.name end
    local bound = self:bind(node, name .. "()", signature, node.args, node.kwargs)
    return self:keep("call_macro(run, s->v_%s, %s, s, %s)", name, quoted(name), array(bound))
end

-- namespace(...) and dict(...): pairs of an optional mapping, then the keywords.
function M:make_dict(node, kind)
    if #node.args > 1 then self:fail(node, "at most one positional argument fits here") end
    local from = node.args[1] and self:value(node.args[1])
    local name = self:keep("value_dict(run, %s)", kind)
    if from then self:line("dict_update(run, %s, %s);", name, from) end
    for _, kwarg in ipairs(node.kwargs) do
        self:line("dict_set(run, %s, %s, %s);", name, self:string(kwarg.name), self:value(kwarg.value))
    end
    return name
end

function M:call_loop(node)
    if node.callee.name ~= "cycle" or #node.args == 0 or #node.kwargs > 0 then
        self:fail(node, "unsupported: loop.%s()", node.callee.name)
    end
    local args = {}
    for i, arg in ipairs(node.args) do args[i] = self:value(arg) end
    return self:keep("%s[%s.index0 %% %d]", array(args), self.loop, #args)
end

function M:value_Call(node)
    local callee = node.callee
    if callee.k == "Attribute" then
        if callee.object.k == "Name" and callee.object.name == "loop" and self.loop then return self:call_loop(node) end
        local signature = signatures.methods[callee.name]
        if not signature then self:fail(node, "unsupported method .%s()", callee.name) end
        local object = self:value(callee.object)
        local bound = self:bind(node, "." .. callee.name .. "()", signature, node.args, node.kwargs)
        return self:keep("method_%s(run, %s, %s)", signature.name, object, array(bound))
    elseif callee.k ~= "Name" then
        self:fail(node, "unsupported: a call of something that is not a name")
    end
    local name = callee.name
    local scope = self.scope:find(name)
    if self.macros[name] and scope and scope.level == 0 then return self:call_macro(node, name) end
    if scope and scope.loads[name] ~= "input" then self:fail(node, "unsupported: a call of the variable %s", name) end
    if name == "namespace" then return self:make_dict(node, "VALUE_NAMESPACE") end
    if name == "dict" then return self:make_dict(node, "VALUE_DICT") end
    local signature = signatures.functions[name]
    if not signature then self:fail(node, "unsupported function %s()", name) end
    return self:keep("function_%s(run, NONE, %s)", name, array(self:bind(node, name .. "()", signature, node.args, node.kwargs)))
end

-- Conditions ------------------------------------------------------------------------------------------------------------------

function M:apply_test(node, leaf, name, args, kwargs)
    local signature = signatures.tests[name]
    if not signature then self:fail(node, "unsupported test 'is %s'", name) end
    local bound = self:bind(node, "is " .. name, signature, args, kwargs)
    return ("test_%s(run, %s, %s)"):format(signature.name, leaf, array(bound))
end

-- A C expression of type bool, to be used once, before anything else is written.
function M:condition(node)
    local method = M["condition_" .. node.k]
    if method then return method(self, node) end
    if node.k == "Bool" then return node.value and "true" or "false" end
    return ("value_truth(run, %s)"):format(self:value(node))
end

function M:condition_Not(node) return "!" .. self:condition(node.operand) end

function M:condition_Test(node)
    if node.name == "filter" or node.name == "test" then
        local known = constant_string(node.object)
        if not known then self:fail(node, "unsupported test 'is %s' of anything but a string", node.name) end
        if node.name == "test" then return signatures.tests[known] and "true" or "false" end
        return (signatures.filters[known] or WALKING[known]) and "true" or "false"
    end
    return self:apply_test(node, self:value(node.object), node.name, node.args, node.kwargs)
end

-- `a and b`: in one C expression where b needs no statements of its own.
function M:short_condition(node, op, negated)
    local left = self:condition(node.left)
    local lines, right = self:captured(function() return self:condition(node.right) end)
    if #lines == 0 then return ("(%s %s %s)"):format(left, op, right) end
    local name = self:temporary("c")
    self:line("bool %s = %s;", name, left)
    self:line("if (%s%s) {", negated, name)
    self:append(lines)
    self:line("    %s = %s;", name, right)
    self:line("}")
    return name
end

function M:condition_And(node) return self:short_condition(node, "&&", "") end
function M:condition_Or(node) return self:short_condition(node, "||", "!") end

local COMPARE = {
    eq = "value_eq(run, %s, %s)", ne = "!value_eq(run, %s, %s)", lt = "value_lt(run, %s, %s)", le = "value_le(run, %s, %s)",
    ["in"] = "value_in(run, %s, %s)", notin = "!value_in(run, %s, %s)",
}

local function compare(op, left, right)
    if op == "gt" or op == "ge" then
        op, left, right = op == "gt" and "lt" or "le", right, left
    end
    return COMPARE[op]:format(left, right)
end

function M:condition_Compare(node)
    local left = self:value(node.first)
    local right = self:value(node.rest[1].operand)
    local result = compare(node.rest[1].op, left, right)
    if #node.rest == 1 then return result end
    local name = self:temporary("c")
    self:line("bool %s = %s;", name, result)
    for i = 2, #node.rest do
        self:line("if (%s) {", name)
        self.indent = self.indent + 1
        left = right
        right = self:value(node.rest[i].operand)
        self:line("%s = %s;", name, compare(node.rest[i].op, left, right))
    end
    for _ = 2, #node.rest do
        self.indent = self.indent - 1
        self:line("}")
    end
    return name
end

local function boxed(self, node) return self:keep("value_bool(%s)", self:condition(node)) end
M.value_Not, M.value_Test, M.value_Compare = boxed, boxed, boxed

return M
