#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- Every reference folder, built as a user would build it: logits within the bound of what transformers computes in fp32, on
-- every instruction set of this machine; greedy ids equal wherever the margin exceeds 0.01; the same bytes for any chunk of the
-- prompt and any number of threads. Folders: tests/fixtures/reference, and ../shared/reference where it is there.
-- PIANOLA_REFERENCE=DIR,DIR names others.

package.path = "tests/lib/?.lua;" .. package.path
local cjson = require "cjson"
local reference = require "reference"
local tap = require "tap"

-- Largest absolute difference of logits (their spread is 1.2 to 2.7): fp32 sums in another order.
local BOUND <const>, QUANTISED_BOUND <const> = 2e-3, 3e-3
local MARGIN <const> = 0.01
local OUT <const> = "build/tests/reference/"

local function capture(command)
    local pipe = io.popen("exec 2>&1; " .. command)
    local text = pipe:read("a")
    local good = pipe:close()
    return good, text
end

local function exists(path)
    local f = io.open(path, "rb")
    if f then f:close() end
    return f ~= nil
end

local function list(folder)
    local _, text = capture("ls -d " .. folder .. "/*/")
    local out = {}
    for path in text:gmatch("([^\n]+)/\n") do
        if exists(path .. "/expected.safetensors") then out[#out + 1] = path end
    end
    return out
end

local function write_ids(values)
    local f = assert(io.open(OUT .. "ids", "wb"))
    f:write(table.concat(values, ","))
    f:close()
    return OUT .. "ids"
end

local function read(path)
    local f = io.open(path, "rb")
    if not f then return "" end
    local text = f:read("a")
    f:close()
    return text
end

-- One eval: returns the bytes of its logits file and what it printed.
local function eval(binary, ids, rows, options)
    os.remove(OUT .. "logits")
    local command = "%s eval 2>/dev/null --tokens-file %s --last %d --out %slogits %s"
    local good, text = capture(command:format(binary, ids, rows, OUT, options))
    return good and read(OUT .. "logits") or "", text
end

-- First greedy id that differs where the margin is no coin toss; nil when there is none.
local function wrong_greedy(printed, expected, margins)
    local i = 0
    for id in printed:gmatch("%d+") do
        i = i + 1
        if tonumber(id) ~= expected[i] then
            if margins[i] > MARGIN then return i end
            return nil
        end
    end
    if i ~= #expected then return i end
end

local function prompts_agree(binary, name, e, isa, bound)
    local worst, greedy = 0, nil
    for p = 0, 5 do
        local ids, logits, g = e["prompt_" .. p].values, e["logits_" .. p], e["greedy_" .. p]
        local more = g and "--greedy " .. #g.values or ""
        local _, printed = eval(binary, write_ids(ids), logits.shape[1], "--isa " .. isa .. " " .. more)
        worst = math.max(worst, reference.distance(reference.floats(OUT .. "logits"), logits.values))
        local line = printed:match("([%d ]+)\n?$") or ""
        if g and p < 6 then greedy = greedy or wrong_greedy(line, g.values, e["margin_" .. p].values) end
    end
    tap.ok(worst <= bound, string.format("%s, %s: logits within %.0e", name, isa, bound), "largest difference " .. worst)
    if e.greedy_0 then tap.ok(not greedy, name .. ", " .. isa .. ": greedy ids", "token " .. tostring(greedy) .. " differs") end
end

local function chunks_agree(binary, name, e, isa)
    local ids, rows = write_ids(e.prompt_5.values), e.logits_5.shape[1]
    local whole = eval(binary, ids, rows, "--threads 1 --isa " .. isa)
    local same = #whole > 0
    for _, chunk in ipairs { 1, 7, 64 } do
        for threads = 1, 2 do
            same = same and eval(binary, ids, rows, string.format("--chunk %d --threads %d --isa %s", chunk, threads, isa)) == whole
        end
    end
    tap.ok(same, name .. ", " .. isa .. ": the same bytes for chunks of 1, 7, 64 and all, 1 and 2 threads")
end

-- Family of a folder, as a user would say it after reading config.json.
local function family(path)
    local kind = cjson.decode(read(path .. "/config.json")).model_type
    return kind == "qwen4_exp" and "flashnext" or kind
end

os.execute("mkdir -p " .. OUT)
local folders = {}
for folder in (os.getenv("PIANOLA_REFERENCE") or "tests/fixtures/reference,../shared/reference"):gmatch("[^,]+") do
    for _, path in ipairs(list(folder)) do folders[#folders + 1] = path end
end
tap.ok(#folders > 0, "there are reference folders")
for i, path in ipairs(folders) do
    local name = path:match("([^/]+)$")
    local build = "reference-" .. name
    local good, text = capture(string.format("make -s MODEL=%s CHECKPOINT=%s NAME=%s", family(path), path, build))
    local binary = "build/" .. build .. "/" .. build
    tap.ok(good and exists(binary), name .. " builds", text)
    if good then
        local e = reference.load(path .. "/expected.safetensors")
        local bound = (name:find("mlx") or name:find("nvfp4")) and QUANTISED_BOUND or BOUND
        local _, info = capture(binary .. " info")
        for isa in (info:match("available: ([%w ]+)") or ""):gmatch("%w+") do
            prompts_agree(binary, name, e, isa, bound)
            if i <= 5 or isa ~= "portable" then chunks_agree(binary, name, e, isa) end
        end
    end
end
tap.done()
