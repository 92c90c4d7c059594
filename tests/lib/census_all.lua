-- SPDX-License-Identifier: Apache-2.0
--
-- Asks a census for everything that a checkpoint holds, whatever its family: what a family description would do, for tests
-- that are about reading and packing and not about a model. Invariant: after it census:finish() must find nothing left.

local COMPANIONS <const> = {
    "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale", "input_scale", "scales", "biases", "qzeros", "g_idx",
    "global_scale", "weight_shape", "weight_zero_point", "input_global_scale",
}

local function is_companion(name)
    for _, suffix in ipairs(COMPANIONS) do
        if name:sub(-#suffix - 1) == "." .. suffix then return true end
    end
    return name:match("_scale_inv$") or name:match("_scale$") or name:match("_scale_2$")
end

local function columns_of(census, tensor, base)
    local last = tensor.shape[#tensor.shape]
    if tensor.dtype == "U8" then
        local scale = census.names[base .. ".weight_scale"]
        return scale and scale.dtype == "U8" and scale.shape[#scale.shape] * 32 == last and last or last * 2
    end
    if tensor.dtype == "I32" then
        return tensor.name:match("qweight$") and tensor.shape[1] * 8 or last * 8
    end
    if tensor.dtype == "U32" then
        local scales = census.names[base .. ".scales"]
        local own = census.mlx and (census.mlx[base] or census.mlx) or {}
        if not own.group_size then return last * 8 end
        local groups = scales.shape[#scales.shape]
        local group = math.tointeger(own.group_size)
        -- a module whose columns are not a multiple of the group is stored with groups of 32
        return last * 32 // math.tointeger(own.bits) == groups * group and groups * group or groups * 32
    end
    return last
end

local function ask(census, name, tensor, records)
    local base = name:gsub("%.weight$", ""):gsub("%.weight_packed$", ""):gsub("%.qweight$", "")
    local shape = tensor.shape
    if tensor.dtype == "I64" then
        census:constants{ name = name, count = tensor.elements }
    elseif base:match("^visual%.") then
        return
    elseif base:match("ngram_embedding") then
        return
    elseif base:match("conv1d$") then
        records[#records + 1] = census:vector{ name = base, count = tensor.elements }
    elseif #shape == 1 or #shape == 0 then
        local norm = base:match("norm$") and not base:match("linear_attn%.norm$") and not base:match("mixer")
        local transform = norm and census.with_norms and "plus_one" or "none"
        records[#records + 1] = census:vector{ name = base, count = tensor.elements, transform = transform }
    elseif #shape == 2 then
        local rows = tensor.name:match("qweight$") and shape[2] or shape[1]
        records[#records + 1] = census:matrix{ name = base, n = rows, k = columns_of(census, tensor, base) }
    elseif #shape == 3 then
        local prefix, which = base:match("^(.*)%.([a-z_]+)_proj$")
        prefix = prefix:gsub("switch_mlp$", "experts")
        local columns = columns_of(census, tensor, base)
        if which == "gate_up" then
            for _, half in ipairs({ "gate", "up" }) do
                records[#records + 1] = census:experts{ prefix = prefix, which = half, experts = shape[1], n = shape[2] // 2, k = columns }
            end
        else
            records[#records + 1] = census:experts{ prefix = prefix, which = which, experts = shape[1], n = shape[2], k = columns }
        end
    end
end

-- Returns the weight records, in the order of names; n-gram tables go to the table section.
return function(census)
    local names, records = {}, {}
    for name in pairs(census.names) do names[#names + 1] = name end
    table.sort(names)
    census.with_norms = census.names["layers.0.input_layernorm.weight"] or census.names["layers.0.attn_hyper_connection.hc_norm.weight"]
    local tables, seen = {}, {}
    for _, name in ipairs(names) do
        local prefix, shard = name:match("^(.*ngram_embedding)%.(shard_%d+)%.weight$")
        if prefix then
            local tensor = census.names[name]
            local entry = tables[prefix] or { rows = 0, dim = columns_of(census, tensor, prefix .. "." .. shard) }
            tables[prefix], entry.rows = entry, entry.rows + tensor.shape[1]
        end
        local expert_prefix, which = name:match("^(.*%.experts)%.%d+%.([a-z]+)_proj%.")
        if expert_prefix then
            local key = expert_prefix .. which
            if not seen[key] then
                seen[key] = true
                local count, base = 0, nil
                local function data(e)
                    base = string.format("%s.%d.%s_proj", expert_prefix, e, which)
                    return census.names[base .. ".weight"] or census.names[base .. ".weight_packed"] or census.names[base .. ".qweight"]
                end
                while data(count) do count = count + 1 end
                local first = data(0)
                records[#records + 1] = census:experts{
                    prefix = expert_prefix, which = which, experts = count, k = columns_of(census, first, base),
                    n = first.name:match("qweight$") and first.shape[2] or first.shape[1],
                }
            end
        elseif not is_companion(name) then
            ask(census, name, census.names[name], records)
        end
    end
    for prefix, entry in pairs(tables) do
        records[#records + 1] = census:rows{ prefix = prefix, rows = entry.rows, dim = entry.dim, section = "table" }
    end
    census:ignore("^visual%.", "vision tower")
    return records
end
