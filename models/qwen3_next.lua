-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3-Next: the common block; the DeltaNet projections are stored together, grouped by key head; some layers may have a
-- dense MLP (4.2).

local qwen = require "qwen"
local shared = require "shared"

-- Rows of one kind in a matrix that holds, for each of `heads` key heads, `group` rows: rows first .. first + count - 1 of each.
local function cut(key, heads, group, parts)
    local order = {}
    for _, part in ipairs(parts) do
        for h = 0, heads - 1 do
            for i = 0, part.count - 1 do order[#order + 1] = h * group + part.first + i end
        end
    end
    return { key = " " .. key, order = order, total = heads * group }
end

local function delta_net(m, c, at, a)
    local nk, nv, dk, dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    local r = nv // nk
    local group = 2 * dk + 2 * r * dv
    local qkv = cut("qkv", nk, group, { { first = 0, count = dk }, { first = dk, count = dk }, { first = 2 * dk, count = r * dv } })
    local u = m:linear(a, at .. "in_proj_qkvz", 2 * nk * dk + nv * dv, { rows = qkv })
    local z = m:linear(a, at .. "in_proj_qkvz", nv * dv, { rows = cut("z", nk, group, { { first = 2 * dk + r * dv, count = r * dv } }) })
    local b = m:linear(a, at .. "in_proj_ba", nv, { rows = cut("b", nk, 2 * r, { { first = 0, count = r } }) })
    local al = m:linear(a, at .. "in_proj_ba", nv, { rows = cut("a", nk, 2 * r, { { first = r, count = r } }) })
    return shared.delta_net_from(m, c, at, u, z, b, al, "silu")
end

return qwen.family {
    name = "qwen3_next",
    model_types = { "qwen3_next" },
    config = {
        shared.keys.common, shared.keys.attention, shared.keys.delta_net, shared.keys.mixture, qwen.keys,
        optional = { intermediate_size = 0, mlp_only_layers = {}, decoder_sparse_step = 1 },
    },
    delta_net = delta_net,
    check = function(c)
        c.dense = {}
        for _, l in ipairs(c.mlp_only_layers) do c.dense[l] = true end
        for l = 0, c.num_hidden_layers - 1 do
            if (l + 1) % c.decoder_sparse_step ~= 0 then c.dense[l] = true end
        end
    end,
    mlp = function(m, c, at, x, l)
        if c.dense[l] then return shared.dense(m, at, x, c.intermediate_size, c.hidden_size) end
        return shared.mixture_block(m, c, at, x)
    end,
}
