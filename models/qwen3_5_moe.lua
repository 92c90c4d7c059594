-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3.5-MoE (35B-A3B): the common block with a mixture of experts, always renormalised (4.4).

local qwen = require "qwen"
local shared = require "shared"

return qwen.family {
    name = "qwen3_5_moe",
    model_types = { "qwen3_5_moe", "qwen3_5_moe_text" },
    config = { shared.keys.common, shared.keys.attention, shared.keys.delta_net, shared.keys.mixture, qwen.keys },
    unused = { intermediate_size = true },
    mlp = function(m, c, at, x) return shared.mixture_block(m, c, at, x) end,
}
