-- SPDX-License-Identifier: Apache-2.0
--
-- How the numbers of a weight are stored: recognition of a checkpoint's tensors, and bytes in the pack.
--
-- Invariant: an encoding is decided by the dtypes and shapes of the tensors of one module, never by config.json; what the
-- configuration says is only compared with what was found. Sizes equal those of kernels/cpu/layout.h (the packer asserts it).

local fail = require "fail"
local safetensors = require "safetensors"

local encodings = {}

-- Order and names of `enum encoding` in kernels/cpu/ops.h.
encodings.names = { "f32", "bf16", "f16", "affine", "nvfp4", "mxfp8", "fp8_block", "fp8", "int4" }
encodings.id, encodings.constant = {}, {}
for i, name in ipairs(encodings.names) do
    encodings.id[name] = i - 1
    encodings.constant[name] = "ENC_" .. name:upper()
end

local show, shape_text <const> = safetensors.show, safetensors.shape_text
local FLOATS <const> = { BF16 = "bf16", F16 = "f16", F32 = "f32" }
local FLOATS_BACK <const> = { bf16 = true, f16 = true, f32 = true }
local AFFINE_BITS <const> = { [2] = true, [3] = true, [4] = true, [5] = true, [6] = true, [8] = true }
local AFFINE_GROUPS <const> = { [32] = true, [64] = true, [128] = true }

local function ceil_div(a, b) return (a + b - 1) // b end

local function describe(tensor)
    return string.format("%s %s", tensor.dtype, shape_text(tensor.shape))
end
encodings.describe = describe

-- A tensor seen as [lead, rows, columns] (lead nil without experts), or nil when it has another rank.
local function view(tensor, lead)
    local shape = tensor.shape
    if lead then
        if #shape == 3 and shape[1] == lead then return shape[2], shape[3] end
        if #shape == 2 and shape[1] == lead then return 1, shape[2] end
        return nil
    end
    if #shape == 2 then return shape[1], shape[2] end
    if #shape == 1 then return 1, shape[1] end
    return nil
end

-- Checks that a scale tensor is [lead,] rows x columns.
local function need(module, tensor, what, rows, columns, lead)
    local r, c = view(tensor, lead)
    if r ~= rows or c ~= columns then
        fail("tensor %s: expected %s of shape %s%d, %d] for weights %s, found %s", show(tensor.name), what,
            lead and string.format("[%d, ", lead) or "[", rows, columns, describe(module.data), describe(tensor))
    end
end

local function need_dtype(tensor, what, ...)
    for _, dtype in ipairs({ ... }) do
        if tensor.dtype == dtype then return end
    end
    fail("tensor %s: expected %s of dtype %s, found %s", show(tensor.name), what, table.concat({ ... }, " or "), describe(tensor))
end

local function missing(module, what)
    fail("tensor %s: %s is stored without %s", show(module.data.name), describe(module.data), what)
end

-- One value for all, or one an expert (or one an expert and half, for gate and up in one tensor).
local function need_scalar(tensor, what, lead)
    need_dtype(tensor, what, "F32", "BF16", "F16")
    if tensor.elements == 1 or (lead and (tensor.elements == lead or tensor.elements == 2 * lead)) then return end
    fail("tensor %s: expected %s of one value, found %s", show(tensor.name), what, describe(tensor))
end

