-- SPDX-License-Identifier: Apache-2.0
--
-- Nemotron-H: blocks of one mixer each (Mamba-2, attention or a mixture of experts), plain pre-norm residual (4.5).

local shared = require "shared"

local family = { name = "nemotron_h", model_types = { "nemotron_h" } }

family.config = {
    shared.keys.common,
    required = {
        "num_attention_heads", "num_key_value_heads", "head_dim", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups",
        "conv_kernel", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
    },
    optional = {
        layers_block_type = false, hybrid_override_pattern = "", layer_norm_epsilon = 1e-5, n_shared_experts = 1, n_group = 1,
        topk_group = 1, norm_topk_prob = true, routed_scaling_factor = 1.0, use_conv_bias = true, mlp_hidden_act = "relu2",
        mamba_hidden_act = "silu", mamba_proj_bias = false, mlp_bias = false, use_bias = false, num_nextn_predict_layers = 0,
        mtp_hybrid_override_pattern = "", mtp_layers_block_type = {},
    },
}
family.unused = {}
for name in ([[chunk_size expand intermediate_size mamba_ssm_cache_dtype moe_latent_size moe_shared_expert_overlap
    norm_eps time_step_floor time_step_max time_step_min num_hidden_layers layer_types rope_theta rope_parameters
    attention_head_dim partial_rotary_factor ssm_cfg mamba_ssm_dtype]]):gmatch("%S+") do family.unused[name] = true end
family.free = { num_hidden_layers = true }

local KINDS <const> = {
    mamba = "mamba", linear_attention = "mamba", M = "mamba", attention = "attention", full_attention = "attention",
    ["*"] = "attention", moe = "moe", E = "moe",
}

