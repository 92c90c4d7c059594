-- SPDX-License-Identifier: Apache-2.0
--
-- Runs a family description once per program and gets static ops with shapes. The programs of a model:
--   prompt        a chunk of prompt rows through the trunk, and through the head's cache (plain_prompt: without the head)
--   tail          logits of chosen rows of the last prompt chunk, and a draw for each
--   saved_tail    the same of a prompt's last row, whose streams a kept state has
--   round k       the head takes in what was accepted and drafts k tokens, then the trunk verifies a window of k + 1 rows
--   plain_round   a window of one row, without a head
--   saving_round  the same, and its row is saved for a head that takes in several rows later
-- Invariant: programs share weights, states, caches and kept buffers by name; nothing else passes between them.

local Builder = require "family_ops"
local fail = require "fail"
local fuse = require "fuse"
local place = require "place"

local graph = {}

-- Tokens that open a reply, of any family's template, at most: the next turn may spell those of a prompt's end in another way.
local OPENING <const> = 7

-- ---- what programs share ----------------------------------------------------------------------------------------------

local Store = {}
Store.__index = Store

-- census: gen/checkpoint.lua; sizes of weights come from its records.
local function new_store(census, c)
    return setmetatable({ census = census, c = c, records = {}, list = {} }, Store)
end

