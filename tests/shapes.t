#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- The shapes that the CUDA target's decode kernels have as constants (gen/shapes.lua): what shapes.cuh lists is held against the launches
-- that the emitted programs make, read from their C. Each launch of the decode class must be listed, each shape once and for a launch.
-- Red controls: a list that lacks one, has one twice, has one that nobody launches.

package.path = "gen/?.lua;tests/lib/?.lua;" .. package.path
local shapes = require "shapes"
local tap = require "tap"
local write = require "safetensors_write"

local OUT <const> = "build/tests/shapes/"
-- A folder each family, in encodings that some parts of a launch have and others do not.
local MODELS <const> = {
    { "embedded", "models/embedded", "" },
    { "flashnext", "models/shapes/flash-next", "--recipe nvfp4-mxfp8" }, { "qwen3_5", "models/shapes/qwen3.5-2b", "--recipe mlx-4bit-g32" },
    { "qwen3_5_moe", "models/shapes/qwen3.5-35b-a3b", "--recipe nvfp4-modelopt" },
    { "qwen3_next", "models/shapes/qwen3-next-80b-a3b", "--recipe int4-g128" },
    { "nemotron_h", "models/shapes/nemotron-3-nano-30b-a3b", "--recipe fp8" },
    { "several encodings", "tests/fixtures/reference/fn-f-nvfp4-mxfp8", "" },
}

local function read(path)
    local f <close> = io.open(path, "rb")
    return f and f:read("a")
end

local function run(command)
    local pipe = io.popen(command .. " 2>&1")
    local text = pipe:read("a")
    return pipe:close(), text
end

local function generate(checkpoint, out, options)
    os.execute("rm -rf " .. OUT .. out .. " && mkdir -p " .. OUT .. out)
    return run(string.format("lua5.4 gen/main.lua --checkpoint %s --out %s%s %s", checkpoint, OUT, out, options))
end

-- ---- what a program launches ---------------------------------------------------------------------------------------------

