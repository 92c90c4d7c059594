-- SPDX-License-Identifier: Apache-2.0
--
-- Programs as C: one function a program, one launch an op, every shape a literal, and over each launch the line of the
-- description that it came from. The same function runs eagerly or under capture; graphs/exec.h decides.

local ops = require "ops"

local emit = {}

local ACTIVATION = { none = "ACT_NONE", silu = "ACT_SILU", sigmoid = "ACT_SIGMOID", relu2 = "ACT_RELU2" }
local PASS = { trunk = "PASS_TRUNK", head = "PASS_HEAD", last = "PASS_LAST", tail = "PASS_TAIL" }

local function encoding(name) return "ENC_" .. name:upper() end

-- C text of a number that reads back as the same float.
local function float(v)
    if v == math.floor(v) and math.abs(v) < 1e6 then return string.format("%d.0f", math.tointeger(v)) end
    return string.format("%.9gf", v)
end

-- weight(...) of a record of the census, placed by gen/pack.lua.
local function weight(r)
    if not r then return "(struct weight){0}" end
    return string.format("weight(b, %s, %d, %d, %d, %d, %d, %d, %d, %d, %d)", encoding(r.encoding), r.bits or 0, r.group or 0, r.n,
        r.k, r.data_offset, r.scale_offset or -1, r.global_offset or -1, r.data_stride or 0, r.scale_stride or 0)
end

-- C text of one operand. constants: collects the tables that operands point to.
local function operand(kind, v, program, constants)
    if kind == "int" then return tostring(math.tointeger(v)) end
    if kind == "float" then return float(v) end
    if kind == "const" then return v end
    if kind == "pass" then return v and "&b->pass[" .. PASS[v] .. "]" or "NULL" end
    if kind == "lanes" then return "b->lanes" end
    if kind == "class" then return v == "prompt" and "CLASS_PROMPT" or "CLASS_DECODE" end
    if kind == "act" then return ACTIVATION[v] end
    if kind == "encoding" then return encoding(v) end
    if kind == "direct" then return program.direct and "1" or "0" end
    if kind == "state" then return tostring(v) end
    if kind == "failed" then return "b->failed" end
    if kind == "result" then return "b->result" end
    if kind == "in" or kind == "out" or kind == "inout" or kind == "scratch" then
        if not v then return "NULL" end
        if v.type == "raw" then return string.format("b->arena + %d", v.buffer.at) end
        return string.format("%s(%d)", v.type == "i32" and "I" or "F", v.buffer.at + v.offset * 4)
    end
    if kind == "vector" then return v and string.format("V(%d)", v.data_offset) or "NULL" end
    if kind == "weight" then return weight(v) end
    if kind == "rows" then return string.format("&b->rows[%d]", v.table_index) end
    if kind == "global" then return v.global_offset and string.format("V(%d)", v.global_offset) or "NULL" end
    if kind == "cache" then return string.format("kv_layouts[b->kv_encoding][%d]", v.number) end
    if kind == "frequencies" then return v and constants:frequencies(v[1], v[2]) or "NULL" end
    if kind == "int64s" then return constants:int64s(v) end
    if kind == "int32s" then return constants:int32s(v) end
    if kind == "parts" then
        local out = {}
        for _, p in ipairs(v) do
            out[#out + 1] = string.format("\n         {.w = %s, .y = F(%d), .ldy = %d, .activation = %s, .alpha = %s}", weight(p.weight),
                p.y.buffer.at + p.y.offset * 4, p.y.ld, ACTIVATION[p.act], float(p.scale))
        end
        return "{" .. table.concat(out, ",") .. "}"
    end
    error("no C for operand kind " .. kind)
end

-- ---- constant arrays --------------------------------------------------------------------------------------------------------

-- Small tables that kernels read. They lie in one block that the runtime puts where kernels see it.
local Constants = {}
Constants.__index = Constants

function Constants.new() return setmetatable({ bytes = 0, data = {}, at = {} }, Constants) end

