#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- The contracts for each family, bit for bit on toys with a draft head: drafted equals undrafted, greedy and sampled; a prompt
-- in chunks equals the whole prompt. PIANOLA_FAMILIES=all takes more encodings,
-- PIANOLA_FAMILIES=family:folder,... others.

package.path = "tests/lib/?.lua;" .. package.path
local draft_toy = require "draft_toy"
local tap = require "tap"

local FIXTURES <const>, OUT <const> = "tests/fixtures/reference/", "build/tests/families/"
-- family, folder, whether it gets a head
local TOYS <const> = {
    { "qwen3_5", "q35-tiny", true }, { "qwen3_next", "qnext-tiny", true }, { "qwen3_5_moe", "q35moe-tiny-nvfp4-modelopt", true },
    { "flashnext", "fn-tiny-mlx-4bit-g32", true }, { "nemotron_h", "nemo-tiny", true }, { "nemotron_h", "nemo-tiny", false },
}
local MORE <const> = {
    { "flashnext", "fn-tiny", true }, { "flashnext", "fn-tiny-fp8-block128", true }, { "flashnext", "fn-f-nvfp4-mxfp8", true },
    { "flashnext", "fn-c", true },
}

local ok = tap.ok

local function capture(command)
    local pipe = io.popen(command .. " 2>" .. OUT .. "stderr")
    local text = pipe:read("a")
    local good = pipe:close()
    local f = assert(io.open(OUT .. "stderr", "rb"))
    local errors = f:read("a")
    f:close()
    return good, text, errors
end

local function prompt(length, seed)
    local ids = {}
    for i = 1, length do
        seed = (seed * 1103515245 + 12345) & 0x7fffffff
        ids[i] = 2 + (seed >> 8) % 254
    end
    return table.concat(ids, ",")
end

local function greedy(binary, ids, n, options)
    local good, text, errors = capture(string.format("%s eval --quiet --tokens %s --greedy %d %s", binary, ids, n, options))
    return good and text or "failed: " .. errors
end

local function drafts_agree(name, binary)
    local same, different = true, {}
    for seed = 1, 4 do
        local ids = prompt(3 + 17 * seed, seed)
        local plain, drafted = greedy(binary, ids, 48, "--no-drafts"), greedy(binary, ids, 48, "")
        same = same and #plain > 48 and plain == drafted
        different[drafted] = true
    end
    ok(same, name .. ": drafted equals undrafted, greedy")
    ok(next(different, next(different)), name .. ": prompts give different replies")
end

-- Characters that the embedded tokenizer keeps apart, so that their ids are below the toys' vocabulary.
local function sampled_agree(name, binary)
    local same, different, drafted, accepted = true, {}, 0, 0
    for seed = 1, 6 do
        local command = string.format("%s run --raw -p '%%^~%d' -n 40 --temperature 0.8 --seed %d", binary, seed, seed)
        local good, plain, message = capture(command .. " --no-drafts")
        local good2, other, summary = capture(command)
        if not (good and good2) then same = false print("# " .. (good and summary or message)) end
        same = same and #plain > 0 and plain == other
        different[other] = true
        local d, a = summary:match("drafted (%d+), accepted (%d+)")
        drafted, accepted = drafted + (tonumber(d) or 0), accepted + (tonumber(a) or 0)
    end
    ok(same, name .. ": drafted equals undrafted, temperature 0.8")
    ok(next(different, next(different)), name .. ": seeds give different replies")
    print(string.format("# %s: %d drafted, %d accepted", name, drafted, accepted))
    ok(accepted > 0 and drafted > accepted, name .. ": drafts were accepted and refused")
end

local function chunks_agree(name, binary)
    local ids, same = prompt(130, 7), true
    local whole = greedy(binary, ids, 16, "--threads 1")
    for _, chunk in ipairs { 1, 7, 64 } do same = same and greedy(binary, ids, 16, "--chunk " .. chunk) == whole end
    local function logits(options)
        capture(string.format("%s eval --quiet --tokens %s --last 8 --out %slogits %s", binary, ids, OUT, options))
        local f = assert(io.open(OUT .. "logits", "rb"))
        local text = f:read("a")
        f:close()
        os.remove(OUT .. "logits")
        return text
    end
    local reference = logits("")
    for _, chunk in ipairs { 1, 7, 64 } do same = same and logits("--chunk " .. chunk) == reference end
    ok(same and #reference > 0 and #reference % 32 == 0, name .. ": chunks of 1, 7, 64 equal the whole prompt, logits and reply")
end

os.execute("mkdir -p " .. OUT)
local toys = { table.unpack(TOYS) }
local asked = os.getenv("PIANOLA_FAMILIES") or ""
if asked == "all" then table.move(MORE, 1, #MORE, #toys + 1, toys) end
for family, path in asked:gmatch("([%w_]+):([^,]+)") do toys[#toys + 1] = { family, path:match("[^/]+$"), true, path } end
for _, t in ipairs(toys) do
    local family, folder, head = t[1], t[2], t[3]
    local name = (head and "draft-" or "plain-") .. folder
    local checkpoint = OUT .. name
    os.execute("mkdir -p " .. checkpoint)
    if head then
        draft_toy.make(t[4] or FIXTURES .. folder, checkpoint, family == "qwen3_next") -- whose configs do not mention the head
    else
        draft_toy.extra(FIXTURES .. folder, checkpoint)
    end
    local _, log, errors = capture(string.format("make -s MODEL=%s CHECKPOINT=%s NAME=%s WINDOW=4 TOKENIZER=models/embedded/tokenizer.json",
        family, checkpoint, name))
    local binary = "build/" .. name .. "/" .. name
    local _, info = capture(binary .. " info")
    local built = info:find("draft head%s+" .. (head and "yes" or "no"))
    ok(built, folder .. " builds" .. (head and " with a head" or ""), log .. errors)
    if not head then
        ok(info:find(" 3 (draft layers of this make-up are not known)", 1, true),
            folder .. ": unknown draft layers are ignored, with a reason", info)
    end
    if built then
        chunks_agree(folder, binary)
        if head then
            drafts_agree(folder, binary)
            sampled_agree(folder, binary)
        end
    end
end
tap.done()