function family.check(c, fail)
    local list = c.layers_block_type
    if list and #c.hybrid_override_pattern > 0 and #list ~= #c.hybrid_override_pattern then
        fail("layers_block_type has %d blocks, but hybrid_override_pattern %d", #list, #c.hybrid_override_pattern)
    end
    if not list then
        list = {}
        for letter in c.hybrid_override_pattern:gmatch(".") do list[#list + 1] = letter end
    end
    if #list == 0 then fail("layers_block_type or hybrid_override_pattern is missing") end
    if #list > 1024 then fail("hybrid_override_pattern: at most 1024 blocks are expected, found %d", #list) end
    local declared = c.root.num_hidden_layers
    if type(declared) == "number" and declared ~= #list then
        fail("num_hidden_layers is %s, but the list of blocks has %d", tostring(declared), #list)
    end
    c.num_hidden_layers, c.blocks, c.full = #list, {}, {}
    for i, name in ipairs(list) do
        c.blocks[i - 1] = KINDS[name] or fail("layers_block_type[%d]: unknown kind %s", i - 1, tostring(name))
        c.full[i - 1] = c.blocks[i - 1] == "attention"
    end
    if c.num_experts_per_tok > c.n_routed_experts then
        fail("num_experts_per_tok %d is more than n_routed_experts %d", c.num_experts_per_tok, c.n_routed_experts)
    end
    if c.mamba_num_heads % c.n_groups ~= 0 then
        fail("mamba_num_heads %d is no multiple of n_groups %d", c.mamba_num_heads, c.n_groups)
    end
    if c.num_attention_heads % c.num_key_value_heads ~= 0 then
        fail("num_attention_heads %d is no multiple of num_key_value_heads %d", c.num_attention_heads, c.num_key_value_heads)
    end
    if c.n_group ~= 1 then fail("n_group: only 1 is known, found %d", c.n_group) end
    if c.mlp_hidden_act ~= "relu2" then fail("mlp_hidden_act: only relu2 is known, found %s", c.mlp_hidden_act) end
    if c.mamba_proj_bias or c.mlp_bias or c.use_bias then fail("biases of projections are not known") end
    if c.root.moe_latent_size and type(c.root.moe_latent_size) == "number" then fail("moe_latent_size: only null is known") end
    c.rms_norm_eps = c.layer_norm_epsilon
    -- Draft layers of another make-up are left out.
    local pattern = c.mtp_hybrid_override_pattern
    for _, name in ipairs(pattern == "" and c.mtp_layers_block_type or {}) do
        pattern = pattern .. (({ attention = "*", moe = "E" })[KINDS[name]] or "?")
    end
    c.no_head = pattern ~= "" and pattern ~= "*E"
end

local function mamba(m, c, at, x)
    local heads, dim, groups, n = c.mamba_num_heads, c.mamba_head_dim, c.n_groups, c.ssm_state_size
    local inner, conv_width = heads * dim, heads * dim + 2 * groups * n
    local all = m:linear(x, at .. "in_proj", inner + conv_width + heads)
    local conv = m:conv(m:columns(all, inner, conv_width), at .. "conv1d", {
        taps = c.conv_kernel, act = "silu", bias = c.use_conv_bias and at .. "conv1d.bias" or nil,
    })
    local names = { a_log = at .. "A_log", dt_bias = at .. "dt_bias", d = at .. "D" }
    local y = m:mamba(conv, m:columns(all, inner + conv_width, heads), names, {
        heads = heads, dim = dim, groups = groups, state_dim = n,
    })
    local z = m:columns(all, 0, inner)
    local n_y = m:gated_norm(y, z, at .. "norm", { heads = groups, dim = inner // groups, act = "silu", after = true })
    return m:linear(n_y, at .. "out_proj", c.hidden_size)
end

local function append(m, c, at, x)
    local cache = m:cache(at, { heads = c.num_key_value_heads, dim = c.head_dim })
    local k, v = m:linear(x, at .. "k_proj", cache.heads * cache.dim), m:linear(x, at .. "v_proj", cache.heads * cache.dim)
    m:kv_append(cache, k, v)
    return cache
end

local function attention(m, c, at, x)
    local q = m:linear(x, at .. "q_proj", c.num_attention_heads * c.head_dim)
    local cache = append(m, c, at, x)
    return m:linear(m:attention(cache, q, { heads = c.num_attention_heads, scale = c.head_dim ^ -0.5 }), at .. "o_proj", c.hidden_size)
end

local function mixture(m, c, at, x)
    local logits = m:linear(x, at .. "gate", c.n_routed_experts)
    local up = m:linear(x, at .. "shared_experts.up_proj", c.moe_shared_expert_intermediate_size)
    local own = m:linear(m:glu(nil, up, "relu2"), at .. "shared_experts.down_proj", c.hidden_size)
    local route = m:route(logits, {
        slots = c.num_experts_per_tok, sigmoid = true, normalise = c.norm_topk_prob, factor = c.routed_scaling_factor,
        bias = at .. "gate.e_score_correction_bias",
    })
    local routed = m:experts(x, route, at .. "experts", c.moe_intermediate_size, c.hidden_size, { gated = false, act = "relu2" })
    return m:moe_sum(routed, route, c.hidden_size, own, nil)
end

local mixers = { mamba = mamba, attention = attention, moe = mixture }

function family.embed(m, c, keep) return m:embed("embeddings", c.vocab_size, c.hidden_size, 1, keep) end

function family.layer(m, c, l, x)
    local at = "layers." .. l .. "."
    return m:add(x, mixers[c.blocks[l]](m, c, at .. "mixer.", m:norm(x, at .. "norm")))
end

function family.output(m, _, x) return m:norm(x, "norm_f") end

-- The head is a pair of blocks, attention and a mixture. It reads the row after the model's last norm, or after its own last
-- norm when it goes on from a draft.
family.head = {}

function family.head.input(m, c, x, chained)
    local both = m:value(2 * c.hidden_size)
    local e = m:embed("embeddings", c.vocab_size, c.hidden_size, 1)
    m:norm(e, "mtp.layers.0.enorm", { into = m:columns(both, 0, c.hidden_size) })
    local hidden = m:norm(x, chained and "mtp.layers.1.final_layernorm" or "norm_f")
    m:norm(hidden, "mtp.layers.0.hnorm", { into = m:columns(both, c.hidden_size) })
    return m:linear(both, "mtp.layers.0.eh_proj", c.hidden_size)
end

function family.head.fill(m, c, x) append(m, c, "mtp.layers.0.mixer.", m:norm(x, "mtp.layers.0.norm")) end

function family.head.layer(m, c, x)
    m:add(x, attention(m, c, "mtp.layers.0.mixer.", m:norm(x, "mtp.layers.0.norm")))
    return m:add(x, mixture(m, c, "mtp.layers.1.mixer.", m:norm(x, "mtp.layers.1.norm")))
end

function family.head.output(m, _, x) return m:norm(x, "mtp.layers.1.final_layernorm") end

function family.ignored(census, c)
    if c.no_head then census:ignore("^mtp%.", "draft layers of this make-up are not known") end
end

return family
