-- SPDX-License-Identifier: Apache-2.0
--
-- The tables that programs and runtime share: model.c (constants, pack entries, programs), pack_blob.S or its absence.

local emit_c = require "emit_c"
local pack = require "pack"

local emit_model = {}

local function quote(s) return string.format("\"%s\"", tostring(s):gsub('[\\"]', "\\%0"):gsub("\n", "\\n")) end

local function list(items) return "{" .. table.concat(items, ", ") .. "}" end

local function program_reference(model, name)
    for _, p in ipairs(model.programs) do
        if p.name == name then return "&" .. name .. "_program" end
    end
    return "NULL"
end

local function arrays(model)
    local c, out = model.config, {}
    local function add(format, ...) out[#out + 1] = string.format(format, ...) end
    local layout = model.layout
    add("static const struct pack_entry entries[%d] = {\n%s};\n", #layout.entries, pack.c_entries(layout))
    local words = {}
    for word in table.concat(model.constants.data):gmatch("........") do
        words[#words + 1] = string.format("%s0x%016x", #words % 6 == 0 and "\n    " or " ", (string.unpack("<I8", word)))
    end
    add("static const uint64_t constants[%d] = {%s};\n", math.max(1, #words), #words > 0 and table.concat(words, ",") or "0")
    local facts = {}
    for _, f in ipairs(model.facts) do facts[#facts + 1] = string.format("    {%s, %s},\n", quote(f[1]), quote(f[2])) end
    add("static const struct model_fact facts[%d] = {\n%s};\n", #facts, table.concat(facts))
    local programs = {}
    for i, p in ipairs(model.programs) do programs[i] = "&" .. p.name .. "_program" end
    add("static const struct program *const programs[%d] = %s;\n", #programs, list(programs))
    add("static const int32_t end_tokens[%d] = %s;\n", math.max(1, #c.end_tokens), list(#c.end_tokens > 0 and c.end_tokens or { -1 }))
    local tables = {}
    for _, r in ipairs(model.store.list) do
        if r.table_index then tables[r.table_index + 1] = r.entry.index end
    end
    add("static const int32_t tables[%d] = %s;\n", math.max(1, #tables), list(#tables > 0 and tables or { -1 }))
    return table.concat(out), #tables
end

local function capacities(model)
    local rows = { trunk = 1, head = 1, last = 1, tail = 1 }
    for _, p in ipairs(model.programs) do
        for k, v in pairs(p.capacity) do rows[k] = math.max(rows[k], v) end
    end
    return string.format("{%d, %d, %d, %d}", rows.trunk, rows.head, rows.last, rows.tail)
end

local function structure(model, table_count)
    local c, layout, kept = model.config, model.layout, model.kept
    local out = {}
    local function field(name, value) out[#out + 1] = string.format("    .%s = %s,\n", name, tostring(value)) end
    field("name", quote(model.name))
    field("family", quote(model.family.name))
    field("checkpoint", quote(model.checkpoint))
    field("command", quote(model.command))
    field("identity", string.format("0x%016xull", layout.identity))
    field("vocabulary", c.vocab_size)
    field("width", c.hidden_size)
    field("layers", c.num_hidden_layers)
    field("max_context", c.max_position_embeddings)
    field("lanes", model.options.lanes)
    field("window", model.options.window)
    field("chunk", model.options.chunk)
    field("tail", model.options.tail)
    field("opening", model.opening)
    field("page_ratio", 4)
    field("has_head", model.has_head)
    field("has_weights", not model.synthetic)
    field("arena_bytes", model.arena)
    field("run_bytes", model.states.bytes)
    local part = model.states.parts
    assert(part.recurrent + part.tails + part.windows + part.streams + part.alignment == model.states.bytes, "parts of a run")
    field("run_parts", list { part.recurrent, part.tails, part.windows, part.streams, part.alignment })
    field("recurrent_layers", model.states.count)
    field("logits_offset", kept.logits.offset)
    field("drawn_offset", kept.drawn.offset)
    field("logits_width", c.vocab_size)
    field("position_bytes", list(model.kv_bytes))
    field("pass_rows", capacities(model))
    field("end_tokens", "end_tokens")
    field("end_count", #c.end_tokens)
    field("temperature", emit_c.float(c.temperature))
    field("top_p", emit_c.float(c.top_p))
    field("min_p", emit_c.float(c.min_p))
    field("top_k", c.top_k)
    field("plain_prompt", program_reference(model, "plain_prompt"))
    field("prompt", program_reference(model, "prompt"))
    field("tail_program", program_reference(model, "tail"))
    field("saved_tail", program_reference(model, "saved_tail"))
    field("plain_round", program_reference(model, "plain_round"))
    field("saving_round", model.has_head and program_reference(model, "saving_round") or "NULL")
    local rounds = {}
    if model.has_head then
        for drafts = 0, model.options.window - 1 do rounds[#rounds + 1] = program_reference(model, "round_" .. drafts) end
    end
    field("round", list(#rounds > 0 and rounds or { "NULL" }))
    field("programs", "programs")
    field("program_count", #model.programs)
    field("entries", "entries")
    field("entry_count", #layout.entries)
    field("weight_bytes", layout.resident_bytes)
    field("table_bytes", layout.table_bytes)
    field("tables", "tables")
    field("table_count", table_count)
    field("constants", "constants")
    field("constant_bytes", model.constants.bytes)
    field("facts", "facts")
    field("fact_count", #model.facts)
    return table.concat(out)
end

local BLOB <const> = [[
// Generated: the pack inside the binary.
    .section .rodata
    .balign 4096
    .globl pack_blob
pack_blob:
    .incbin "%s"
    .globl pack_blob_end
pack_blob_end:
    .section .note.GNU-stack,"",@progbits
]]

function emit_model.write(model, write, embed)
    local text, table_count = arrays(model)
    local pack_text = "const uint8_t *const embedded_pack = NULL, *const embedded_pack_end = NULL;\n"
    if embed then
        pack_text = "extern const uint8_t pack_blob[], pack_blob_end[];\nconst uint8_t *const embedded_pack = pack_blob;\n"
            .. "const uint8_t *const embedded_pack_end = pack_blob_end;\n"
    end
    write("model.c", table.concat {
        emit_c.header(model), "\n#include \"programs.h\"\n\n", text, "\nconst struct model model = {\n",
        structure(model, table_count), "};\n\n",
        pack_text,
    })
    write("pack_blob.S", embed and string.format(BLOB, model.name .. ".pack") or "// Generated: this build reads its pack from a file.\n"
        .. "    .section .note.GNU-stack,\"\",@progbits\n")
end

return emit_model