-- C text of the array's address; `data` are its bytes.
function Constants:place(key, type, data)
    if not self.at[key] then
        self.at[key] = self.bytes
        local padded = data .. string.rep("\0", -#data % 64)
        self.data[#self.data + 1] = padded
        self.bytes = self.bytes + #padded
    end
    return string.format("C(%s, %d)", type, self.at[key])
end

-- theta^(-2i/rotary), rounded to fp32 at each step as the reference does.
function Constants:frequencies(rotary, theta)
    local items = {}
    for i = 0, rotary // 2 - 1 do
        local exponent = string.unpack("<f", string.pack("<f", 2 * i / rotary))
        local power = string.unpack("<f", string.pack("<f", theta ^ exponent))
        items[#items + 1] = string.pack("<f", 1.0 / power)
    end
    return self:place("f" .. rotary .. " " .. theta, "float", table.concat(items))
end

function Constants:int64s(list)
    local items = {}
    for i, v in ipairs(list) do items[i] = string.pack("<i8", v) end
    return self:place("i" .. table.concat(list, " "), "int64_t", table.concat(items))
end

function Constants:int32s(list)
    local items = {}
    for i, v in ipairs(list) do items[i] = string.pack("<i4", v) end
    local data = table.concat(items)
    return self:place("n" .. data, "int32_t", data)
end

-- ---- files -------------------------------------------------------------------------------------------------------------------

-- Bytes and flops of an op in a full pass of one lane.
local function facts(op, program)
    local rows = math.max(1, program.capacity[op.pass] // program.lanes)
    if op.facts.row then op.facts.row_bytes = op.facts.row.entry.row_bytes ~= nil and op.facts.row.entry.row_bytes or 0 end
    if op.facts.weights then
        op.facts.weight_bytes = 0
        for _, w in ipairs(op.facts.weights) do op.facts.weight_bytes = op.facts.weight_bytes + w.bytes end
    end
    local table_entry = ops[op.name]
    return math.floor(table_entry.bytes(op.facts, rows)), math.floor(table_entry.flops(op.facts, rows))
end

local function program_text(p, constants, out)
    out(string.format("\n// %s: %s class, %d launches.\nstatic void program_%s(struct exec *e, const struct bind *b)\n{\n", p.name, p.class,
        #p.ops, p.name))
    for i, op in ipairs(p.ops) do
        local bytes, flops = facts(op, p)
        local shape = op.facts.shape and " " .. op.facts.shape or ""
        out(string.format("    // %s%s:%s, %d bytes, %d flops\n", op.where, op.label and " " .. op.label or "", shape, bytes, flops))
        local fields = {}
        -- A round's rows follow the lanes that it was bound to, a prompt's the rows that it may have.
        local capacity = p.capacity[op.pass]
        local rows = p.lanes > 1 and string.format("b->lanes.count * %d", capacity // p.lanes)
            or p.class == "prompt" and string.format("MOST(%d)", capacity) or capacity
        for _, a in ipairs(op.args) do
            local bounded = op.name == "rows" and a[1] == "capacity" and p.lanes == 1
            fields[#fields + 1] = string.format(".%s = %s", a[1], bounded and rows or operand(a[2], a[3], p, constants))
        end
        if op.together then out(string.format("    exec_together(e, %d);\n", op.together)) end
        out(string.format("    RUN(%s, %d, %s, %s);\n", op.name, i - 1, rows, table.concat(fields, ", ")))
    end
    out("}\n")
end

local HEADER <const> = [[
// Generated by gen/main.lua, to be read and not to be edited.
//
//   family      %s
//   checkpoint  %s
//   command     %s
//
// Shapes:
%s]]

-- What every generated file opens with.
function emit.header(model)
    local lines = {}
    for _, f in ipairs(model.facts) do lines[#lines + 1] = string.format("//   %-28s %s\n", f[1], f[2]) end
    return string.format(HEADER, model.family.name, model.checkpoint, model.command, table.concat(lines))
end

local PRELUDE <const> = [[

#include "graphs/exec.h"
#include "programs.h"

#define F(offset) ((float *)(void *)(b->arena + (offset)))
#define I(offset) ((int32_t *)(void *)(b->arena + (offset)))
#define V(offset) ((const float *)(const void *)(b->weights + (offset)))
#define C(type, offset) ((const type *)(const void *)(b->constants + (offset)))
#define MOST(rows)      (b->most < (rows) ? b->most : (rows))
#define RUN(op, number, rows, ...) \
    exec_launch(e, KERNEL_##op, &(const struct op##_args){__VA_ARGS__}, sizeof(struct op##_args), number, rows)

static inline struct weight weight(const struct bind *b, int encoding, int bits, int group, int n, int k, int64_t data, int64_t scale,
                                   int64_t global, int64_t data_stride, int64_t scale_stride)
{
    return (struct weight){.encoding = encoding, .bits = bits, .group = group, .n = n, .k = k, .data = b->weights + data,
                           .scale = scale < 0 ? NULL : b->weights + scale, .global = global < 0 ? NULL : V(global),
                           .data_stride = data_stride, .scale_stride = scale_stride};
}
]]

-- Bytes a position of a cache layer, by encoding: key (values have the same), raw index key.
local KV = {
    { name = "KV_F32", key = function(h, d) return h * d * 4 end, index = 4, index_name = "KV_F32" },
    { name = "KV_BF16", key = function(h, d) return h * d * 2 end, index = 2, index_name = "KV_BF16" },
    { name = "KV_FP8", key = function(h, d) return h * d + h * 4 end, index = 2, index_name = "KV_BF16" },
}

-- Layouts of all cache layers for each KV encoding, and the bytes a position of all of them.
function emit.kv(model)
    local text, totals = { string.format("static const struct kv_layout kv_layouts[%d][%d] = {\n", #KV, math.max(1, #model.caches)) }, {}
    for i, kv in ipairs(KV) do
        local base = 0
        text[#text + 1] = "    {"
        for _, c in ipairs(model.caches) do
            local key, index = kv.key(c.heads, c.dim), c.index * kv.index
            text[#text + 1] = string.format("\n        {.encoding = %s, .kv_heads = %d, .dim = %d, .index_dim = %d, .index_encoding = %s, "
                .. ".base = %d, .key_bytes = %d, .index_bytes = %d},", kv.name, c.heads, c.dim, c.index, kv.index_name, base, key, index)
            base = base + 2 * key + index + index // 4
        end
        if #model.caches == 0 then text[#text + 1] = "{0}" end
        text[#text + 1] = "\n    },\n"
        totals[i] = base
    end
    text[#text + 1] = "};\n"
    return table.concat(text), totals
end

-- One file a program, so that they compile side by side. write(name, text).
function emit.programs(model, write)
    local kv, totals = emit.kv(model)
    model.kv_bytes = totals
    local declarations = { emit.header(model), "\n#ifndef PROGRAMS_H\n#define PROGRAMS_H\n\n#include \"runtime/model.h\"\n\n" }
    local constants = Constants.new()
    model.constants = constants
    for _, p in ipairs(model.programs) do
        local body = {}
        program_text(p, constants, function(s) body[#body + 1] = s end)
        p.bytes, p.flops = 0, 0
        local table_text = {}
        for _, op in ipairs(p.ops) do
            local bytes, flops = facts(op, p)
            p.bytes, p.flops = p.bytes + bytes, p.flops + flops
            table_text[#table_text + 1] = string.format("    {\"%s\", \"%s%s\", \"%s\", %d, %d},\n", op.name, op.where,
                op.label and " " .. op.label or "", op.facts.shape or "", bytes, flops)
        end
        local uses_kv = table.concat(body):find("kv_layouts", 1, true)
        write("program_" .. p.name .. ".c", table.concat {
            emit.header(model), PRELUDE, "\n", uses_kv and kv or "", table.concat(body),
            string.format("\nstatic const struct model_op ops[%d] = {\n%s};\n", #p.ops, table.concat(table_text)),
            string.format("\nconst struct program %s_program = {\n    .name = \"%s\", .rows = %d, .drafts = %d, .launches = %d, "
                .. ".bytes = %d, .flops = %d, .ops = ops, .emit = program_%s,\n};\n", p.name, p.name,
                p.capacity.tail or p.capacity.trunk, p.drafts, #p.ops, p.bytes, p.flops, p.name),
        })
        declarations[#declarations + 1] = string.format("extern const struct program %s_program;\n", p.name)
    end
    declarations[#declarations + 1] = "\n#endif\n"
    write("programs.h", table.concat(declarations))
end

emit.float, emit.encoding, emit.activation = float, encoding, ACTIVATION
return emit
