-- SPDX-License-Identifier: Apache-2.0
--
-- config.json and generation_config.json -> one validated table. Text keys may lie at the root or under text_config.
-- Every key is used, known to be without effect here, or an error: a key nobody knows may change the maths.

local cjson = require "cjson"
local fail = require "fail"

local config = {}

-- Keys that do not change what is computed: training, vision, bookkeeping, output options.
local without_effect = {}
for name in ([[
    architectures transformers_version torch_dtype dtype model_type attention_dropout initializer_range use_cache hidden_dropout
    router_aux_loss_coef output_router_logits vision_config image_token_id video_token_id vision_start_token_id vision_end_token_id
    quantization quantization_config mlp_only_layers decoder_sparse_step number_of_conv_states pad_token_id bos_token_id
    _name_or_path name_or_path return_dict output_hidden_states output_attentions torchscript use_bfloat16 is_encoder_decoder
    is_decoder cross_attention_hidden_size add_cross_attention tie_encoder_decoder chunk_size_feed_forward finetuning_task id2label
    label2id tokenizer_class prefix sep_token_id decoder_start_token_id task_specific_params problem_type pruned_heads
    attn_implementation _attn_implementation _attn_implementation_autoset language_model_only text_config sliding_window
    use_sliding_window max_window_layers auto_map audio_config audio_token_id unsloth_fixed mtp_quantization
    time_step_limit residual_in_fp32 rescale_prenorm_residual num_logits_to_keep use_mamba_kernels hidden_dropout_prob
]]):gmatch("%S+") do without_effect[name] = true end

local function read_json(path, required)
    local file = io.open(path, "rb")
    if not file then
        if required then fail("%s: cannot be read; a checkpoint folder with a config.json is needed", path) end
        return nil
    end
    local text = file:read("a")
    file:close()
    if not text then fail("%s: is not a file that can be read", path) end
    if #text > 16 << 20 then fail("%s: %d bytes; at most 16 MiB are expected", path, #text) end
    local ok, value = pcall(cjson.decode, text)
    if not ok then fail("%s: not valid JSON (%s)", path, tostring(value):gsub("\n.*", "")) end
    if type(value) ~= "table" then fail("%s: an object is expected, found %s", path, type(value)) end
    return value
end

local function clean(v) if v == cjson.null then return nil end return v end

-- A value for a message: short, and the same in every run.
local function show(v)
    if v == cjson.null then return "null" end
    if type(v) == "table" then return #v > 0 and "a list" or "an object" end
    local text = type(v) == "number" and string.format("%.17g", v) or tostring(v)
    if math.type(v) == "integer" then text = string.format("%d", v) end
    text = text:gsub("[%c\127]", "?")
    return #text > 60 and text:sub(1, 60) .. "..." or text
end

local function integer(path, key, v, low, high)
    if math.type(v) == "float" and v == math.floor(v) and math.abs(v) < 2 ^ 53 then v = math.tointeger(v) end
    if math.type(v) ~= "integer" or v < low or v > high then
        fail("%s: %s: a whole number from %d to %d is expected, found %s", path, key, low, high, show(v))
    end
    return v
end

-- Largest values that any known checkpoint needs, with room; everything else is a size up to 2^31.
local limits = {
    num_hidden_layers = 1024, num_attention_heads = 1024, num_key_value_heads = 1024, head_dim = 1024, hidden_size = 1 << 20,
    vocab_size = 1 << 24, num_experts = 65536, num_experts_per_tok = 64, hc_count = 16, ngram_size = 8, heads_per_ngram = 64,
    linear_conv_kernel_dim = 16, ple_conv_kernel_size = 16, linear_key_head_dim = 512, linear_value_head_dim = 512,
    mtp_num_hidden_layers = 8, indexer_head_dim = 1024, indexer_n_heads = 256, linear_num_key_heads = 1024,
    linear_num_value_heads = 4096, mamba_num_heads = 4096, mamba_head_dim = 1024, ssm_state_size = 1024, n_groups = 1024, conv_kernel = 16,
    n_routed_experts = 65536, decoder_sparse_step = 1024, full_attention_interval = 1024, intermediate_size = 1 << 20,
    moe_intermediate_size = 1 << 20, shared_expert_intermediate_size = 1 << 20, moe_shared_expert_intermediate_size = 1 << 20,
    hc_lowrank = 1 << 20, ple_embed_dim = 1 << 20, indexer_budget = 1 << 20, max_position_embeddings = 1 << 28,
}
-- Keys whose values are lists or objects and that need not be there.
local structured = {
    layer_types = true, rope_scaling = true, layers_block_type = true, mtp = true, rope_parameters = true, mlp_only_layers = true,
    ple_layer_ids = true, mtp_layers_block_type = true,
}
local zero_allowed = {
    mtp_num_hidden_layers = true, num_nextn_predict_layers = true, seed = true,
    ple_embed_dim = true, ngram_vocab_size_base = true, first_k_dense_replace = true,
}

