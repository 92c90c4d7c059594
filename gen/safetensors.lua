-- SPDX-License-Identifier: Apache-2.0
--
-- Headers of safetensors files, and a few values of their data.
--
--   local safetensors = require "safetensors"
--   local set = safetensors.open("checkpoint-folder")
--   set.tensors["lm_head.weight"]  -> { name, dtype, shape = {..}, file = index in set.files, offset = in the file, bytes }
--   safetensors.read(set, tensor, first_byte, count) -> string
--   safetensors.values(set, tensor, first, count)    -> array of numbers (bf16, f16, f32, f64, integers)
--
-- Invariant: every tensor of an opened set lies inside its file, fits its shape, and shares no byte with another; the files
-- have no bytes that belong to nothing. The data itself is never read here beyond what `read` is asked for.

local cjson = require "cjson"
local fail = require "fail"

local safetensors = {}

local HEADER_LIMIT <const> = 512 << 20
local RANK_LIMIT <const> = 8
local EXACT <const> = 2.0 ^ 53

-- Bits of one element.
local DTYPE_BITS <const> = {
    F64 = 64, F32 = 32, F16 = 16, BF16 = 16, I64 = 64, I32 = 32, I16 = 16, I8 = 8, U64 = 64, U32 = 32, U16 = 16, U8 = 8,
    BOOL = 8, F8_E4M3 = 8, F8_E5M2 = 8, F8_E8M0 = 8, F4 = 4,
}
safetensors.dtype_bits = DTYPE_BITS

local json = cjson.new()
json.decode_invalid_numbers(false)
json.decode_max_depth(64)

-- A name from a file as it may stand in a one-line message.
local function show(name)
    local text = tostring(name):gsub("[%c\127]", function(c) return string.format("\\x%02x", c:byte()) end)
    if #text > 160 then text = text:sub(1, 157) .. "..." end
    return text
end
safetensors.show = show

local function decode(text, path, what)
    local ok, value = pcall(json.decode, text)
    if not ok then fail("%s: %s is not valid JSON (%s)", path, what, show(value)) end
    if type(value) ~= "table" then fail("%s: %s is not a JSON object", path, what) end
    return value
end

-- An integer 0 .. 2^53 of a JSON value, or nil.
local function natural(value)
    if type(value) ~= "number" or value ~= value or value < 0 or value > EXACT then return nil end
    return math.tointeger(value)
end

local function open_file(path)
    local file, message = io.open(path, "rb")
    if not file then fail("%s: cannot be opened (%s)", path, (message or ""):match("[^:]*$"):gsub("^%s+", "")) end
    local size = file:seek("end")
    if not size or size == math.maxinteger or not file:seek("set", 0) or not (size == 0 or file:read(1)) then
        file:close()
        fail("%s: is not a readable file", path)
    end
    file:seek("set", 0)
    return file, size
end

-- The whole of a small JSON file.
function safetensors.read_json(path, limit)
    local file, size = open_file(path)
    if size > (limit or HEADER_LIMIT) then
        file:close()
        fail("%s: %d bytes is more than the limit of %d", path, size, limit or HEADER_LIMIT)
    end
    local text = file:read("a")
    file:close()
    return decode(text, path, "the file")
end

local function exists(path)
    local file = io.open(path, "rb")
    if file then file:close() end
    return file ~= nil
end

local function shape_text(shape)
    local parts = {}
    for i, extent in ipairs(shape) do parts[i] = show(math.type(extent) and math.tointeger(extent) or extent) end
    return "[" .. table.concat(parts, ", ") .. "]"
end
safetensors.shape_text = shape_text

-- Elements of a checked shape; nil when they overflow.
local function elements_of(shape)
    local product = 1
    for _, extent in ipairs(shape) do
        if extent == 0 then return 0 end
        if product > (1 << 53) // extent then return nil end
        product = product * extent
    end
    return product
end