-- A launch's text as a table: its op and its fields, of which weights are "ENC, bits, group" and n.
local function launch(text)
    local l = { op = text:match("^([%w_]+)"), parts = {} }
    for field, value in text:gmatch("%.([%w_]+) = ([%w_&%->%(%)%[%] +]+)") do
        l[field] = l[field] or tonumber(value) or value
    end
    for part in text:gmatch("{%.w = weight(.-})") do
        local encoding, n = part:match("^%(b, ([%w_]+, %d+, %d+), (%d+)")
        l.parts[#l.parts + 1] = string.format("{%s, %s, %s}", encoding, n, part:match("%.activation = ([%w_]+)"))
    end
    for _, name in ipairs { "gate", "up", "down" } do
        local code = text:match("%." .. name .. " = weight%(b, ([%w_]+, %d+, %d+)")
        l[name .. "_code"] = code and "{" .. code .. "}" or "{0, 0, 0}"
        l[name .. "_there"] = code and 1 or 0
    end
    l.mix_n = text:match("{%.w = weight%(b, [%w_]+, %d+, %d+, (%d+)")
    return l
end

local function whole_lines(pointer, ld) return tonumber(pointer:match("%d+")) % 16 == 0 and ld % 4 == 0 end

local function takes_glu(glu, product)
    return glu.g ~= "NULL" and glu.activation == "ACT_SILU" and glu.width == product.k and product.row_multiple == 1
        and whole_lines(glu.g, glu.ldg) == whole_lines(glu.u, glu.ldu)
end

local function takes_mix(product, mix)
    return product.row_multiple == 1 and product.parts[1]:find("ACT_NONE") and #product.parts == 1 and mix.streams == 4
        and mix.dim % 32 == 0 and tonumber(product.mix_n) == 4 * mix.dim
end

local ROUTE_MOST <const> = tonumber(read("kernels/cuda/route.cuh"):match("ROUTE_MOST = (%d+)"))
local RESIDUAL_MOST <const> = tonumber(read("kernels/cuda/window_norm.cuh"):match("RESIDUAL_MOST = (%d+)"))

local function takes_norm(add, norm, product)
    return product.row_multiple == 1 and product.k % 32 == 0 and product.k <= RESIDUAL_MOST and add.width == product.k
        and norm.groups == 1 and norm.dim == product.k and whole_lines(add.x, 0) and whole_lines(add.y, 0) and whole_lines(norm.y, 0)
end

local function takes_streams(inject, norm, first, second, mix)
    return takes_mix(second, mix) and first.row_multiple == 1 and first.k == 4 * mix.dim and inject.streams == 4 and norm.groups == 4
        and inject.dim == mix.dim and norm.dim == mix.dim
end

-- Initialiser of a launch's shape, as shapes.cuh has it; nil where it is of no matrix. beside: "glu, mix, route" of its step; norm: what
-- stands behind the parts where a residual and its norm are before them.
local function shape(l, beside, norm)
    if l.op == "linear" then
        return string.format("linear {%d, %s, %d, {%s}%s}", l.k, beside or "0, 0, 0", #l.parts, table.concat(l.parts, ", "), norm or "")
    elseif l.op == "experts_up" then
        return string.format("experts_up {%d, %d, %d, %d, %d, %s, %d, %s, %s}", l.gate_there, l.experts, l.slots, l.inner, l.k,
            l.activation, l.early, l.up_code, l.gate_code)
    elseif l.op == "experts_down" then
        return string.format("experts_down {0, %d, %d, %d, %d, ACT_NONE, 0, %s, {0, 0, 0}}", l.experts, l.slots, l.n, l.k,
            l.down_code)
    end
end

-- The shape of experts that choose for themselves, with a shared expert's product.
local function beside(up, product)
    local code, n = product.parts[1]:match("^{(.*), (%d+), [%w_]+}$")
    return string.format("experts_beside {%s, %s, %d, {%s}}", shape(up):match("{.*"), n, product.k, code)
end

-- The shapes of the launches that stand for ops `at` to `to` of a step, or nil where they are none of the steps with matrices; of steps for
-- few rows those of more rows too.
local function step_shape(step, at, to)
    local names = {}
    for i = at, to do names[#names + 1] = step[i].op end
    names = table.concat(names, " ")
    local a, b, c = step[at], step[at + 1], step[at + 2]
    if names == "glu linear" and takes_glu(a, b) then return shape(b, "1, 0, 0") end
    if names == "route glu linear" and a.slots <= 32 and a.experts <= ROUTE_MOST and takes_glu(b, c) then
        return shape(c, "1, 0, 1")
    end
    if names == "route glu linear experts_up experts_down" and a.slots <= 32 and a.experts <= ROUTE_MOST and takes_glu(b, c)
        and a.sigmoid == 0 and a.bias == "NULL" and #c.parts == 1 and c.parts[1]:find("ACT_NONE") then
        return beside(step[at + 3], c), shape(c, "1, 0, 1"), shape(step[at + 4])
    end
    if names == "add norm linear" and takes_norm(a, b, c) then return shape(c, nil, ", 1"), shape(c) end
    if names == "hc_inject norm linear linear hc_mix" and takes_streams(table.unpack(step, at, to)) then
        return shape(c, nil, ", 2"), shape(c), shape(step[at + 3], string.format("0, %d, 0", step[to].dim))
    end
    if names == "linear hc_mix" and takes_mix(a, b) then return shape(a, string.format("0, %d, 0", b.dim)) end
end

-- Shapes of a step's launches. What has no kernel as a whole is launched by its longest beginnings that have one.
local function step_shapes(step)
    local list, at = {}, 1
    while at <= #step do
        local found, to = {}, #step + 1
        repeat
            to = to - 1
            found = { step_shape(step, at, to) }
        until found[1] or to <= at
        list[#list + 1] = found[1] or shape(step[at])
        table.move(found, 2, #found, #list + 1, list)
        at = to + 1
    end
    return list
end

-- Set of the shapes that the decode class's programs in a folder launch, and how many launches they are.
local function launched(folder)
    local _, names = run("ls " .. folder .. "/program_*.c")
    local set, count = {}, 0
    for path in names:gmatch("[^\n]+") do
        local text = read(path)
        if text:find("\n// [%w_]+: decode class") then
            local step, left = {}, 0
            for together, body in text:match("static void program_.-\n}\n"):gmatch("([^\n]*)\n    RUN%((.-)%);\n") do
                left = left == 0 and tonumber(together:match("exec_together%(e, (%d+)%)") or 1) or left
                step[#step + 1], left = launch(body), left - 1
                if left == 0 then
                    for _, s in ipairs(step_shapes(step)) do set[s], count = true, count + 1 end
                    step = {}
                end
            end
        end
    end
    return set, count
end

-- ---- what is listed ----------------------------------------------------------------------------------------------------------

-- What is wrong with shapes.cuh for these launches, or "".
local function faults(text, set)
    local listed, wrong = {}, {}
    for _, kind in ipairs { "linear", "experts_up", "experts_down", "experts_beside" } do
        local names = text:match("\n#define " .. kind:upper() .. "_SHAPES([^\n]*)\n")
        local number = 0
        for name in names:gmatch("[%w_]+") do
            local value = text:match("\nstruct " .. name .. " {\n    static constexpr [%w_]+ value = ([^\n]*);\n};\n")
            local s = kind .. " " .. (value or "missing")
            if name ~= kind .. "_shape_" .. number then wrong[#wrong + 1] = name .. " is out of order" end
            if listed[s] then wrong[#wrong + 1] = s .. " is there twice" end
            if not set[s] then wrong[#wrong + 1] = s .. " is launched by nobody" end
            listed[s], number = true, number + 1
        end
    end
    for s in pairs(set) do
        if not listed[s] then wrong[#wrong + 1] = s .. " is not there" end
    end
    table.sort(wrong)
    return table.concat(wrong, "\n")
end

local compiler = run("command -v clang++ >/dev/null")
local COUNT <const> = [[
#include "shapes.cuh"
template <class... S> constexpr int count()
{
    return (0 + ... + (S::value.k > 0));
}
static_assert(count<LINEAR_SHAPES>() + count<EXPERTS_UP_SHAPES>() + count<EXPERTS_DOWN_SHAPES>() + count<EXPERTS_BESIDE_SHAPES>() == %d,
              "a value each");
]]

local function check_models()
    for i, m in ipairs(MODELS) do
        local name, folder = m[1], "model-" .. i
        local good, log = generate(m[2], folder, m[3] .. " --target cuda --window 2")
        local text = good and read(OUT .. folder .. "/shapes.cuh") or ""
        local set, count = launched(OUT .. folder)
        tap.ok(good and count > 30, name .. ": its decode programs have launches", log .. count)
        local found = good and faults(text, set)
        tap.ok(found == "", name .. ": each launch's shape is listed, once, and no other", found)
        if compiler then
            write.text(OUT .. folder .. "/all.cc", COUNT:format((select(2, text:gsub("\nstruct ", "")))))
            good, log = run(string.format("clang++ -std=c++17 -Wall -Werror -fsyntax-only -I. %s%s/all.cc", OUT, folder))
            tap.ok(good, name .. ": the lists are types with a value each", log)
        end
    end
end

local function check_red()
    local text, set = read(OUT .. "model-1/shapes.cuh"), launched(OUT .. "model-1")
    local last = text:match("#define LINEAR_SHAPES [^\n]*, (linear_shape_%d+)\n")
    local fewer = faults(text:gsub(", " .. last .. "\n", "\n"), set)
    tap.ok(fewer:find("^linear {[^\n]* is not there$"), "red control: a shape that is left out is found", fewer)
    local first = text:match("struct linear_shape_0 {\n[^\n]*value = ([^\n]*)")
    local twice = text:gsub("(struct " .. last .. " {\n[^\n]*value = )[^\n]*", "%1" .. first)
    tap.ok(faults(twice, set):find("is there twice"), "red control: one that is there twice is found")
    local other = faults(text:gsub("value = {(%d+), 0, 0, 0, 1", "value = {1%1, 0, 0, 0, 1", 1), set)
    tap.ok(other:find("is launched by nobody") and other:find("is not there"), "red control: one of another k is found")
    local missing = next(set)
    set[missing] = nil
    tap.ok(faults(text, set) == missing .. " is launched by nobody", "red control: one that nobody launches is found")
end

-- ---- when the file changes ------------------------------------------------------------------------------------------------------

local function check_files()
    local from = "tests/fixtures/reference/fn-tiny-mlx-4bit-g32"
    generate(from, "plain", "")
    tap.ok(not read(OUT .. "plain/shapes.cuh") and read(OUT .. "plain/programs.h"), "a build for the CPU has no list")
    generate(from, "same", "--target cuda --name other --permute 3")
    generate(from, "cuda", "--target cuda")
    local text = read(OUT .. "cuda/shapes.cuh")
    tap.ok(text and text == read(OUT .. "same/shapes.cuh"), "another name and arena are the same list: nothing compiles again")
    generate(from, "draft", "--target cuda --window 1 --lanes 8")
    local found = faults(read(OUT .. "draft/shapes.cuh"), launched(OUT .. "draft"))
    tap.ok(found == "", "another number of lanes and rows: each launch is listed", found)
    local good, log = generate(from, "none", "--target metal")
    tap.ok(not good and log == "pianola: TARGET (--target): cpu or cuda is expected, found metal\n", "another target is refused", log)
end

-- ---- steps by themselves -----------------------------------------------------------------------------------------------------------

local function value(ld, offset) return { buffer = {}, offset = offset or 0, ld = ld or 64 } end

local function op(name, args, facts)
    return { name = name, pass = "trunk", where = "here", facts = facts or { shape = "s" }, args = args }
end

local function linear(options)
    local weight = { encoding = "bf16", bits = 16, n = options.n or 128 }
    return op("linear", {}, {
        k = 64, row_multiple = options.row_multiple or 1, shape = "s", parts = { { weight = weight, act = options.act or "none" } },
    })
end

local function glu(options)
    return op("glu", {
        { "width", "int", 64 }, { "activation", "act", options.act or "silu" },
        { "g", "in", not options.plain and value(options.ld) or nil }, { "u", "in", value() },
    })
end

-- The numbers that the list has for a step: k, glu, mix, route.
local function listed(...)
    local ops = { ... }
    ops[1].together = #ops
    return (shapes.text({ { name = "p", class = "decode", ops = ops } }):match("value = {(%d+, %d+, %d+, %d+)"))
end

-- What the lists have of a step of choices, a shared expert's product and experts: numbers of experts_up, experts_down, experts_beside.
local function check_experts()
    local function counts(options, product)
        local route = op("route", {
            { "slots", "int", 8 }, { "experts", "int", 64 }, { "sigmoid", "int", options.sigmoid or 0 }, { "bias", "vector", options.bias },
        })
        local weight = { encoding = "bf16", bits = 16 }
        local up = op("experts_up", {
            { "experts", "int", options.experts or 64 }, { "slots", "int", 8 }, { "inner", "int", 64 }, { "k", "int", 64 },
            { "activation", "act", "silu" }, { "early", "int", 0 }, { "up", "weight", weight }, { "gate", "weight", weight },
        })
        local down = op("experts_down", {
            { "experts", "int", 64 }, { "slots", "int", 8 }, { "n", "int", 64 }, { "k", "int", 64 }, { "down", "weight", weight },
        })
        route.together = 5
        local text = shapes.text { { name = "p", class = "decode", ops = { route, glu {}, product or linear {}, up, down } } }
        local found = {}
        for i, name in ipairs { "up", "down", "beside" } do
            found[i] = select(2, text:gsub("\nstruct experts_" .. name .. "_shape", ""))
        end
        return table.concat(found, " "), text
    end
    local found, text = counts {}
    tap.ok(found == "0 1 1" and text:find("value = {64, 1, 0, 1, 1,", 1, true), "experts that choose for themselves, and the product of more rows")
    tap.ok(text:find("value = {{1, 64, 8, 64, 64, ACT_SILU, 0, {ENC_BF16, 16, 0}, {ENC_BF16, 16, 0}}, 128, 64, {ENC_BF16, 16, 0}};", 1, true),
        "with both shapes", text)
    tap.ok(counts { sigmoid = 1 } == "1 1 0" and counts { bias = {} } == "1 1 0", "not by sigmoids")
    tap.ok(counts({}, linear { act = "silu" }) == "1 1 0", "nor beside a product with an activation")
    tap.ok(counts { experts = 65 } == "1 1 0", "nor of other experts")
end

local function check_steps()
    local route = function(experts, slots) return op("route", { { "slots", "int", slots or 8 }, { "experts", "int", experts } }) end
    local mix = function(streams, dim) return op("hc_mix", { { "streams", "int", streams }, { "dim", "int", dim } }) end
    tap.ok(listed(glu {}, linear {}) == "64, 1, 0, 0", "a glu and its product are one launch")
    tap.ok(listed(glu { act = "relu2" }, linear {}) == "64, 0, 0, 0", "not with another activation")
    tap.ok(listed(glu { plain = true }, linear {}) == "64, 0, 0, 0", "nor without a gate")
    tap.ok(listed(glu { ld = 65 }, linear {}) == "64, 0, 0, 0", "nor where one of both has other places")
    tap.ok(listed(glu {}, linear { row_multiple = 4 }) == "64, 0, 0, 0", "nor with several rows a row")
    tap.ok(listed(route(1024), glu {}, linear {}) == "64, 1, 0, 1", "choices beside them")
    tap.ok(listed(route(1025), glu {}, linear {}) == "64, 1, 0, 0", "not among too many experts: a launch of their own")
    tap.ok(listed(route(64, 33), glu {}, linear {}) == "64, 1, 0, 0", "nor too many of them")
    check_experts()
    tap.ok(listed(linear {}, mix(4, 32)) == "64, 0, 32, 0", "gates and their mix are one launch")
    tap.ok(listed(linear {}, mix(2, 64)) == "64, 0, 0, 0", "not of two streams")
    tap.ok(listed(linear { act = "silu" }, mix(4, 32)) == "64, 0, 0, 0", "nor of gates with an activation")
    local prompt = shapes.text { { name = "p", class = "prompt", ops = { linear {} } } }
    tap.ok(prompt:find("#define LINEAR_SHAPES\n"), "prompts have none")
    tap.ok(listed(linear { n = 64 }, mix(4, 16)) == "64, 0, 0, 0", "nor of few numbers")
end

check_models()
check_red()
check_files()
check_steps()
tap.done()
