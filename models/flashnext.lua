-- SPDX-License-Identifier: Apache-2.0
--
-- Flash Next: four residual streams joined by hyper-connections; Gated DeltaNet layers and, every few layers, gated attention
-- over blocks chosen by an indexer; a mixture of experts in every layer; n-gram embeddings injected in chosen layers; one
-- extra layer (the head) that drafts. Numbers in comments are sections of the architecture notes.

local ngram = require "ngram"
local shared = require "shared"

local family = { name = "flashnext", streams_name = "hc_count" }
family.model_types = { "qwen4_exp", "qwen4_exp_text", "qwen3_8_flash_next", "qwen3_8_flash_next_text" }

family.config = {
    shared.keys.common, shared.keys.attention, shared.keys.delta_net, shared.keys.mixture,
    required = {
        "hc_count", "hc_lowrank", "indexer_n_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio",
    },
    optional = {
        indexer_kv_heads = 1, output_gate_type = "silu", ple_layer_ids = {}, ple_embed_dim = 0, ple_conv_kernel_size = 4,
        ngram_size = 3, heads_per_ngram = 8, ngram_vocab_size_base = 0, make_ngram_vocab_size_divisible_by = 128,
        split_ngram_parts = 512, seed = 1234, mtp = {}, mtp_num_hidden_layers = 0, mtp_use_dedicated_embeddings = false,
    },
}

function family.check(c, fail)
    shared.check_heads(c, fail)
    if c.hc_count < 2 then fail("hc_count: %d streams; at least 2 are needed", c.hc_count) end
    if c.indexer_kv_heads ~= 1 then fail("indexer_kv_heads: only 1 is known, found %d", c.indexer_kv_heads) end
    if c.indexer_compress_ratio ~= 4 then fail("indexer_compress_ratio: only 4 is known, found %d", c.indexer_compress_ratio) end
    if c.indexer_budget % c.indexer_compress_ratio ~= 0 then
        fail("indexer_budget %d is no multiple of indexer_compress_ratio %d", c.indexer_budget, c.indexer_compress_ratio)
    end
    if c.rotary > c.indexer_head_dim then
        fail("indexer_head_dim %d is less than the %d rotated dimensions", c.indexer_head_dim, c.rotary)
    end
    ngram.check(c, fail)
end

-- 2.4: the mix of the streams that a block reads, and the weights that put its output back.
local function hyper_connection(m, c, at, r, inject)
    local x = m:norm(r, at .. "hc_norm", { groups = c.hc_count, centred = true })
    local low = m:linear(x, at .. "input_mix_weight_down", c.hc_lowrank, { scale = 1 / c.hc_count, act = "silu" })
    local weights = inject and m:linear(x, at .. "block_inject_weight", c.hc_count, { scale = 1 / c.hc_count })
    local gate = m:linear(low, at .. "input_mix_weight_up", r.width)
    return m:hc_mix(x, gate, c.hc_count), weights
end

-- 2.5, 2.6: rows of the n-gram table, gated by the streams, convolved, added to them.
local function inject_ngrams(m, c, l, r)
    local at = "layers." .. l .. ".ple."
    local e = m:ngram(ngram.spec(c, l))
    local key, v = m:linear(e, at .. "key_proj", r.width), m:linear(e, at .. "value_proj", c.hidden_size)
    local k = m:norm(key, at .. "norm_key", { groups = c.hc_count, centred = true })
    local q = m:norm(r, at .. "norm_query", { groups = c.hc_count, centred = true })
    local u = m:ple_gate(k, q, v, c.hc_count)
    local n = m:norm(u, at .. "norm_conv", { groups = c.hc_count, centred = true })
    m:ple_add(r, u, m:conv(n, at .. "conv1d", { taps = c.ple_conv_kernel_size, dilation = c.ngram_size }))
end

