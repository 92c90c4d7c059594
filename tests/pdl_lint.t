#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- Every kernel of kernels/cuda waits for its predecessors: a __global__ function calls pdl_wait(), itself or through a function
-- (or function object) that its body names and that calls it, and no kernel is launched with <<< >>> past the launch helper.
-- Usage: tests/pdl_lint.t [FILE...]; TAP. Without files: kernels/cuda/*.cu and *.cuh, and the controls below; synthetic.cu and
-- ceiling.cu are left out, since no program launches them.
--
-- Invariant: a kernel that the lint cannot read is a failure, not a pass.

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end

-- The source without comments and strings, each replaced by a blank.
local function code_of(text)
    text = text:gsub("//[^\n]*", " "):gsub("/%*.-%*/", " "):gsub('"[^"\n]*"', " ")
    return text
end

-- Position after the bracket that closes the one at `at`.
local function close_of(text, at)
    local pair = text:match("^%b{}", at) or text:match("^%b()", at)
    return pair and at + #pair
end

-- Name and body of every function or type definition with a brace body: the last identifier before the parameters or the brace.
local function definitions(text)
    local found = {}
    for name, at in text:gmatch("([%w_]+)%s*()%b()%s*c?o?n?s?t?%s*{") do
        local open = text:find("{", close_of(text, at), true)
        local past = close_of(text, open)
        if past then
            found[#found + 1] = {name = name, body = text:sub(open, past - 1)}
        end
    end
    for name, open in text:gmatch("struct%s+([%w_]+)%s*(){") do
        local past = close_of(text, open)
        if past then
            found[#found + 1] = {name = name, body = text:sub(open, past - 1)}
        end
    end
    return found
end

-- Kernels of a source: name and body (nil: not found).
local function kernels(text)
    local found = {}
    for at in text:gmatch("__global__()") do
        local rest = text:sub(at)
        local first = rest:gsub("^%s*__launch_bounds__%s*%b()", ""):gsub("^%s*void%s*__launch_bounds__%s*%b()", " void ")
        local name, after = first:match("^%s*void%s+([%w_]+)%s*()%(")
        local body
        if name then
            local past = close_of(first, after)
            local open = past and first:match("^%s*(){", past)
            body = open and first:sub(open, close_of(first, open) - 1)
            if not body and first:match("^%s*;", past) then
                goto continue -- a declaration
            end
        end
        found[#found + 1] = {name = name or "?", body = body}
        ::continue::
    end
    return found
end

-- Names whose definitions call pdl_wait, in any number of steps.
local function waiting_names(sources)
    local all, waits = {}, {pdl_wait = true}
    for _, text in pairs(sources) do
        for _, definition in ipairs(definitions(text)) do
            all[#all + 1] = definition
        end
    end
    local grown = true
    while grown do
        grown = false
        for _, definition in ipairs(all) do
            if not waits[definition.name] then
                for word in definition.body:gmatch("[%a_][%w_]*") do
                    if waits[word] then
                        waits[definition.name] = true
                        grown = true
                        break
                    end
                end
            end
        end
    end
    return waits
end

-- Complaints about the sources (path -> text), sorted; and the number of kernels.
local function complaints(sources)
    local list, count = {}, 0
    local clean = {}
    for path, text in pairs(sources) do
        clean[path] = code_of(text)
    end
    local waits = waiting_names(clean)
    for path, text in pairs(clean) do
        for _, kernel in ipairs(kernels(text)) do
            count = count + 1
            local good = false
            for word in (kernel.body or ""):gmatch("[%a_][%w_]*") do
                good = good or waits[word]
            end
            if not good then
                list[#list + 1] = ("%s: kernel %s does not wait for its predecessors"):format(path, kernel.name)
            end
        end
        if text:find("<<<", 1, true) then
            list[#list + 1] = path .. ": a launch past the launch helper"
        end
    end
    table.sort(list)
    return list, count
end

local tests, failed = 0, 0
local function ok(good, name)
    tests = tests + 1
    failed = failed + (good and 0 or 1)
    print(("%s %d - %s"):format(good and "ok" or "not ok", tests, name))
end

local paths = {...}
if #paths == 0 then
    local pipe = assert(io.popen("ls kernels/cuda/*.cu kernels/cuda/*.cuh | grep -v -e synthetic.cu -e ceiling.cu"))
    for path in pipe:lines() do
        paths[#paths + 1] = path
    end
    pipe:close()
end
local sources = {}
for _, path in ipairs(paths) do
    sources[path] = read(path)
end
local list, count = complaints(sources)
for _, line in ipairs(list) do
    print("# " .. line)
end
ok(#list == 0 and count > 0, ("%d kernels wait for their predecessors"):format(count))

local function caught(text)
    return #(complaints({control = text})) > 0
end
local good = "__device__ void w(int a) { pdl_wait(); }\n__global__ void k(int a) { w(a); }"
ok(not caught(good), "control: a wait in a function that the kernel calls is seen")
ok(caught("__global__ void k(int a) { work(a); }"), "control: a kernel without a wait is caught")
ok(caught("template <int N> __global__ void __launch_bounds__(256, 2) k(int a)\n{ // pdl_wait();\n}"),
    "control: a wait in a comment does not count")
ok(caught(good .. "\nvoid f(void) { k<<<1, 32>>>(0); }"), "control: a launch past the helper is caught")
print("1.." .. tests)
os.exit(failed == 0)
