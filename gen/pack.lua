-- SPDX-License-Identifier: Apache-2.0
--
-- Where each weight lies in the pack, and the plan that the packer follows.
--
--   local pack = require "pack"
--   local layout = pack.layout(records)          -- records of gen/checkpoint.lua, in the order in which they should lie
--   layout.resident_bytes, layout.table_bytes    -- sections: held in memory; read from the file by row
--   layout.identity                              -- integer; string.format("0x%016xull", layout.identity)
--   record.entry                                 -- the record's place:
--     { index, layout = "panel"|"rows"|"vector", section = "resident"|"table", encoding, bits, group, n, k, experts,
--       data_offset, data_stride, scale_offset, scale_stride (strides: bytes from one expert to the next, 0 when not stacked),
--       global_offset, row_bytes, bytes }        -- offsets from the start of the section; scale_offset and global_offset are
--                                                   nil when there is none; global_offset is always in the resident section
--   pack.write_plan(path, layout, census)        -- text for `packer PLAN OUT`
--   pack.c_entries(layout) -> string             -- initialisers of `struct pack_entry` (runtime/pack.h), one a line
--   pack.source_bytes(layout, record)            -- bytes that one pass over the weight reads (codes, scales, global)
--
-- Invariants: every part starts at a multiple of 64 bytes; parts follow one another in file order (an expert's codes, its
-- scales, the next expert ..., then the globals); the globals of table entries come after all resident entries; tables start
-- at multiples of 4096. The packer writes strictly forward and checks each offset.

local encodings = require "encodings"
local fail = require "fail"

local pack = {}

local ALIGN <const>, TABLE_ALIGN <const> = 64, 4096
local PLAN_VERSION <const> = 1

local function align(value, to) return (value + to - 1) // to * to end

local LAYOUT_OF <const> = { matrix = "panel", vector = "vector", rows = "rows" }

-- Places one weight at `at`; returns its entry and the offset after it.
local function place(record, index, at)
    local experts = record.experts or 1
    local entry = {
        index = index, record = record, name = record.name, layout = LAYOUT_OF[record.kind], section = record.section,
        encoding = record.encoding, bits = record.bits, group = record.group, n = record.n, k = record.k,
        experts = record.experts or 0, transform = record.transform or "none", data_stride = 0, scale_stride = 0,
    }
    entry.data_offset = align(at, entry.section == "table" and TABLE_ALIGN or ALIGN)
    local data, scale
    if record.kind == "rows" then
        entry.row_bytes = encodings.row_bytes(record.encoding, record.bits, record.group, record.k)
        data, scale = entry.row_bytes * record.n, 0
    elseif record.kind == "vector" then
        data, scale = 4 * record.n, 0
    else
        data, scale = encodings.panel_bytes(record.encoding, record.bits, record.group, record.n, record.k)
    end
    local stride = align(data, ALIGN) + align(scale, ALIGN)
    entry.data_bytes, entry.scale_bytes = data, scale
    if scale > 0 then entry.scale_offset = entry.data_offset + align(data, ALIGN) end
    if record.experts then
        entry.data_stride = stride
        if scale > 0 then entry.scale_stride = stride end
    end
    local past = entry.data_offset + stride * experts
    if record.global and entry.section == "resident" then
        entry.global_offset = past
        past = align(past + 4 * experts, ALIGN)
    end
    entry.bytes = past - entry.data_offset
    record.entry = entry
    return entry, past
end

-- FNV-1a over the text of everything that a pack of this build must agree on.
local function identity_of(entries, resident, table_bytes)
    local hash = 0xcbf29ce484222325
    local function add(text)
        for i = 1, #text do hash = (hash ~ text:byte(i)) * 0x100000001b3 end
    end
    add(string.format("pack %d layout %d sections %d %d\n", PLAN_VERSION, encodings.LAYOUT_VERSION, resident, table_bytes))
    for _, e in ipairs(entries) do
        add(string.format("%s %s %s %d %d %d %d %d %s %d %d %d %d %d\n", e.name, e.layout, e.encoding, e.bits, e.group, e.n, e.k, e.experts,
            e.section, e.data_offset, e.data_stride, e.scale_offset or -1, e.scale_stride, e.global_offset or -1))
    end
    return hash
end

