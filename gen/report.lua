-- SPDX-License-Identifier: Apache-2.0
--
-- What came out: facts about the model for `info` and for the head of every generated file, and the summary that make prints.

local config = require "config"
local fail = require "fail"

local report = {}

local function human(bytes)
    local units, i = { "B", "KiB", "MiB", "GiB", "TiB" }, 1
    while bytes >= 1024 and i < #units do bytes, i = bytes / 1024, i + 1 end
    return i == 1 and string.format("%d B", bytes) or string.format("%.1f %s", bytes, units[i])
end

local SHOWN <const> = {
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "rotary", "rope_theta",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
    "intermediate_size", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
    "hc_count", "hc_lowrank", "indexer_n_heads", "indexer_head_dim", "indexer_budget", "ngram_size", "heads_per_ngram", "ple_embed_dim",
    "ngram_vocab_size_base", "mtp_num_hidden_layers", "max_position_embeddings",
}

-- Ordered list of { name, value }.
function report.facts(model)
    local c, list = model.config, {}
    for _, key in ipairs(SHOWN) do
        local v = c[key]
        if type(v) == "number" then
            list[#list + 1] = { key, math.tointeger(v) and string.format("%d", v) or string.format("%g", v) }
        end
    end
    local full = 0
    for l = 0, c.num_hidden_layers - 1 do full = full + (c.full and c.full[l] and 1 or 0) end
    if c.full then list[#list + 1] = { "attention layers", tostring(full) } end
    list[#list + 1] = { "draft head", model.has_head and "yes" or "no" }
    local o = model.options
    if o.draft_ids then list[#list + 1] = { "draft vocabulary", string.format("%d of %d tokens", #o.draft_ids, c.vocab_size) } end
    list[#list + 1] = { "lanes, window, chunk", string.format("%d, %d, %d", o.lanes, o.window, o.chunk) }
    local norms = model.census.norms
    if norms then list[#list + 1] = { "norms", tostring(type(norms) == "table" and (norms.text or norms[1]) or norms) } end
    local ignored = {}
    for reason, count in pairs(model.census.ignored or {}) do ignored[#ignored + 1] = string.format("%d (%s)", count, reason) end
    table.sort(ignored)
    for _, text in ipairs(ignored) do list[#list + 1] = { "ignored tensors", text } end
    return list
end

-- tokenizer_config.json, decoded; nil when there is none.
function report.tokenizer_settings(dir) return config.read_json(dir .. "/tokenizer_config.json", false) end

-- The chat template: a file of its own, or the one inside tokenizer_config.json (of several, the one named default). Returns text
-- and name, or nothing.
function report.template_source(dir)
    local path = dir .. "/chat_template.jinja"
    local f = io.open(path, "rb")
    if f then
        local text = f:read("a")
        f:close()
        if not text then fail("%s: is not a file that can be read", path) end
        return text, path
    end
    local settings = report.tokenizer_settings(dir)
    local given = settings and settings.chat_template
    local text = given
    if type(given) == "table" then
        text = nil
        for _, entry in ipairs(given) do
            if type(entry) == "table" and entry.name == "default" then text = entry.template end
        end
    end
    if type(text) == "string" then return text, dir .. "/tokenizer_config.json" end
    if given and type(given) ~= "userdata" then -- null is as good as none
        io.stderr:write("pianola: note: ", dir, "/tokenizer_config.json has no chat template named default; chats are refused\n")
    end
end

function report.print(model, out)
    local total, by_encoding, order = 0, {}, {}
    for _, r in ipairs(model.store.list) do
        if r.kind ~= "vector" then
            if not by_encoding[r.encoding] then order[#order + 1] = r.encoding end
            by_encoding[r.encoding] = (by_encoding[r.encoding] or 0) + r.bytes
        end
        total = total + r.bytes
    end
    local parts = {}
    for _, e in ipairs(order) do parts[#parts + 1] = e .. " " .. human(by_encoding[e]) end
    print(string.format("%s: %s, %d layers, weights %s (%s)", model.name, model.family.name, model.config.num_hidden_layers, human(total),
        table.concat(parts, ", ")))
    for _, p in ipairs(model.programs) do
        print(string.format("  program %-14s %5d launches  %10s a full pass  %8.2f GFLOP", p.name, #p.ops, human(p.bytes), p.flops / 1e9))
    end
    print(string.format("  arena %s, states %s a lane, cache %s a position; sources in %s", human(model.arena), human(model.states.bytes),
        human(model.kv_bytes[2]), out))
end

report.human = human
return report
