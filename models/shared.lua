-- SPDX-License-Identifier: Apache-2.0
--
-- What the families share: config keys, the Gated DeltaNet mixer, the mixture of experts.

local shared = { keys = {} }

shared.keys.common = {
    required = { "vocab_size", "hidden_size", "num_hidden_layers" },
    optional = {
        rms_norm_eps = 1e-6, max_position_embeddings = 32768, tie_word_embeddings = false, hidden_act = "silu",
        attention_bias = false, eos_token_id = false, bos_token_id = false, pad_token_id = false,
    },
}

shared.keys.attention = {
    required = { "num_attention_heads", "num_key_value_heads", "head_dim" },
    optional = { rope_parameters = {}, rope_theta = false, partial_rotary_factor = false, rope_scaling = false },
}

shared.keys.delta_net = {
    required = {
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    },
    optional = { layer_types = false, full_attention_interval = 4, mamba_ssm_dtype = "float32" },
}

shared.keys.mixture = {
    required = { "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size" },
    optional = { norm_topk_prob = true },
}

function shared.check_heads(c, fail)
    if c.num_attention_heads % c.num_key_value_heads ~= 0 then
        fail("num_attention_heads %d is no multiple of num_key_value_heads %d", c.num_attention_heads, c.num_key_value_heads)
    end
    if c.linear_num_value_heads % c.linear_num_key_heads ~= 0 then
        fail("linear_num_value_heads %d is no multiple of linear_num_key_heads %d", c.linear_num_value_heads, c.linear_num_key_heads)
    end
    if c.num_experts and c.num_experts_per_tok > c.num_experts then
        fail("num_experts_per_tok %d is more than num_experts %d", c.num_experts_per_tok, c.num_experts)
    end
    if c.hidden_act ~= "silu" then fail("hidden_act: only silu is known, found %s", c.hidden_act) end
    if c.attention_bias then fail("attention_bias: true is not known") end
end

-- 2.7. gate: activation of the norm's gate.
function shared.delta_net_from(m, c, at, u, z, b, a, gate)
    local nk, nv, dk, dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    local conv = m:conv(u, at .. "conv1d", { taps = c.linear_conv_kernel_dim, act = "silu" })
    local o = m:gated_delta(conv, b, a, at .. "A_log", at .. "dt_bias", { nk = nk, nv = nv, dk = dk, dv = dv })
    local y = m:gated_norm(o, z, at .. "norm", { heads = nv, dim = dv, act = gate })
    return m:linear(y, at .. "out_proj", c.hidden_size)
end

function shared.delta_net(m, c, at, x, gate)
    local nk, nv, dk, dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    local u = m:linear(x, at .. "in_proj_qkv", 2 * nk * dk + nv * dv)
    local z, b, a = m:linear(x, at .. "in_proj_z", nv * dv), m:linear(x, at .. "in_proj_b", nv), m:linear(x, at .. "in_proj_a", nv)
    return shared.delta_net_from(m, c, at, u, z, b, a, gate or c.output_gate_type)
end

-- down(silu(gate x) * up x)
function shared.dense(m, at, x, inner, width)
    local g, u = m:linear(x, at .. "gate_proj", inner), m:linear(x, at .. "up_proj", inner)
    return m:linear(m:glu(g, u), at .. "down_proj", width)
end

-- 2.10
function shared.mixture_block(m, c, at, x)
    local logits = m:linear(x, at .. "gate", c.num_experts)
    local gate = m:linear(x, at .. "shared_expert_gate", 1)
    -- The router first: a target may choose beside the shared expert's product, or ask for the chosen experts' weights while it runs.
    local route = m:route(logits, { slots = c.num_experts_per_tok, normalise = c.norm_topk_prob })
    local own = shared.dense(m, at .. "shared_expert.", x, c.shared_expert_intermediate_size, c.hidden_size)
    local routed = m:experts(x, route, at .. "experts", c.moe_intermediate_size, c.hidden_size)
    return m:moe_sum(routed, route, c.hidden_size, own, gate)
end

return shared
