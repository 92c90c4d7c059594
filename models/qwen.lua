-- SPDX-License-Identifier: Apache-2.0
--
-- The common block of Qwen3.5, Qwen3.5-MoE and Qwen3-Next (4.1): pre-norm residual layers, Gated DeltaNet or gated attention
-- as mixer, and an MLP that each family names. A family is this with its differences: qwen.family{ ... }.

local shared = require "shared"

local qwen = {}

-- 2.8 without an indexer: dense causal attention.
local function append(m, c, at, a)
    local cache = m:cache(at, { heads = c.num_key_value_heads, dim = c.head_dim })
    local k, v = m:linear(a, at .. "k_proj", cache.heads * cache.dim), m:linear(a, at .. "v_proj", cache.heads * cache.dim)
    m:kv_append(cache, m:head_norm(k, at .. "k_norm", {
        heads = cache.heads, dim = cache.dim, rotary = c.rotary, theta = c.rope_theta, centred = true,
    }), v)
    return cache
end

local function attention(m, c, at, a)
    local d = c.head_dim
    local qg = m:linear(a, at .. "q_proj", c.num_attention_heads * 2 * d)
    local cache = append(m, c, at, a)
    local q = m:head_norm(qg, at .. "q_norm", {
        heads = c.num_attention_heads, stride = 2 * d, dim = d, rotary = c.rotary, theta = c.rope_theta, centred = true,
    })
    local o = m:attention(cache, q, { heads = c.num_attention_heads, scale = d ^ -0.5, gate = m:columns(qg, d), gate_stride = 2 * d })
    return m:linear(o, at .. "o_proj", c.hidden_size)
end

-- The gate of the DeltaNet norm is SiLU whatever output_gate_type says (2.1).
local function delta_net(m, c, at, a) return shared.delta_net(m, c, at, a, "silu") end

-- description: name, model_types, config, delta_net (mixer, optional), mlp(m, c, at, x, l), check (optional), unused (optional)
function qwen.family(description)
    local family = description
    local mixer = description.delta_net or delta_net

    local function layer(m, c, at, x, full, l)
        local a = m:norm(x, at .. "input_layernorm", { centred = true })
        m:add(x, full and attention(m, c, at .. "self_attn.", a) or mixer(m, c, at .. "linear_attn.", a))
        return m:add(x, family.mlp(m, c, at .. "mlp.", m:norm(x, at .. "post_attention_layernorm", { centred = true }), l))
    end

    local check = family.check
    function family.check(c, fail)
        shared.check_heads(c, fail)
        if not c.attn_output_gate then fail("attn_output_gate: only true is known, found false") end
        if check then check(c, fail) end
    end

    function family.embed(m, c, keep) return m:embed("embed_tokens", c.vocab_size, c.hidden_size, 1, keep) end

    function family.layer(m, c, l, x) return layer(m, c, "layers." .. l .. ".", x, c.full[l], l) end

    function family.output(m, _, x) return m:norm(x, "norm", { centred = true }) end

    family.head = {}

    -- concat(norm of the token's embedding, norm of the hidden row after the model's last norm), projected.
    function family.head.input(m, c, x, chained)
        local both = m:value(2 * c.hidden_size)
        local e = m:embed("embed_tokens", c.vocab_size, c.hidden_size, 1)
        m:norm(e, "mtp.pre_fc_norm_embedding", { centred = true, into = m:columns(both, 0, c.hidden_size) })
        local hidden = m:norm(x, chained and "mtp.norm" or "norm", { centred = true })
        m:norm(hidden, "mtp.pre_fc_norm_hidden", { centred = true, into = m:columns(both, c.hidden_size) })
        return m:linear(both, "mtp.fc", c.hidden_size)
    end

    function family.head.fill(m, c, x)
        append(m, c, "mtp.layers.0.self_attn.", m:norm(x, "mtp.layers.0.input_layernorm", { centred = true }))
    end

    function family.head.layer(m, c, x) return layer(m, c, "mtp.layers.0.", x, true, c.num_hidden_layers) end

    function family.head.output(m, _, x) return m:norm(x, "mtp.norm", { centred = true }) end

    function family.ignored(census) census:ignore("^visual%.", "the vision tower is not run yet") end

    return family
end

qwen.keys = {
    optional = { output_gate_type = "silu", mtp_num_hidden_layers = 0, mtp_use_dedicated_embeddings = false, mtp = {},
        attn_output_gate = true,
    },
}

return qwen
