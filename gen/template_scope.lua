-- SPDX-License-Identifier: Apache-2.0
--
-- Which variable a name means, settled at build time with Jinja2's rules: a loop, a macro, a block set, a `with` and a generation
-- block open a scope; a name that a scope assigns is the scope's own, and starts as the outer variable of that name, as
-- what the caller passed, or undefined, depending on where it is first read. `if` opens no scope.

local fail = require "fail"

local M = { max_depth = 2000 }

-- Functions that are always there; calling one does not look its name up.
M.functions = { namespace = true, dict = true, range = true, raise_exception = true, strftime_now = true }

local Scope = {}
Scope.__index = Scope
M.Scope = Scope -- so that a test can break a rule

local function new(parent)
    return setmetatable({
        parent = parent, level = parent and parent.level + 1 or 0,
        refs = {}, -- names known here
        loads = {}, -- name -> how its variable starts: "alias", "input", "undefined", "parameter"
        stores = {}, -- names assigned here
    }, Scope)
end

-- The scope that knows name, or nil.
function Scope:find(name)
    local scope = self
    while scope and not scope.refs[name] do scope = scope.parent end
    return scope
end

function Scope:load(name)
    if self:find(name) then return end
    self.refs[name] = true
    self.loads[name] = "input"
end

function Scope:store(name)
    self.stores[name] = true
    if self.refs[name] then return end
    self.loads[name] = self.parent and self.parent:find(name) and "alias" or "undefined"
    self.refs[name] = true
end

function Scope:parameter(name)
    self.stores[name], self.refs[name], self.loads[name] = true, true, "parameter"
end

local function copied(map)
    local result = {}
    for key, value in pairs(map) do result[key] = value end
    return result
end

function Scope:branch()
    local branch = new(self.parent)
    branch.level = self.level
    branch.refs, branch.loads, branch.stores = copied(self.refs), copied(self.loads), copied(self.stores)
    return branch
end

-- Takes over what the branches of an `if` found: a name that only branches assign starts as what it is outside.
function Scope:merge(branches)
    local fresh = {}
    for _, branch in ipairs(branches) do
        for name in pairs(branch.stores) do fresh[name] = not self.stores[name] or nil end
    end
    for _, branch in ipairs(branches) do
        for name in pairs(branch.refs) do self.refs[name] = true end
        for name, load in pairs(branch.loads) do self.loads[name] = load end
        for name in pairs(branch.stores) do self.stores[name] = true end
    end
    for name in pairs(fresh) do
        self.loads[name] = self.parent and self.parent:find(name) and "alias" or "input"
    end
end

local visit

local function visit_all(scope, nodes, depth)
    for _, node in ipairs(nodes or {}) do visit(scope, node, depth) end
end

local function visit_target(scope, target)
    if target.k == "Target" then
        scope:store(target.name)
    elseif target.k == "SetAttribute" then
        scope:load(target.object)
    else
        for _, item in ipairs(target.items) do visit_target(scope, item) end
    end
end

local special = {}

special["If"] = function(scope, node, depth)
    visit(scope, node.test, depth)
    local body, otherwise = scope:branch(), scope:branch()
    visit_all(body, node.body, depth)
    visit_all(otherwise, node.otherwise, depth)
    scope:merge({ body, otherwise })
end

special["Set"] = function(scope, node, depth)
    visit(scope, node.value, depth)
    visit_target(scope, node.target)
end

special["SetBlock"] = function(scope, node) visit_target(scope, node.target) end
special["For"] = function(scope, node, depth) visit(scope, node.iterated, depth) end
special["Macro"] = function(scope, node) scope:store(node.name) end
special["With"] = function(scope, node, depth) visit_all(scope, node.values, depth) end
special["Generation"] = function() end
special["Call"] = function(scope, node, depth)
    if not (node.callee.k == "Name" and M.functions[node.callee.name]) then visit(scope, node.callee, depth) end
    visit_all(scope, node.args, depth)
    for _, kwarg in ipairs(node.kwargs) do visit(scope, kwarg.value, depth) end
end

special["Name"] = function(scope, node) scope:load(node.name) end

visit = function(scope, node, depth)
    depth = (depth or 0) + 1
    if depth > M.max_depth then fail("line %d: an expression is too long", node.line or 0) end
    if special[node.k] then return special[node.k](scope, node, depth) end
    for _, child in pairs(node) do
        if type(child) == "table" then visit(scope, child, depth) end
    end
end

-- open(parent, options): the scope of a list of statements. options.parameters: targets or names that the scope gets from outside;
-- options.nodes: the statements (and expressions) in it.
function M.open(parent, parameters, nodes)
    local scope = new(parent)
    local function declare(target)
        if type(target) == "string" then
            scope:parameter(target)
        elseif target.k == "Target" then
            scope:parameter(target.name)
        else
            for _, item in ipairs(target.items) do declare(item) end
        end
    end
    for _, target in ipairs(parameters) do declare(target) end
    visit_all(scope, nodes)
    return scope
end

return M