-- Collects keys of the root and of text_config; a key in both places must agree.
local function flatten(path, root)
    local flat = {}
    local text = clean(root.text_config)
    if text ~= nil and type(text) ~= "table" then fail("%s: text_config: an object is expected", path) end
    for k, v in pairs(root) do
        if k ~= "text_config" then flat[k] = clean(v) end
    end
    for k, v in pairs(text or {}) do
        v = clean(v)
        local other = flat[k]
        if other ~= nil and v ~= nil and k ~= "model_type" and not without_effect[k] and type(v) ~= "table" and type(other) ~= "table"
            and other ~= v and k ~= "eos_token_id" then
            fail("%s: %s: %s at the root but %s under text_config", path, k, show(other), show(v))
        end
        if v ~= nil then flat[k] = v end
    end
    return flat
end

-- Keys whose default is false and that are true or false; for others false means "not given".
local flags <const> = {
    tie_word_embeddings = true, attention_bias = true, mtp_use_dedicated_embeddings = true, mamba_proj_bias = true, mlp_bias = true,
    use_bias = true,
}

local function check_schema(path, flat, family, c)
    local required, optional = {}, {}
    local function take(part)
        for _, k in ipairs(part.required or {}) do required[k] = true end
        for k, v in pairs(part.optional or {}) do optional[k] = v end
    end
    for _, part in ipairs(family.config) do take(part) end
    take(family.config)
    for k in pairs(flat) do
        if not required[k] and optional[k] == nil and not without_effect[k] and not (family.unused or {})[k] then
            fail("%s: unknown key %s; it may change what the model computes, so it must be taught to models/%s.lua", path, show(k),
                family.name)
        end
    end
    for k in pairs(family.free or {}) do required[k] = nil end
    for k in pairs(required) do
        if flat[k] == nil then fail("%s: key %s is missing", path, k) end
        c[k] = integer(path, k, flat[k], 1, limits[k] or 2 ^ 31 - 1 | 0)
    end
    for k, default in pairs(optional) do
        local v = flat[k]
        if v == nil then
            v = default
        elseif (type(default) == "table" or structured[k]) and type(v) ~= "table" then
            fail("%s: %s: a list or object is expected, found %s", path, k, show(v))
        elseif math.type(default) == "integer" then
            v = integer(path, k, v, zero_allowed[k] and 0 or 1, limits[k] or 2 ^ 31 - 1 | 0)
        elseif math.type(default) == "float" then
            if type(v) ~= "number" or not (v >= 0 and v < 1e12) then fail("%s: %s: a number is expected, found %s", path, k, show(v)) end
        elseif default == true or flags[k] or (default == false and type(v) == "boolean") then
            if type(v) ~= "boolean" then fail("%s: %s: true or false is expected, found %s", path, k, show(v)) end
        elseif type(default) == "string" and type(v) ~= "string" then
            fail("%s: %s: a string is expected, found %s", path, k, show(v))
        end
        c[k] = v
    end
end

-- Rotary settings: rope_parameters or the older keys at the root.
local function rope(path, c)
    if not c.head_dim then return end
    local p = {}
    for _, source in ipairs { c.rope_scaling or {}, c.rope_parameters or {} } do
        for k, v in pairs(source) do p[k] = clean(v) end
    end
    local kind = p.rope_type or p.type or "default"
    if kind ~= "default" then fail("%s: rope_type: only default is known, found %s", path, show(kind)) end
    c.rope_theta = p.rope_theta or c.rope_theta or 10000.0
    local factor = p.partial_rotary_factor or c.partial_rotary_factor or 1.0
    if type(c.rope_theta) ~= "number" or c.rope_theta <= 0 or c.rope_theta ~= c.rope_theta then
        fail("%s: rope_theta: a positive number is expected, found %s", path, show(c.rope_theta))
    end
    if type(factor) ~= "number" or not (factor > 0 and factor <= 1) then
        fail("%s: partial_rotary_factor: a number in (0, 1] is expected, found %s", path, show(factor))
    end
    if c.rope_theta > 1e12 then fail("%s: rope_theta: a number up to 1e12 is expected, found %s", path, show(c.rope_theta)) end
    c.rotary = math.floor(c.head_dim * factor + 1e-9)
    if c.rotary % 2 ~= 0 then fail("%s: %d rotated dimensions; an even number is needed", path, c.rotary) end
