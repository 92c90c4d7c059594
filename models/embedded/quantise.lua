#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- Makes the embedded model's weights: lua5.4 quantise.lua CHECKPOINT_DIR OUT_DIR
--
-- Reads the bf16 checkpoint and writes OUT_DIR/model.safetensors in the MLX affine layout (codes in 32-bit words, lowest bits
-- first; w = scale * q + bias per group of 32 along a row; scales and biases bf16), and copies config.json. That file says nothing
-- of the packing, which mixes affine and FP8: dtypes and shapes tell. Invariant: the output depends on the input and on `rules`
-- only, so that it can be made again, bit for bit.

local cjson = require "cjson"

local GROUP <const> = 32

-- Bits of a matrix by the first pattern that its name contains; 16: bf16 as it is; "fp8": E4M3 with one scale.
local rules = {
    { "ngram_embedding", "fp8" },
    { "mlp%.gate%.", 16 },
    { "shared_expert_gate", 16 },
    { "block_inject", 16 },
    { "in_proj_[ab]%.", 16 },
    { "^mtp%.", 4 },
    { "embed_tokens", 6 },
    { "linear_attn", 6 },
    { "self_attn", 6 },
    { "", 5 },
}

-- How far the ends of a group's range are moved in, as a part of the range: candidates for the smallest squared error.
local shrinks <const> = { 0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25 }

local function die(...)
    io.stderr:write("quantise.lua: ", string.format(...), "\n")
    os.exit(2)
end

local function read_all(path)
    local file, message = io.open(path, "rb")
    if not file then die("%s", message) end
    local text = file:read("a")
    file:close()
    return text
end

local function write_all(path, ...)
    local file, message = io.open(path .. ".part", "wb")
    if not file then die("%s", message) end
    if not (file:write(...) and file:close()) then die("%s: cannot be written", path) end
    assert(os.rename(path .. ".part", path))
end

-- ---- numbers --------------------------------------------------------------------------------------------------------

local from_bf16 <const> = {}
for bits = 0, 65535 do from_bf16[bits] = string.unpack("<f", string.pack("<I4", bits << 16)) end

-- Nearest bf16 of a number, as bits; ties to even.
local function to_bf16(x)
    local bits = string.unpack("<I4", string.pack("<f", x))
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16
end

local e4m3 <const> = {} -- magnitudes of codes 0 .. 126
for code = 0, 126 do
    local exponent, fraction = code >> 3, code & 7
    e4m3[code] = exponent == 0 and fraction * 2.0 ^ -9 or (8 + fraction) * 2.0 ^ (exponent - 10)
end

local function to_e4m3(x)
    local magnitude, low, high = math.abs(x), 0, 126
    while high - low > 1 do
        local middle = (low + high) // 2
        if e4m3[middle] <= magnitude then low = middle else high = middle end
    end
    local code = magnitude - e4m3[low] <= e4m3[high] - magnitude and low or high
    return x < 0 and code | 128 or code
end

-- ---- affine ---------------------------------------------------------------------------------------------------------

-- Codes of group w under (scale, bias), and the squared error.
local function round_group(w, scale, bias, top, codes)
    local err, inverse = 0.0, 1 / scale
    for i = 1, GROUP do
        local q = (w[i] - bias) * inverse + 0.5
        q = q < 0 and 0 or q // 1
        if q > top then q = top end
        codes[i] = q
        local d = scale * q + bias - w[i]
        err = err + d * d
    end
    return err
end

-- The scale and bias that fit given codes best.
local function refit(w, codes)
    local sq, sw, sqq, sqw = 0.0, 0.0, 0.0, 0.0
    for i = 1, GROUP do
        local q, x = codes[i], w[i]
        sq, sw, sqq, sqw = sq + q, sw + x, sqq + q * q, sqw + q * x
    end
    local variance = sqq - sq * sq / GROUP
    if variance <= 0 then return nil end
    local scale = (sqw - sq * sw / GROUP) / variance
    return scale, (sw - scale * sq) / GROUP
end

