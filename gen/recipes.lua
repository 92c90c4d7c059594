-- SPDX-License-Identifier: Apache-2.0
--
-- Which encoding each weight of a synthetic checkpoint has: the layouts of public checkpoints (architecture notes, 3.3, 3.4).
--
-- A recipe is a list of { Lua pattern on the name, encoding, bits, group }; the first that matches and fits k decides, else
-- bf16. Names are those of gen/checkpoint.lua, without prefix; n-gram tables have "ngram_embedding" in theirs.

local fail = require "fail"

local recipes = {}

local EXPERTS <const> = "%.experts%."
local NGRAM <const> = "ngram_embedding"
-- Projections that quantised exports of the linear layers convert.
local LINEARS <const> = {
    "linear_attn%.in_proj", "linear_attn%.out_proj", "self_attn%.[qkvo]_proj", "index_qk_proj", "shared_expert%.", "shared_experts%.",
    "mlp%.gate_proj", "mlp%.up_proj", "mlp%.down_proj", "mixer%.in_proj", "mixer%.out_proj", "mixer%.[qkvo]_proj",
}
local DENSE <const> = { "mlp%.gate_proj$", "mlp%.up_proj$", "mlp%.down_proj$" }

local function linears(list, patterns, ...)
    for _, pattern in ipairs(patterns) do list[#list + 1] = { pattern, ... } end
    return list
end

local function mlx(group)
    return {
        { "mlp%.gate$", "bf16" }, { "mixer%.gate$", "bf16" }, { "", "affine", 4, group }, { EXPERTS, "affine", 4, 32 },
        { NGRAM, "affine", 4, 32 },
    }
end

-- A model without experts has its linears converted instead.
local function has_experts(config)
    local text = config.text_config or config
    return text.num_experts ~= nil or text.n_routed_experts ~= nil
end

local RECIPES <const> = {
    ["bf16"] = function() return {} end,
    ["nvfp4-modelopt"] = function(config)
        local list = { { "^mtp%..*" .. EXPERTS, "fp8_block", 8, 128 }, { EXPERTS, "nvfp4", 4, 16 }, { NGRAM, "fp8", 8, 0 } }
        return has_experts(config) and list or linears(linears(list, DENSE, "nvfp4", 4, 16), LINEARS, "nvfp4", 4, 16)
    end,
    ["nvfp4-mxfp8"] = function(config)
        local list = { { EXPERTS, "nvfp4", 4, 16 }, { NGRAM, "nvfp4", 4, 16 } }
        if not has_experts(config) then linears(list, DENSE, "nvfp4", 4, 16) end
        return linears(list, LINEARS, "mxfp8", 8, 32)
    end,
    ["mlx-4bit-g32"] = function() return mlx(32) end,
    ["mlx-4bit-g64"] = function() return mlx(64) end,
    ["fp8-block128"] = function(config)
        local list = { { EXPERTS, "fp8_block", 8, 128 }, { NGRAM, "fp8", 8, 0 } }
        return has_experts(config) and list or linears(list, LINEARS, "fp8_block", 8, 128)
    end,
    ["fp8"] = function() return linears({ { EXPERTS, "fp8", 8, 0 }, { NGRAM, "fp8", 8, 0 } }, LINEARS, "fp8", 8, 0) end,
    ["int4-g128"] = function(config)
        local list = { { EXPERTS, "int4", 4, 128 }, { "^lm_head$", "int4", 4, 128 } }
        return has_experts(config) and list or linears(list, LINEARS, "int4", 4, 128)
    end,
}

function recipes.names()
    local names = {}
    for name in pairs(RECIPES) do names[#names + 1] = name end
    table.sort(names)
    return names
end

-- A recipe by name, or a list of rules as it is.
function recipes.get(recipe, config)
    if type(recipe) == "table" then return recipe end
    local make = RECIPES[recipe]
    if not make then fail("recipe %s: is not known (%s)", tostring(recipe), table.concat(recipes.names(), ", ")) end
    return make(config)
end

-- Whether k columns fit an encoding's groups.
local function fits(encoding, group, k)
    if encoding == "fp8_block" then return true end
    return group == nil or group == 0 or k % group == 0
end

-- encoding, bits, group of a weight. kind "rows" (a table) takes no block scales.
function recipes.choose(recipe, kind, name, k)
    for _, rule in ipairs(recipe) do
        if name:find(rule[1]) and fits(rule[2], rule[4], k) and not (kind == "rows" and rule[2] == "fp8_block") then
            if rule[2] == "bf16" then break end
            return rule[2], rule[3], rule[4]
        end
    end
    return "bf16", 16, 0
end

-- Whether a synthetic checkpoint of this configuration holds a weight: everything but draft heads that it does not declare.
function recipes.has(config, name)
    if not name:match("^mtp%.") then return true end
    local text = config.text_config or config
    local mtp = type(text.mtp) == "table" and text.mtp or {}
    local layers = text.mtp_num_hidden_layers or text.num_nextn_predict_layers or mtp.num_hidden_layers or 0
    return layers > 0
end

return recipes