end

-- layer_types, or the interval that it follows from; c.full[l] tells an attention layer.
local function layers(path, c)
    if c.layer_types == nil then return end
    local list = c.layer_types
    local n = c.num_hidden_layers
    c.full = {}
    if list then
        if type(list) ~= "table" or #list ~= n then
            fail("%s: layer_types: %d layers are expected, found %s", path, n, type(list) == "table" and #list or show(list))
        end
        for i, t in ipairs(list) do
            if t ~= "linear_attention" and t ~= "full_attention" and t ~= "qwen_sparse_attention" and t ~= "deepseek_sparse_attention" then
                fail("%s: layer_types[%d]: unknown kind %s", path, i - 1, show(t))
            end
            c.full[i - 1] = t ~= "linear_attention"
        end
    else
        for l = 0, n - 1 do c.full[l] = (l + 1) % c.full_attention_interval == 0 end
    end
end

local function ids(path, key, v, vocabulary)
    if v == nil or v == false then return {} end
    if type(v) ~= "table" then v = { v } end
    local out = {}
    for _, id in ipairs(v) do out[#out + 1] = integer(path, key, id, 0, vocabulary - 1) end
    return out
end

-- Sampling defaults and end tokens of generation_config.json.
local function generation(dir, c)
    local path = dir .. "/generation_config.json"
    local g = read_json(path, false) or {}
    local function number(key, default, low, high)
        local v = clean(g[key])
        if v == nil then return default end
        if type(v) ~= "number" or not (v >= low and v <= high) then
            fail("%s: %s: a number from %g to %g is expected, found %s", path, key, low, high, show(v))
        end
        return v
    end
    local sample = clean(g.do_sample)
    c.temperature = sample == false and 0.0 or number("temperature", sample and 1.0 or 0.0, 0, 100)
    c.top_k = math.floor(number("top_k", 0, 0, 1 << 24))
    c.top_p, c.min_p = number("top_p", 1.0, 0, 1), number("min_p", 0.0, 0, 1)
    c.end_tokens = {}
    config.add_end_tokens(c, path, ids(path, "eos_token_id", clean(g.eos_token_id), c.vocab_size))
    config.add_end_tokens(c, dir .. "/config.json", ids(dir .. "/config.json", "eos_token_id", c.eos_token_id, c.vocab_size))
end

-- More ids that end a reply; one that is there already is not added again. path: the file that names them.
function config.add_end_tokens(c, path, list)
    local seen = {}
    for _, id in ipairs(c.end_tokens) do seen[id] = true end
    for _, id in ipairs(list) do
        if not seen[id] and id < c.vocab_size then table.insert(c.end_tokens, id) end
        seen[id] = true
    end
    if #c.end_tokens > 16 then
        fail("%s: eos_token_id: at most 16 end tokens are supported, found %d", path, #c.end_tokens)
    end
end

-- families: list of family descriptions. Returns the family and the validated table.
function config.load(dir, families, wanted)
    local path = dir .. "/config.json"
    local root = read_json(path, true)
    local flat = flatten(path, root)
    local kind = clean(root.model_type)
    if kind == nil and type(root.text_config) == "table" then kind = clean(root.text_config.model_type) end
    local family, known = nil, {}
    for _, f in ipairs(families) do
        for _, t in ipairs(f.model_types) do
            known[#known + 1] = t
            if t == kind then family = f end
        end
    end
    if not family then fail("%s: model_type %s is not known; known are %s", path, show(kind), table.concat(known, ", ")) end
    if wanted and wanted ~= family.name then
        fail("%s: model_type %s is of family %s, but MODEL=%s was asked for", path, kind, family.name, wanted)
    end
    local c = { dir = dir, quantization = clean(root.quantization) or clean(root.quantization_config) }
    check_schema(path, flat, family, c)
    local eos = ids(path, "eos_token_id", c.eos_token_id, c.vocab_size)
    c.eos, c.root = eos[1], root
    rope(path, c)
    layers(path, c)
    generation(dir, c)
    local function refuse(format, ...) fail("%s: " .. format, path, ...) end
    if family.check then family.check(c, refuse) end
    return family, c
end

config.read_json, config.clean = read_json, clean
return config
