-- SPDX-License-Identifier: Apache-2.0
--
-- The op table: the single source for every op. Its order numbers the kernels; `order` is the summation order that both
-- targets keep; bytes and flops are of one launch with `rows` live rows (weights counted once, activations left out where
-- weights dominate); `samples` are the shapes that the op tests run, edges first.

local ops = {}

local function add(name, op)
    op.name = name
    op.index = #ops
    op.bytes = op.bytes or function(a) return a.activation_bytes or 0 end
    op.flops = op.flops or function() return 0 end
    ops[#ops + 1] = op
    ops[name] = op
end

-- ---- matrices ----------------------------------------------------------------------------------------------------------

add("linear", {
    order = "k ascending in fixed phases, combined in phase order; groups of an encoding first, then across groups",
    bytes = function(a) return a.weight_bytes end,
    flops = function(a, rows) return 2 * a.weight_count * rows * (a.row_multiple or 1) end,
    samples = { { n = 1, k = 32 }, { n = 17, k = 64 }, { n = 96, k = 128 }, { n = 320, k = 1024 } },
})
add("experts_up", {
    order = "as linear, an expert's rows one by one",
    bytes = function(a, rows) return a.weight_bytes / a.experts * math.min(a.experts, a.slots * rows) end,
    flops = function(a, rows) return 2 * a.weight_count / a.experts * a.slots * rows end,
    samples = { { experts = 1, slots = 1 }, { experts = 5, slots = 2 }, { experts = 16, slots = 4 } },
})
add("experts_down", {
    order = "as linear, an expert's rows one by one",
    bytes = function(a, rows) return a.weight_bytes / a.experts * math.min(a.experts, a.slots * rows) end,
    flops = function(a, rows) return 2 * a.weight_count / a.experts * a.slots * rows end,
    samples = { { experts = 1, slots = 1 }, { experts = 5, slots = 2 }, { experts = 16, slots = 4 } },
})
add("embed", {
    order = "none: one row is decoded",
    bytes = function(a, rows) return a.row_bytes * rows end,
    samples = { { width = 64, copies = 1 }, { width = 128, copies = 4 } },
})

-- ---- rows one by one ----------------------------------------------------------------------------------------------------

local function elementwise(name, order, per_element, samples)
    add(name, {
        order = order,
        flops = function(a, rows) return per_element * (a.width or 0) * rows end,
        samples = samples,
    })
end
elementwise("norm", "16 lanes of squares, then a fixed tree", 4, { { groups = 1, dim = 32 }, { groups = 4, dim = 128 } })
elementwise("gated_norm", "as norm, a head at a time", 10, { { heads = 1, dim = 16 }, { heads = 4, dim = 64 } })
elementwise("head_norm", "as norm, a head at a time", 8, { { heads = 1, dim = 32, rotary = 0 }, { heads = 4, dim = 64, rotary = 16 } })
elementwise("add", "none", 1, { { width = 1 }, { width = 129 } })
elementwise("glu", "none", 6, { { width = 1 }, { width = 129 } })
elementwise("hc_mix", "streams ascending", 7, { { streams = 2, dim = 32 }, { streams = 4, dim = 128 } })
elementwise("hc_inject", "none", 2, { { streams = 2, dim = 32 }, { streams = 4, dim = 128 } })
elementwise("streams_add", "none", 1, { { streams = 2, dim = 32 }, { streams = 4, dim = 128 } })

-- ---- n-grams ---------------------------------------------------------------------------------------------------------------

add("ngram", {
    order = "none: rows are copied",
    bytes = function(a, rows) return a.heads * a.row_bytes * rows end,
    samples = { { ngram = 2, heads = 2, dim = 8 }, { ngram = 3, heads = 16, dim = 16 } },
})
elementwise("ple_gate", "16 lanes of products, then a fixed tree", 4, { { streams = 4, dim = 128 } })
elementwise("ple_add", "none", 6, { { width = 512 } })

-- ---- recurrences -----------------------------------------------------------------------------------------------------------

add("conv", {
    order = "taps ascending, oldest row first",
    bytes = function(a) return 2 * a.state_bytes end,
    flops = function(a, rows) return 2 * a.taps * a.channels * rows end,
    samples = { { channels = 16, taps = 4, dilation = 1 }, { channels = 48, taps = 4, dilation = 3 } },
})
add("gdn", {
    order = "token by token; key dimension ascending",
    bytes = function(a) return 2 * a.state_bytes end,
    flops = function(a, rows) return 7 * a.nv * a.dk * a.dv * rows end,
    samples = { { nk = 1, nv = 1, dk = 16, dv = 16 }, { nk = 2, nv = 6, dk = 32, dv = 64 } },
})
add("mamba", {
    order = "token by token; state dimension ascending",
    bytes = function(a) return 2 * a.state_bytes end,
    flops = function(a, rows) return 6 * a.heads * a.dim * a.state_dim * rows end,
    samples = { { heads = 2, dim = 16, groups = 1, state_dim = 16 }, { heads = 8, dim = 32, groups = 2, state_dim = 32 } },
})

-- ---- attention -------------------------------------------------------------------------------------------------------------

local heads = { { heads = 1, kv_heads = 1, dim = 32 }, { heads = 4, kv_heads = 2, dim = 64 } }
add("kv_append", { order = "none", samples = heads })
add("index_pool", { order = "the block's positions ascending", samples = heads })
add("index_select", { order = "dimension in 16 lanes and a fixed tree; heads ascending", samples = heads })
add("attention", { order = "chunks of 64 absolute positions, merged ascending", samples = heads })

-- ---- mixtures ----------------------------------------------------------------------------------------------------------------

add("route", { order = "experts ascending", samples = { { experts = 4, slots = 1 }, { experts = 16, slots = 4 } } })
elementwise("moe_sum", "slots ascending, then the shared expert", 2, { { slots = 1, width = 32 }, { slots = 4, width = 128 } })

-- ---- rows, draws, acceptance ---------------------------------------------------------------------------------------------------

add("rows", { order = "none", samples = {} })
add("gather", { order = "none", samples = {} })
add("save_streams", { order = "none", samples = {} })
add("draw", { order = "ids ascending", samples = { { vocabulary = 7 }, { vocabulary = 6144 } } })
add("accept", { order = "none", samples = {} })
add("commit", { order = "none", samples = {} })

local function round_up(a, unit) return (a + unit - 1) // unit * unit end

-- Bytes of memory that kernels use within a launch: the formulas of kernels/cpu/layout.h and ops.h.
ops.scratch = {
    linear_scratch = function(rows, k) return 10 * round_up(rows, 16) * round_up(k, 128) end,
    index_select_scratch = function(rows) return 4 * 65536 * math.min(rows, 8) end,
    attention_scratch = function(dim) return 2048 * dim end,
    experts_groups = function(rows, slots, experts) return round_up(64 + 4 * (2 * experts + 1 + rows * slots), 64) end,
}

return ops
