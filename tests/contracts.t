#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- The contract program (tests/contract) of each family, on toys with a draft head: streams together, drafted, in pages of any size and
-- order, replayed and eager, in chunks, from kept states and in every encoding of the cache have the bits that they have alone. Each
-- family in three encodings: that of its folder, and two with generated weights.
-- PIANOLA_CONTRACTS=all: eight lanes, every page size with every order, every number of lanes.
-- PIANOLA_CONTRACTS=build: as all, built and not run. TARGET=cuda: for a GPU.

package.path = "tests/lib/?.lua;" .. package.path
local draft_toy = require "draft_toy"
local tap = require "tap"

local FIXTURES <const>, OUT <const> = "tests/fixtures/reference/", "build/tests/families/"
local TOYS <const> = {
    { "qwen3_5", "q35-tiny", "nvfp4-modelopt", "mlx-4bit-g32" }, { "qwen3_next", "qnext-tiny", "nvfp4-modelopt", "mlx-4bit-g32" },
    { "qwen3_5_moe", "q35moe-tiny-nvfp4-modelopt", "bf16", "mlx-4bit-g32" },
    { "flashnext", "fn-tiny-mlx-4bit-g32", "bf16", "nvfp4-modelopt" }, { "nemotron_h", "nemo-tiny", "nvfp4-modelopt", "mlx-4bit-g32" },
}
local MORE <const> = { { "flashnext", "fn-tiny-fp8-block128" }, { "flashnext", "fn-f-nvfp4-mxfp8" } }
local FIXED <const> = { ["fn-f-nvfp4-mxfp8"] = "2 4" } -- of toys that have kernels for their shapes on a GPU

local mode, target = os.getenv("PIANOLA_CONTRACTS") or "", os.getenv("TARGET") or "cpu"
local whole = mode ~= ""
local root = target == "cuda" and "build/cuda" or "build"

local function capture(command)
    local pipe = io.popen("exec 2>&1; " .. command)
    local text = pipe:read("a")
    return pipe:close(), text
end

-- The program's own checks, counted here. Lines of the program that are no checks are notes.
local function run(binary, name, what)
    local good, text = capture(binary .. " " .. what)
    local plan = tonumber(text:match("\n1%.%.(%d+)"))
    local seen = 0
    for verdict, check in text:gmatch("([^\n]*ok) %d+ %- ([^\n]*)") do
        seen = seen + 1
        tap.ok(verdict == "ok", check:find(name, 1, true) and check or name .. ": " .. check, verdict ~= "ok" and text or nil)
    end
    tap.ok(good and seen > 0 and seen == plan, name .. ": all of its checks were made" .. (what == "keys" and ", of keys" or ""), text)
end

-- The toy of a folder; recipe: with generated weights in that encoding; draft_vocab: tokens that its head chooses among.
local function toy(family, folder, recipe, draft_vocab)
    local undeclared = family == "qwen3_next" and not recipe -- whose config does not mention the head, but where nothing else could
    local checkpoint = OUT .. "draft-" .. folder .. (undeclared and "-undeclared" or "")
    os.execute("mkdir -p " .. checkpoint)
    draft_toy.make(FIXTURES .. folder, checkpoint, undeclared)
    local name = "draft-" .. folder .. (recipe and "-" .. recipe or "") .. (draft_vocab and "-of-" .. draft_vocab or "")
        .. (whole and "-8" or "")
    local options = "FIXED='" .. (FIXED[folder] or "") .. "'" .. (recipe and " RECIPE=" .. recipe or "")
        .. (draft_vocab and " DRAFT_VOCAB=" .. draft_vocab or "")
    local good, log = capture(string.format("make -s TARGET=%s B=%s MODEL=%s CHECKPOINT=%s NAME=%s WINDOW=4 LANES=%d "
        .. "TOKENIZER=models/embedded/tokenizer.json %s contracts", target, root, family, checkpoint, name, whole and 8 or 4, options))
    tap.ok(good, name .. " builds", log)
    if not good or mode == "build" then return end
    run(root .. "/" .. name .. "/contracts", name, whole and "all" or "")
    if not recipe then run(root .. "/" .. name .. "/contracts", name, "keys") end
end

for _, t in ipairs(TOYS) do
    toy(t[1], t[2])
    for i = 3, #t do toy(t[1], t[2], t[i]) end
end
for _, t in ipairs(whole and MORE or {}) do toy(t[1], t[2]) end
-- A head that chooses among few tokens: other drafts, the same replies.
toy("flashnext", "fn-tiny-mlx-4bit-g32", nil, 100)
tap.done()
