-- SPDX-License-Identifier: Apache-2.0
--
-- The shapes of the decode class's matrix launches, each once, in the order of first use: shapes.cuh, which kernels/cuda/fixed.cu
-- makes a kernel each of. Its text depends on the shapes and the description alone, so other weights compile nothing again.
--
-- Invariant: every such launch is listed, as it is launched: a step as one where its launcher takes it, else its ops by themselves.

local emit_c = require "emit_c"
local fuse = require "fuse"

local shapes = {}

local STREAMS <const> = 4 -- STREAMS_MOST of kernels/cuda/linear_plan.cuh
local RESIDUAL_MOST <const> = 4096 -- of kernels/cuda/window_norm.cuh
local BEFORE_ADD <const>, BEFORE_STREAMS <const> = 1, 2 -- before_kind of the same
local SLOTS_MOST <const>, EXPERTS_MOST <const> = 32, 1024 -- route_fits() of kernels/cuda/route.cuh

local arg = fuse.arg

local function list(items) return "{" .. table.concat(items, ", ") .. "}" end

-- struct code_shape of a weight record, or zeros.
local function code(r) return r and list { emit_c.encoding(r.encoding), r.bits or 0, r.group or 0 } or list { 0, 0, 0 } end

-- Whether the rows of a value begin at multiples of 16 bytes; buffers do (gen/place.lua).
local function aligned(v) return v.offset % 4 == 0 and v.ld % 4 == 0 end

-- What cuda_glu_linear() takes.
local function takes_glu(glu, product)
    local g, u = arg(glu, "g"), arg(glu, "u")
    return g and product.facts.row_multiple == 1 and arg(glu, "activation") == "silu" and arg(glu, "width") == product.facts.k
        and aligned(g) == aligned(u)
end

-- What cuda_route_glu_linear() takes beside that.
local function takes_route(route)
    local slots, experts = arg(route, "slots"), arg(route, "experts")
    return slots <= SLOTS_MOST and slots <= experts and experts <= EXPERTS_MOST
end

-- What cuda_route_experts() takes beside both: beside_takes() of kernels/cuda/experts.cu.
local function takes_experts(route, product, up)
    local parts = product.facts.parts
    return arg(route, "sigmoid") == 0 and not arg(route, "bias") and arg(route, "experts") == arg(up, "experts")
        and arg(route, "slots") == arg(up, "slots") and #parts == 1 and parts[1].act == "none"
end

-- What cuda_add_norm_linear() takes, of one row.
local function takes_norm(add, norm, product)
    local f, x = product.facts, arg(add, "x")
    return f.row_multiple == 1 and f.k % 32 == 0 and f.k <= RESIDUAL_MOST and arg(add, "width") == f.k and arg(norm, "groups") == 1
        and arg(norm, "dim") == f.k and x.offset % 4 == 0 and arg(add, "y").offset % 4 == 0 and arg(norm, "y").offset % 4 == 0
end

-- What cuda_linear_mix() takes.
local function takes_mix(product, mix)
    local f, streams, dim = product.facts, arg(mix, "streams"), arg(mix, "dim")
    return f.row_multiple == 1 and #f.parts == 1 and streams == STREAMS and dim % 32 == 0 and f.parts[1].weight.n == streams * dim
        and f.parts[1].act == "none"
end

-- What cuda_inject_norm_mix() takes, of one row.
local function takes_streams(inject, norm, first, second, mix)
    local f, dim = first.facts, arg(mix, "dim")
    return takes_mix(second, mix) and f.row_multiple == 1 and f.k == STREAMS * dim and arg(inject, "streams") == STREAMS
        and arg(inject, "dim") == dim and arg(norm, "groups") == STREAMS and arg(norm, "dim") == dim
end

local STEPS <const> = {
    ["hc_inject norm linear linear hc_mix"] = function(inject, norm, first, second, mix)
        return takes_streams(inject, norm, first, second, mix)
            and { product = first, norm = BEFORE_STREAMS, next = { product = second, mix = arg(mix, "dim") } }
    end,
    ["glu linear"] = function(glu, product) return takes_glu(glu, product) and { product = product, glu = 1 } end,
    ["route glu linear"] = function(route, glu, product)
        return takes_route(route) and takes_glu(glu, product) and { product = product, glu = 1, route = 1 }
    end,
    ["route glu linear experts_up experts_down"] = function(route, glu, product, up, down)
        return takes_route(route) and takes_glu(glu, product) and takes_experts(route, product, up)
            and { product = product, glu = 1, route = 1, up = up, down = down }
    end,
    ["add norm linear"] = function(add, norm, product)
        return takes_norm(add, norm, product) and { product = product, norm = BEFORE_ADD }
    end,
    ["linear hc_mix"] = function(product, mix) return takes_mix(product, mix) and { product = product, mix = arg(mix, "dim") } end,
}

