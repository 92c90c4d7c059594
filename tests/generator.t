#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- The generator's passes: golden text of one small toy a family, the same bytes from the same inputs, fusion and placement by
-- themselves and by their effect on logits, the op table, end tokens, and one line for each bad config.
--
--   tests/generator.t --update     rewrites tests/fixtures/golden (make golden-update)

package.path = "gen/?.lua;models/?.lua;tests/lib/?.lua;" .. package.path
local cjson = require "cjson"
local tap = require "tap"
local fuse = require "fuse"
local ops = require "ops"
local place = require "place"
local write = require "safetensors_write"

local OUT <const>, GOLDEN <const> = "build/tests/generator/", "tests/fixtures/golden/"
local REFERENCE <const> = "tests/fixtures/reference/"
local update <const> = arg[1] == "--update"

local ok = tap.ok

local function read(path)
    local f = io.open(path, "rb")
    if not f then return nil end
    local text = f:read("a")
    f:close()
    return text
end

-- Exit status and everything printed.
local function run(command)
    local pipe = io.popen(command .. " 2>&1")
    local text = pipe:read("a")
    local _, _, status = pipe:close()
    return status, text
end

local function folder(name)
    os.execute("mkdir -p " .. OUT .. name)
    return OUT .. name
end

local function generate(checkpoint, out, options)
    return run(string.format("lua5.4 gen/main.lua --checkpoint %s --out %s %s", checkpoint, out, options or ""))
end

-- ---- golden text --------------------------------------------------------------------------------------------------------

-- A family's smallest interesting model: one layer of each kind, without a vision tower.
local TOYS <const> = {
    { "flashnext", "fn-tiny", "nvfp4-modelopt" }, { "qwen3_5", "q35-tiny", "bf16" },
    { "qwen3_5_moe", "q35moe-tiny-nvfp4-modelopt", "bf16" },
    { "qwen3_next", "qnext-tiny", "mlx-4bit-g32" }, { "nemotron_h", "nemo-tiny", "bf16" },
}

local function toy_config(from)
    local config = cjson.decode(assert(read(REFERENCE .. from .. "/config.json")))
    config.vision_config, config.quantization_config = nil, nil
    local text = type(config.text_config) == "table" and config.text_config or config
    if text.layers_block_type then
        text.layers_block_type = { "mamba", "moe", "attention" }
    else
        text.layer_types, text.num_hidden_layers = { "linear_attention", "full_attention" }, 2
    end
    if text.ple_layer_ids then text.ple_layer_ids = { 1 } end
    return config, text
end

local function write_toy(name, config)
    local dir = folder(name)
    write.text(dir .. "/config.json", cjson.encode(config))
    return dir
end

-- What a reader of the program sees: from its first comment on, without the tables behind it.
local function body(text)
    return text and text:match("(// plain_round: .-\n}\n)")
end

-- A generated text, or what the test takes of it, against the one that is kept under a name.
local function same_as_golden(name, found, path, what)
    local golden = GOLDEN .. name .. ".txt"
    if update and found then write.text(golden, found) end
    ok(found ~= nil and found == read(golden), what .. " (make golden-update rewrites it)",
        select(2, run(string.format("diff %s %s | head -20", golden, path))))
end

local function check_golden()
    for _, t in ipairs(TOYS) do
        local family, from, recipe = table.unpack(t)
        local dir, out = write_toy(family, toy_config(from)), folder(family .. "/gen")
        local status, text = generate(dir, out, "--target cuda --lanes 2 --window 2 --recipe " .. recipe)
        local program, shapes = out .. "/program_plain_round.c", out .. "/shapes.cuh"
        ok(status == 0, family .. ": generates", text)
        same_as_golden(family, body(read(program)), program, family .. ": golden text")
        same_as_golden(family .. "_shapes", read(shapes), shapes, family .. ": golden shapes")
    end
end

-- ---- the same bytes -----------------------------------------------------------------------------------------------------

local function check_reproducible()
    local a, b = folder("same/a"), folder("same/b")
    local from = REFERENCE .. "fn-tiny-mlx-4bit-g32"
    for _, out in ipairs { a, b } do generate(from, out, "--tokenizer models/embedded/tokenizer.json") end
    local status, text = run(string.format("diff -r %s %s && ls %s | wc -l", a, b, a))
    ok(status == 0 and tonumber(text) >= 9, "two runs write the same bytes", text)
    generate(from, b, "--permute 3 --tokenizer models/embedded/tokenizer.json")
    ok(run(string.format("diff -rq %s %s", a, b)) == 1, "another order of the arena is another text: the comparison can fail")
