-- SPDX-License-Identifier: Apache-2.0
--
-- The generator: family description + checkpoint -> C sources in build/NAME/gen. One pass a module; this file runs them in
-- order and prints what came out. Same inputs, same bytes.

local here = arg[0]:match("^(.*)/gen/[^/]*$") or "."
package.path = here .. "/gen/?.lua;" .. here .. "/models/?.lua;" .. package.path

local fail = require "fail"

local USAGE <const> = [[
usage: lua5.4 gen/main.lua --checkpoint DIR --out DIR [options]
  --model NAME        family that config.json must be of
  --name NAME         name of the build (default: the model's)
  --tokenizer FILE    tokenizer.json to use instead of the checkpoint's
  --recipe NAME       encodings of a build without weights (bf16, mlx-4bit-g32, nvfp4-modelopt, ...)
  --lanes N           most streams at once (default 4)
  --window N          rows of the largest window: 1 pending token and N - 1 drafts (default 6)
  --chunk N           prompt rows a pass (default 256)
  --draft-vocab N|FILE  tokens that the draft head chooses among: the N lowest ids, or a list (speed only)
  --permute SEED      shuffles the arena's order: results must not change (tests)
  --no-fuse           leaves fusion out (tests)
  --target cpu|cuda   what is built (default cpu); for cuda the shapes of decode launches are written too
  --embed             puts the pack into the binary
  --help]]

local FAMILIES <const> = { "flashnext", "qwen3_5", "qwen3_5_moe", "qwen3_next", "nemotron_h" }

-- An option as people write it: make's variable, where there is one, and the generator's own.
local function spelled(key)
    if key == "out" then return "--out" end
    local variable <const> = key:upper():gsub("%-", "_")
    return ("%s (--%s)"):format(variable, key)
end

local function options()
    local o = { lanes = 4, window = 6, chunk = 256, target = "cpu" }
    local flags = { embed = true, ["no-fuse"] = true, help = true }
    local known = { model = 1, name = 1, checkpoint = 1, out = 1, tokenizer = 1,
        recipe = 1, target = 1, ["draft-vocab"] = 1, lanes = 2, window = 2, chunk = 2, permute = 2 }
    local i = 1
    while i <= #arg do
        local key = arg[i]:match("^%-%-([%w%-]+)$")
        if flags[key or ""] then
            o[key] = true
        elseif known[key or ""] then
            i = i + 1
            local v = arg[i]
            if not v or v == "" then fail("%s: a value is missing", spelled(key)) end
            if known[key] == 2 then
                v = math.tointeger(tonumber(v))
                if not v then fail("%s: a whole number is expected, found %s", spelled(key), arg[i]) end
            end
            o[key] = v
        else
            fail("unknown option %s; see --help", arg[i])
        end
        i = i + 1
    end
    return o
end

local function range(name, v, low, high)
    if v < low or v > high then fail("%s: from %d to %d is expected, found %d", spelled(name), low, high, v) end
end

-- Family descriptions that exist in this tree.
local function families()
    local list = {}
    for _, name in ipairs(FAMILIES) do
        if package.searchpath(name, package.path) then list[#list + 1] = require(name) end
    end
    return list
end

local function exists(path)
    local f = io.open(path, "rb")
    if f then f:close() end
    return f ~= nil
end

-- Whether a folder holds weights; one with a config.json alone is a shape to plan and time.
local function has_weights(dir)
    local pipe = io.popen("ls -1 '" .. dir:gsub("'", "'\\''") .. "' 2>/dev/null")
    local found = pipe and pipe:read("a"):find("%.safetensors") ~= nil
    if pipe then pipe:close() end
    return found
end

-- Writes a file under a temporary name first, and leaves an unchanged file alone so that make does not rebuild for nothing.
local function write_file(path, text)
    local old = io.open(path, "rb")
    if old then
        local same = old:read("a") == text
        old:close()
        if same then return end
    end
    local f, message = io.open(path .. ".tmp", "wb")
    if not f then fail("%s: cannot be written (%s)", path, message) end
    f:write(text)
    if not f:close() then fail("%s: could not be written; is the disk full?", path) end
    os.rename(path .. ".tmp", path)
end

-- Replaces the table when emit(path) changes it.
local function write_with(path, emit)
    local tmp = path .. ".new"
    emit(tmp)
    local f = assert(io.open(tmp, "rb"))
    local text = f:read("a")
    f:close()
    os.remove(tmp)
    write_file(path, text)
end

local function command_line(o)
    local parts = { "make", "MODEL=" .. o.model }
    if not o.embed then parts[#parts + 1] = "CHECKPOINT=" .. (o.checkpoint:match("([^/]+)/?$") or o.checkpoint) end
    if o.recipe then parts[#parts + 1] = "RECIPE=" .. o.recipe end
    if o["draft-vocab"] then parts[#parts + 1] = "DRAFT_VOCAB=" .. (o["draft-vocab"]:match("([^/]+)/?$") or "") end
    return table.concat(parts, " ")
end

local function run()
    local o = options()
    if o.help then
        print(USAGE)
        return
    end
    range("lanes", o.lanes, 1, 8)
    range("window", o.window, 1, 16)
    range("chunk", o.chunk, 16, 8192)
    if o.target ~= "cpu" and o.target ~= "cuda" then fail("%s: cpu or cuda is expected, found %s", spelled("target"), o.target) end
    if not o.checkpoint or not o.out then fail("--checkpoint and --out are needed; see --help") end

    local config = require "config"
    local family, c = config.load(o.checkpoint, families(), o.model)
    o.model, o.name = family.name, o.name or family.name
    local checkpoint = require "checkpoint"
    local synthetic = o.recipe ~= nil or not has_weights(o.checkpoint)
    local census = synthetic and checkpoint.synthetic(c.root, o.recipe or "bf16") or checkpoint.open(o.checkpoint, c.root)

    local draft_ids = o["draft-vocab"] and require("draft_vocab").read(o["draft-vocab"], c.vocab_size, c.end_tokens or {})
    local ops = require "ops"
    local model = require("graph").build(family, c, census, ops.scratch, {
        lanes = o.lanes, window = o.window, chunk = o.chunk, tail = 16, max_window = 16, permute = o.permute, draft_ids = draft_ids,
        skip = o["no-fuse"] and { shared_input = true } or nil,
    })
    model.name, model.checkpoint = o.name, o.embed and "embedded" or (o.checkpoint:match("([^/]+)/?$") or o.checkpoint)
    model.command, model.synthetic, model.census = command_line(o), synthetic, census

    local pack = require "pack"
    model.layout = pack.layout(model.store.list)
    for _, r in ipairs(model.store.list) do
        local e = r.entry
        r.data_offset, r.scale_offset, r.global_offset = e.data_offset, e.scale_offset, e.global_offset
        r.data_stride, r.scale_stride = e.data_stride, e.scale_stride
        r.bytes = e.layout == "rows" and e.row_bytes * e.n
            or ((e.data_bytes or e.bytes) + (e.scale_bytes or 0)) * math.max(1, e.experts)
    end

    local tokenizer = require "tokenizer"
    local tokenizer_file = o.tokenizer or o.checkpoint .. "/tokenizer.json"
    local compiled
    if o.tokenizer or exists(tokenizer_file) then
        local settings = (o.tokenizer and (o.tokenizer:match("^(.*/)[^/]*$") or "./") or o.checkpoint .. "/") .. "tokenizer_config.json"
        compiled = tokenizer.compile(tokenizer_file, exists(settings) and settings or nil)
        if compiled.vocabulary > c.vocab_size then
            io.stderr:write(string.format("pianola: note: %s has %d tokens, the model %d; prompts with the others are refused\n",
                tokenizer_file, compiled.vocabulary, c.vocab_size))
        end
        config.add_end_tokens(c, tokenizer_file, compiled.eos)
    end

    local report = require "report"
    model.facts = report.facts(model)
    local function write(name, text) write_file(o.out .. "/" .. name, text) end
    require("emit_c").programs(model, write)
    require("emit_model").write(model, write, o.embed)
    if o.target == "cuda" then write("shapes.cuh", require("shapes").text(model.programs)) end
    if not synthetic then pack.write_plan(o.out .. "/pack.plan", model.layout, census) end

    write_with(o.out .. "/tokenizer_tables.c", function(path)
        if compiled then tokenizer.emit(compiled, path) else tokenizer.emit_none(path) end
    end)
    local template = require "template"
    local source, name = report.template_source(o.checkpoint)
    if source then
        local program = template.compile(source, name, template.constants(report.tokenizer_settings(o.checkpoint)))
        write_with(o.out .. "/template.c", function(path) template.emit(program, path) end)
    else
        write_with(o.out .. "/template.c", template.emit_none)
    end
    report.print(model, o.out)
end

local ok, message = xpcall(run, function(e) return fail.is(e) and e or debug.traceback(tostring(e), 2) end)
if not ok then
    if fail.is(message) then
        io.stderr:write("pianola: ", tostring(message), "\n")
        os.exit(2)
    end
    io.stderr:write("pianola: bug in the generator: ", message, "\n")
    os.exit(1)
end
