-- SPDX-License-Identifier: Apache-2.0
--
-- The census of a checkpoint: family descriptions ask for weights by their official names, and every tensor is consumed
-- exactly once or ignored with a reason.
--
--   local checkpoint = require "checkpoint"
--   local census = checkpoint.open(folder, config)        -- config: decoded config.json (or nil: read from the folder)
--   local census = checkpoint.synthetic(config, "bf16")   -- no files; recipes: gen/recipes.lua
--
-- Names have the prefix taken off: "layers.0.self_attn.q_proj", "mtp.fc_embedding", "lm_head", "embed_tokens", "visual...".
--   census:has(name)                       -> whether a matrix or vector of this name is stored
--   census:matrix{ name, n, k }            -> weight record (panel layout)
--       rows = { first, count }            only these rows of a larger tensor, first counted from 0
--       row_order = function(i) | list     output row i (from 0) is this row of the tensor (from 0)
--       shared = true                      another call may consume the tensor as well (tied embeddings)
--   census:experts{ prefix = "layers.0.mlp.experts", which = "gate"|"up"|"down", experts, n, k } -> weight record
--   census:rows{ name | names | prefix, rows, dim, shared, section } -> weight record in row layout (embedding, n-gram table)
--       prefix: prefix.weight, or prefix.shard_0.weight, prefix.shard_1.weight ... one after the other
--       section = "resident" (default) or "table" (left in the file, read by row)
--   census:vector{ name, count, transform = "none"|"plus_one", row_order } -> f32 array ("conv1d" too: [C, 1, 4] is [C][4])
--   census:constants{ name, count }        -> list of integers, read here
--   census:ignore(pattern, reason)         Lua pattern on the name without prefix
--   census:finish()                        fails when a tensor is left over; census.ignored and census:summary() tell the rest
--   census.norms                           "zero-centred" or "added" and why, once a plus_one vector was asked for
--
-- A weight record: { kind = "matrix"|"vector"|"rows", name, encoding, bits, group, n, k, experts (nil: not stacked),
--   section, transform, sources }; vectors have n = count, k = 1. gen/pack.lua gives records their place in the pack.

local encodings = require "encodings"
local fail = require "fail"
local recipes = require "recipes"
local safetensors = require "safetensors"

local checkpoint = {}
local Census = {}
Census.__index = Census

local show, shape_text <const> = safetensors.show, safetensors.shape_text

-- Tensors of other engines' activation and cache scaling: nothing here reads them.
local UNUSED <const> = {
    "%.input_scale$", "_input_scale$", "%.input_global_scale$", "%.output_scale$", "%.[kvq]_scale$", "%.weight_shape$",
    "rotary_emb%.inv_freq$",
}

local PREFIXES <const> = { "model.language_model.", "language_model.model.", "language_model.", "model.", "backbone." }

local RENAMES <const> = {
    { "^vision_tower%.", "visual." },
    { "%.shards%.(%d+)%.", ".shard_%1." },
    { "%.self_attn%.index_qk_proj%.", ".self_attn.indexer.index_qk_proj." },
    { "%.self_attn%.index_q_norm%.", ".self_attn.indexer.q_layernorm." },
    { "%.self_attn%.index_k_norm%.", ".self_attn.indexer.k_layernorm." },
}