-- 2.8, 2.9: keys, values and index keys of the rows go to the cache.
local function append(m, c, at, a, index)
    local cache = m:cache(at, { heads = c.num_key_value_heads, dim = c.head_dim, index = c.indexer_head_dim })
    local k, v = m:linear(a, at .. "k_proj", cache.heads * cache.dim), m:linear(a, at .. "v_proj", cache.heads * cache.dim)
    local rotated = m:head_norm(k, at .. "k_norm", {
        heads = cache.heads, dim = cache.dim, rotary = c.rotary, theta = c.rope_theta, centred = true,
    })
    m:kv_append(cache, rotated, v, m:columns(index, c.indexer_n_heads * c.indexer_head_dim))
    m:index_pool(cache, at .. "indexer.k_layernorm", {
        ratio = c.indexer_compress_ratio, rotary = c.rotary, theta = c.rope_theta, centred = true,
    })
    return cache
end

local function index(m, c, at, a)
    return m:linear(a, at .. "indexer.index_qk_proj", (c.indexer_n_heads + 1) * c.indexer_head_dim)
end

local function sparse_attention(m, c, at, a)
    local d, rotary, theta = c.head_dim, c.rotary, c.rope_theta
    local qg, iqk = m:linear(a, at .. "q_proj", c.num_attention_heads * 2 * d), index(m, c, at, a)
    local cache = append(m, c, at, a, iqk)
    local q = m:head_norm(qg, at .. "q_norm", {
        heads = c.num_attention_heads, stride = 2 * d, dim = d, rotary = rotary, theta = theta, centred = true,
    })
    local iq = m:head_norm(iqk, at .. "indexer.q_layernorm", {
        heads = c.indexer_n_heads, dim = c.indexer_head_dim, rotary = rotary, theta = theta, centred = true,
    })
    local chosen = m:index_select(cache, iq, {
        heads = c.indexer_n_heads, ratio = c.indexer_compress_ratio, keep = c.indexer_budget // c.indexer_compress_ratio,
    })
    local o = m:attention(cache, q, {
        heads = c.num_attention_heads, scale = d ^ -0.5, gate = m:columns(qg, d), gate_stride = 2 * d, chosen = chosen,
    })
    return m:linear(o, at .. "o_proj", c.hidden_size)
end

-- 2.3: one layer; `full` layers attend, the others keep a recurrent state.
local function layer(m, c, at, r, full)
    local a, w = hyper_connection(m, c, at .. "attn_hyper_connection.", r, true)
    local y = full and sparse_attention(m, c, at .. "self_attn.", a) or shared.delta_net(m, c, at .. "linear_attn.", a)
    m:hc_inject(r, w, y, c.hc_count)
    local x, w2 = hyper_connection(m, c, at .. "mlp_hyper_connection.", r, true)
    return m:hc_inject(r, w2, shared.mixture_block(m, c, at .. "mlp.", x), c.hc_count)
end

function family.embed(m, c, keep) return m:embed("embed_tokens", c.vocab_size, c.hidden_size, c.hc_count, keep) end

function family.layer(m, c, l, r)
    if c.ple_layers[l] then inject_ngrams(m, c, l, r) end
    return layer(m, c, "layers." .. l .. ".", r, c.full[l])
end

-- 2.11
function family.output(m, c, r) return (hyper_connection(m, c, "hyper_connection_mixer.", r, false)) end

-- 2.12: the head reads the streams of position i and the token of i + 1, and draws the token of i + 2.
family.head = {}

function family.head.input(m, c, r)
    local e = m:embed("embed_tokens", c.vocab_size, c.hidden_size, 1)
    local en = m:norm(e, "mtp.pre_fc_norm_embedding", { centred = true })
    local x = m:linear(en, "mtp.fc_embedding", c.hidden_size)
    local rn = m:norm(r, "mtp.pre_fc_norm_hidden", { centred = true })
    local h = m:linear(m:as_rows(rn, c.hc_count), "mtp.fc_hidden", c.hidden_size)
    return m:streams_add(x, h, c.hc_count)
end

-- What later cells need of a cell: its rows in the head's cache.
function family.head.fill(m, c, x)
    local at = "mtp.layers.0.self_attn."
    local a = hyper_connection(m, c, "mtp.layers.0.attn_hyper_connection.", x, false)
    append(m, c, at, a, index(m, c, at, a))
end

function family.head.layer(m, c, x) return layer(m, c, "mtp.layers.0.", x, true) end

function family.head.output(m, c, x) return (hyper_connection(m, c, "mtp.hyper_connection_mixer.", x, false)) end

function family.ignored(census)
    census:ignore("^visual%.", "the vision tower is not run yet")
end

return family
