-- SPDX-License-Identifier: Apache-2.0
--
-- Writes a chat template as C: one function for its body, one for each macro, a struct for the variables at its top. The C needs
-- runtime/template.c and renders what Jinja2 renders; nothing of the template is parsed or interpreted when it runs.

local Expr = require "template_expr"
local scope = require "template_scope"

local M = {}

local Emit = setmetatable({}, { __index = Expr })
Emit.__index = Emit

local LOOKS_AHEAD = { length = true, revindex = true, revindex0 = true, last = true, nextitem = true }

-- Whether the nodes ask a loop for something that needs all its items.
local function looks_ahead(node)
    if node.k == "Attribute" and node.object.k == "Name" and node.object.name == "loop" and LOOKS_AHEAD[node.name] then return true end
    for _, child in pairs(node) do
        if type(child) == "table" and looks_ahead(child) then return true end
    end
    return false
end

-- Statements ------------------------------------------------------------------------------------------------------------------

function Emit:statements(nodes)
    for _, node in ipairs(nodes) do self["emit_" .. node.k](self, node) end
end

function Emit:block(nodes)
    self.indent = self.indent + 1
    if self.indent > 200 then self:fail(nodes[1] or {}, "blocks nest too deeply") end
    self:statements(nodes)
    self.indent = self.indent - 1
end