end

-- A permuted arena and unfused programs give the same logits and replies, bit for bit.
local function check_meaning()
    require("draft_toy").make(REFERENCE .. "fn-tiny-fp8-block128", folder("meaning"))
    local results = {}
    for i, variant in ipairs { "", "PERMUTE=7", "FUSE=0" } do
        local name = "generator-" .. i
        local binary = "build/" .. name .. "/" .. name
        local status, text = run(string.format("make -s MODEL=flashnext CHECKPOINT=%smeaning NAME=%s WINDOW=3 LANES=1 %s", OUT, name,
            variant))
        local ids = "5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40"
        os.remove(OUT .. "logits")
        local _, reply = run(string.format("%s eval --quiet --tokens %s --last 36 --out %slogits --greedy 24 --chunk 16", binary, ids, OUT))
        results[i] = { logits = read(OUT .. "logits"), reply = reply, launches = text:match("round_2%s+(%d+) launches") }
        if status ~= 0 then print("# " .. text) end
    end
    local plain, permuted, unfused = table.unpack(results)
    ok(plain.logits and #plain.logits == 36 * 320 * 4 and #plain.reply > 48, "a toy with a head runs", plain.reply)
    ok(permuted.logits == plain.logits and permuted.reply == plain.reply, "a permuted arena gives the same bits")
    ok(unfused.logits == plain.logits and unfused.reply == plain.reply, "unfused programs give the same bits")
    ok(plain.launches and tonumber(unfused.launches) > tonumber(plain.launches), "fusion saves launches",
        tostring(plain.launches) .. " fused, " .. tostring(unfused.launches))
end

-- ---- fusion by itself -----------------------------------------------------------------------------------------------------

local function value() return { buffer = {}, offset = 0, ld = 8 } end

local function linear(x, options)
    local op = { name = "linear", pass = "trunk", facts = { x = x, k = 8, row_multiple = 1, shape = "s", parts = { { y = value() } } } }
    for k, v in pairs(options or {}) do if k == "pass" then op.pass = v else op.facts[k] = v end end
    return op
end

local function other(kind, v, name) return { name = name or "add", pass = "trunk", facts = {}, args = { { "x", kind, v } } } end

-- Number of launches left of a list of ops.
local function fused(...) return #fuse.shared_input({ ... }) end

local function check_fuse()
    local x, y = value(), value()
    local list = fuse.shared_input({ linear(x), other("in", x), linear(x) })
    ok(#list == 2 and #list[1].facts.parts == 2 and list[2].name == "add", "fuse: products of the same rows join the first, past a reader")
    ok(fused(linear(x), other("inout", x), linear(x)) == 3, "fuse: not past an op that changes the rows")
    ok(fused(linear(x), other("out", x), linear(x)) == 3, "fuse: not past an op that writes the rows")
    ok(fused(linear(x), other("inout", y), linear(x)) == 2, "fuse: past a change of something else")
    ok(fused(linear(x), other("in", y, "rows"), linear(x)) == 3, "fuse: not past the start of a pass")
    ok(fused(linear(x), linear(y)) == 2, "fuse: other rows stay apart")
    ok(fused(linear(x), linear(x, { pass = "head" })) == 2, "fuse: other passes stay apart")
    ok(fused(linear(x), linear(x, { k = 4 })) == 2, "fuse: other widths stay apart")
    ok(fused(linear(x), linear(x, { row_multiple = 4 })) == 2, "fuse: other rows a row stay apart")
    local view = { buffer = x.buffer, offset = 4, ld = 8 }
    ok(fused(linear(x), linear(view)) == 2, "fuse: other columns of the same memory stay apart")
    local many = {}
    for i = 1, 7 do many[i] = linear(x) end
    ok(#fuse.shared_input(many) == 2, "fuse: at most six parts a launch")
    ok(#fuse.run({ linear(x), linear(x) }, { shared_input = true }) == 2, "fuse: can be left out")
end

-- ---- steps by themselves ------------------------------------------------------------------------------------------------

local function op(name, args, pass) return { name = name, pass = pass or "trunk", facts = {}, args = args } end

-- The step that begins at the first op of a list.
local function first_step(...) return fuse.together({ ... })[1].together end

local function check_steps()
    local y, r, w, n, g = value(), value(), value(), value(), value()
    local sum = function() return op("moe_sum", { { "routed", "in", w }, { "y", "out", y } }) end
    local inject = function() return op("hc_inject", { { "y", "in", y }, { "r", "inout", r } }) end
    local norm = function(x, pass) return op("norm", { { "x", "in", x or r }, { "y", "out", n } }, pass) end
    local glu = function() return op("glu", { { "g", "in", w }, { "y", "out", g } }) end
    ok(first_step(inject(), norm()) == 2, "steps: an injection and the norm of its streams")
    ok(not first_step(inject(), norm(value())), "steps: not the norm of something else")
    ok(not first_step(inject(), norm(r, "head")), "steps: not across passes")
    ok(first_step(sum(), inject(), norm()) == 3, "steps: the experts' sum before them")
    ok(first_step(sum(), inject(), other("in", value())) == 2, "steps: or without a norm")
    ok(not first_step(sum(), inject(), norm(), other("in", y)), "steps: not when the sum is read later")
    ok(first_step(sum(), inject(), norm(), other("out", y), other("in", y)) == 3, "steps: but when it is written anew before")
    local add = function() return op("add", { { "x", "inout", r }, { "y", "in", y } }) end
    ok(first_step(add(), norm()) == 2, "steps: a sum and its norm")
    ok(not first_step(add(), norm(y)), "steps: not the norm of what is added")
    ok(first_step(sum(), add(), norm()) == 3, "steps: the experts' sum, the residual and its norm")
    ok(first_step(sum(), add(), other("in", value())) == 2, "steps: or without a norm there too")
    ok(not first_step(sum(), add(), norm(), other("in", y)), "steps: nor there when the sum is read later")
    ok(first_step(glu(), linear(g)) == 2, "steps: a glu and the product of its rows")
    ok(not first_step(glu(), linear(g), linear(g)), "steps: not when two products read it")
    ok(not first_step(glu(), linear(value())), "steps: not a product of something else")
    local route = function(pass) return op("route", { { "logits", "in", y }, { "ids", "out", n } }, pass) end
    ok(first_step(route(), glu(), linear(g)) == 3, "steps: choices beside a glu and its product")
    ok(not first_step(route("head"), glu(), linear(g)), "steps: not those of another pass")
    ok(not first_step(route(), glu(), linear(value())), "steps: nor beside a product of something else")
    local reader = op("glu", { { "g", "in", n }, { "y", "out", g } })
    ok(not first_step(route(), reader, linear(g)), "steps: nor beside a glu that reads the choices")
    local ids, h = value(), value()
    local up = function(from, class)
        return op("experts_up", { { "row_class", "class", class or "decode" }, { "x", "in", from or y }, { "ids", "in", ids }, { "h", "out", h } })
    end
    local down = function(by) return op("experts_down", { { "h", "in", h }, { "ids", "in", by or ids }, { "y", "out", w } }) end
    local choose = function() return op("route", { { "logits", "in", y }, { "ids", "out", ids } }) end
    ok(first_step(choose(), glu(), linear(g), up(), down()) == 5, "steps: choices, a shared expert's product and the experts")
    ok(first_step(choose(), glu(), linear(g), up(nil, "prompt"), down()) == 3, "steps: not of prompt rows")
    local product = linear(g)
    ok(first_step(choose(), glu(), product, up(product.facts.parts[1].y), down()) == 3, "steps: not experts of rows that stand between")
    ok(first_step(route(), glu(), linear(g), up(), down()) == 3 and first_step(choose(), glu(), linear(g), up(), down(n)) == 3,
        "steps: not by other choices")
    ok(first_step(choose(), glu(), linear(g), up(), down(), other("in", h)) == 3, "steps: not where others read the experts' first half")
    local gates = linear(value())
    local mix = op("hc_mix", { { "gate", "in", gates.facts.parts[1].y }, { "y", "out", value() } })
    ok(first_step(gates, mix) == 2, "steps: gates and their mix")
    local function between(xn, ...)
        local low = linear(n)
        local up = linear(low.facts.parts[1].y)
        return first_step(sum(), inject(), norm(), low, up,
            op("hc_mix", { { "xn", "in", xn }, { "gate", "in", up.facts.parts[1].y }, { "y", "out", value() } }), ...)
    end
    ok(between(n) == 6, "steps: from the experts' sum to the mix")
    ok(between(value()) == 3, "steps: not the mix of other rows")
    ok(between(n, other("in", n)) == 3 and between(n, linear(n)) == 3, "steps: not when the normed rows are read later")
    ok(between(n, other("out", n), other("in", n)) == 6, "steps: but when they are written anew before that")
    up = function() return op("experts_up", { { "x", "in", y }, { "h", "out", h } }) end
    down = function(from) return op("experts_down", { { "h", "in", from or h }, { "y", "out", w } }) end
    ok(first_step(up(), down()) == 2, "steps: both halves of experts")
    ok(not first_step(up(), down(value())) and not first_step(up(), down(), other("in", h)), "steps: not when others read between them")
    local c, o = value(), value()
    local conv = function() return op("conv", { { "u", "in", w }, { "y", "out", c } }) end
    local gdn = function(from) return op("gdn", { { "c", "in", from or c }, { "y", "out", o } }) end
    local gated = function() return op("gated_norm", { { "x", "in", o }, { "z", "in", w }, { "y", "out", n } }) end
    ok(first_step(conv(), gdn(), gated()) == 3, "steps: a DeltaNet layer between its products")
    ok(not first_step(conv(), gdn(value()), gated()), "steps: not on another convolution")
    ok(not first_step(conv(), gdn(), gated(), other("in", c)), "steps: not when the convolution is read later")
    ok(not first_step(conv(), gdn(), gated(), other("in", o)), "steps: nor when the recurrence is")
    ok(first_step(conv(), gdn(), gated(), linear(n)) == 4, "steps: with the product of its rows")
    ok(first_step(conv(), gdn(), gated(), linear(w)) == 3 and first_step(conv(), gdn(), gated(), linear(n), linear(n)) == 3,
        "steps: not that of other rows, or of rows that are read again")
    ok(first_step(gated(), linear(n)) == 2 and not first_step(gated(), linear(n), other("in", n)), "steps: a gated norm and its product")
    local k = value()
    local normed = function(to, pass) return op("head_norm", { { "x", "in", w }, { "y", "out", to or value() } }, pass) end
    local append = function(from) return op("kv_append", { { "k", "in", from or k }, { "v", "in", w } }) end
    local pool = function() return op("index_pool", {}) end
    ok(first_step(normed(k), append(), other("in", y)) == 2, "steps: keys and their way to the cache")
    ok(first_step(normed(k), append(), normed(), normed()) == 3, "steps: with queries")
    ok(first_step(normed(k), append(), pool(), other("in", y)) == 3, "steps: with pooled blocks")
    ok(first_step(normed(k), append(), pool(), normed(), normed()) == 5, "steps: with pooled blocks and two kinds of queries")
    ok(first_step(normed(k), append(), pool(), normed(), normed(nil, "head")) == 3, "steps: not queries of another pass")
    ok(not first_step(normed(k), append(y)), "steps: not the way of other keys")
    ok(not first_step(normed(k), append(), other("in", k)), "steps: not when the keys are read later")
end

local function check_early()
    local x, ids, g, y = value(), value(), value(), value()
    local route = function() return op("route", { { "ids", "out", ids } }) end
    local experts = function() return op("experts_up", { { "x", "in", x }, { "ids", "in", ids }, { "early", "int", 0 } }) end
    local glu = function() return op("glu", { { "g", "in", value() }, { "y", "out", g } }) end
    local product = function(into) return linear(value(), { parts = { { y = into } } }) end
    local function early(...)
        local ops = fuse.early({ ... })
        return ops[#ops].args[3][3] == 1
    end
    ok(early(route(), product(y), experts()), "early: choices that are older than the launch before")
    ok(not early(product(y), route(), experts()), "early: not choices of the launch before")
    ok(not early(route(), product(x), experts()), "early: not rows that the product before made")
    local step = glu()
    step.together = 2
    ok(early(route(), step, linear(g, { parts = { { y = y } } }), experts()), "early: past a step")
    local last = route()
    last.together = 2
    ok(not early(last, product(y), experts()), "early: not choices of the step before")
    local append = function() return op("kv_append", { { "k", "in", y } }) end
    local head_norm = function(to) return op("head_norm", { { "y", "out", to } }) end
    local attention = function() return op("attention", { { "q", "in", x }, { "gate", "in" }, { "early", "int", 0 } }) end
    ok(early(append(), head_norm(x), head_norm(y), attention()), "early: attention on queries and a cache that are older")
    ok(not early(append(), head_norm(x), attention()), "early: not on queries that the launch before made")
    ok(not early(head_norm(x), append(), attention()), "early: nor on a cache that it changed")
    local function made(skip)
        local ops = fuse.run({ route(), glu(), linear(g, { parts = { { y = y } } }), experts() }, skip)
        return ops[1].together, ops[4].args[3][3]
    end
    local together, flag = made()
    ok(together == 3 and flag == 0, "early: not choices made beside the product")
    together, flag = made { together = true }
    ok(not together and flag == 1, "early: but where each op is a launch")
end

-- An input of a step's first op and an output of its last are alive at once.
local function check_step_places()
    local function at(together)
        local a, b, c = { bytes = 64 }, { bytes = 64 }, { bytes = 64 }
        local first = { args = { { "x", "in", { buffer = a } }, { "y", "out", { buffer = b } } }, together = together }
        local second = { args = { { "x", "in", { buffer = b } }, { "y", "out", { buffer = c } } } }
        place.program({ ops = { first, second } }, {}, 0)
        return a.at, c.at
    end
    local a, c = at(2)
    ok(a ~= c, "place: what a step reads is kept until its end")
    a, c = at(nil)
    ok(a == c, "place: and given away without a step")
end

-- ---- placement by itself ----------------------------------------------------------------------------------------------------

local function random_program(seed)
    math.randomseed(seed)
    local list, live = {}, {}
    for i = 1, 60 do
        local args = {}
        for _ = 1, math.random(2) do
            local v = { buffer = { bytes = math.random(5000) } }
            live[#live + 1] = v
            args[#args + 1] = { "y", "out", v }
        end
        for _ = 1, math.random(3) do args[#args + 1] = { "x", "in", live[math.random(math.max(1, #live - 12), #live)] } end
        list[i] = { args = args }
    end
    return { ops = list }, live
end

-- Whether two values that are alive at one launch share a byte, found launch by launch.
local function clash(program)
    local first, last = {}, {}
    for i, op in ipairs(program.ops) do
        for _, a in ipairs(op.args) do
            local b = a[3].buffer
            first[b], last[b] = first[b] or i, i
        end
    end
    for i = 1, #program.ops do
        local alive = {}
        for b, f in pairs(first) do if f <= i and i <= last[b] then alive[#alive + 1] = b end end
        table.sort(alive, function(a, b) return a.at < b.at end)
        for j = 2, #alive do if alive[j].at < alive[j - 1].at + alive[j - 1].bytes then return true end end
    end
    return false
end

local function check_place()
    local bad, most, sum, misaligned = 0, 0, 0, 0
    for seed = 1, 40 do
        local program, values = random_program(seed)
        local finish = place.program(program, {}, 128, seed % 2 == 0 and seed or nil)
        if clash(program) then bad = bad + 1 end
        for _, v in ipairs(values) do
            sum = sum + v.buffer.bytes
            if v.buffer.at % 64 ~= 0 or v.buffer.at < 128 or v.buffer.at + v.buffer.bytes > finish then misaligned = misaligned + 1 end
        end
        most = most + finish
    end
    ok(bad == 0, "place: buffers that are alive together never overlap, in 40 random programs")
    ok(misaligned == 0, "place: aligned, and inside the arena")
    ok(most < sum / 2, "place: memory is used again", most .. " of " .. sum)
    local program = random_program(1)
    place.program(program, {}, 0)
    local first = program.ops[1].args[1][3].buffer
    for _, a in ipairs(program.ops[1].args) do a[3].buffer.at = first.at end
    local shared = #program.ops[1].args > 1 and program.ops[1].args[2][3].buffer ~= first
    ok(not shared or clash(program), "place: the test sees an overlap")
    local function check(second, at)
        return pcall(place.check, {
            { buffer = { at = 0 }, bytes = 64, first = 1, last = 3 }, { buffer = { at = at }, bytes = 64, first = second, last = 9 },
        })
    end
    ok(not check(3, 32) and not check(1, 0), "place.check: stops at an overlap")
    ok(check(4, 0) and check(2, 64), "place.check: lets lifetimes and places that touch pass")
    local kept = {}
    place.keep({ ops = { { args = { { "y", "out", { buffer = { bytes = 100, keep = "a" } } } } } } }, kept)
    place.keep({ ops = { { args = { { "y", "out", { buffer = { bytes = 300, keep = "a" } } } } } } }, kept)
    place.keep({ ops = { { args = { { "y", "out", { buffer = { bytes = 10, keep = "b" } } } } } } }, kept)
    ok(place.fix(kept) == 384 and kept.a.offset == 0 and kept.b.offset == 320, "place: a kept buffer has room for its largest use")
end

-- ---- the op table --------------------------------------------------------------------------------------------------------------

local function check_ops()
    local numbered, described = true, true
    for i, op in ipairs(ops) do
        numbered = numbered and op.index == i - 1 and ops[op.name] == op
        described = described and type(op.order) == "string" and #op.order > 0 and type(op.samples) == "table"
    end
    ok(#ops > 20 and numbered, "ops: numbered in the order of the table")
    ok(described, "ops: each says in which order it sums, and has samples")
    local names = {}
    for i, op in ipairs(ops) do names[i] = "X(" .. op.name .. ")\n" end
    local _, list = run("lua5.4 gen/kernel_list.lua")
    ok(list == table.concat(names), "ops: the kernels' list is the table's order")
    local _, missing = run([[for op in ]] .. table.concat(names, " "):gsub("X%((.-)%)\n", "%1")
        .. [[; do grep -qrE "\b${op}_args\b" kernels/cpu/ops.h || echo "$op"; done]])
    ok(missing == "", "ops: the kernels know each op's arguments", missing)
end

-- ---- end tokens ------------------------------------------------------------------------------------------------------------------

-- A tokenizer.json of the 256 bytes, one merge, and <end>, which is 257.
local function byte_tokenizer()
    local vocab, more = {}, 0
    for byte = 0, 255 do
        local shown = byte >= 33 and byte <= 126 or byte >= 161 and byte <= 172 or byte >= 174
        vocab[utf8.char(shown and byte or 256 + more)] = byte
        if not shown then more = more + 1 end
    end
    vocab.ab = 256
    return cjson.encode {
        added_tokens = { { id = 257, content = "<end>", special = true, normalized = false } },
        pre_tokenizer = { type = "ByteLevel", add_prefix_space = false, use_regex = true }, decoder = { type = "ByteLevel" },
        model = { type = "BPE", vocab = vocab, merges = { "a b" } },
    }
end

local function check_end_tokens()
    local dir = folder("ends")
    local config, text = toy_config("fn-tiny")
    text.eos_token_id = { 1, 5 }
    write.text(dir .. "/config.json", cjson.encode(config))
    write.text(dir .. "/generation_config.json",
        '{"eos_token_id": [7, 5], "do_sample": true, "temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125}')
    write.text(dir .. "/tokenizer.json", byte_tokenizer())
    write.text(dir .. "/tokenizer_config.json", '{"eos_token": "<end>"}')
    local status, message = generate(dir, folder("ends/gen"))
    local model = read(dir .. "/gen/model.c") or ""
    ok(model:match("end_tokens%[%d+%] = (%b{})") == "{7, 5, 1, 257}",
        "end tokens: generation_config, config and the tokenizer's, each once", status .. " " .. message .. model:sub(1, 2000))
    local sampling = (model:match("%.temperature = [^\n]*") or "") .. (model:match("%.top_p = [^\n]*") or "")
        .. (model:match("%.min_p = [^\n]*") or "") .. (model:match("%.top_k = [^\n]*") or "")
    ok(sampling == ".temperature = 0.5f,.top_p = 0.75f,.min_p = 0.125f,.top_k = 20,", "sampling defaults of generation_config", sampling)
    write.text(dir .. "/generation_config.json", '{"eos_token_id": 7, "do_sample": false, "temperature": 0.6}')
    generate(dir, folder("ends/gen"))
    ok((read(dir .. "/gen/model.c") or ""):find(".temperature = 0.0f", 1, true), "do_sample false is greedy")
end

-- ---- shapes ----------------------------------------------------------------------------------------------------------------------

local function check_shapes()
    local _, list = run("ls -d models/shapes/*/")
    local out, seen = folder("shapes"), 0
    for dir in list:gmatch("[^\n]+") do
        local status, text = generate(dir:sub(1, -2), out, "--lanes 1 --window 1 --recipe nvfp4-mxfp8")
        seen = seen + 1
        ok(status == 0 and text:find("layers, weights"), dir .. " generates", text)
    end
    ok(seen >= 10, "the public shapes are there")
end

-- ---- bad input -----------------------------------------------------------------------------------------------------------------

-- What is changed in the toy's config, and the line that must come; %s stands for the folder.
local BAD <const> = {
    { "a missing key", function(_, t) t.hidden_size = nil end, "%s/config.json: key hidden_size is missing" },
    { "contradictory keys", function(c) c.hidden_size = 128 end, "%s/config.json: hidden_size: 128 at the root but 64 under text_config" },
    { "an unknown key", function(_, t) t.logit_softcap = 30 end,
        "%s/config.json: unknown key logit_softcap; it may change what the model computes, so it must be taught to models/flashnext.lua" },
    { "an unknown model_type", function(c) c.model_type = "llama" end,
        "%s/config.json: model_type llama is not known; known are qwen4_exp, qwen4_exp_text, qwen3_8_flash_next, qwen3_8_flash_next_text, "
        .. "qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text, qwen3_next, nemotron_h" },
    { "a wrong type", function(_, t) t.num_experts = "8" end,
        "%s/config.json: num_experts: a whole number from 1 to 65536 is expected, found 8" },
    { "a list for a number", function(_, t) t.head_dim = { 32 } end,
        "%s/config.json: head_dim: a whole number from 1 to 1024 is expected, found a list" },
    { "a fraction", function(_, t) t.hidden_size = 64.5 end,
        "%s/config.json: hidden_size: a whole number from 1 to 1048576 is expected, found 64.5" },
    { "a negative size", function(_, t) t.vocab_size = -1 end,
        "%s/config.json: vocab_size: a whole number from 1 to 16777216 is expected, found -1" },
    { "a huge size", function(_, t) t.num_attention_heads = 1e18 end,
        "%s/config.json: num_attention_heads: a whole number from 1 to 1024 is expected, found 1e+18" },
    { "not a number", function(_, t) t.rms_norm_eps = 0 / 0 end, "%s/config.json: rms_norm_eps: a number is expected, found nan" },
    { "layers that are too few", function(_, t) t.layer_types = { "full_attention" } end,
        "%s/config.json: layer_types: 2 layers are expected, found 1" },
    { "an unknown layer", function(_, t) t.layer_types = { "linear_attention", "rwkv" } end,
        "%s/config.json: layer_types[1]: unknown kind rwkv" },
    { "heads that do not divide", function(_, t) t.num_key_value_heads = 3 end,
        "%s/config.json: num_attention_heads 4 is no multiple of num_key_value_heads 3" },
    { "more chosen experts than there are", function(_, t) t.num_experts_per_tok = 9 end,
        "%s/config.json: num_experts_per_tok 9 is more than num_experts 8" },
    { "another activation", function(_, t) t.hidden_act = "gelu" end, "%s/config.json: hidden_act: only silu is known, found gelu" },
    { "scaled rotations", function(_, t) t.rope_parameters.rope_type = "yarn" end,
        "%s/config.json: rope_type: only default is known, found yarn" },
    { "rotations of more than a head", function(_, t) t.rope_parameters.partial_rotary_factor = 2 end,
        "%s/config.json: partial_rotary_factor: a number in (0, 1] is expected, found 2" },
    { "an end token outside the vocabulary", function(_, t) t.eos_token_id = 4096 end,
        "%s/config.json: eos_token_id: a whole number from 0 to 319 is expected, found 4096" },
    { "an n-gram layer that is not there", function(_, t) t.ple_layer_ids = { 9 } end,
        "%s/config.json: ple_layer_ids: 9 is not one of 1 .. 2" },
    { "n-grams without a separator", function(_, t) t.eos_token_id = nil end,
        "%s/config.json: eos_token_id: missing; the n-gram embedding needs it as separator" },
    { "one stream", function(_, t) t.hc_count = 1 end, "%s/config.json: hc_count: 1 streams; at least 2 are needed" },
    { "a list of settings that is none", function(_, t) t.rope_scaling = true end,
        "%s/config.json: rope_scaling: a list or object is expected, found true" },
}

local BAD_TEXT <const> = {
    { "no JSON", "{", "^pianola: %S+/config.json: not valid JSON %([^\n]*%)\n$" },
    { "a number", "7", "^pianola: %S+/config.json: an object is expected, found number\n$" },
    { "an empty object", "{}", "^pianola: %S+/config.json: model_type nil is not known; known are [^\n]*\n$" },
}

local function quiet_directory(dir) return read(dir .. "/model.c") == nil and read(dir .. "/programs.h") == nil end

local function check_bad()
    cjson.encode_invalid_numbers(true)
    local out = folder("bad/gen")
    for _, b in ipairs(BAD) do
        local config, text = toy_config("fn-tiny")
        b[2](config, text)
        local dir = write_toy("bad", config)
        local status, message = generate(dir, out)
        local expected = "pianola: " .. b[3]:format(OUT .. "bad") .. "\n"
        ok(status == 2 and message == expected and quiet_directory(out), "bad config: " .. b[1], status .. "\n" .. message .. expected)
    end
    for _, b in ipairs(BAD_TEXT) do
        write.text(OUT .. "bad/config.json", b[2])
        local status, message = generate(OUT .. "bad", out)
        ok(status == 2 and message:find(b[3]) and quiet_directory(out), "bad config: " .. b[1], status .. " " .. message)
    end
    os.remove(OUT .. "bad/config.json")
    local status, message = generate(OUT .. "bad", out)
    ok(status == 2 and message:find("bad/config.json: cannot be read; a checkpoint folder with a config.json is needed\n$"),
        "bad config: none", message)
    local good = write_toy("bad", toy_config("fn-tiny"))
    status, message = generate(good, out, "--model qwen3_5")
    ok(status == 2 and message:find("is of family flashnext, but MODEL=qwen3_5 was asked for\n$"), "bad option: another family", message)
    for _, o in ipairs { "--lanes 9", "--window 0", "--chunk x", "--what", "--recipe int3", "--lanes",
        "--draft-vocab 15", "--draft-vocab 321", "--draft-vocab -1", "--draft-vocab none", "--draft-vocab ." } do
        status, message = generate(good, out, o)
        ok(status == 2 and message:find("^pianola: [^\n]+\n$") and quiet_directory(out), "bad option: " .. o, message)
    end
    for _, o in ipairs { "--target x", "--lanes 9", "--window 0", "--chunk 5" } do -- what is wrong goes before what is missing
        status, message = run("lua5.4 gen/main.lua " .. o)
        local name <const> = o:match("^%-%-(%S+)") -- said as make has it, and as the generator does
        ok(status == 2 and message:find("^pianola: " .. name:upper() .. " %(%-%-" .. name .. "%): [^\n]+\n$"), "bad option alone: " .. o, message)
    end
    message = select(2, generate(good, out, "--draft-vocab 321")) -- one more than the toy has
    ok(message:find("from 16 to 320, or a file of them, is expected, found 321\n$"), "bad option: the range of a draft vocabulary",
        message)
    folder "bad/chat_template.jinja"
    status, message = generate(good, folder "whole")
    ok(status == 2 and message:find("^pianola: .*chat_template.jinja: is not a file that can be read\n$"), "a folder in the place of a template",
        message)
    os.remove(good .. "/chat_template.jinja")
    write.text(good .. "/chat_template.jinja", "{{ bos_token }}{% if x %}{% endif %}")
    ok(generate(good, folder "whole") == 0, "a template without a tokenizer_config.json")
    write.text(good .. "/chat_template.jinja", "{% if x %}")
    status, message = generate(good, folder "whole")
    ok(status == 2 and message:find("^pianola: [^\n]*chat_template.jinja[^\n]*\n$"), "a bad template without a tokenizer_config.json", message)
    os.remove(good .. "/chat_template.jinja")
    for text, said in pairs { ['[{"name": "tools", "template": "x"}]'] = true, ['[{"name": "default", "template": null}]'] = true, ["7"] = true,
        ["null"] = false } do
        write.text(good .. "/tokenizer_config.json", '{"chat_template": ' .. text .. "}")
        status, message = generate(good, folder "whole")
        local note = message:find("pianola: note: [^\n]*tokenizer_config.json has no chat template named default; chats are refused\n")
        ok(status == 0 and (note ~= nil) == said, "a chat template that is " .. text, message)
    end
    os.remove(good .. "/tokenizer_config.json")
    ok(generate(good, folder "whole", "--draft-vocab 320") == 0, "a draft vocabulary of all ids is one")
    ok(generate(good, out) == 0 and not quiet_directory(out), "the config that these are made of is good")
end

os.execute("rm -rf " .. OUT)
os.execute("mkdir -p " .. OUT)
check_golden()
check_reproducible()
check_fuse()
check_steps()
check_early()
check_step_places()
check_place()
check_ops()
check_end_tokens()
check_shapes()
check_bad()
check_meaning()
local _, fuzzed = run("lua5.4 tests/fuzz/config_json.lua 3 1")
ok(fuzzed:find("^%d+ tries, %d+ built\n$"), "three seconds of mutated configs", fuzzed)
tap.done()