function pack.layout(records)
    local layout = { entries = {} }
    local at, resident, tables = 0, {}, {}
    for _, record in ipairs(records) do
        if record.entry then fail("weight %s: is placed in the pack twice", record.name) end
        local list = record.section == "table" and tables or resident
        list[#list + 1] = record
    end
    for _, record in ipairs(resident) do
        layout.entries[#layout.entries + 1], at = place(record, #layout.entries, at)
    end
    local table_at = 0
    for _, record in ipairs(tables) do
        local entry
        entry, table_at = place(record, #layout.entries, table_at)
        layout.entries[#layout.entries + 1] = entry
    end
    for _, record in ipairs(tables) do
        if record.global then
            record.entry.global_offset = at
            at = align(at + 4, ALIGN)
        end
    end
    layout.resident_bytes, layout.table_bytes = at, table_at
    layout.identity = identity_of(layout.entries, at, table_at)
    return layout
end

-- ---- the plan -----------------------------------------------------------------------------------------------------------

local ROLES <const> = { "data", "scale", "bias", "zero", "order", "global" }

local function write_piece(out, expert, piece)
    local flags = (piece.transposed and "t" or "") .. (piece.channel and "c" or "")
    out:write(string.format("piece %d %d %s\n", expert, piece.source_rows, flags ~= "" and flags or "-"))
    for _, role in ipairs(ROLES) do
        local part = piece[role]
        if part then
            local mark = part.divisor and 1 or role == "zero" and piece.zero_offset or 0
            out:write(string.format("tensor %s %d %d %d %s %d\n", role, part.file - 1, part.offset, part.stride or 0, part.dtype, mark))
        end
    end
    for _, run in ipairs(piece.runs or {}) do out:write(string.format("run %d %d\n", run[1], run[2])) end
end

local function same_contents(a, b)
    local one, other = io.open(a, "rb"), io.open(b, "rb")
    local same = one and other and one:read("a") == other:read("a")
    if one then one:close() end
    if other then other:close() end
    return same
end

-- Writes what the packer does, in file order; a plan that would not change is left alone. The plan names the checkpoint's
-- files by the path that was given.
function pack.write_plan(path, layout, census)
    if census.synthetic then fail("%s: a synthetic checkpoint has no weights to pack", path) end
    local out, message = io.open(path .. ".tmp", "wb")
    if not out then fail("%s: cannot be written (%s)", path, message) end
    out:write(string.format("pianola-plan %d\nidentity %016x\nsections %d %d\n", PLAN_VERSION, layout.identity, layout.resident_bytes,
        layout.table_bytes))
    for _, file in ipairs(census.set.files) do out:write(string.format("file %d %s\n", file.bytes, file.path)) end
    for _, e in ipairs(layout.entries) do
        local stored = e.record.stored or { encoding = e.encoding, bits = e.bits, group = e.group }
        out:write(string.format("entry %s %s %s %d %d %d %d %d %d %d %d %d %d %s %s %d %d %s\n", e.layout, e.section, e.encoding, e.bits,
            e.group, e.n, e.k, e.experts, e.data_offset, e.data_stride, e.scale_offset or -1, e.scale_stride, e.global_offset or -1,
            e.transform, stored.encoding, stored.bits, stored.group, e.name))
        for expert, pieces in ipairs(e.record.sources) do
            for _, piece in ipairs(pieces) do write_piece(out, expert - 1, piece) end
        end
    end
    out:write("end\n")
    local ok = out:close()
    if not ok then fail("%s: could not be written; is the disk full?", path) end
    if same_contents(path .. ".tmp", path) then
        os.remove(path .. ".tmp")
        return
    end
    local renamed
    renamed, message = os.rename(path .. ".tmp", path)
    if not renamed then fail("%s: cannot be written (%s)", path, message) end
end

-- ---- for the emitter ----------------------------------------------------------------------------------------------------

function pack.c_entries(layout)
    local lines = {}
    for i, e in ipairs(layout.entries) do
        lines[i] = string.format(
            "    { .name = \"%s\", .layout = PACK_%s, .section = PACK_%s, .encoding = %s, .bits = %d, .group = %d, .n = %d, .k = %d, "
            .. ".experts = %d, .data_offset = %d, .data_stride = %d, .scale_offset = %d, .scale_stride = %d, .global_offset = %d, "
            .. ".row_bytes = %d, .bytes = %d },", e.name:gsub("[^%w%._%-]", "?"), e.layout:upper(), e.section:upper(),
            encodings.constant[e.encoding], e.bits, e.group, e.n, e.k, e.experts, e.data_offset, e.data_stride, e.scale_offset or -1,
            e.scale_stride, e.global_offset or -1, e.row_bytes or 0, e.bytes)
    end
    return table.concat(lines, "\n") .. "\n"
end

-- Codes, scales and globals of one expert (or of the matrix, or of one row of a table).
function pack.source_bytes(record)
    local e = record.entry
    if e.layout == "rows" then return e.row_bytes end
    return e.data_bytes + e.scale_bytes + (record.global and 4 or 0)
end

return pack
