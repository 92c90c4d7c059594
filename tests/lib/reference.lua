-- SPDX-License-Identifier: Apache-2.0
--
-- Reads expected.safetensors of a reference folder and float32 logit files: prompts, logits, greedy ids and their margins.

local cjson = require "cjson"

local reference = {}

local FORMAT <const> = { F32 = "<f", I64 = "<i8" }
local SIZE <const> = { F32 = 4, I64 = 8 }

-- All tensors of a small file: name -> { shape, values }.
function reference.load(path)
    local f = assert(io.open(path, "rb"), path)
    local size = string.unpack("<I8", f:read(8))
    local header = cjson.decode(f:read(size))
    local data = f:read("a")
    f:close()
    local out = {}
    for name, t in pairs(header) do
        if name ~= "__metadata__" then
            local values, format, step = {}, FORMAT[t.dtype], SIZE[t.dtype]
            for at = t.data_offsets[1], t.data_offsets[2] - 1, step do values[#values + 1] = (string.unpack(format, data, at + 1)) end
            out[name] = { shape = t.shape, values = values }
        end
    end
    return out
end

-- Floats of a raw file.
function reference.floats(path)
    local f = io.open(path, "rb")
    if not f then return {} end
    local data, out = f:read("a"), {}
    f:close()
    for at = 1, #data, 4 do out[#out + 1] = (string.unpack("<f", data, at)) end
    return out
end

-- Largest absolute difference; infinite when lengths differ or a number is not finite.
function reference.distance(a, b)
    if #a ~= #b or #a == 0 then return math.huge end
    local worst = 0
    for i, x in ipairs(a) do
        local d = math.abs(x - b[i])
        if not (d <= worst) then worst = d == d and d or math.huge end
    end
    return worst
end

return reference
