-- SPDX-License-Identifier: Apache-2.0
--
-- The family language, second half: hyper-connections, n-grams, recurrences, attention and mixtures, and the ops that
-- programs (not descriptions) use: rows, gathers, draws.

local Builder = require "family"

-- ---- hyper-connections ------------------------------------------------------------------------------------------------------

local function streams_args(self, streams, width)
    return { "pass", "pass", self.pass }, { "streams", "int", streams }, { "dim", "int", width // streams }
end

-- mean over streams of sigmoid(gate) * x.
function Builder:hc_mix(x, gate, streams)
    local y = self:value(x.width // streams)
    local a, b, c = streams_args(self, streams, x.width)
    self:op("hc_mix", { a, b, c, { "xn", "in", x }, { "gate", "in", gate }, { "y", "out", y } },
        { width = x.width, shape = streams .. "x" .. x.width // streams })
    return y
end

-- r[c] += 2 sigmoid(weights[c]) y, in place.
function Builder:hc_inject(r, weights, y, streams)
    local a, b, c = streams_args(self, streams, r.width)
    self:op("hc_inject", {
        a, b, c, { "ldi", "int", weights.ld }, { "inject", "in", weights }, { "y", "in", y }, { "r", "inout", r },
    }, { width = r.width, shape = streams .. "x" .. r.width // streams })
    return r
end

-- x[c] = e + h[c]; h is a value of streams rows a row.
function Builder:streams_add(e, h, streams)
    local y = self:value(e.width * streams)
    local a, b, c = streams_args(self, streams, y.width)
    self:op("streams_add", { a, b, c, { "e", "in", e }, { "h", "in", h }, { "y", "out", y } },
        { width = y.width, shape = streams .. "x" .. e.width })
    return y
end

-- The same memory as streams rows of width/streams columns, and back.
function Builder:as_rows(x, streams)
    local v = self:columns(x, 0, x.width // streams)
    v.multiple, v.ld = streams, x.width // streams
    return v
end

-- ---- n-gram embedding ---------------------------------------------------------------------------------------------------------

-- spec: { heads, dim, ngram, eos, multiplier, size, offset, rows, table names }
function Builder:ngram(spec)
    local t = self.store:rows(spec)
    local y = self:value(spec.heads * spec.dim)
    self:op("ngram", {
        { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "heads", "int", spec.heads }, { "dim", "int", spec.dim },
        { "ngram", "int", spec.ngram }, { "eos", "int", spec.eos }, { "encoding", "encoding", t.encoding },
        { "bits", "int", t.bits or 0 }, { "group", "int", t.group or 0 },
        { "multiplier", "int64s", spec.multiplier }, { "size", "int64s", spec.size }, { "offset", "int64s", spec.offset },
        { "table", "rows", t }, { "global", "global", t }, { "failed", "failed" }, { "y", "out", y },
    }, { heads = spec.heads, row = t, shape = spec.heads .. "x" .. spec.dim })
    return y
end

function Builder:ple_gate(k, q, v, streams)
    local u = self:value(k.width)
    local a, b, c = streams_args(self, streams, k.width)
    self:op("ple_gate", { a, b, c, { "k", "in", k }, { "q", "in", q }, { "v", "in", v }, { "u", "out", u } },
        { width = k.width, shape = streams .. "x" .. k.width // streams })
    return u
end

function Builder:ple_add(r, u, y)
    self:op("ple_add", {
        { "pass", "pass", self.pass }, { "width", "int", r.width }, { "u", "in", u }, { "y", "in", y }, { "r", "inout", r },
    }, { width = r.width, shape = tostring(r.width) })
    return r
end

-- ---- recurrences ---------------------------------------------------------------------------------------------------------------

-- Causal depthwise convolution with its history in the lane's run. options: taps, dilation, act, bias (name).
function Builder:conv(u, name, options)
    local y = self:value(u.width)
    local dilation = options.dilation or 1
    local state = { tails = dilation * (options.taps - 1) * u.width * 4, windows = self.max_window * u.width * 4 }
    self:op("conv", {
        { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "channels", "int", u.width }, { "taps", "int", options.taps },
        { "dilation", "int", dilation }, { "activation", "act", options.act or "none" }, { "ldu", "int", u.ld },
        { "ldy", "int", y.ld }, { "direct", "direct" }, { "state", "state", self.state:claim(name, state) }, { "u", "in", u },
        { "w", "vector", self.store:conv(name, u.width, options.taps) },
        { "bias", "vector", options.bias and self.store:vector(options.bias, u.width, "none") }, { "y", "out", y },
    }, {
        channels = u.width, taps = options.taps, state_bytes = dilation * (options.taps - 1) * u.width * 4,
        shape = u.width .. "x" .. options.taps,
    })
    return y
end

-- Gated DeltaNet. options: nk, nv, dk, dv.
function Builder:gated_delta(c, b, a, a_log, dt_bias, options)
    local nk, nv, dk, dv = options.nk, options.nv, options.dk, options.dv
    local y = self:value(nv * dv)
    local prepared = self:value(2 * nk * dk + 2 * nv)
    local state = { recurrent = nv * dk * dv * 4, windows = self.max_window * (nk * dk + nv * dv + 2 * nv) * 4 }
    self:op("gdn", {
        { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "nk", "int", nk }, { "nv", "int", nv }, { "dk", "int", dk },
        { "dv", "int", dv }, { "ldc", "int", c.ld }, { "ldb", "int", b.ld }, { "lda", "int", a.ld }, { "ldy", "int", y.ld },
        { "direct", "direct" }, { "state", "state", self.state:claim(a_log, state) }, { "c", "in", c }, { "b", "in", b },
        { "a", "in", a }, { "a_log", "vector", self.store:vector(a_log, nv, "none") },
        { "dt_bias", "vector", self.store:vector(dt_bias, nv, "none") }, { "prepared", "out", prepared }, { "y", "out", y },
    }, { nv = nv, dk = dk, dv = dv, state_bytes = nv * dk * dv * 4, shape = string.format("%d/%dx%dx%d", nk, nv, dk, dv) })
    return y
end

-- Mamba-2. options: heads, dim, groups, state_dim; names a_log, dt_bias, d.
function Builder:mamba(c, dt, names, options)
    local heads, dim, groups, n = options.heads, options.dim, options.groups, options.state_dim
    local y = self:value(heads * dim)
    local state = { recurrent = heads * dim * n * 4, windows = self.max_window * (heads * dim + groups * n + heads) * 4 }
    self:op("mamba", {
        { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "heads", "int", heads }, { "dim", "int", dim },
        { "groups", "int", groups }, { "state_dim", "int", n }, { "ldc", "int", c.ld }, { "ldt", "int", dt.ld },
        { "ldy", "int", y.ld }, { "direct", "direct" }, { "state", "state", self.state:claim(names.a_log, state) },
        { "c", "in", c }, { "dt", "in", dt }, { "a_log", "vector", self.store:vector(names.a_log, heads, "none") },
        { "dt_bias", "vector", self.store:vector(names.dt_bias, heads, "none") },
        { "d", "vector", self.store:vector(names.d, heads, "none") }, { "y", "out", y },
    }, { heads = heads, dim = dim, state_dim = n, state_bytes = heads * dim * n * 4, shape = string.format("%dx%dx%d", heads, dim, n) })
    return y
end

-- ---- attention -------------------------------------------------------------------------------------------------------------------

-- A layer's cache. options: heads (kv), dim, index (width of a raw index key, 0 none).
function Builder:cache(name, options) return self.caches:claim(name, options) end

local function cached(self, cache) return { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "layout", "cache", cache } end

function Builder:kv_append(cache, k, v, index)
    local a, b, c = cached(self, cache)
    self:op("kv_append", {
        a, b, c, { "ldk", "int", k.ld }, { "ldv", "int", v.ld }, { "ldi", "int", index and index.ld or 0 }, { "k", "in", k },
        { "v", "in", v }, { "index", "in", index },
    }, { shape = k.width .. "+" .. v.width })
end

-- options: ratio, rotary, theta, centred.
function Builder:index_pool(cache, name, options)
    local a, b, c = cached(self, cache)
    self:op("index_pool", {
        a, b, c, { "ratio", "int", options.ratio }, { "rotary", "int", options.rotary }, { "eps", "float", self.eps },
        { "w", "vector", self.store:vector(name, cache.index, options.centred and "plus_one" or "none") },
        { "inverse_frequency", "frequencies", { options.rotary, options.theta } },
    }, { shape = tostring(cache.index) })
end

-- Returns the chosen blocks. options: heads, ratio, keep.
function Builder:index_select(cache, q, options)
    local blocks = self:value(options.keep, { type = "i32" })
    local counts = self:value(1, { type = "i32" })
    local scratch = self.class == "decode" and self:scratch(self.sizes.index_select_scratch(self.capacity[self.pass])) or nil
    local a, b, c = cached(self, cache)
    self:op("index_select", {
        a, b, c, { "heads", "int", options.heads }, { "ratio", "int", options.ratio }, { "keep", "int", options.keep },
        { "ldq", "int", q.ld }, { "q", "in", q }, { "blocks", "out", blocks }, { "counts", "out", counts },
        { "scratch", "scratch", scratch }, { "row_class", "class", self.class },
    }, { shape = options.heads .. "x" .. cache.index .. " top " .. options.keep })
    return { blocks = blocks, counts = counts, ratio = options.ratio, keep = options.keep }
end

-- options: heads, scale, gate (value whose first gate column is head 0's), gate_stride, chosen.
function Builder:attention(cache, q, options)
    local y = self:value(options.heads * cache.dim)
    local chosen, gate = options.chosen, options.gate
    local scratch = self.class == "decode" and self:scratch(self.sizes.attention_scratch(cache.dim)) or nil
    local a, b, c = cached(self, cache)
    self:op("attention", {
        a, b, c, { "heads", "int", options.heads }, { "ldq", "int", q.ld }, { "ldg", "int", gate and gate.ld or 0 },
        { "gate_stride", "int", options.gate_stride or cache.dim }, { "ldy", "int", y.ld },
        { "ratio", "int", chosen and chosen.ratio or 0 }, { "keep", "int", chosen and chosen.keep or 0 },
        { "scale", "float", options.scale }, { "q", "in", q }, { "gate", "in", gate },
        { "blocks", "in", chosen and chosen.blocks }, { "counts", "in", chosen and chosen.counts }, { "y", "out", y },
        { "row_class", "class", self.class }, { "early", "int", 0 }, { "scratch", "scratch", scratch },
    }, { shape = string.format("%d/%dx%d", options.heads, cache.heads, cache.dim) })
    return y
end

-- ---- mixtures ----------------------------------------------------------------------------------------------------------------------

-- options: slots, sigmoid, normalise, factor, bias (name).
function Builder:route(logits, options)
    local ids = self:value(options.slots, { type = "i32" })
    local weights = self:value(options.slots)
    self:op("route", {
        { "pass", "pass", self.pass }, { "experts", "int", logits.width }, { "slots", "int", options.slots },
        { "sigmoid", "int", options.sigmoid and 1 or 0 }, { "normalise", "int", options.normalise and 1 or 0 },
        { "ldl", "int", logits.ld }, { "factor", "float", options.factor or 1 }, { "logits", "in", logits },
        { "bias", "vector", options.bias and self.store:vector(options.bias, logits.width, "none") }, { "ids", "out", ids },
        { "weights", "out", weights },
    }, { shape = "top " .. options.slots .. " of " .. logits.width })
    return { ids = ids, weights = weights, experts = logits.width, slots = options.slots }
end

-- Slots in order, then the shared expert times sigmoid(gate) (gate nil: times 1; shared nil: none).
function Builder:moe_sum(routed, route, width, shared, gate)
    local y = self:value(width)
    self:op("moe_sum", {
        { "pass", "pass", self.pass }, { "slots", "int", route.slots }, { "width", "int", width },
        { "ldg", "int", gate and gate.ld or 0 }, { "lds", "int", shared and shared.ld or 0 }, { "ldy", "int", y.ld },
        { "routed", "in", routed }, { "weights", "in", route.weights }, { "shared", "in", shared }, { "gate", "in", gate },
        { "y", "out", y },
    }, { width = width * route.slots, shape = route.slots .. "x" .. width })
    return y
end

-- ---- what programs use ---------------------------------------------------------------------------------------------------------------

-- Starts a pass: writes its rows. mode: C name of enum rows_mode without ROWS_.
function Builder:rows(pass, mode, step)
    self.pass = pass
    self:op("rows", {
        { "pass", "pass", pass }, { "lanes", "lanes" }, { "mode", "const", "ROWS_" .. mode:upper() }, { "step", "int", step or 0 },
        { "capacity", "int", self.capacity[pass] },
    }, { shape = mode })
end

-- Rows of x (a value of pass `from`), or of the lanes' saved streams (x nil), for the rows of the current pass.
function Builder:gather(x, from, width, state)
    local y = self:value(width)
    self:op("gather", {
        { "pass", "pass", self.pass }, { "from", "pass", from }, { "lanes", "lanes" }, { "width", "int", width },
        { "state", "state", state or 0 }, { "x", "in", x }, { "y", "out", y },
    }, { width = width, shape = tostring(width) })
    return y
end

function Builder:save_streams(x, state)
    self:op("save_streams", {
        { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "width", "int", x.width }, { "state", "state", state },
        { "x", "in", x },
    }, { shape = tostring(x.width) })
end

-- Draws a token a row; store: offset from the row's position at which tokens[] gets it, or -1. ids: token of each column, or nil.
function Builder:draw(logits, ahead, store, keep, ids)
    local drawn = self:value(1, { type = "i32", keep = keep })
    self:op("draw", {
        { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "vocabulary", "int", logits.width }, { "ldl", "int", logits.ld },
        { "ahead", "int", ahead }, { "store", "int", store }, { "logits", "in", logits }, { "drawn", "out", drawn },
        ids and { "ids", "int32s", ids },
    }, { shape = tostring(logits.width) })
    return drawn
end

function Builder:accept(drawn)
    self:op("accept", {
        { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "direct", "direct" }, { "drawn", "in", drawn },
        { "result", "result" },
    })
end

function Builder:commit(head)
    self:op("commit", { { "pass", "pass", self.pass }, { "lanes", "lanes" }, { "head", "int", head and 1 or 0 } })
end

return Builder