-- The launch that op i begins, of a step whose last op is `last`: { product, what the launch does beside it } or nil, and its ops. Of
-- a step without a kernel of its own, the longest part that has one is a launch (graphs/exec_cuda.c).
local function launch(ops, i, last)
    for count = last - i + 1, 2, -1 do
        local together, names = table.move(ops, i, i + count - 1, 1, {}), {}
        for at, op in ipairs(together) do names[at] = op.name end
        local takes = STEPS[table.concat(names, " ")]
        local as = takes and takes(table.unpack(together))
        if as then return as, count end
    end
    return nil, 1
end

-- struct linear_shape of a product, in a step or alone.
local function linear(product, options)
    local f, parts = product.facts, {}
    for i, p in ipairs(f.parts) do
        local w = p.weight
        parts[i] = list { emit_c.encoding(w.encoding), w.bits or 0, w.group or 0, w.n, emit_c.activation[p.act] }
    end
    return list { f.k, options.glu or 0, options.mix or 0, options.route or 0, #parts, list(parts), options.norm }
end

local function experts_up(op)
    local gate = arg(op, "gate")
    return list {
        gate and 1 or 0, arg(op, "experts"), arg(op, "slots"), arg(op, "inner"), arg(op, "k"), emit_c.activation[arg(op, "activation")],
        arg(op, "early"), code(arg(op, "up")), code(gate),
    }
end

local function experts_down(op)
    return list {
        0, arg(op, "experts"), arg(op, "slots"), arg(op, "n"), arg(op, "k"), emit_c.activation.none, 0, code(arg(op, "down")), code(nil),
    }
end

-- struct beside_shape of a launch of experts_up that makes the choices and a shared expert's product.
local function experts_beside(op, options)
    local w = options.product.facts.parts[1].weight
    return list { experts_up(op), w.n, options.product.facts.k, code(w) }
end

local KINDS <const> = {
    { name = "linear", type = "linear_shape", shape = linear },
    { name = "experts_up", type = "experts_shape", shape = experts_up },
    { name = "experts_down", type = "experts_shape", shape = experts_down },
    { name = "experts_beside", type = "beside_shape", shape = experts_beside },
}

-- One kind's shapes: { text, op that it is first launched for, program }, each text once.
function shapes.list(programs, kind)
    local found, seen = {}, {}
    local function add(op, program, options)
        local text = kind.shape(op, options)
        if not seen[text] then found[#found + 1] = { text = text, op = op, program = program.name } end
        seen[text] = true
    end
    for _, p in ipairs(programs) do
        local i, last = 1, 0
        while p.class == "decode" and i <= #p.ops do
            if i > last then last = i + (p.ops[i].together or 1) - 1 end
            local as, count = launch(p.ops, i, last)
            if as and kind.name == "linear" then
                add(as.product, p, as) -- beside experts: where rows are more than those have kernels for
                if as.norm then add(as.product, p, {}) end -- of more rows
                if as.next then add(as.next.product, p, as.next) end
            end
            if as and as.up and kind.name == "experts_beside" then add(as.up, p, as) end
            if as and as.down and kind.name == "experts_down" then add(as.down, p, {}) end
            if not as and p.ops[i].name == kind.name then add(p.ops[i], p, {}) end
            i = i + count
        end
    end
    return found
end

local HEADER <const> = [[
// SPDX-License-Identifier: Apache-2.0
//
// Generated by gen/main.lua, to be read and not to be edited. Shapes of the decode class's launches, each once, in the order of first
// use, under the line of the description that it came from: kernels/cuda/fixed.cu makes a kernel for each.

#ifndef SHAPES_CUH
#define SHAPES_CUH

#include "kernels/cuda/shape.cuh"
]]

-- Text of shapes.cuh.
function shapes.text(programs)
    local out = { HEADER }
    for _, kind in ipairs(KINDS) do
        local names = {}
        out[#out + 1] = "\n"
        for i, s in ipairs(shapes.list(programs, kind)) do
            names[i] = string.format("%s_shape_%d", kind.name, i - 1)
            out[#out + 1] = string.format("// %s%s: %s, %s\nstruct %s {\n    static constexpr %s value = %s;\n};\n", s.op.where,
                s.op.label and " " .. s.op.label or "", s.op.facts.shape, s.program, names[i], kind.type, s.text)
        end
        out[#out + 1] = string.format("#define %s_SHAPES %s", kind.name:upper(), table.concat(names, ", ")):gsub("%s+$", "") .. "\n"
    end
    out[#out + 1] = "\n#endif\n"
    return table.concat(out)
end

return shapes