-- The official name without prefix.
local function normalise(name)
    for _, prefix in ipairs(PREFIXES) do
        if name:sub(1, #prefix) == prefix then
            name = name:sub(#prefix + 1)
            break
        end
    end
    for _, rename in ipairs(RENAMES) do name = name:gsub(rename[1], rename[2]) end
    return name
end
checkpoint.normalise = normalise

function checkpoint.open(folder, config)
    local set = safetensors.open(folder)
    config = config or safetensors.read_json(folder .. "/config.json")
    config = config.raw or config
    local text = type(config.text_config) == "table" and config.text_config or {}
    local census = setmetatable({
        folder = folder, set = set, names = {}, used = {}, rules = {}, records = {}, ignored = {},
        mlx = config.quantization or text.quantization,
        quantization = config.quantization_config or text.quantization_config,
    }, Census)
    encodings.check_config(census.quantization, census.mlx, folder)
    -- Some MLX exports repeat their table under both keys.
    if census.quantization and not census.quantization.quant_method and census.quantization.group_size and census.quantization.bits then
        census.mlx, census.quantization = census.mlx or census.quantization, nil
    end
    for _, tensor in ipairs(set.order) do
        if tensor.name:find("[%c\127]") then fail("%s: the tensor name %s has control characters", folder, show(tensor.name)) end
        local name = normalise(tensor.name)
        local other = census.names[name]
        if other then fail("%s: tensors %s and %s are the same weight %s", folder, show(other.name), show(tensor.name), show(name)) end
        census.names[name] = tensor
        tensor.short = name
    end
    return census
end

-- A census without files: encodings of a recipe, zero bytes of sources.
function checkpoint.synthetic(config, recipe)
    config = config.raw or config
    return setmetatable({
        synthetic = true, recipe = recipes.get(recipe or "bf16", config), config = config,
        names = {}, used = {}, rules = {}, records = {}, ignored = {},
    }, Census)
end

-- ---- consumption --------------------------------------------------------------------------------------------------------

-- Marks rows first .. first + count - 1 (of all experts) of a tensor as consumed; nil: the whole tensor.
local function consume(census, tensor, by, runs, shared)
    local uses = census.used[tensor]
    if not uses then
        uses = { rows = 0 }
        census.used[tensor] = uses
    end
    if uses.shared or shared then
        uses.shared, uses.whole = uses.shared or shared, true
        return
    end
    local other = uses.whole
    for _, run in ipairs(runs or {}) do
        for _, use in ipairs(uses) do
            if run[1] < use[1] + use[2] and use[1] < run[1] + run[2] then other = use[3] end
        end
    end
    if other or (not runs and uses[1]) then
        fail("tensor %s: is asked for twice, by %s and by %s", show(tensor.name), other or uses[1][3], by)
    end
    if not runs then
        uses.whole = by
        return
    end
    for _, run in ipairs(runs) do
        uses[#uses + 1] = { run[1], run[2], by }
        uses.rows = uses.rows + run[2]
    end
end

local MODULE_TENSORS <const> = { "data", "scale", "bias", "global", "zero", "order" }

local function consume_module(census, module, by, runs, shared)
    for _, key in ipairs(MODULE_TENSORS) do
        local tensor = module[key]
        if tensor then
            local partial = runs and key == "data"
            if key == "data" or census.used[tensor] == nil then consume(census, tensor, by, partial and runs or nil, shared) end
        end
    end
    if runs then census.used[module.data].total = module.rows end
end

-- ---- row selection ------------------------------------------------------------------------------------------------------

-- Runs {first, count} of source rows in the order of the output; nil for all rows in order.
local function runs_of(ask, n, total, what)
    if ask.rows then
        local first, count = ask.rows[1], ask.rows[2]
        if count ~= n or first < 0 or first + count > total then
            fail("%s: rows %d to %d are asked for, found %d rows", what, first, first + count, total)
        end
        return { { first, count } }
    end
    if not ask.row_order then
        if total ~= n then return nil, true end
        return nil
    end
    local order, runs = ask.row_order, {}
    for i = 0, n - 1 do
        local row
        if type(order) == "function" then row = order(i) else row = order[i + 1] end
        if row < 0 or row >= total then fail("%s: row %d is asked for, found %d rows", what, row, total) end
        local last = runs[#runs]
        if last and last[1] + last[2] == row then last[2] = last[2] + 1 else runs[#runs + 1] = { row, 1 } end
    end
    return runs
end

-- ---- sources ------------------------------------------------------------------------------------------------------------

-- Where a tensor's rows lie: { file, offset, stride (bytes a row), dtype }, for expert e of `lead`.
local function place(tensor, rows, lead, e)
    if not tensor then return nil end
    local per = tensor.bytes // (lead or 1)
    return { file = tensor.file, offset = tensor.offset + per * (e or 0), stride = per // math.max(rows, 1), dtype = tensor.dtype }
end

-- The element of a global scale for expert e (and half h of a fused tensor, 0 or 1).
local function place_global(tensor, lead, e, half, divisor)
    if not tensor then return nil end
    local size, index = tensor.bytes // tensor.elements, 0
    if lead and tensor.elements == lead then index = e end
    if lead and tensor.elements == 2 * lead then index = 2 * e + (half or 0) end
    return { file = tensor.file, offset = tensor.offset + index * size, dtype = tensor.dtype, divisor = divisor or false }
end

local function scale_rows(module)
    if module.encoding == "fp8_block" then return (module.rows + 127) // 128 end
    if module.transposed then return module.scale.shape[1] end
    return module.rows
end

-- What to add to the numbers in qzeros: the first GPTQ format stores zero - 1 (a symmetric 8 as 7), the second the zero.
local function zero_offset(census, module)
    if not module.zero then return nil end
    local format = census.quantization and census.quantization.checkpoint_format
    if format == "gptq_v2" then return 0 end
    local word = safetensors.values(census.set, module.zero, 0, 1)[1] & 0xffffffff
    if word == 0x88888888 and not (census.quantization and census.quantization.sym == false) then return 0 end
    return 1
end

local function piece_of(census, module, runs, lead, e, half)
    return {
        zero_offset = zero_offset(census, module),
        source_rows = module.rows, runs = runs, transposed = module.transposed, channel = module.channel,
        data = place(module.data, module.transposed and module.data.shape[1] or module.rows, lead, e),
        scale = module.scale and place(module.scale, scale_rows(module), lead, e),
        bias = module.bias and place(module.bias, module.rows, lead, e),
        zero = module.zero and place(module.zero, module.zero.shape[1], nil, 0),
        order = module.order and place(module.order, 1, nil, 0),
        global = place_global(module.global, lead, e or 0, half, module.divisor),
    }
end

-- ---- finding modules ----------------------------------------------------------------------------------------------------

-- The main tensor of a module.
local function data_of(census, base)
    local names = census.names
    return names[base .. ".weight"] or names[base .. ".weight_packed"] or names[base .. ".qweight"] or names[base]
end

-- Finds tensors of a module by suffix, in the spellings of modules (".weight_scale") and of fused parameters ("_scale").
local function finder(census, base, extra)
    return function(...)
        for _, suffix in ipairs({ ... }) do
            local found = census.names[base .. "." .. suffix] or census.names[base .. "_" .. suffix]
                or census.names[base .. ".weight." .. suffix] or (extra and census.names[extra .. "." .. suffix])
            if found then return found end
        end
        return nil
    end
end

local function list_like(census, base)
    local near = {}
    local stem = base:match("^(.*)%.[^.]+$")
    for name, tensor in pairs(census.names) do
        if stem and name:sub(1, #stem + 1) == stem .. "." then near[#near + 1] = show(tensor.name) end
    end
    table.sort(near)
    if #near == 0 then return "" end
    return string.format("; %d tensors lie beside it, e.g. %s", #near, near[1])
end

local function absent(census, base)
    fail("%s: tensor %s.weight is missing%s", census.folder, base, list_like(census, base))
end

local function recognise(census, base, k, lead, extra)
    local data = data_of(census, base)
    if not data then return nil end
    local module = encodings.recognise(data, finder(census, base, extra), k, lead)
    encodings.check_module(module, k, census.quantization, census.mlx)
    return module
end

local function keep(census, record)
    census.records[#census.records + 1] = record
    return record
end

local function synthetic_record(census, kind, name, n, k, experts)
    local encoding, bits, group = recipes.choose(census.recipe, kind, name, k)
    return keep(census, {
        kind = kind, name = name, encoding = encoding, bits = bits, group = group, n = n, k = k, experts = experts,
        section = "resident", global = encodings.has_global(encoding),
    })
end

-- The question with its numbers as integers (configurations hold floats); missing keys are the caller's bug.
local function asked(ask, what, ...)
    local out = {}
    for key, value in pairs(ask) do out[key] = value end
    for _, key in ipairs({ ... }) do
        out[key] = assert(math.tointeger(ask[key]), what .. ": " .. key .. " is not an integer")
    end
    return out
end

-- ---- questions ----------------------------------------------------------------------------------------------------------

function Census:has(name)
    if self.synthetic then return recipes.has(self.config, name) end
    return data_of(self, name) ~= nil
end

-- Whether the routed experts of this prefix are stored, in any layout.
function Census:has_experts(prefix)
    if self.synthetic then return recipes.has(self.config, prefix) end
    local switch = prefix:gsub("experts$", "switch_mlp")
    for _, base in ipairs({ prefix .. ".down_proj", prefix .. ".0.down_proj", switch .. ".down_proj", switch .. ".fc2" }) do
        if data_of(self, base) then return true end
    end
    return false
end

-- Repacks store [input_mix_weight_down; block_inject_weight] as one tensor under the first name.
local function fused_inject(census, ask)
    local stem, last = ask.name:match("^(.*)%.([^.]+)$")
    if last == "input_mix_weight_down" then
        local data = data_of(census, ask.name)
        if data and #data.shape == 2 and data.shape[1] > ask.n and not data_of(census, stem .. ".block_inject_weight") then
            return ask.name, { 0, ask.n }
        end
    elseif last == "block_inject_weight" and not data_of(census, ask.name) then
        local data = data_of(census, stem .. ".input_mix_weight_down")
        if data and #data.shape == 2 and data.shape[1] > ask.n then
            return stem .. ".input_mix_weight_down", { data.shape[1] - ask.n, ask.n }
        end
    end
    return ask.name, nil
end

function Census:matrix(ask)
    ask = asked(ask, "matrix", "n", "k")
    if self.synthetic then return synthetic_record(self, "matrix", ask.name, ask.n, ask.k) end
    local base, rows = fused_inject(self, ask)
    local module = recognise(self, base, ask.k) or absent(self, base)
    local what = "tensor " .. show(module.data.name)
    local runs, wrong = runs_of({ rows = rows or ask.rows, row_order = ask.row_order }, ask.n, module.rows, what)
    if wrong then
        fail("tensor %s: expected %d rows of %d columns, found %s", show(module.data.name), ask.n, ask.k, encodings.describe(module.data))
    end
    consume_module(self, module, ask.name, runs, ask.shared)
    local record = {
        kind = "matrix", name = ask.name, encoding = module.encoding, bits = module.bits, group = module.group, n = ask.n, k = ask.k,
        section = "resident", sources = { { piece_of(self, module, runs) } },
    }
    return keep(self, encodings.settle(record, module, runs))
end

-- The ways experts are stored: { base, runs, stacked }, the first that is there.
local function find_experts(census, ask)
    local which, fused = ask.which .. "_proj", ask.prefix .. ".gate_up_proj"
    local switch = ask.prefix:gsub("experts$", "switch_mlp")
    if ask.which ~= "down" then
        for _, base in ipairs({ fused, switch .. ".gate_up_proj" }) do
            if data_of(census, base) then return base, { { ask.which == "gate" and 0 or ask.n, ask.n } }, true end
        end
    end
    local plain = ask.which == "down" and "fc2" or "fc1"
    for _, base in ipairs({ ask.prefix .. "." .. which, switch .. "." .. which, switch .. "." .. plain }) do
        if data_of(census, base) then return base, nil, true end
    end
    return which, nil, false
end

local function stacked_experts(census, ask, base, runs)
    local module = recognise(census, base, ask.k, ask.experts)
    local expected = runs and 2 * ask.n or ask.n
    if module.rows ~= expected then
        fail("tensor %s: expected shape [%d, %d, %d], found %s", show(module.data.name), ask.experts, expected, ask.k,
            encodings.describe(module.data))
    end
    consume_module(census, module, ask.prefix .. "." .. ask.which, runs)
    local sources = {}
    for e = 0, ask.experts - 1 do sources[e + 1] = { piece_of(census, module, runs, ask.experts, e, ask.which == "gate" and 0 or 1) } end
    return module, sources
end

local function single_experts(census, ask, which)
    local sources, first = {}, nil
    for e = 0, ask.experts - 1 do
        local base = string.format("%s.%d.%s", ask.prefix, e, which)
        local module = recognise(census, base, ask.k) or absent(census, base)
        first = first or module
        if module.rows ~= ask.n then
            fail("tensor %s: expected %d rows of %d columns, found %s", show(module.data.name), ask.n, ask.k,
                encodings.describe(module.data))
        end
        if module.encoding ~= first.encoding or module.bits ~= first.bits or module.group ~= first.group
            or module.channel ~= first.channel then
            fail("tensor %s: is stored as %s, but %s as %s: experts of one layer must agree", show(module.data.name), module.encoding,
                show(first.data.name), first.encoding)
        end
        consume_module(census, module, base)
        sources[e + 1] = { piece_of(census, module, nil) }
    end
    return first, sources
end

function Census:experts(ask)
    ask = asked(ask, "experts", "experts", "n", "k")
    local name = ask.prefix .. "." .. ask.which .. "_proj"
    if self.synthetic then return synthetic_record(self, "matrix", name, ask.n, ask.k, ask.experts) end
    local base, runs, stacked = find_experts(self, ask)
    local module, sources
    if stacked then
        module, sources = stacked_experts(self, ask, base, runs)
    else
        module, sources = single_experts(self, ask, base)
    end
    local record = {
        kind = "matrix", name = name, encoding = module.encoding, bits = module.bits, group = module.group, n = ask.n, k = ask.k,
        experts = ask.experts, section = "resident", sources = sources,
    }
    return keep(self, encodings.settle(record, module, runs))
end

-- Names of the shards of a table.
local function shard_names(census, ask)
    if ask.names then return ask.names end
    if ask.name then return { ask.name } end
    if data_of(census, ask.prefix) then return { ask.prefix } end
    local names, next_name = {}, ask.prefix .. ".shard_0"
    while data_of(census, next_name) do
        names[#names + 1] = next_name
        next_name = string.format("%s.shard_%d", ask.prefix, #names)
    end
    if #names == 0 then absent(census, ask.prefix .. ".shard_0") end
    return names
end

-- One global for the whole table: shards with their own must agree.
local function shared_global(census, modules)
    local first = modules[1].global
    if not first then return end
    local value = safetensors.values(census.set, first, 0, 1)[1]
    for _, module in ipairs(modules) do
        local other = module.global
        if other ~= first and safetensors.values(census.set, other, 0, 1)[1] ~= value then
            fail("tensor %s: differs from %s; a table has one scale", show(other.name), show(first.name))
        end
    end
end

function Census:rows(ask)
    ask = asked(ask, "rows", "rows", "dim")
    local name = ask.name or ask.prefix or ask.names[1]
    if self.synthetic then
        local record = synthetic_record(self, "rows", name, ask.rows, ask.dim)
        record.section = ask.section or "resident"
        return record
    end
    local modules, pieces, total = {}, {}, 0
    for i, base in ipairs(shard_names(self, ask)) do
        local stem = base:match("^(.*)%.[^.]+$")
        local module = recognise(self, base, ask.dim, nil, stem) or absent(self, base)
        local first, factor = modules[1] or module, stem and self.names[stem .. ".weight_scale"]
        -- some MLX repacks scale the whole table once more
        if module.encoding == "affine" and factor and factor.elements == 1 then module.global = factor end
        if module.encoding ~= first.encoding or module.bits ~= first.bits or module.group ~= first.group then
            fail("tensor %s: is stored as %s, but %s as %s", show(module.data.name), module.encoding, show(first.data.name), first.encoding)
        end
        consume_module(self, module, base, nil, ask.shared)
        modules[i], pieces[i], total = module, piece_of(self, module, nil), total + module.rows
    end
    if total ~= ask.rows then
        fail("tensor %s: expected %d rows of %d in %d tensors, found %d rows", show(modules[1].data.name), ask.rows, ask.dim, #modules,
            total)
    end
    shared_global(self, modules)
    local record = {
        kind = "rows", name = name, encoding = modules[1].encoding, bits = modules[1].bits, group = modules[1].group, n = ask.rows,
        k = ask.dim, section = ask.section or "resident", sources = { pieces },
    }
    return keep(self, encodings.settle(record, modules[1], nil))
end

-- ---- vectors ------------------------------------------------------------------------------------------------------------

-- Whether stored norm weights are zero-centred (multiplier 1 + w) or already have the one added, by the mean of the trunk's
-- first norms. One answer for the whole checkpoint: norms of small draft heads stray too far to be asked on their own.
local function norm_kind(census, probe)
    if census.norm_kind then return census.norm_kind end
    local names = {}
    for name, tensor in pairs(census.names) do
        local candidate = name == probe or not probe and not name:match("^mtp%.")
            and (name:match("hc_norm%.weight$") or name:match("input_layernorm%.weight$"))
        if candidate and tensor.elements > 0 then names[#names + 1] = name end
    end
    table.sort(names)
    if #names == 0 then fail("%s: no hc_norm or input_layernorm to tell w from w + 1", census.folder) end
    local sum, count, limit = 0.0, 0, math.min(#names, 8)
    for i = 1, limit do
        local tensor = census.names[names[i]]
        local values = safetensors.values(census.set, tensor, 0, math.min(tensor.elements, 4096))
        for _, value in ipairs(values) do sum = sum + value end
        count = count + #values
    end
    local mean, example = sum / count, show(census.names[names[1]].name)
    if not (mean > -0.5 and mean < 2.0) then
        fail("tensor %s: the mean of the norm weights is %g, neither near 0 nor near 1", example, mean)
    end
    census.norm_kind = mean < 0.5 and "zero-centred" or "added"
    census.norms = string.format("%s (mean %.4f of %d norms, e.g. %s)", census.norm_kind, mean, limit, example)
    return census.norm_kind
end

function Census:vector(ask)
    ask = asked(ask, "vector", "count")
    local transform = ask.transform or "none"
    local record = {
        kind = "vector", name = ask.name, encoding = "f32", bits = 32, group = 0, n = ask.count, k = 1, section = "resident",
        transform = transform,
    }
    if self.synthetic then return keep(self, record) end
    local tensor = self.names[ask.name .. ".weight"] or self.names[ask.name]
    if not tensor then absent(self, ask.name) end
    if tensor.dtype ~= "BF16" and tensor.dtype ~= "F16" and tensor.dtype ~= "F32" then
        fail("tensor %s: expected BF16, F16 or F32, found %s", show(tensor.name), encodings.describe(tensor))
    end
    local total = ask.total or ask.count
    if tensor.elements ~= total then
        fail("tensor %s: expected %d values, found %s", show(tensor.name), total, encodings.describe(tensor))
    end
    if transform == "plus_one" and norm_kind(self, ask.probe) == "added" then
        record.transform = "none"
    end
    local runs = runs_of(ask, ask.count, total, "tensor " .. show(tensor.name))
    consume(self, tensor, ask.name, runs, ask.shared)
    if runs then self.used[tensor].total = total end
    record.sources = { { { source_rows = total, runs = runs, data = place(tensor, total) } } }
    return keep(self, record)
end

function Census:constants(ask)
    if self.synthetic then return nil end
    local tensor = self.names[ask.name] or absent(self, ask.name)
    if tensor.dtype ~= "I64" or #tensor.shape ~= 1 or tensor.elements ~= ask.count then
        fail("tensor %s: expected I64 [%d], found %s", show(tensor.name), ask.count, encodings.describe(tensor))
    end
    consume(self, tensor, ask.name)
    return safetensors.values(self.set, tensor, 0, ask.count)
end

-- ---- the end ------------------------------------------------------------------------------------------------------------

function Census:ignore(pattern, reason)
    self.rules[#self.rules + 1] = { pattern, reason }
end

function Census:finish()
    if self.synthetic then return end
    local left = {}
    for _, tensor in ipairs(self.set.order) do
        local uses = self.used[tensor]
        if not uses then
            local reason
            for _, pattern in ipairs(UNUSED) do
                if tensor.short:find(pattern) then reason = "scaling of activations and caches, not used" end
            end
            for _, rule in ipairs(self.rules) do
                if tensor.short:find(rule[1]) then reason = reason or rule[2] end
            end
            if reason then self.ignored[reason] = (self.ignored[reason] or 0) + 1 else left[#left + 1] = show(tensor.name) end
        elseif not uses.whole and uses.rows ~= uses.total then
            left[#left + 1] = string.format("%s (%d of %d rows)", show(tensor.name), uses.total - uses.rows, uses.total)
        end
    end
    if #left > 0 then
        table.sort(left)
        fail("%s: %d tensors are read by nothing: %s%s; the family description does not know them", self.folder, #left,
            table.concat(left, ", ", 1, math.min(#left, 4)), #left > 4 and ", ..." or "")
    end
end

-- List of { encoding, weights, values } in the order of encodings.
function Census:summary()
    local found, out = {}, {}
    for _, record in ipairs(self.records) do
        local entry = found[record.encoding] or { encoding = record.encoding, weights = 0, values = 0 }
        found[record.encoding] = entry
        entry.weights = entry.weights + 1
        entry.values = entry.values + record.n * record.k * (record.experts or 1)
    end
    for _, name in ipairs(encodings.names) do out[#out + 1] = found[name] end
    return out
end

checkpoint.shape_text = shape_text

return checkpoint