local function recognise_nvfp4(module, find, k, lead)
    module.encoding, module.bits, module.group = "nvfp4", 4, 16
    module.scale = find("weight_scale", "scale") or missing(module, "weight_scale")
    local _, columns = view(module.scale, lead)
    if columns and columns * 32 == k and k ~= 16 * columns then
        fail("tensor %s: MXFP4 (scales per 32) is an encoding that no kernel reads", show(module.data.name))
    end
    need(module, module.scale, "scales per 16", module.rows, k // 16, lead)
    need_dtype(module.scale, "scales per 16", "F8_E4M3", "U8")
    local divisor = find("weight_global_scale")
    local factor = find("weight_scale_2", "scale_2")
    if divisor and factor then fail("tensor %s: both weight_global_scale and weight_scale_2 are stored", show(module.data.name)) end
    module.global = divisor or factor or missing(module, "weight_scale_2 or weight_global_scale")
    module.divisor = divisor ~= nil
    need_scalar(module.global, "the global scale", lead)
end

local function recognise_mxfp8(module, scale, k, lead)
    module.encoding, module.bits, module.group, module.scale = "mxfp8", 8, 32, scale
    need(module, scale, "scales per 32", module.rows, k // 32, lead)
end

local function recognise_fp8(module, find, k, lead)
    local scale, inverse = find("weight_scale", "scale"), find("weight_scale_inv", "scale_inv")
    if scale and inverse then fail("tensor %s: both weight_scale and weight_scale_inv are stored", show(module.data.name)) end
    scale = scale or inverse or missing(module, "weight_scale or weight_scale_inv")
    if scale.dtype == "U8" or scale.dtype == "F8_E8M0" then return recognise_mxfp8(module, scale, k, lead) end
    need_dtype(scale, "scales", "F32", "BF16", "F16")
    module.bits, module.group, module.scale = 8, 0, scale
    local rows, columns = view(scale, lead)
    if scale.elements == 1 or (lead and #scale.shape == 1 and scale.elements == lead) or (lead and rows == 1 and columns == 1) then
        module.encoding, module.global, module.scale = "fp8", scale, nil
    elseif rows == ceil_div(module.rows, 128) and columns == ceil_div(k, 128) then
        module.encoding, module.group = "fp8_block", 128
    elseif not inverse and (rows == module.rows and columns == 1 or #scale.shape == 1 and scale.elements == module.rows) then
        module.encoding, module.channel = "fp8", true
    else
        fail("tensor %s: expected one scale or scales of shape [%d, %d] (128x128 blocks) for weights %s, found %s", show(scale.name),
            ceil_div(module.rows, 128), ceil_div(k, 128), describe(module.data), describe(scale))
    end
end

-- MLX: codes in 32-bit words, the lowest bits first.
local function recognise_mlx(module, find, columns, k, lead)
    module.scale = find("scales") or missing(module, "scales")
    module.bias = find("biases")
    local bits = columns * 32 // k
    local rows, groups = view(module.scale, lead)
    if columns * 32 ~= bits * k or not AFFINE_BITS[bits] then
        fail("tensor %s: %s holds no 2, 3, 4, 5, 6 or 8 bits for each of %d columns", show(module.data.name), describe(module.data), k)
    end
    if rows ~= module.rows or not groups or groups == 0 or k % groups ~= 0 then
        fail("tensor %s: expected scales of shape [.., %d, groups] for weights %s, found %s", show(module.scale.name), module.rows,
            describe(module.data), describe(module.scale))
    end
    local group = k // groups
    if module.scale.dtype == "U8" then
        if bits == 4 and group == 16 then
            module.encoding, module.bits, module.group = "nvfp4", 4, 16
            module.global = find("global_scale")
            if module.global then need_scalar(module.global, "the global scale", lead) end
        elseif bits == 8 and group == 32 then
            recognise_mxfp8(module, module.scale, k, lead)
        else
            fail("tensor %s: %d-bit codes with %s scales per %d is an encoding that no kernel reads", show(module.data.name), bits,
                module.scale.dtype, group)
        end
        return
    end
    if not AFFINE_GROUPS[group] then
        fail("tensor %s: groups of %d are not supported (32, 64 or 128)", show(module.scale.name), group)
    end
    if not module.bias then missing(module, "biases") end
    need(module, module.bias, "biases", module.rows, groups, lead)
    need_dtype(module.scale, "scales", "BF16", "F16", "F32")
    need_dtype(module.bias, "biases", module.scale.dtype)
    module.encoding, module.bits, module.group = "affine", bits, group
end

-- GPTQ and AutoRound: [k/8, n] words, transposed; compressed-tensors: [n, k/8] words.
local function recognise_int4(module, find, k, lead)
    if lead then fail("tensor %s: stacked int4 experts are not supported", show(module.data.name)) end
    local data = module.data
    module.encoding, module.bits = "int4", 4
    if data.name:match("weight_packed$") then
        module.scale = find("weight_scale") or missing(module, "weight_scale")
        if data.shape[2] ~= ceil_div(k, 8) then
            fail("tensor %s: expected %d words a row, found %s", show(data.name), ceil_div(k, 8), describe(data))
        end
        local rows, groups = view(module.scale, nil)
        if rows ~= module.rows or not groups or groups == 0 or k % groups ~= 0 then
            fail("tensor %s: scales %s do not fit weights %s", show(module.scale.name), describe(module.scale), describe(data))
        end
        module.group, module.zero = k // groups, find("weight_zero_point")
        if module.zero then fail("tensor %s: int4 with zero points is an encoding that no kernel reads", show(module.zero.name)) end
    else
        module.transposed = true
        module.scale = find("scales") or missing(module, "scales")
        module.zero = find("qzeros") or missing(module, "qzeros")
        module.order = find("g_idx")
        if #data.shape ~= 2 or data.shape[1] * 8 ~= k then
            fail("tensor %s: expected 4-bit GPTQ words of shape [%d, n], found %s", show(data.name), k // 8, describe(data))
        end
        module.rows = data.shape[2]
        local groups = module.scale.shape[1]
        if #module.scale.shape ~= 2 or module.scale.shape[2] ~= module.rows or groups == 0 or k % groups ~= 0 then
            fail("tensor %s: scales %s do not fit weights %s", show(module.scale.name), describe(module.scale), describe(data))
        end
        module.group = k // groups
        need_dtype(module.zero, "zero points", "I32")
        need(module, module.zero, "zero points", groups, module.rows // 8, nil)
        if module.rows % 8 ~= 0 then fail("tensor %s: %d outputs are not a multiple of 8", show(data.name), module.rows) end
        need_dtype(module.order or module.zero, "the order of columns", "I32")
        if module.order and module.order.elements ~= k then
            fail("tensor %s: expected %d columns, found %s", show(module.order.name), k, describe(module.order))
        end
    end
    need_dtype(module.scale, "scales", "F16", "BF16", "F32")
    if not AFFINE_GROUPS[module.group] then
        fail("tensor %s: groups of %d are not supported (32, 64 or 128)", show(module.scale.name), module.group)
    end
end

-- What is stored for one module: data (its main tensor) seen as [lead,] rows x k. find(suffix, ...) gives the module's other
-- tensors. Result: { data, rows, encoding, bits, group, scale, bias, global, divisor, channel, transposed, zero, order }.
function encodings.recognise(data, find, k, lead)
    local rows, columns = view(data, lead)
    if not rows then
        fail("tensor %s: expected shape [%srows, columns], found %s", show(data.name), lead and lead .. ", " or "", describe(data))
    end
    local module = { data = data, rows = rows }
    local dtype = data.dtype
    if FLOATS[dtype] then
        module.encoding, module.bits, module.group = FLOATS[dtype], dtype == "F32" and 32 or 16, 0
    elseif dtype == "U8" and columns * 2 == k or dtype == "F4" and columns == k then
        recognise_nvfp4(module, find, k, lead)
        return module
    elseif dtype == "F8_E4M3" then
        recognise_fp8(module, find, columns, lead)
    elseif dtype == "U8" and columns == k then
        local scale = find("weight_scale", "scale") or missing(module, "weight_scale")
        need_dtype(scale, "scales per 32", "U8", "F8_E8M0")
        recognise_mxfp8(module, scale, k, lead)
    elseif dtype == "U32" then
        recognise_mlx(module, find, columns, k, lead)
        return module
    elseif dtype == "I32" then
        recognise_int4(module, find, k, lead)
        return module
    else
        fail("tensor %s: %s is an encoding that no kernel reads", show(data.name), describe(data))
    end
    if columns ~= k then fail("tensor %s: expected %d columns, found %s", show(data.name), k, describe(data)) end
    return module
end

-- ---- the configuration --------------------------------------------------------------------------------------------------

local METHODS <const> = {
    ["fp8"] = { float = true, fp8 = true, fp8_block = true },
    ["mxfp8"] = { float = true, mxfp8 = true },
    ["modelopt"] = { float = true, nvfp4 = true, mxfp8 = true, fp8 = true, fp8_block = true },
    ["modelopt_fp4"] = { float = true, nvfp4 = true, mxfp8 = true, fp8 = true, fp8_block = true },
    ["modelopt_mixed"] = { float = true, nvfp4 = true, mxfp8 = true, fp8 = true, fp8_block = true },
    ["compressed-tensors"] = { float = true, nvfp4 = true, mxfp8 = true, fp8 = true, fp8_block = true, int4 = true },
    ["gptq"] = { float = true, int4 = true, fp8 = true },
    ["auto-round"] = { float = true, int4 = true, fp8 = true, nvfp4 = true, mxfp8 = true },
    ["auto_round"] = { float = true, int4 = true, fp8 = true, nvfp4 = true, mxfp8 = true },
    ["mlx"] = { float = true, affine = true, nvfp4 = true, mxfp8 = true },
}

local function known(list)
    local names = {}
    for name in pairs(list) do names[#names + 1] = name end
    table.sort(names)
    return table.concat(names, ", ")
end

-- Refuses a quantisation configuration that nothing here reads. quantization: quantization_config, mlx: quantization; or nil.
function encodings.check_config(quantization, mlx, folder)
    if quantization ~= nil and type(quantization) ~= "table" then fail("%s/config.json: quantization_config is not an object", folder) end
    if mlx ~= nil and type(mlx) ~= "table" then fail("%s/config.json: quantization is not an object", folder) end
    if quantization and quantization.quant_method ~= nil then
        local method = tostring(quantization.quant_method)
        if not METHODS[method] then
            fail("%s/config.json: quantization_config: quant_method %s is not known (%s)", folder, show(method), known(METHODS))
        end
        local block = quantization.weight_block_size
        if type(block) == "table" and (block[1] ~= 128 or block[2] ~= 128 or block[3] ~= nil) then
            fail("%s/config.json: quantization_config: weight_block_size is %s, only [128, 128] is read", folder, shape_text(block))
        end
    end
    if mlx then
        local mode = mlx.mode or "affine"
        if mode ~= "affine" and mode ~= "nvfp4" and mode ~= "mxfp8" then
            fail("%s/config.json: quantization: mode %s is an encoding that no kernel reads", folder, show(mode))
        end
    end
end

-- The MLX settings of one module: its own entry under the name in the file, else the common one; false: not quantised.
local function mlx_settings(mlx, raw)
    local own = mlx[raw]
    if own == nil then own = mlx[raw:gsub("^language_model%.", "")] end
    if own == nil or own == true then return mlx end
    return own
end

local function contradiction(module, key, says)
    fail("tensor %s: is stored as %s (%d bits, groups of %d), which contradicts config.json: %s says %s", show(module.data.name),
        module.encoding, module.bits, module.group, key, says)
end

-- Compares what was found for one module with what config.json says about it.
function encodings.check_module(module, k, quantization, mlx)
    local class = FLOATS_BACK[module.encoding] and "float" or module.encoding
    if class == "float" then return end
    if mlx then
        if not METHODS.mlx[class] then contradiction(module, "quantization", "MLX " .. (mlx.mode or "affine")) end
        local own = mlx_settings(mlx, (module.data.name:gsub("%.weight$", "")))
        if own == false then contradiction(module, "quantization", "not quantised") end
        if class == "affine" and type(own) == "table" then
            local bits, group = tonumber(own.bits), tonumber(own.group_size)
            if bits and bits ~= module.bits then contradiction(module, "quantization", string.format("%g bits", bits)) end
            -- Exporters fall back to a smaller group where k is not a multiple of the configured one.
            if group and group ~= module.group and k % group == 0 then
                contradiction(module, "quantization", string.format("groups of %g", group))
            end
        end
        return
    end
    local method = quantization and quantization.quant_method
    if not method then return end
    if not METHODS[method][class] then contradiction(module, "quantization_config", "quant_method " .. method) end
    if class == "int4" then
        local bits, group = tonumber(quantization.bits), tonumber(quantization.group_size)
        if bits and bits ~= 4 then contradiction(module, "quantization_config", string.format("%g bits", bits)) end
        if group and group > 0 and group ~= module.group then
            contradiction(module, "quantization_config", string.format("groups of %g", group))
        end
    elseif class == "nvfp4" and quantization.quant_algo == "FP8" then
        contradiction(module, "quantization_config", "quant_algo FP8")
    end
end

-- ---- the pack -----------------------------------------------------------------------------------------------------------

-- Whether a weight has a per-tensor fp32 factor.
function encodings.has_global(encoding)
    return encoding == "nvfp4" or encoding == "fp8"
end

-- Block scales stay usable only when whole tiles of 128 rows move.
local function whole_tiles(runs)
    local position = 0
    for i, run in ipairs(runs) do
        if run[1] % 128 ~= 0 or position % 128 ~= 0 or (run[2] % 128 ~= 0 and i < #runs) then return false end
        position = position + run[2]
    end
    return true
end

-- Settles how a recognised weight is kept: as it is stored, or decoded to f32 where no kernel reads the form (one FP8 scale a
-- row, or block scales whose rows are permuted inside a tile). record.stored says what the sources hold.
function encodings.settle(record, module, runs)
    record.stored = { encoding = module.encoding, bits = module.bits, group = module.group }
    if module.encoding == "int4" and (runs or record.kind == "rows") then
        fail("tensor %s: int4 weights are read whole and as matrices only", show(module.data.name))
    end
    if module.channel or (module.encoding == "fp8_block" and (record.kind == "rows" or runs and not whole_tiles(runs))) then
        record.encoding, record.bits, record.group = "f32", 32, 0
    end
    record.global = encodings.has_global(record.encoding) or record.kind == "rows" and module.global ~= nil
    return record
end

-- Counts changes of the layouts; a pack of another version is of another build.
encodings.LAYOUT_VERSION = 2

local PANEL <const>, PANEL_BLOCK <const> = 16, 32

local function round_up(value, unit) return ceil_div(value, unit) * unit end

-- Bytes of codes and of scales of one matrix in the panel layout (panel_data_bytes, panel_scale_bytes).
function encodings.panel_bytes(encoding, bits, group, n, k)
    local panels, columns = ceil_div(n, PANEL), round_up(k, PANEL_BLOCK)
    local cells = panels * PANEL * columns
    if encoding == "f32" then return cells * 4, 0 end
    if encoding == "bf16" or encoding == "f16" then return cells * 2, 0 end
    if encoding == "affine" or encoding == "int4" then return cells // 8 * bits, panels * ceil_div(k, group) * 64 end
    if encoding == "nvfp4" then return cells // 2, round_up(panels * columns, 64) end
    if encoding == "mxfp8" then return cells, round_up(panels * columns // 2, 64) end
    if encoding == "fp8_block" then return cells, round_up(panels * ceil_div(columns, 128) * 4, 64) end
    return cells, 0
end

-- Bytes of one row in the row layout (row_bytes).
function encodings.row_bytes(encoding, bits, group, k)
    if encoding == "f32" then return 4 * k end
    if encoding == "bf16" or encoding == "f16" then return 2 * k end
    if encoding == "affine" then return k * bits // 8 + 4 * (k // group) end
    if encoding == "nvfp4" then return k // 2 + k // 16 end
    if encoding == "mxfp8" then return k + k // 32 end
    if encoding == "fp8" then return k end
    return fail("a table cannot be stored as %s", encoding)
end

return encodings