-- Returns codes, scale and bias (bf16 bits) of the smallest squared error that was found; `error` adds it up.
local function fit_group(w, top)
    local low, high = math.huge, -math.huge
    for i = 1, GROUP do
        if w[i] < low then low = w[i] end
        if w[i] > high then high = w[i] end
    end
    local best, codes, scale_bits, bias_bits = math.huge, nil, nil, nil
    local trial, spare = {}, {}
    for _, shrink in ipairs(shrinks) do
        local margin = (high - low) * shrink / 2
        local scale, bias = (high - low - 2 * margin) / top, low + margin
        for _ = 1, 3 do
            local s, b = to_bf16(math.max(scale, 1e-8)), to_bf16(bias)
            local err = round_group(w, from_bf16[s], from_bf16[b], top, trial)
            scale, bias = refit(w, trial)
            if err < best then
                best, scale_bits, bias_bits = err, s, b
                codes, trial = trial, codes or spare
            end
            if not scale or scale <= 0 then break end
        end
    end
    return codes, scale_bits, bias_bits, best
end

local group_format <const> = "<" .. ("I2"):rep(GROUP)

local function pack_codes(codes, bits, words)
    local pending, held = 0, 0
    for i = 1, GROUP do
        pending = pending | math.tointeger(codes[i]) << held
        held = held + bits
        if held >= 32 then
            words[#words + 1] = string.pack("<I4", pending & 0xffffffff)
            pending, held = pending >> 32, held - 32
        end
    end
end

-- Quantises `count` bf16 values that lie one after the other in data from `first` (0-based element) on.
local function affine(data, first, count, bits)
    local words, scales, biases, top, total = {}, {}, {}, (1 << bits) - 1, 0.0
    for at = first, first + count - 1, GROUP do
        local w = { string.unpack(group_format, data, 2 * at + 1) }
        for i = 1, GROUP do w[i] = from_bf16[w[i]] end
        local codes, scale, bias, err = fit_group(w, top)
        pack_codes(codes, bits, words)
        scales[#scales + 1] = string.pack("<I2", scale)
        biases[#biases + 1] = string.pack("<I2", bias)
        total = total + err
    end
    return table.concat(words), table.concat(scales), table.concat(biases), total
end

-- ---- tensors --------------------------------------------------------------------------------------------------------

local function read_checkpoint(path)
    local text = read_all(path)
    local bytes = string.unpack("<I8", text)
    local header = cjson.decode(text:sub(9, 8 + bytes))
    local tensors, names = {}, {}
    for name, row in pairs(header) do
        if name ~= "__metadata__" then
            local from, to = math.tointeger(row.data_offsets[1]), math.tointeger(row.data_offsets[2])
            for i, n in ipairs(row.shape) do row.shape[i] = math.tointeger(n) end
            local t = { dtype = row.dtype, shape = row.shape, data = text:sub(9 + bytes + from, 8 + bytes + to) }
            if t.dtype ~= "BF16" and t.dtype ~= "I64" then die("%s: expected BF16 or I64, found %s", name, t.dtype) end
            tensors[name], names[#names + 1] = t, name
        end
    end
    table.sort(names)
    return tensors, names
end

local function renamed(name)
    if name:match("^model%.language_model%.") then return (name:gsub("^model%.language_model%.", "language_model.model.")) end
    return "language_model." .. name
end

local function bits_of(name)
    for _, rule in ipairs(rules) do
        if name:find(rule[1]) then return rule[2] end
    end
end

local out = {} -- name -> { dtype, shape, data }

local function put(name, dtype, shape, data) out[name] = { dtype = dtype, shape = shape, data = data } end

-- One affine module from `count` values at `first`; shape is that of the values.
local function put_affine(module, t, shape, pieces, bits)
    local words, scales, biases = {}, {}, {}
    for i, piece in ipairs(pieces) do words[i], scales[i], biases[i] = affine(t.data, piece[1], piece[2], bits) end
    local function with(last)
        local s = { table.unpack(shape) }
        s[#s] = last
        return s
    end
    local k = shape[#shape]
    put(module .. ".weight", "U32", with(k * bits // 32), table.concat(words))
    put(module .. ".scales", "BF16", with(k // GROUP), table.concat(scales))
    put(module .. ".biases", "BF16", with(k // GROUP), table.concat(biases))
end

-- Stacked experts: gate and up of one tensor become two modules.
local function put_experts(name, t, bits)
    local experts, rows, k = t.shape[1], t.shape[2], t.shape[3]
    local prefix = renamed(name):gsub("experts%.[^.]+$", "switch_mlp.")
    local parts = name:match("gate_up_proj$") and { "gate_proj", "up_proj" } or { "down_proj" }
    local n = rows // #parts
    for i, part in ipairs(parts) do
        local pieces = {}
        for e = 0, experts - 1 do pieces[e + 1] = { (e * rows + (i - 1) * n) * k, n * k } end
        put_affine(prefix .. part, t, { experts, n, k }, pieces, bits)
    end
end

local function put_fp8(name, t)
    local most, codes, cells = 0, {}, {}
    for at = 1, #t.data, 2 do most = math.max(most, math.abs(from_bf16[string.unpack("<I2", t.data, at)])) end
    local scale = string.unpack("<f", string.pack("<f", most / 448))
    for at = 1, #t.data, 2 do
        local bits = string.unpack("<I2", t.data, at)
        codes[bits] = codes[bits] or string.char(to_e4m3(from_bf16[bits] / scale))
        cells[#cells + 1] = codes[bits]
    end
    put(renamed(name), "F8_E4M3", t.shape, table.concat(cells))
    put(renamed(name):gsub("ngram_embedding%..*$", "ngram_embedding.weight_scale"), "F32", { 1 }, string.pack("<f", scale))
end

-- Norms are stored as w + 1, in fp32 so that nothing is lost.
local function put_norm(name, t)
    local cells = {}
    for at = 1, #t.data, 2 do cells[#cells + 1] = string.pack("<f", from_bf16[string.unpack("<I2", t.data, at)] + 1) end
    put(renamed(name), "F32", t.shape, table.concat(cells))
end

local function convert(name, t)
    local bits = t.dtype == "BF16" and bits_of(name) or 16
    if #t.shape == 1 and name:find("norm") and not name:find("linear_attn%.norm") then
        put_norm(name, t)
    elseif name:find("conv1d%.weight$") then
        put(renamed(name), t.dtype, { t.shape[1], t.shape[3], t.shape[2] }, t.data)
    elseif #t.shape == 3 then
        put_experts(name, t, bits)
    elseif bits == "fp8" then
        put_fp8(name, t)
    elseif #t.shape == 2 and bits ~= 16 and t.shape[2] % GROUP == 0 then
        put_affine(renamed(name):gsub("%.weight$", ""), t, t.shape, { { 0, t.shape[1] * t.shape[2] } }, bits)
    else
        put(renamed(name), t.dtype, t.shape, t.data)
    end
end

-- ---- files ----------------------------------------------------------------------------------------------------------

local function sorted_keys(t)
    local keys = {}
    for key in pairs(t) do keys[#keys + 1] = key end
    table.sort(keys)
    return keys
end

local function write_safetensors(path)
    local header, data, offset = {}, {}, 0
    for i, name in ipairs(sorted_keys(out)) do
        local t = out[name]
        header[i] = string.format('"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}', name, t.dtype,
            table.concat(t.shape, ","), offset, offset + #t.data)
        data[i] = t.data
        offset = offset + #t.data
    end
    local text = '{"__metadata__":{"format":"mlx"},' .. table.concat(header, ",") .. "}"
    text = text .. (" "):rep(-#text % 8)
    write_all(path, string.pack("<I8", #text), text, table.concat(data))
    return 8 + #text + offset
end

local source, target = arg[1], arg[2]
if not target or arg[3] then die("expected two arguments, CHECKPOINT_DIR OUT_DIR") end
local tensors, names = read_checkpoint(source .. "/model.safetensors")
for i, name in ipairs(names) do
    convert(name, tensors[name])
    if io.stderr and i % 40 == 0 then io.stderr:write(string.format("%d of %d tensors\n", i, #names)) end
end
local bytes = write_safetensors(target .. "/model.safetensors")
write_all(target .. "/config.json", read_all(source .. "/config.json"))
io.stderr:write(string.format("%s/model.safetensors: %d bytes\n", target, bytes))
