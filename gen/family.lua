-- SPDX-License-Identifier: Apache-2.0
--
-- The family language: what models/*.lua is written in. A description calls these methods on a builder `m`; each call adds
-- one op to the program being built and returns the value that it computes. A value is a matrix of rows x width; its rows
-- are those of the pass it was made in. Weights are asked for by their official names.
--
-- Invariant: a description says what is computed, never where it lies or how it is cut; sizes come from the config.

local fail = require "fail"

local Builder = {}
Builder.__index = Builder

local Value = {}
Value.__index = Value

-- The line of the description that is running now: "models/flashnext.lua:41".
local function where()
    for level = 3, 20 do
        local info = debug.getinfo(level, "Sl")
        if not info then return "gen" end
        local file = info.short_src:match("(models/[%w_]+%.lua)$")
        if file then return file .. ":" .. info.currentline end
    end
    return "gen"
end

-- new{ store = weight store, state = state allocator, caches = cache table, class = "decode"|"prompt", capacity = {pass = rows}, direct }
function Builder.new(options)
    local self = setmetatable({}, Builder)
    for k, v in pairs(options) do self[k] = v end
    self.ops, self.values, self.pass = {}, {}, "trunk"
    return self
end

-- A new value of `width` columns in the current pass. options: multiple (rows a row), type ("f32" or "i32"), keep (name of a
-- buffer that outlives the program).
function Builder:value(width, options)
    options = options or {}
    local multiple = options.multiple or 1
    local v = setmetatable({
        width = width, ld = width, offset = 0, multiple = multiple, pass = self.pass, type = options.type or "f32",
    }, Value)
    v.buffer = {
        bytes = self.capacity[self.pass] * multiple * width * 4, keep = options.keep, id = #self.values + 1,
    }
    self.values[#self.values + 1] = v
    return v
end

-- A block of memory that a kernel uses within its launch.
function Builder:scratch(bytes)
    local v = setmetatable({ width = bytes, ld = 0, offset = 0, multiple = 1, pass = self.pass, type = "raw" }, Value)
    v.buffer = { bytes = bytes, id = #self.values + 1 }
    self.values[#self.values + 1] = v
    return v
end

-- Columns first .. of v as a value of its own (no copy). stride: distance of what follows (heads with two halves).
function Builder.columns(_, v, first, width)
    local view = setmetatable({}, Value)
    for k, x in pairs(v) do view[k] = x end
    view.offset, view.width = v.offset + first, width or v.width - first
    return view
end

-- Adds an op. args: list of { field, kind, value }; kinds are emit_c's. facts: what the op table's formulas read.
function Builder:op(name, args, facts)
    facts = facts or {}
    self.ops[#self.ops + 1] = { name = name, args = args, facts = facts, where = where(), pass = self.pass, label = self.label }
end

-- ---- matrices -----------------------------------------------------------------------------------------------------------

local function linear_scratch(self, rows, k) return self:scratch(self.sizes.linear_scratch(rows, k)) end

-- y = act(scale * W x). W is [width, x.width], named. options: scale, act, rows (cut or order of the stored rows), matrix
-- (a weight record asked for before), out (an existing value to write to).
function Builder:linear(x, name, width, options)
    options = options or {}
    local w = options.matrix or self.store:matrix(name, width, x.width, options.rows)
    local y = self:value(width, { multiple = x.multiple, keep = options.keep })
    self:op("linear", nil, {
        x = x, row_multiple = x.multiple, k = x.width, shape = string.format("%dx%d %s", width, x.width, w.encoding),
        parts = { { weight = w, y = y, act = options.act or "none", scale = options.scale or 1 } },
    })
    return y
end

-- Completes the linear ops once fusion has decided their parts.
function Builder:finish_linear(op)
    local f = op.facts
    local pass = self.pass
    self.pass = op.pass
    local scratch = linear_scratch(self, self.capacity[op.pass] * f.row_multiple, f.k)
    self.pass = pass
    op.args = {
        { "pass", "pass", op.pass }, { "row_multiple", "int", f.row_multiple }, { "row_class", "class", self.class },
        { "k", "int", f.k }, { "ldx", "int", f.x.ld }, { "x", "in", f.x }, { "scratch", "scratch", scratch },
        { "parts", "int", #f.parts }, { "part", "parts", f.parts },
    }
    f.weight_count, f.weights = 0, {}
    for i, part in ipairs(f.parts) do
        f.weights[i] = part.weight
        f.weight_count = f.weight_count + part.weight.n * part.weight.k
    end
end

-- E[token], repeated `copies` times. tied: the name of the output matrix when the table is the same tensor.
function Builder:embed(name, vocabulary, width, copies, keep)
    local w = self.store:embedding(name, vocabulary, width)
    local y = self:value(width * copies, { keep = keep })
    self:op("embed", {
        { "pass", "pass", self.pass }, { "table", "weight", w }, { "panel", "int", w.panel and 1 or 0 },
        { "copies", "int", copies }, { "ldy", "int", y.ld }, { "y", "out", y },
    }, { row = w, shape = width .. "x" .. copies })
    return y
end

-- Routed experts: h = act(G x) * (U x) an expert (gated) or act(U x); then y = D h. route: what :route returned.
function Builder:experts(x, route, prefix, inner, width, options)
    options = options or {}
    local gated = options.gated ~= false
    local up = self.store:experts(prefix, "up", route.experts, inner, x.width)
    local gate = gated and self.store:experts(prefix, "gate", route.experts, inner, x.width) or nil
    local down = self.store:experts(prefix, "down", route.experts, width, inner)
    local rows = self.capacity[self.pass]
    local h = self:value(route.slots * inner)
    local groups = self:scratch(self.sizes.experts_groups(rows, route.slots, route.experts))
    local scratch = linear_scratch(self, rows, x.width)
    self:op("experts_up", {
        { "pass", "pass", self.pass }, { "row_class", "class", self.class }, { "experts", "int", route.experts },
        { "slots", "int", route.slots }, { "k", "int", x.width }, { "inner", "int", inner }, { "ldx", "int", x.ld },
        { "activation", "act", options.act or "silu" }, { "x", "in", x }, { "ids", "in", route.ids },
        { "gate", "weight", gate }, { "up", "weight", up }, { "h", "out", h }, { "groups", "out", groups },
        { "scratch", "scratch", scratch }, { "early", "int", 0 },
    }, {
        experts = route.experts, slots = route.slots, weights = { up, gate },
        weight_count = route.experts * inner * x.width * (gated and 2 or 1),
        shape = string.format("%dx%dx%d %s", route.experts, inner * (gated and 2 or 1), x.width, up.encoding),
    })
    local y = self:value(route.slots * width)
    local scratch2 = linear_scratch(self, rows * route.slots, inner)
    self:op("experts_down", {
        { "pass", "pass", self.pass }, { "row_class", "class", self.class }, { "experts", "int", route.experts },
        { "slots", "int", route.slots }, { "k", "int", inner }, { "n", "int", width }, { "h", "in", h },
        { "ids", "in", route.ids }, { "down", "weight", down }, { "y", "out", y }, { "groups", "in", groups },
        { "scratch", "scratch", scratch2 },
    }, {
        experts = route.experts, slots = route.slots, weights = { down },
        weight_count = route.experts * inner * width,
        shape = string.format("%dx%dx%d %s", route.experts, width, inner, down.encoding),
    })
    return y
end

-- ---- rows one by one ------------------------------------------------------------------------------------------------------

-- RMS norm of `groups` equal parts. options: groups, centred (the stored weight is w - 1), into (columns to write to).
function Builder:norm(x, name, options)
    options = options or {}
    local groups = options.groups or 1
    local y = options.into or self:value(x.width)
    self:op("norm", {
        { "pass", "pass", self.pass }, { "groups", "int", groups }, { "dim", "int", x.width // groups },
        { "ldx", "int", x.ld }, { "ldy", "int", y.ld }, { "eps", "float", self.eps }, { "x", "in", x },
        { "w", "vector", self.store:vector(name, x.width, options.centred and "plus_one" or "none") }, { "y", "out", y },
    }, { width = x.width, shape = groups .. "x" .. x.width // groups })
    return y
end

-- Per-head norm of x gated by act(z). options: heads, dim, act, after (Mamba-2: gate first, norm over groups after).
function Builder:gated_norm(x, z, name, options)
    local y = self:value(x.width)
    local count = options.after and options.heads * options.dim or options.dim
    self:op("gated_norm", {
        { "pass", "pass", self.pass }, { "heads", "int", options.heads }, { "dim", "int", options.dim },
        { "ldx", "int", x.ld }, { "ldz", "int", z.ld }, { "ldy", "int", y.ld }, { "activation", "act", options.act },
        { "norm_after", "int", options.after and 1 or 0 }, { "eps", "float", self.eps }, { "x", "in", x }, { "z", "in", z },
        { "w", "vector", self.store:vector(name, count, "none") }, { "y", "out", y },
    }, { width = x.width, shape = options.heads .. "x" .. options.dim })
    return y
end

-- Per-head norm (name may be nil), then rotation of the first `rotary` dims. options: heads, stride, dim, rotary, centred, theta.
function Builder:head_norm(x, name, options)
    local y = self:value(options.heads * options.dim)
    local centred = options.centred and "plus_one" or "none"
    self:op("head_norm", {
        { "pass", "pass", self.pass }, { "heads", "int", options.heads },
        { "head_stride", "int", options.stride or options.dim }, { "dim", "int", options.dim },
        { "rotary", "int", options.rotary or 0 }, { "ldx", "int", x.ld }, { "ldy", "int", y.ld }, { "eps", "float", self.eps },
        { "x", "in", x }, { "w", "vector", name and self.store:vector(name, options.dim, centred) },
        { "inverse_frequency", "frequencies", (options.rotary or 0) > 0 and { options.rotary, options.theta } or nil },
        { "y", "out", y },
    }, { width = y.width, shape = options.heads .. "x" .. options.dim })
    return y
end

-- x += y, in place.
function Builder:add(x, y)
    self:op("add", {
        { "pass", "pass", self.pass }, { "width", "int", x.width }, { "ldx", "int", x.ld }, { "ldy", "int", y.ld },
        { "x", "inout", x }, { "y", "in", y },
    }, { width = x.width, shape = tostring(x.width) })
    return x
end

-- act(g) * u; g nil: act(u).
function Builder:glu(g, u, act)
    local y = self:value(u.width)
    self:op("glu", {
        { "pass", "pass", self.pass }, { "width", "int", u.width }, { "ldg", "int", g and g.ld or 0 }, { "ldu", "int", u.ld },
        { "ldy", "int", y.ld }, { "activation", "act", act or "silu" }, { "g", "in", g }, { "u", "in", u }, { "y", "out", y },
    }, { width = u.width, shape = tostring(u.width) })
    return y
end

Builder.Value = Value
Builder.where = where
Builder.fail = fail
return Builder
