-- SPDX-License-Identifier: Apache-2.0
--
-- A checkpoint with a draft head, made of a reference folder that has none: the head's layer is a copy of the last attention
-- layer in whatever encoding that is, its projections hand the token's embedding through, and the embeddings are made eight
-- times as large. So the head agrees with the model often but not always, which is what a test of drafting needs.
--
--   draft_toy.make(from, to, undeclared)      to: an existing folder; undeclared: config.json does not mention the head
--   draft_toy.extra(from, to)                 the folder with draft layers that the family does not know

local cjson = require "cjson"
local write = require "safetensors_write"

local toy = {}

local function read(path)
    local f = assert(io.open(path, "rb"), path)
    local text = f:read("a")
    f:close()
    return text
end

local function load(path)
    local text = read(path)
    local size = string.unpack("<I8", text)
    local list = {}
    for name, t in pairs(cjson.decode(text:sub(9, 8 + size))) do
        if name ~= "__metadata__" then
            list[#list + 1] = {
                name = name, dtype = t.dtype, shape = t.shape,
                data = text:sub(9 + size + t.data_offsets[1], 8 + size + t.data_offsets[2]),
            }
        end
    end
    table.sort(list, function(a, b) return a.name < b.name end)
    return list
end

-- bf16 numbers times eight: three more in the exponent.
local function eightfold(data)
    return (data:gsub("..", function(pair)
        local bits = string.unpack("<I2", pair)
        return bits & 0x7f80 ~= 0 and string.pack("<I2", bits + (3 << 7)) or pair
    end))
end

local function bf16(value) return string.pack("<I2", string.unpack("<I4", string.pack("<f", value)) >> 16) end

-- [n, k]: `diagonal` where the column is the row, and small noise.
local function through(n, k, seed, diagonal)
    local parts, state = {}, seed
    for i = 0, n - 1 do
        for j = 0, k - 1 do
            state = (state * 1103515245 + 12345) & 0x7fffffff
            parts[#parts + 1] = bf16((i == j and diagonal or 0.0) + (state / 0x7fffffff - 0.5) * 0.05)
        end
    end
    return table.concat(parts)
end

local function last_attention(text)
    local found
    for i, kind in ipairs(text.layer_types or text.layers_block_type) do
        if kind:find("attention") and kind ~= "linear_attention" then found = i - 1 end
    end
    return found
end

local function first_mixture(kinds)
    for i, kind in ipairs(kinds) do
        if kind == "moe" then return i - 1 end
    end
end

function toy.make(from, to, undeclared)
    local config = cjson.decode(read(from .. "/config.json"))
    local text = type(config.text_config) == "table" and config.text_config or config
    local pair = text.layers_block_type
    text[pair and "num_nextn_predict_layers" or "mtp_num_hidden_layers"] = not undeclared and 1 or nil
    local d, streams, out = text.hidden_size, text.hc_count, {}
    local layer = "%.layers%." .. last_attention(text) .. "%."
    local function add(name, dtype, shape, data) out[#out + 1] = { name = name, dtype = dtype, shape = shape, data = data } end
    local function copy(t, name) add(name, t.dtype, t.shape, t.data) end
    for _, t in ipairs(load(from .. "/model.safetensors")) do
        local embedding = t.name:find("embed_tokens", 1, true) or t.name:find("embeddings", 1, true)
        if embedding and t.dtype == "BF16" then t.data = eightfold(t.data) end
        out[#out + 1] = t
        local own = t.name:match(layer .. "(.*)$")
        local mixer = t.name:match("model%.(hyper_connection_mixer%..*)$")
        if own and not t.name:find("^mtp") then copy(t, "mtp.layers.0." .. own) end
        local second = pair and t.name:match("%.layers%." .. first_mixture(pair) .. "%.(.*)$")
        if second and not t.name:find("^mtp") then copy(t, "mtp.layers.1." .. second) end
        if t.name:match("norm_f%.weight$") then
            copy(t, "mtp.layers.0.enorm.weight")
            copy(t, "mtp.layers.0.hnorm.weight")
            copy(t, "mtp.layers.1.final_layernorm.weight")
        end
        if mixer then copy(t, "mtp." .. mixer) end
        if t.name:match("model%.norm%.weight$") then
            copy(t, "mtp.norm.weight")
            copy(t, "mtp.pre_fc_norm_embedding.weight")
            copy(t, "mtp.pre_fc_norm_hidden.weight")
        end
    end
    if streams then
        local added = from:find("mlx", 1, true) and 1.0 or 0.0 -- such exports store w + 1
        add("mtp.pre_fc_norm_embedding.weight", "BF16", { d }, bf16(added):rep(d))
        add("mtp.pre_fc_norm_hidden.weight", "BF16", { d * streams }, bf16(added):rep(d * streams))
        add("mtp.fc_embedding.weight", "BF16", { d, d }, through(d, d, 1, 8.0))
        add("mtp.fc_hidden.weight", "BF16", { d, d }, through(d, d, 2, 0.0))
    else
        add(pair and "mtp.layers.0.eh_proj.weight" or "mtp.fc.weight", "BF16", { d, 2 * d }, through(d, 2 * d, 1, 8.0))
    end
    write.file(to .. "/model.safetensors", out)
    write.text(to .. "/config.json", cjson.encode(config))
end

function toy.extra(from, to)
    local config = cjson.decode(read(from .. "/config.json"))
    config.mtp_layers_block_type, config.num_nextn_predict_layers = { "mamba", "moe" }, 1
    local list = load(from .. "/model.safetensors")
    for _, name in ipairs { "mtp.layers.0.eh_proj.weight", "mtp.layers.0.enorm.weight", "mtp.layers.1.final_layernorm.weight" } do
        list[#list + 1] = { name = name, dtype = "BF16", shape = { 2 }, data = ("\0"):rep(4) }
    end
    write.file(to .. "/model.safetensors", list)
    write.text(to .. "/config.json", cjson.encode(config))
end

return toy
