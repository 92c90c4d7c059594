-- SPDX-License-Identifier: Apache-2.0
--
-- Random weights in every published encoding, with the numbers that they stand for. Written from the formats' descriptions
-- and independent of gen/ and kernels/, so that agreement means something.
--
--   local encode = require("encode").new(seed)
--   local parts, values = encode.nvfp4(n, k)     -- parts: suffix -> { dtype, shape, data }; values: row-major array of n * k

local module = {}

local E2M1 <const> = { [0] = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0 }

local function e2m1(code) return code >= 8 and -E2M1[code - 8] or E2M1[code] end

local function e4m3(byte)
    local exponent, mantissa = byte >> 3 & 15, byte & 7
    local value = exponent == 0 and mantissa * 2.0 ^ -9 or (8 + mantissa) * 2.0 ^ (exponent - 10)
    return byte >= 128 and -value or value
end

local function f32(value) return (string.unpack("<f", string.pack("<f", value))) end

function module.new(seed)
    local encode, state = {}, seed or 1

    -- 0 .. bound - 1
    local function random(bound)
        state = state * 6364136223846793005 + 1442695040888963407
        return (state >> 33) % bound
    end
    encode.random = random

    -- A bf16 number of ordinary size, as its bits and value.
    local function bf16()
        local bits = random(2) << 15 | (118 + random(8)) << 7 | random(128)
        return bits, (string.unpack("<f", string.pack("<I4", bits << 16)))
    end

    local function half()
        local exponent, mantissa = 8 + random(8), random(1024)
        return exponent << 10 | mantissa, (1024 + mantissa) * 2.0 ^ (exponent - 25)
    end

    local function single()
        local value = f32((random(1 << 20) + 1) * 2.0 ^ -24)
        return value
    end

    function encode.bf16(n, k)
        local data, values = {}, {}
        for i = 1, n * k do
            local bits
            bits, values[i] = bf16()
            data[i] = string.pack("<I2", bits)
        end
        return { weight = { "BF16", { n, k }, table.concat(data) } }, values
    end

    function encode.f16(n, k)
        local data, values = {}, {}
        for i = 1, n * k do
            local bits
            bits, values[i] = half()
            data[i] = string.pack("<I2", bits)
        end
        return { weight = { "F16", { n, k }, table.concat(data) } }, values
    end

    function encode.f32(n, k)
        local data, values = {}, {}
        for i = 1, n * k do
            values[i] = f32((random(1 << 24) - (1 << 23)) * 2.0 ^ -20)
            data[i] = string.pack("<f", values[i])
        end
        return { weight = { "F32", { n, k }, table.concat(data) } }, values
    end

    local function scales_of(count, make)
        local data, values = {}, {}
        for i = 1, count do data[i], values[i] = make() end
        return table.concat(data), values
    end

    local function byte_scale()
        local byte = 32 + random(64)
        return string.char(byte), e4m3(byte)
    end

    local function bf16_scale()
        local bits, value = bf16()
        return string.pack("<I2", bits), value
    end

    -- E2M1 codes of n x k packed low half first, and their numbers.
    local function fp4_codes(n, k)
        local data, codes = {}, {}
        for i = 1, n * k, 2 do
            local byte = random(256)
            data[#data + 1] = string.char(byte)
            codes[i], codes[i + 1] = e2m1(byte & 15), e2m1(byte >> 4)
        end
        return table.concat(data), codes
    end

    -- style "modelopt" (default), "compressed" (divisor), "mlx" (U32 words, no global), "table" (no global of its own)
    function encode.nvfp4(n, k, style, global)
        local codes, values = fp4_codes(n, k)
        local scales, scale_values = scales_of(n * k // 16, byte_scale)
        global = global or single()
        local factor = style == "compressed" and f32(1.0 / global) or style == "mlx" and 1.0 or global
        for i = 1, n * k do values[i] = values[i] * scale_values[(i - 1) // 16 + 1] * factor end
        local shape, scale = { n, k // 2 }, { "F8_E4M3", { n, k // 16 }, scales }
        if style == "compressed" then
            return {
                weight_packed = { "U8", shape, codes }, weight_scale = scale,
                weight_global_scale = { "F32", { 1 }, string.pack("<f", global) },
                input_global_scale = { "F32", { 1 }, string.pack("<f", 1.0) },
            }, values
        elseif style == "mlx" then
            return { weight = { "U32", { n, k // 8 }, codes }, scales = { "U8", { n, k // 16 }, scales } }, values
        elseif style == "table" then
            return { weight = { "U8", shape, codes }, weight_scale = scale }, values
        end
        return {
            weight = { "U8", shape, codes }, weight_scale = scale, weight_scale_2 = { "F32", {}, string.pack("<f", global) },
            input_scale = { "F32", {}, string.pack("<f", 0.01) },
        }, values
    end

    local function fp8_codes(n, k)
        local data, values = {}, {}
        for i = 1, n * k do
            local byte = random(127) | random(2) << 7
            data[i], values[i] = string.char(byte), e4m3(byte)
        end
        return table.concat(data), values
    end

    function encode.mxfp8(n, k, style)
        local codes, values = fp8_codes(n, k)
        local scales, factors = scales_of(n * k // 32, function()
            local byte = 118 + random(12)
            return string.char(byte), 2.0 ^ (byte - 127)
        end)
        for i = 1, n * k do values[i] = values[i] * factors[(i - 1) // 32 + 1] end
        if style == "mlx" then
            return { weight = { "U32", { n, k // 4 }, codes }, scales = { "U8", { n, k // 32 }, scales } }, values
        end
        return { weight = { "F8_E4M3", { n, k }, codes }, weight_scale = { "U8", { n, k // 32 }, scales } }, values
    end

    -- style "bf16" (default) or "f32" scales
    function encode.fp8_block(n, k, style)
        local codes, values = fp8_codes(n, k)
        local rows, columns = (n + 127) // 128, (k + 127) // 128
        local scales, factors = scales_of(rows * columns, style == "f32" and function()
            local value = single()
            return string.pack("<f", value), value
        end or bf16_scale)
        for i = 0, n * k - 1 do
            values[i + 1] = values[i + 1] * factors[i // k // 128 * columns + i % k // 128 + 1]
        end
        return {
            weight = { "F8_E4M3", { n, k }, codes },
            weight_scale_inv = { style == "f32" and "F32" or "BF16", { rows, columns }, scales },
        }, values
    end

    -- style "channel": one scale a row
    function encode.fp8(n, k, style)
        local codes, values = fp8_codes(n, k)
        local scales, factors = scales_of(style == "channel" and n or 1, bf16_scale)
        for i = 0, n * k - 1 do values[i + 1] = values[i + 1] * factors[style == "channel" and i // k + 1 or 1] end
        return {
            weight = { "F8_E4M3", { n, k }, codes }, weight_scale = { "BF16", style == "channel" and { n, 1 } or {}, scales },
        }, values
    end

    -- FP8 rows without a scale of their own, times `factor`.
    function encode.fp8_rows(n, k, factor)
        local codes, values = fp8_codes(n, k)
        for i = 1, n * k do values[i] = values[i] * factor end
        return { weight = { "F8_E4M3", { n, k }, codes } }, values
    end

    -- MLX: a stream of `bits`-bit codes a row, lowest bits first
    function encode.affine(n, k, bits, group)
        local rows, values = {}, {}
        local scales, scale_values = scales_of(n * k // group, bf16_scale)
        local biases, bias_values = scales_of(n * k // group, bf16_scale)
        for row = 0, n - 1 do
            local bytes, buffer, held = {}, 0, 0
            for column = 0, k - 1 do
                local q, g = random(1 << bits), (row * k + column) // group + 1
                values[row * k + column + 1] = f32(scale_values[g] * q + bias_values[g])
                buffer, held = buffer | q << held, held + bits
                while held >= 8 do
                    bytes[#bytes + 1] = string.char(buffer & 255)
                    buffer, held = buffer >> 8, held - 8
                end
            end
            rows[row + 1] = table.concat(bytes)
        end
        return {
            weight = { "U32", { n, k * bits // 32 }, table.concat(rows) }, scales = { "BF16", { n, k // group }, scales },
            biases = { "BF16", { n, k // group }, biases },
        }, values
    end

    -- style "gptq" (default): transposed words and stored zero - 1; "symmetric": 8 as 7; "compressed": rows of words, zero 8
    function encode.int4(n, k, group, style)
        local codes, words, scales, zeros, zero_words, values = {}, {}, {}, {}, {}, {}
        local scale_values = {}
        for g = 0, k // group - 1 do
            for o = 0, n - 1 do
                local bits
                bits, scale_values[g * n + o] = half()
                scales[style == "compressed" and o * (k // group) + g + 1 or g * n + o + 1] = string.pack("<I2", bits)
                zeros[g * n + o] = style and 8 or 1 + random(15)
            end
            for o = 0, n - 1, 8 do
                local word = 0
                for i = 0, 7 do word = word | (zeros[g * n + o + i] - 1) << 4 * i end
                zero_words[#zero_words + 1] = string.pack("<I4", word)
            end
        end
        for o = 0, n - 1 do
            for i = 0, k - 1 do
                local q, at = random(16), i // group * n + o
                codes[o * k + i] = q
                values[o * k + i + 1] = scale_values[at] * (q - zeros[at])
            end
        end
        for word = 0, n * k // 8 - 1 do
            local o, i = word % n, word // n * 8
            if style == "compressed" then o, i = word // (k // 8), word % (k // 8) * 8 end
            local bits = 0
            for j = 0, 7 do bits = bits | codes[o * k + i + j] << 4 * j end
            words[word + 1] = string.pack("<I4", bits)
        end
        if style == "compressed" then
            return {
                weight_packed = { "I32", { n, k // 8 }, table.concat(words) },
                weight_scale = { "F16", { n, k // group }, table.concat(scales) },
                weight_shape = { "I64", { 2 }, string.pack("<i8i8", n, k) },
            }, values
        end
        local order = {}
        for i = 0, k - 1 do order[i + 1] = string.pack("<i4", i // group) end
        return {
            qweight = { "I32", { k // 8, n }, table.concat(words) }, scales = { "F16", { k // group, n }, table.concat(scales) },
            qzeros = { "I32", { k // group, n // 8 }, table.concat(zero_words) }, g_idx = { "I32", { k }, table.concat(order) },
        }, values
    end

    return encode
end

-- Appends a module's parts to a list of tensors for safetensors_write.
function module.add(list, base, parts)
    local suffixes = {}
    for suffix in pairs(parts) do suffixes[#suffixes + 1] = suffix end
    table.sort(suffixes)
    for _, suffix in ipairs(suffixes) do
        local part = parts[suffix]
        list[#list + 1] = { name = base .. "." .. suffix, dtype = part[1], shape = part[2], data = part[3] }
    end
end

-- Stacks the parts of equal modules along a new first dimension.
function module.stack(modules)
    local out = {}
    for suffix, part in pairs(modules[1]) do
        local data, shape = {}, { #modules }
        for i, m in ipairs(modules) do data[i] = m[suffix][3] end
        for _, extent in ipairs(part[2]) do shape[#shape + 1] = extent end
        out[suffix] = { part[1], shape, table.concat(data) }
    end
    return out
end

return module
