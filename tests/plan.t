#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- plan: the real Flash Next in each public encoding against the published sizes, the parts of a lane's state, the sum, and
-- that it loads nothing; and that a run takes what the plan said. Of the real shape only the tables are compiled: plan needs
-- no program.

package.path = "tests/lib/?.lua;" .. package.path
local cjson = require "cjson"
local tap = require "tap"

local OUT <const> = "build/tests/plan/"
local ok = tap.ok

local function capture(command)
    local pipe = io.popen(command .. " 2>&1")
    local text = pipe:read("a")
    return pipe:close(), text
end

local function write(path, text)
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
end

-- A binary with the tables of a shape and programs that do nothing. Returns its path, or nil and what went wrong.
local function build(shape, recipe)
    local dir = OUT .. shape .. "-" .. recipe
    os.execute("mkdir -p " .. dir)
    local good, text = capture(string.format("lua5.4 gen/main.lua --checkpoint models/shapes/%s --out %s --recipe %s --lanes 1 --window 2",
        shape, dir, recipe))
    if not good then return nil, text end
    local stubs, header = { '#include "programs.h"\n' }, assert(io.open(dir .. "/programs.h", "rb"))
    for name in header:read("a"):gmatch("extern const struct program ([%w_]+);") do
        stubs[#stubs + 1] = string.format("const struct program %s = {.name = \"%s\"};\n", name, name)
    end
    header:close()
    write(dir .. "/stubs.c", table.concat(stubs))
    local sources = {}
    for i, name in ipairs { "model", "stubs", "tokenizer_tables", "template" } do sources[i] = dir .. "/" .. name .. ".c" end
    good, text = capture(string.format("gcc -std=gnu11 -O0 -I. -Ibuild/common -I%s -o %s/plan %s %s", dir, dir, table.concat(sources, " "),
        "build/common/runtime/main.o build/tests/engine.a -lxxhash -lpcre2-8 -lutf8proc -ljansson -lmicrohttpd -lpthread -lm"))
    if not good then return nil, text end
    return dir .. "/plan"
end

local function near(found, expected) return math.abs(found - expected) <= 0.01 * expected end

-- Sizes of architecture notes 1.3: weights in memory (file less table and vision tower), table, and one encoding's bytes.
local PUBLIC <const> = {
    { "bf16", 256.70e9, 102.40e9, "bf16", 256.70e9 },
    { "nvfp4-modelopt", 80.55e9, 51.20e9, "nvfp4", 67.95e9 },
    { "nvfp4-mxfp8", 105.84e9 - 28.80e9 - 0.50e9, 28.80e9 },
    { "mlx-4bit-g32", 113.2e9 - 32.0e9 - 0.9e9, 32.00e9 },
    { "fp8-block128", 185.5e9 - 51.2e9 - 0.9e9, 51.20e9 },
}

local function check_state(j)
    local s = j.state_bytes_a_lane
    ok(s.recurrent == 36 * 3145728 and s.recurrent_layers == 36, "Flash Next: recurrent state of 36 layers", s.recurrent)
    ok(s.tails_in_bf16 == 36 * 61440 + 184320, "Flash Next: tails of 36 convolutions and of the n-grams", s.tails_in_bf16)
    local sum = s.recurrent + s.tails + s.windows + s.streams + s.alignment
    ok(sum == j.run_bytes_a_lane and s.tails == 2 * s.tails_in_bf16, "Flash Next: the parts add up to what a lane is given", sum)
    ok(j.kv_bytes_a_token.bf16 == 30784 and j.kv_bytes_a_token.f32 == 2 * 30784, "Flash Next: cache bytes a token, bf16 and f32")
    ok(j.kv_bytes_a_token.fp8 == 13 * (2 * 2 * (256 + 4) + 256 + 64), "Flash Next: cache bytes a token, fp8", j.kv_bytes_a_token.fp8)
end

local function check_public(p)
    local recipe, weights, table_bytes, encoding, encoded = table.unpack(p)
    local binary, problem = build("flash-next", recipe)
    ok(binary, "Flash Next in " .. recipe .. ": tables build", problem)
    if not binary then return end
    local start = os.time()
    local _, text = capture(binary .. " plan --json --context 65536")
    local good, j = pcall(cjson.decode, text)
    if not good then return ok(false, recipe .. ": plan prints JSON", text) end
    ok(os.time() - start <= 2, recipe .. ": plan is immediate and needs no weights")
    ok(near(j.weight_bytes, weights), recipe .. ": weights", j.weight_bytes .. ", published " .. weights)
    ok(near(j.table_bytes, table_bytes), recipe .. ": n-gram table", j.table_bytes .. ", published " .. table_bytes)
    if encoding then
        local _, info = capture(binary .. " info --json")
        for _, e in ipairs(cjson.decode(info).encodings) do
            if e.name == encoding then ok(near(e.bytes, encoded), recipe .. ": bytes of " .. encoding, e.bytes) end
        end
    end
    if recipe == "bf16" then check_state(j) end
    local _, shown = capture(binary .. " plan --kv-cache bf16")
    ok(shown:find("bf16 %*") and shown:find("\n  f32 ") and shown:find("\n  fp8 "), recipe .. ": all cache encodings are shown", shown)
end

-- Peak resident bytes of a command.
local function peak(command)
    local _, text = capture(string.format([[bash -c '%s >/dev/null 2>&1 & p=$!; m=0
        while kill -0 $p 2>/dev/null; do v=$(sed -n "s/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p" /proc/$p/status 2>/dev/null)
        [ "${v:-0}" -gt $m ] && m=$v; done; echo $m']], command))
    return (tonumber(text) or 0) * 1024
end

-- Every lane, page and buffer is backed when the engine opens, so a short run takes what a long one does.
local function check_resident()
    local binary = "build/flashnext/flashnext"
    for _, context in ipairs { 512, 4096 } do
        local _, text = capture(binary .. " plan --json --context " .. context)
        local planned = cjson.decode(text).total_bytes
        local found = peak(string.format("%s eval --quiet --tokens 5,6,7,8 --greedy 200 --context %d", binary, context))
        ok(math.abs(found - planned) <= 0.05 * planned, "a run with a context of " .. context .. " takes what the plan said, within 5 %",
            found .. " bytes, planned " .. planned)
    end
end

-- A pool that is half of what all lanes could hold: the plan says so, a run with it has the same bytes, and one that holds no stream
-- is refused with the numbers.
local function check_pool()
    local binary = "build/flashnext/flashnext"
    local _, text = capture(binary .. " plan --json --lanes 4 --context 4096")
    local whole = cjson.decode(text)
    _, text = capture(string.format("%s plan --json --lanes 4 --context 4096 --pool-pages %d", binary, whole.pages // 2))
    local half = cjson.decode(text)
    ok(half.pages == whole.pages // 2 and half.whole_pages == whole.pages and half.kv_bytes + half.run_bytes == half.pages * half.page_bytes,
        "a pool of half the pages", text)
    local reply = " eval --quiet --tokens 5,6,7,8 --greedy 20"
    local _, one = capture(binary .. reply)
    local _, other = capture(binary .. reply .. " --kv-page-test shuffled --pool-pages " .. math.tointeger(half.run_pages_a_lane) + 2)
    ok(#one > 20 and one == other, "a run with the smallest pool has the same bytes", other)
    _, text = capture(binary .. reply .. " --pool-pages " .. math.tointeger(half.run_pages_a_lane) + 1)
    ok(text:find("--pool%-pages: one stream needs at least %d+ pages"), "a pool that holds no stream is refused", text)
end

-- What a cache encoding costs is said at start; the exact one says nothing, and logits stay near it.
local function check_cache()
check_pool()
    local reference, binary, logits = require "reference", "build/flashnext/flashnext", {}
    for _, kind in ipairs { "f32", "bf16", "fp8" } do
        local _, said = capture(string.format("%s eval --tokens 5,6,7,8,9,10,11,12 --last 8 --out %slogits --kv-cache %s", binary, OUT,
            kind))
        logits[kind] = reference.floats(OUT .. "logits")
        ok((said:find("--kv-cache " .. kind .. ": keys and values in ", 1, true) ~= nil) == (kind ~= "f32"),
            "cache in " .. kind .. ": what it changes is said at start, if anything", said)
    end
    local bf16, fp8 = reference.distance(logits.f32, logits.bf16), reference.distance(logits.f32, logits.fp8)
    ok(bf16 > 0 and bf16 < 0.1 and fp8 > bf16 and fp8 < 1, "smaller caches move logits a little, fp8 more than bf16", bf16 .. " " .. fp8)
end

os.execute("mkdir -p " .. OUT)
local good, text = capture("make -s build/tests/engine.a all")
ok(good, "the engine builds", text)
for _, p in ipairs(PUBLIC) do check_public(p) end
check_resident()
check_cache()
tap.done()
