-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3.5 dense (also 3.6 and 3.8): the common block with a SwiGLU MLP (4.3).

local qwen = require "qwen"
local shared = require "shared"

return qwen.family {
    name = "qwen3_5",
    model_types = { "qwen3_5", "qwen3_5_text" },
    config = { shared.keys.common, shared.keys.attention, shared.keys.delta_net, qwen.keys, required = { "intermediate_size" } },
    mlp = function(m, c, at, x) return shared.dense(m, at, x, c.intermediate_size, c.hidden_size) end,
}