-- Declares the variables of the current scope; parameters have been declared.
function Emit:declare(of)
    local names = {}
    for name in pairs(of.refs) do names[#names + 1] = name end
    table.sort(names)
    for _, name in ipairs(names) do
        local load, variable = of.loads[name], ("v%d_%s"):format(of.level, name)
        if load == "alias" then
            local outer = self.scope
            self.scope = of.parent
            self:line("struct value %s = %s;", variable, self:variable(name, {}))
            self.scope = outer
        elseif load == "undefined" then
            self:line("struct value %s = value_undefined(%s);", variable, Expr.quoted(name))
        elseif load == "input" and of.stores[name] then
            self.inputs[name] = true
            self:line("struct value %s = s->g_%s;", variable, name)
        end
        if load and (load ~= "input" or of.stores[name]) then self:line("(void)%s;", variable) end
    end
end

-- Runs f inside the scope `inner`.
function Emit:within(inner, f)
    local outer = self.scope
    self.scope = inner
    f()
    self.scope = outer
end

function Emit:mark(node) self:line("run->line = %d;", node.line) end

function Emit:emit_Data(node) self:line("output_text(run, &%s);", self:text(node.value)) end

function Emit:emit_Output(node)
    if node.value.k == "String" then return self:emit_Data(node.value) end
    self:mark(node)
    self:line("output_value(run, %s);", self:value(node.value))
end

function Emit:emit_If(node)
    self:mark(node)
    self:line("if (%s) {", self:condition(node.test))
    self:block(node.body)
    if node.otherwise then
        self:line("} else {")
        self:block(node.otherwise)
    end
    self:line("}")
end

-- Assigns a leaf to a target; `declared` gives the C type to declare parameters with.
function Emit:assign(target, leaf, declared)
    if target.k == "Target" then
        if target.name == "loop" then self:fail(target, "unsupported: a variable called loop") end
        if self.macros[target.name] and self.scope:find(target.name).level == 0 then
            self:fail(target, "unsupported: the macro %s is also a variable", target.name)
        end
        if leaf == self:variable(target.name, target) then return end
        self:line("%s%s = %s;", declared and "struct value " or "", self:variable(target.name, target), leaf)
        if declared then self:line("(void)%s;", self:variable(target.name, target)) end
    elseif target.k == "SetAttribute" then
        local object = self:value({ k = "Name", name = target.object, line = target.line })
        self:line("namespace_set(run, %s, %s, &%s, %s);", object, Expr.quoted(target.object), self:text(target.name), leaf)
    else
        local parts = self:temporary("u")
        self:line("struct value %s[%d];", parts, #target.items)
        self:line("value_unpack(run, %s, %s, %d);", leaf, parts, #target.items)
        for i, item in ipairs(target.items) do self:assign(item, ("%s[%d]"):format(parts, i - 1), declared) end
    end
end

function Emit:emit_Set(node)
    self:mark(node)
    self:assign(node.target, self:value(node.value), false)
end

-- The filter of a loop: the body of a C block in which only the loop's targets are added to what is outside.
function Emit:loop_filter(node, item, refused)
    self:line("{")
    self.indent = self.indent + 1
    local loop = self.loop
    self.loop = false -- `loop` itself does not exist yet
    self:within(scope.open(self.scope, { node.target }, { node.filter }), function()
        self:assign(node.target, item, true)
        self:declare_inputs()
        refused(self:condition(node.filter))
    end)
    self.loop = loop
    self.indent = self.indent - 1
    self:line("}")
end

-- A filter reads; only its parameters are variables of its own.
function Emit:declare_inputs()
    for name, load in pairs(self.scope.loads) do if load == "input" then self.inputs[name] = true end end
end

-- The items that pass the filter, as a list, for a body that asks for their number or the next.
function Emit:filtered(node, leaf)
    return self:walk(leaf, function(item, result)
        self:loop_filter(node, item, function(condition)
            self:line("if (%s)", condition)
            self:line("    list_push(run, %s, %s);", result, item)
        end)
    end, "value_elements")
end

function Emit:emit_For(node)
    self:mark(node)
    self:line("{")
    self.indent = self.indent + 1
    local leaf, filter = self:value(node.iterated), node.filter
    if filter and looks_ahead(node.body) then
        leaf, filter = self:filtered(node, leaf), nil
    end
    local outer_loop, outer_breakable, loop = self.loop, self.breakable, self:temporary("loop_")
    self:line("struct loop %s;", loop)
    self:line("loop_begin(run, &%s, %s);", loop, leaf)
    if node.otherwise then self:line("bool done_%s = false;", loop) end
    self:line("while (loop_next(run, &%s)) {", loop)
    self.indent = self.indent + 1
    if filter then
        self:loop_filter(node, loop .. ".item", function(condition)
            self:line("if (!(%s)) {", condition)
            self:line("    loop_skip(&%s);", loop)
            self:line("    continue;")
            self:line("}")
        end)
    end
    self.loop, self.breakable = loop, true
    local inner = scope.open(self.scope, { node.target, "loop" }, node.body)
    self:within(inner, function()
        self:assign(node.target, loop .. ".item", true)
        inner.loads.loop = nil
        self:declare_rest(inner)
        self.indent = self.indent - 1
        self:block(node.body)
        self.indent = self.indent + 1
    end)
    if node.otherwise then self:line("done_%s = true; // not reached by break and continue, as in Jinja2", loop) end
    self.loop, self.breakable = outer_loop, outer_breakable
    self.indent = self.indent - 1
    self:line("}")
    if node.otherwise then
        self:line("if (!done_%s) {", loop)
        self:plain_scope(node.otherwise)
        self:line("}")
    end
    self.indent = self.indent - 1
    self:line("}")
end

-- Declares what is not a parameter.
function Emit:declare_rest(inner)
    local loads = inner.loads
    inner.loads = setmetatable({}, { __index = function(_, name) return loads[name] ~= "parameter" and loads[name] or nil end })
    self:declare(inner)
    inner.loads = loads
end

-- A block of statements with a scope of its own.
function Emit:plain_scope(nodes)
    local inner = scope.open(self.scope, {}, nodes)
    self:within(inner, function()
        self.indent = self.indent + 1
        self:declare_rest(inner)
        self.indent = self.indent - 1
        self:block(nodes)
    end)
end

function Emit:emit_Break(node)
    if not self.breakable then self:fail(node, "break outside of a loop") end
    self:line("break;")
end

function Emit:emit_Continue(node)
    if not self.breakable then self:fail(node, "continue outside of a loop") end
    self:line("continue;")
end

function Emit:emit_Generation(node)
    local breakable = self.breakable
    self.breakable = false
    self:line("{")
    self:plain_scope(node.body)
    self:line("}")
    self.breakable = breakable
end

function Emit:emit_SetBlock(node)
    local breakable, id = self.breakable, self:temporary("b")
    self.breakable = false
    self:mark(node)
    self:line("struct builder %s = {0}, *o_%s = output_to(run, &%s);", id, id, id)
    self:line("{")
    self:plain_scope(node.body)
    self:line("}")
    self:line("output_to(run, o_%s);", id)
    self.breakable = breakable
    local captured = node.filters
    while captured.k == "Filter" do captured = captured.object end
    captured.leaf = self:keep("builder_finish(run, &%s, false)", id)
    self:within(scope.open(self.scope, {}, { node.filters }), function()
        self:declare_inputs()
        captured.result = self:value(node.filters)
    end)
    self:assign(node.target, captured.result, false)
end

function Emit:emit_With(node)
    self:mark(node)
    self:line("{")
    self.indent = self.indent + 1
    local leaves = {}
    for i, value in ipairs(node.values) do leaves[i] = self:value(value) end
    local inner = scope.open(self.scope, node.targets, node.body)
    self:within(inner, function()
        for i, target in ipairs(node.targets) do self:assign(target, leaves[i], true) end
        self:declare_rest(inner)
        self.indent = self.indent - 1
        self:block(node.body)
        self.indent = self.indent + 1
    end)
    self.indent = self.indent - 1
    self:line("}")
end

-- Macros ----------------------------------------------------------------------------------------------------------------------

function Emit:emit_Macro(node)
    if self.scope.level ~= 0 or self.macros[node.name] ~= node then
        self:fail(node, "unsupported: the macro %s inside a loop or another block", node.name)
    end
    self:line("s->v_%s = value_macro(&object_%s);", node.name, node.name)
end

function Emit:macro_function(node)
    local nodes, names = {}, {}
    for i, parameter in ipairs(node.parameters) do
        names[i] = parameter.name
        if parameter.default then nodes[#nodes + 1] = parameter.default end
    end
    for _, statement in ipairs(node.body) do nodes[#nodes + 1] = statement end
    self.in_macro, self.loop, self.breakable = true, nil, false
    self:line("static struct value body_%s(struct template_run *run, void *scope, const struct value *arguments)", node.name)
    self:line("{")
    self.indent = self.indent + 1
    self:line("struct scope *s = scope;")
    self:line("(void)run, (void)s, (void)arguments;")
    local inner = scope.open(self.scope, names, nodes)
    self:within(inner, function()
        for i, parameter in ipairs(node.parameters) do
            self:line("struct value v1_%s = arguments[%d];", parameter.name, i - 1)
        end
        self:declare_rest(inner)
        for _, parameter in ipairs(node.parameters) do
            self:line("if (v1_%s.kind == VALUE_MISSING) {", parameter.name)
            self.indent = self.indent + 1
            local default = parameter.default and self:value(parameter.default)
                or ("value_undefined(%s)"):format(Expr.quoted(parameter.name))
            self:line("v1_%s = %s;", parameter.name, default)
            self.indent = self.indent - 1
            self:line("}")
        end
        self.indent = self.indent - 1
        self:block(node.body)
        self.indent = self.indent + 1
    end)
    self:line("return NONE;")
    self.indent = self.indent - 1
    self:line("}")
    self:line("")
    self.in_macro = false
end

-- The macros at the top of the template, also inside `if`, by name.
function Emit:collect_macros(nodes)
    for _, node in ipairs(nodes) do
        if node.k == "Macro" then
            if self.macros[node.name] then self:fail(node, "unsupported: the macro %s is defined twice", node.name) end
            self.macros[node.name] = node
            self.macros[#self.macros + 1] = node
        elseif node.k == "If" then
            self:collect_macros(node.body)
            self:collect_macros(node.otherwise or {})
        end
    end
end

-- Files -----------------------------------------------------------------------------------------------------------------------

local NAMED = { ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r", ['"'] = '\\"', ["\\"] = "\\\\" }

-- A C string literal, broken at line ends.
local function literal(bytes)
    local text = bytes:gsub('[%c"\\\127-\255]', function(c) return NAMED[c] or ("\\%03o"):format(c:byte()) end)
    text = text:gsub("%?%?", "?\\?"):gsub("\\\\n", "\1"):gsub("\\n(.)", '\\n"\n    "%1'):gsub("\1", "\\\\n")
    return '"' .. text .. '"'
end
M.literal = literal

local function text_fields(bytes)
    return ("{.data = %s, .size = %d, .trusted = true}"):format(literal(bytes), #bytes)
end

function Emit:head(out, symbol, constants)
    out[#out + 1] = "// Generated from " .. self.title:gsub("[^%w%._/ -]", "?") .. " by gen/template.lua; not to be edited.\n"
    out[#out + 1] = '#include "runtime/chat.h"\n#include "runtime/template_library.h"\n'
    for i, bytes in ipairs(self.texts) do out[#out + 1] = ("static const struct text text_%d = %s;"):format(i, text_fields(bytes)) end
    local names = {}
    for name in pairs(constants) do names[#names + 1] = name end
    table.sort(names)
    if #names > 0 then
        out[#out + 1] = ("static const struct template_constant %s_constants[] = {"):format(symbol)
        for _, name in ipairs(names) do
            out[#out + 1] = ("    {.name = %s, .text = %s},"):format(Expr.quoted(name), text_fields(constants[name]))
        end
        out[#out + 1] = "};"
    end
    return #names
end

-- The struct of variables at the top, and how they start.
function Emit:variables(out)
    local start, fields = {}, {}
    for name in pairs(self.scope.refs) do
        fields[#fields + 1] = "    struct value v_" .. name .. ";"
        local load = self.scope.loads[name] == "input" and "template_name(run, %s)" or "value_undefined(%s)"
        start[#start + 1] = ("    s->v_%s = %s;"):format(name, load:format(Expr.quoted(name)))
    end
    for name in pairs(self.inputs) do
        fields[#fields + 1] = "    struct value g_" .. name .. "; // the name as the caller gave it"
        start[#start + 1] = ("    s->g_%s = template_name(run, %s);"):format(name, Expr.quoted(name))
    end
    table.sort(fields)
    table.sort(start)
    if #fields == 0 then fields[1] = "    int none;" end
    out[#out + 1] = "\nstruct scope {\n" .. table.concat(fields, "\n") .. "\n};\n"
    return start
end

-- emit(compiled, symbol): the C text that defines `const struct chat_template SYMBOL`.
function M.emit(compiled, symbol)
    local self = setmetatable({
        name = compiled.name, title = compiled.title, texts = {}, macros = {}, inputs = {}, count = 0, indent = 0, lines = {},
        scope = scope.open(nil, {}, compiled.body),
    }, Emit)
    self:collect_macros(compiled.body)
    local body_lines = self:captured(function()
        self.indent = 0
        self:block(compiled.body)
        self.indent = 1
    end)
    local macro_lines = self:captured(function()
        self.indent = 0
        for _, macro in ipairs(self.macros) do self:macro_function(macro) end
        self.indent = 1
    end)
    local out = {}
    local constant_count = self:head(out, symbol, compiled.constants)
    local start = self:variables(out)
    for _, macro in ipairs(self.macros) do
        out[#out + 1] = ("static macro_function body_%s;"):format(macro.name)
        out[#out + 1] = ("static const struct macro object_%s = {.name = %s, .call = body_%s};"):format(
            macro.name, Expr.quoted(macro.name), macro.name)
    end
    out[#out + 1] = "\n" .. table.concat(macro_lines, "\n")
    out[#out + 1] = ("static void %s_render(struct template_run *run)\n{"):format(symbol)
    out[#out + 1] = "    struct scope variables, *s = &variables;\n    (void)s, (void)run;\n    run->line = 1;"
    out[#out + 1] = table.concat(start, "\n")
    out[#out + 1] = table.concat(body_lines, "\n") .. "\n}\n"
    out[#out + 1] = ("const struct chat_template %s = {\n    .name = %s,\n    .render = %s_render,"):format(
        symbol, literal(compiled.title), symbol)
    if constant_count > 0 then
        out[#out + 1] = ("    .constants = %s_constants,\n    .constant_count = %d,"):format(symbol, constant_count)
    end
    out[#out + 1] = "};\n"
    return table.concat(out, "\n")
end

-- A build without a template: chat_render says so.
function M.none(symbol)
    return "// Generated by gen/template.lua for a checkpoint without chat template; not to be edited.\n"
        .. '#include "runtime/chat.h"\n\n' .. ("const struct chat_template %s = {.name = NULL};\n"):format(symbol)
end

return M