function Store:once(key, make)
    local r = self.records[key]
    if not r then
        r = make()
        self.records[key] = r
        self.list[#self.list + 1] = r
    end
    return r
end

function Store:matrix(name, n, k, rows)
    if name == "lm_head" and self.c.tie_word_embeddings then name = "embed_tokens" end
    local key = "matrix " .. name .. (rows and rows.key or "")
    return self:once(key, function()
        return self.census:matrix {
            name = name, n = n, k = k, row_order = rows and rows.order, total = rows and rows.total,
            shared = rows and rows.shared,
        }
    end)
end

function Store:embedding(name, vocabulary, width)
    if self.c.tie_word_embeddings then
        local r = self:matrix(name, vocabulary, width)
        r.panel = true
        return r
    end
    return self:once("rows " .. name, function()
        return self.census:rows { name = name, rows = vocabulary, dim = width, section = "resident" }
    end)
end

function Store:experts(prefix, which, experts, n, k)
    return self:once("experts " .. prefix .. " " .. which, function()
        return self.census:experts { prefix = prefix, which = which, experts = experts, n = n, k = k }
    end)
end

function Store:vector(name, count, transform)
    return self:once("vector " .. name, function()
        return self.census:vector { name = name, count = count, transform = transform }
    end)
end

function Store:conv(name, channels, taps)
    return self:once("vector " .. name, function()
        return self.census:vector { name = name, count = channels * taps, transform = "none" }
    end)
end

-- A list of integers that the checkpoint stores too.
function Store:expect(name, list)
    local found = not self.census.synthetic and self.census.names[name] and self.census:constants { name = name, count = #list }
    for i, v in ipairs(found or {}) do
        if v ~= list[i] then fail("tensor %s[%d]: the config gives %d, the checkpoint has %d", name, i - 1, list[i], v) end
    end
end

-- The n-gram table; the checkpoint's copies of its constants must equal the formula's.
function Store:rows(spec)
    return self:once("table " .. spec.name, function()
        self:expect(spec.name .. "layer_multipliers", spec.multiplier)
        self:expect(spec.name .. "ngram_heads_vocab_sizes", spec.size)
        self:expect(spec.name .. "ngram_heads_offsets", spec.offset)
        local r = self.census:rows { prefix = spec.name .. "ngram_embedding", rows = spec.rows, dim = spec.dim, section = "table" }
        r.table_index = self.tables or 0
        self.tables = r.table_index + 1
        return r
    end)
end

-- Recurrent states: offsets in a lane's run, by name, and what each part of the run is for.
local States = {}
States.__index = States

local function new_states()
    return setmetatable({ bytes = 0, count = 0, parts = { recurrent = 0, tails = 0, windows = 0, streams = 0, alignment = 0 } }, States)
end

-- parts: bytes by kind. Returns the offset.
function States:claim(name, parts)
    local s = self[name]
    if not s then
        s = self.bytes
        self[name] = s
        local bytes = 0
        for kind, n in pairs(parts) do
            self.parts[kind] = self.parts[kind] + n
            bytes = bytes + n
        end
        if parts.recurrent then self.count = self.count + 1 end
        local whole = (bytes + 63) // 64 * 64
        self.parts.alignment = self.parts.alignment + whole - bytes
        self.bytes = self.bytes + whole
    end
    return s
end

-- Caches: layers of a page, by name, in the order of first use.
local Caches = {}
Caches.__index = Caches

function Caches:claim(name, options)
    local cache = self[name]
    if not cache then
        cache = { number = #self, heads = options.heads, dim = options.dim, index = options.index or 0 }
        self[name] = cache
        self[#self + 1] = cache
    end
    return cache
end

-- ---- programs ------------------------------------------------------------------------------------------------------------

local function head_pass(m, c, head, x, store)
    local y = head.layer(m, c, x)
    local ids = m.draft_ids
    local rows = ids and { key = " of the draft vocabulary", order = ids, total = c.vocab_size, shared = true }
    m:draw(m:linear(head.output(m, c, y), "lm_head", ids and #ids or c.vocab_size, { rows = rows }), 2, store, nil, ids)
    return y
end

local function trunk(m, family, c, keep)
    m:rows("trunk", "trunk")
    local r = family.embed(m, c, keep)
    for l = 0, c.num_hidden_layers - 1 do
        m.label = "layer " .. l
        local next_r = family.layer(m, c, l, r)
        assert(next_r == r, "a layer updates the streams in place")
    end
    m.label = nil
    return r
end

local function logits(m, family, c, r)
    return m:linear(family.output(m, c, r), "lm_head", c.vocab_size, { keep = "logits" })
end

local build = {}

function build.prompt(m, family, c, with_head)
    local r = trunk(m, family, c, "streams")
    local state = m.state:claim("saved streams", { streams = m.max_window * r.width * 4 })
    if with_head then
        m:rows("head", "fill")
        family.head.fill(m, c, family.head.input(m, c, m:gather(r, "trunk", r.width, state)))
        m:commit(true)
        m.pass = "trunk"
    end
    m:save_streams(r, state) -- after the head: it may still need the row before this chunk
    m:commit(false)
end

-- saved: of the row that the lane's saved streams end with, else of the last chunk's rows.
function build.tail(m, family, c, saved)
    m.pass = "trunk"
    local kept = not saved and m:value(c.streams_width, { keep = "streams" })
    m:rows("tail", "tail")
    local state = saved and m.state:claim("saved streams", { streams = m.max_window * c.streams_width * 4 })
    local r = saved and m:gather(nil, nil, c.streams_width, state) or m:gather(kept, "trunk", c.streams_width, -1)
    m:draw(logits(m, family, c, r), 1, -1, "drawn")
end

local function absorb(m, family, c)
    m:rows("head", "absorb")
    local state = m.state:claim("saved streams", { streams = m.max_window * c.streams_width * 4 })
    local x = family.head.input(m, c, m:gather(nil, nil, c.streams_width, state))
    family.head.fill(m, c, x)
    m:commit(true)
    return x
end

function build.round(m, family, c, drafts, with_head, save)
    if with_head then
        local x = absorb(m, family, c)
        if drafts > 0 then
            m:rows("last", "last")
            local y = head_pass(m, c, family.head, m:gather(x, "head", c.streams_width, -1), 2)
            for step = 1, drafts - 1 do
                m:rows("last", "chain", step)
                y = head_pass(m, c, family.head, family.head.input(m, c, y, true), 2)
            end
        end
    end
    local r = trunk(m, family, c)
    if with_head or save then m:save_streams(r, m.state:claim("saved streams", { streams = m.max_window * r.width * 4 })) end
    m:accept(m:draw(logits(m, family, c, r), 1, -1, "drawn"))
end

-- Whether a draft head is run: the config declares one, or says nothing about it, and its weights are there.
local function wants_head(family, c, census)
    if not family.head or c.no_head then return false end
    local text = type(c.root.text_config) == "table" and c.root.text_config or c.root
    local function number(v) return type(v) == "number" and v or nil end
    local layers = number(text.mtp_num_hidden_layers) or type(text.mtp) == "table" and number(text.mtp.num_hidden_layers)
        or number(text.num_nextn_predict_layers) or (census.synthetic and 0 or 1)
    local found = census.synthetic
    for _, name in ipairs { "mtp.fc_embedding", "mtp.fc", "mtp.layers.0.eh_proj" } do found = found or census:has(name) end
    return layers > 0 and found
end

-- options: lanes, window, chunk, draft_ids (gen/draft_vocab.lua), skip (fusions to leave out), permute
-- (arena seed). sizes: formulas of kernel scratch.
function graph.build(family, c, census, sizes, options)
    local head = wants_head(family, c, census)
    c.streams_width = c.hidden_size * (family.streams_name and c[family.streams_name] or 1)
    local model = {
        family = family, config = c, has_head = head and true or false, programs = {}, store = new_store(census, c),
        states = new_states(), caches = setmetatable({}, Caches), options = options, kept = {}, opening = OPENING,
    }
    local lanes, window = options.lanes, options.window
    local max_window = options.max_window
    local function program(name, class, capacity, direct, drafts, make, for_one)
        local m = Builder.new {
            store = model.store, state = model.states, caches = model.caches, class = class, capacity = capacity,
            direct = direct, max_window = max_window, draft_ids = options.draft_ids, eps = c.rms_norm_eps, sizes = sizes,
        }
        make(m)
        local ops = fuse.run(m.ops, options.skip)
        for _, op in ipairs(ops) do
            if op.name == "linear" then m:finish_linear(op) end
        end
        model.programs[#model.programs + 1] = { name = name, class = class, capacity = capacity, direct = direct, drafts = drafts,
            ops = ops, lanes = for_one and 1 or lanes }
    end
    -- The head reads a prompt's rows up to the last but one, and may be a cell behind.
    local chunk = { trunk = options.chunk, head = options.chunk }
    program("plain_prompt", "prompt", chunk, true, 0, function(m) build.prompt(m, family, c, false) end, true)
    if head then program("prompt", "prompt", chunk, true, 0, function(m) build.prompt(m, family, c, true) end, true) end
    program("tail", "decode", { trunk = options.chunk, tail = options.tail }, true, 0, function(m) build.tail(m, family, c) end, true)
    program("saved_tail", "decode", { trunk = 1, tail = 1 }, true, 0, function(m) build.tail(m, family, c, true) end, true)
    program("plain_round", "decode", { trunk = lanes }, true, 0, function(m) build.round(m, family, c, 0, false) end)
    if head then
        program("saving_round", "decode", { trunk = lanes }, true, 0, function(m) build.round(m, family, c, 0, false, true) end)
        for drafts = 0, window - 1 do
            program("round_" .. drafts, "decode", { trunk = lanes * (drafts + 1), head = lanes * max_window, last = lanes },
                drafts == 0, drafts, function(m) build.round(m, family, c, drafts, true) end)
        end
    end
    if family.ignored then family.ignored(census, c) end
    if not head then census:ignore("^mtp%.", "no draft head is run") end
    if c.tie_word_embeddings then census:ignore("^lm_head%.", "tied to the embedding table") end
    census:finish()
    graph.place(model, options.permute)
    return model
end

-- The arena: kept buffers, then what the largest program needs.
function graph.place(model, permute)
    for _, p in ipairs(model.programs) do place.keep(p, model.kept) end
    local base = place.fix(model.kept)
    model.arena = base
    for _, p in ipairs(model.programs) do
        model.arena = math.max(model.arena, place.program(p, model.kept, base, permute))
    end
end

return graph