-- One header entry -> tensor; offsets are relative to the data section.
local function tensor_of(path, name, entry)
    if type(entry) ~= "table" then fail("%s: tensor %s: its header entry is not an object", path, show(name)) end
    local bits = type(entry.dtype) == "string" and DTYPE_BITS[entry.dtype]
    if not bits then fail("%s: tensor %s: unknown dtype %s", path, show(name), show(entry.dtype)) end
    if type(entry.shape) ~= "table" then fail("%s: tensor %s: shape is not a list", path, show(name)) end
    local shape, count = {}, 0
    for _ in pairs(entry.shape) do count = count + 1 end
    if count > RANK_LIMIT then fail("%s: tensor %s: %d dimensions, at most %d are read", path, show(name), count, RANK_LIMIT) end
    for i = 1, count do
        shape[i] = natural(entry.shape[i])
        if not shape[i] then
            fail("%s: tensor %s: dimension %d of its shape is %s, not a whole number", path, show(name), i, show(entry.shape[i]))
        end
    end
    local range = entry.data_offsets
    local first = type(range) == "table" and natural(range[1])
    local last = first and natural(range[2])
    if not last or range[3] ~= nil then fail("%s: tensor %s: data_offsets are not two whole numbers", path, show(name)) end
    if first > last then fail("%s: tensor %s: data_offsets [%d, %d] run backwards", path, show(name), first, last) end
    local elements = elements_of(shape)
    if not elements or elements > (1 << 56) // bits then fail("%s: tensor %s: shape %s overflows", path, show(name), shape_text(shape)) end
    if elements * bits % 8 ~= 0 or elements * bits // 8 ~= last - first then
        fail("%s: tensor %s: shape %s of %s needs %d bytes, data_offsets [%d, %d] hold %d", path, show(name), shape_text(shape),
            entry.dtype, (elements * bits + 7) // 8, first, last, last - first)
    end
    return { name = name, dtype = entry.dtype, shape = shape, elements = elements, offset = first, bytes = last - first }
end

-- No byte of the data section belongs to two tensors or to none.
local function check_cover(path, list, data_bytes)
    table.sort(list, function(a, b)
        if a.offset ~= b.offset then return a.offset < b.offset end
        if a.bytes ~= b.bytes then return a.bytes < b.bytes end
        return a.name < b.name
    end)
    local position, previous = 0, nil
    for _, tensor in ipairs(list) do
        if tensor.offset < position then
            fail("%s: tensors %s and %s overlap at byte %d of the data", path, show(previous), show(tensor.name), tensor.offset)
        elseif tensor.offset > position then
            fail("%s: bytes %d to %d of the data, before tensor %s, belong to no tensor", path, position, tensor.offset, show(tensor.name))
        end
        position, previous = tensor.offset + tensor.bytes, tensor.name
    end
    if position ~= data_bytes then
        fail("%s: expected %d bytes of data after the header, found %d", path, position, data_bytes)
    end
end

-- Adds the tensors of one file to the set.
local function add_file(set, path, label)
    local file, size = open_file(path)
    local head = file:read(8)
    local length = head and #head == 8 and string.unpack("<I8", head)
    if not length then
        file:close()
        fail("%s: expected a header of 8 bytes or more, found %d bytes", path, size)
    end
    if length < 0 or length > HEADER_LIMIT then
        file:close()
        fail("%s: the header length %s is above the limit of %d; this is not a safetensors file", path,
            string.format("%u", length & 0x7fffffffffffffff), HEADER_LIMIT)
    end
    if length > size - 8 then
        file:close()
        fail("%s: truncated: expected a header of %d bytes, found %d; fetch it again", path, length, size - 8)
    end
    local text = length > 0 and file:read(length) or ""
    file:close()
    local header, data_bytes = decode(text, path, "the header"), size - 8 - length
    local index, names, list = #set.files + 1, {}, {}
    for name in pairs(header) do
        if type(name) ~= "string" then fail("%s: the header is a list, not an object", path) end
        if name ~= "__metadata__" then names[#names + 1] = name end
    end
    table.sort(names) -- so that the first fault that is told is always the same
    local data_end = 0
    for i, name in ipairs(names) do
        list[i] = tensor_of(path, name, header[name])
        data_end = math.max(data_end, list[i].offset + list[i].bytes)
    end
    if data_end > data_bytes then
        fail("%s: expected %d bytes, found %d; it is truncated: fetch it again", path, 8 + length + data_end, size)
    end
    check_cover(path, list, data_bytes)
    set.files[index] = { path = path, label = label, bytes = size, data = 8 + length, tensors = #list }
    for _, tensor in ipairs(list) do
        local other = set.tensors[tensor.name]
        if other then fail("%s: tensor %s is also in %s", path, show(tensor.name), set.files[other.file].path) end
        tensor.file, tensor.offset = index, tensor.offset + 8 + length
        set.tensors[tensor.name] = tensor
        set.order[#set.order + 1] = tensor
    end
end

-- Files named *.safetensors in the folder, sorted.
local function list_folder(folder)
    local names = {}
    local pipe = io.popen("ls -1 '" .. folder:gsub("'", "'\\''") .. "' 2>/dev/null")
    if pipe then
        for line in pipe:lines() do
            if line:match("%.safetensors$") then names[#names + 1] = line end
        end
        pipe:close()
    end
    table.sort(names)
    return names
end

-- Files that the index names, and what it says lies in each.
local function read_index(path)
    local index = safetensors.read_json(path)
    if type(index.weight_map) ~= "table" then fail("%s: key weight_map is missing", path) end
    local names, where, seen, tensors = {}, {}, {}, {}
    for tensor in pairs(index.weight_map) do
        if type(tensor) ~= "string" then fail("%s: weight_map is a list, not an object", path) end
        tensors[#tensors + 1] = tensor
    end
    table.sort(tensors)
    for _, tensor in ipairs(tensors) do
        local shard = index.weight_map[tensor]
        if type(shard) ~= "string" or not shard:match("^[%w%._%-]+$") or shard:match("^%.") then
            fail("%s: tensor %s: the shard name %s is not a plain file name", path, show(tensor), show(shard))
        end
        where[tensor] = shard
        if not seen[shard] then
            seen[shard] = true
            names[#names + 1] = shard
        end
    end
    table.sort(names)
    return names, where
end

local function check_index(set, path, where)
    local missing = {}
    for tensor, shard in pairs(where) do
        local found = set.tensors[tensor]
        if not found or set.files[found.file].label ~= shard then missing[#missing + 1] = tensor end
    end
    table.sort(missing)
    if missing[1] then
        local found = set.tensors[missing[1]]
        fail("%s: says that tensor %s is in %s, which does not hold it%s (%d such tensors)", path, show(missing[1]),
            where[missing[1]], found and "; it is in " .. set.files[found.file].label or "", #missing)
    end
    for _, tensor in ipairs(set.order) do
        if not where[tensor.name] then
            fail("%s: tensor %s is not in the index %s", set.files[tensor.file].path, show(tensor.name), path)
        end
    end
end

-- Opens the checkpoint in a folder: the shards that model.safetensors.index.json names, or without an index
-- model*.safetensors, or every *.safetensors.
function safetensors.open(folder)
    local set = { folder = folder, files = {}, tensors = {}, order = {} }
    local index = folder .. "/model.safetensors.index.json"
    local names, where
    if exists(index) then
        names, where = read_index(index)
        for _, name in ipairs(names) do
            if not exists(folder .. "/" .. name) then fail("%s: names the shard %s, which is missing: fetch it", index, name) end
        end
    else
        local all = list_folder(folder)
        names = {}
        for _, name in ipairs(all) do
            if name:match("^model") then names[#names + 1] = name end
        end
        if #names == 0 then names = all end
        if #names == 0 and exists(folder .. "/model.safetensors") then names = { "model.safetensors" } end
    end
    if #names == 0 then fail("%s: no safetensors files (expected model.safetensors or model.safetensors.index.json)", folder) end
    for _, name in ipairs(names) do add_file(set, folder .. "/" .. name, name) end
    if where then check_index(set, index, where) end
    return set
end

-- Bytes first .. first + count - 1 of a tensor's data.
function safetensors.read(set, tensor, first, count)
    assert(first >= 0 and count >= 0 and first + count <= tensor.bytes, "read outside of a tensor")
    local path = set.files[tensor.file].path
    local file = open_file(path)
    file:seek("set", tensor.offset + first)
    local data = count > 0 and file:read(count) or ""
    file:close()
    if not data or #data ~= count then fail("%s: tensor %s could not be read", path, show(tensor.name)) end
    return data
end

local function half(bits)
    local sign, exponent, mantissa = bits >> 15, bits >> 10 & 31, bits & 1023
    local value
    if exponent == 0 then
        value = mantissa * 2.0 ^ -24
    elseif exponent == 31 then
        value = mantissa == 0 and math.huge or 0.0 / 0.0
    else
        value = (1024 + mantissa) * 2.0 ^ (exponent - 25)
    end
    return sign == 1 and -value or value
end

local DECODE <const> = {
    BF16 = { 2, function(data, at) return (string.unpack("<f", "\0\0" .. data:sub(at, at + 1))) end },
    F16 = { 2, function(data, at) return half((string.unpack("<I2", data, at))) end },
    F32 = { 4, function(data, at) return (string.unpack("<f", data, at)) end },
    F64 = { 8, function(data, at) return (string.unpack("<d", data, at)) end },
    I64 = { 8, function(data, at) return (string.unpack("<i8", data, at)) end },
    I32 = { 4, function(data, at) return (string.unpack("<i4", data, at)) end },
    U32 = { 4, function(data, at) return (string.unpack("<I4", data, at)) end },
    U8 = { 1, function(data, at) return data:byte(at) end },
}

-- Elements first .. first + count - 1 as numbers.
function safetensors.values(set, tensor, first, count)
    local decoder = DECODE[tensor.dtype]
    if not decoder then fail("tensor %s: values of dtype %s cannot be read here", show(tensor.name), tensor.dtype) end
    local size, get = decoder[1], decoder[2]
    local data = safetensors.read(set, tensor, first * size, count * size)
    local out = {}
    for i = 1, count do out[i] = get(data, 1 + (i - 1) * size) end
    return out
end

return safetensors
