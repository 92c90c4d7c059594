-- SPDX-License-Identifier: Apache-2.0
--
-- Writes small safetensors files for tests. Invariant: what it writes is valid unless the test asks for something else.
--
--   write.file(path, { { name, dtype, shape = {..}, data } ... }, options)
--   write.header({ ... }) -> header text, data          options.header: function(text) -> text, to spoil the header
--   write.index(path, { tensor = "shard file" })        model.safetensors.index.json

local write = {}

local function quote(text)
    return '"' .. text:gsub('[%c"\\]', function(c) return string.format("\\u%04x", c:byte()) end) .. '"'
end

function write.text(path, text)
    local file = assert(io.open(path, "wb"))
    file:write(text)
    assert(file:close())
end

function write.header(tensors)
    local parts, data, at = {}, {}, 0
    for i, t in ipairs(tensors) do
        local shape = {}
        for d, extent in ipairs(t.shape) do shape[d] = string.format("%d", extent) end
        parts[i] = string.format('%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}', quote(t.name or t[1]), t.dtype or t[2],
            table.concat(shape, ","), at, at + #t.data)
        data[i], at = t.data, at + #t.data
    end
    local text = '{"__metadata__":{"format":"pt"}' .. (#parts > 0 and "," or "") .. table.concat(parts, ",") .. "}"
    return text .. (" "):rep(-#text % 8), table.concat(data)
end

function write.file(path, tensors, options)
    options = options or {}
    local header, data = write.header(tensors)
    if options.header then header = options.header(header) end
    write.text(path, string.pack("<I8", options.length or #header) .. header .. data)
end

function write.index(path, map)
    local parts = {}
    for tensor, shard in pairs(map) do parts[#parts + 1] = quote(tensor) .. ":" .. quote(shard) end
    table.sort(parts)
    write.text(path, '{"metadata":{},"weight_map":{' .. table.concat(parts, ",") .. "}}")
end

return write
