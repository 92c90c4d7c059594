#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- What is refused when a checkpoint is read, and what is said; names, norms, config.json against tensors; synthetic recipes.
-- Invariant under test: every fault ends in one line that names the file or tensor, and nothing but faults is refused.

-- luacheck: no max line length

package.path = "tests/lib/?.lua;" .. package.path
local tools = require "pack_tools"
local checkpoint = require "checkpoint"
local encode = require "encode"
local safetensors = require "safetensors"
local write = require "safetensors_write"

local e = encode.new(7)

-- A folder with these tensors (a list, or a map file -> list), config.json and options of the writer.
local function folder_of(files, options)
    options = options or {}
    local folder = tools.make_folder("case")
    write.text(folder .. "/config.json", options.config or "{}")
    if files[1] or not next(files) then files = { ["model.safetensors"] = files } end
    for name, list in pairs(files) do write.file(folder .. "/" .. name, list, options[name] or options) end
    return folder
end

local function tensor(name, dtype, shape, bytes)
    local count = 1
    for _, extent in ipairs(shape) do count = count * extent end
    local size = { BF16 = 2, F32 = 4, U8 = 1, F8_E4M3 = 1, I64 = 8, U32 = 4, F8_E5M2 = 1, F16 = 2, I32 = 4 }
    return { name = name, dtype = dtype, shape = shape, data = bytes or ("\0"):rep(count * size[dtype]) }
end

local A <const>, B <const> = tensor("a.weight", "BF16", { 4, 32 }), tensor("b.weight", "BF16", { 2, 32 })

-- ---- headers -------------------------------------------------------------------------------------------------------------

local function spoiled(name, pattern, edit, list)
    local folder = folder_of(list or { A, B }, { header = edit })
    tools.refuses(name, pattern, safetensors.open, folder)
end

local function swap(from, to)
    return function(header)
        local changed, count = header:gsub(from, to, 1)
        assert(count == 1, from)
        return changed
    end
end

tools.ok(not tools.refusal(safetensors.open, folder_of({ A, B })), "a valid file opens")
tools.ok(not tools.refusal(safetensors.open, folder_of({})), "a file without tensors opens")
spoiled("unknown dtype", "tensor a%.weight: unknown dtype F12", swap('"BF16"', '"F12"'))
spoiled("dtype that is no string", "unknown dtype", swap('"BF16"', "7"))
spoiled("shape that is no list", "shape is not a list", swap("%[4,32%]", "128"))
spoiled("negative dimension", "dimension 1 of its shape is %-4", swap("%[4,32%]", "[-4,-32]"))
spoiled("fractional dimension", "dimension 1 of its shape is 4%.5", swap("%[4,32%]", "[4.5,32]"))
spoiled("null dimension", "dimension 2 of its shape", swap("%[4,32%]", "[4,null]"))
spoiled("shape as object", "dimension 1", swap("%[4,32%]", '{"x":4}'))
spoiled("overflowing shape", "overflows", swap("%[4,32%]", "[4294967296,4294967296]"))
spoiled("huge dimension", "dimension 1", swap("%[4,32%]", "[1e300,0]"))
spoiled("too many dimensions", "9 dimensions", swap("%[4,32%]", "[1,1,1,1,1,1,1,4,32]"))
spoiled("shape and bytes disagree", "shape %[4, 31%] of BF16 needs 248 bytes, data_offsets %[0, 256%] hold 256", swap("%[4,32%]", "[4,31]"))
spoiled("offsets backwards", "run backwards", swap("%[0,256%]", "[256,0]"))
spoiled("one offset", "not two whole numbers", swap("%[0,256%]", "[0]"))
spoiled("three offsets", "not two whole numbers", swap("%[0,256%]", "[0,256,512]"))
spoiled("offsets past the end", "truncated", swap("%[256,384%]", "[9000,9128]"))
spoiled("entry that is no object", "not an object", swap('"a.weight":{.-%]}', '"a.weight":5'))
spoiled("overlap", "overlap at byte 128", swap("%[256,384%]", "[128,256]"))
spoiled("hole", "belong to no tensor", swap('"b.weight":{"dtype":"BF16","shape":%[2,32%],"data_offsets":%[256,384%]}',
    '"b.weight":{"dtype":"BF16","shape":[1,32],"data_offsets":[320,384]}'))
spoiled("unused end", "expected 256 bytes of data after the header, found 384", swap(',"b.weight":{.-%]}', ""))
spoiled("not JSON", "not valid JSON", swap("{", "<"))
spoiled("header that is a list", "is a list", function() return "[1,2]" end)
spoiled("header that is a number", "not a JSON object", function() return "12" end)
spoiled("deep nesting", "not valid JSON", function() return ("["):rep(100000) end)
spoiled("NaN in the header", "not valid JSON", swap("%[4,32%]", "[NaN,32]"))

local function bytes_of(name, pattern, text)
    local folder = folder_of({ A })
    write.text(folder .. "/model.safetensors", text)
    tools.refuses(name, pattern, safetensors.open, folder)
end

bytes_of("empty file", "expected a header of 8 bytes or more, found 0 bytes", "")
bytes_of("seven bytes", "found 7 bytes", "1234567")
bytes_of("header length beyond the file", "truncated: expected a header of 1000 bytes, found 2", string.pack("<I8", 1000) .. "{}")
bytes_of("header length beyond the limit", "above the limit", string.pack("<I8", 1 << 40) .. "{}")
bytes_of("header length of all ones", "above the limit", ("\255"):rep(16))
do
    local header, data = write.header({ A, B })
    bytes_of("truncated data", "expected " .. 8 + #header + 384 .. " bytes, found " .. 8 + #header + 100 .. "; it is truncated",
        string.pack("<I8", #header) .. header .. data:sub(1, 100))
    bytes_of("surplus data", "expected 384 bytes of data after the header, found 389", string.pack("<I8", #header) .. header .. data .. "extra")
end

-- ---- shards --------------------------------------------------------------------------------------------------------------

local function sharded(map, files)
    local folder = folder_of(files or { ["model-1.safetensors"] = { A }, ["model-2.safetensors"] = { B } })
    write.index(folder .. "/model.safetensors.index.json", map)
    return folder
end

local GOOD <const> = { ["a.weight"] = "model-1.safetensors", ["b.weight"] = "model-2.safetensors" }
tools.ok(not tools.refusal(safetensors.open, sharded(GOOD)), "shards with an index open")
tools.ok(#safetensors.open(folder_of({ ["model-1.safetensors"] = { A }, ["model-plefp8-1.safetensors"] = { B } })).order == 2,
    "shards without an index open")
tools.ok(#safetensors.open(folder_of({ ["model.safetensors"] = { A }, ["expected.safetensors"] = { A } })).order == 1,
    "files that are not the model are left alone")
tools.refuses("missing shard", "names the shard model%-3%.safetensors, which is missing", safetensors.open,
    sharded({ ["a.weight"] = "model-1.safetensors", ["b.weight"] = "model-3.safetensors" }))
tools.refuses("tensor that its shard lacks", "tensor c%.weight is in model%-1%.safetensors, which does not hold it", safetensors.open,
    sharded({ ["a.weight"] = "model-1.safetensors", ["b.weight"] = "model-2.safetensors", ["c.weight"] = "model-1.safetensors" }))
tools.refuses("tensor in another shard", "it is in model%-2%.safetensors", safetensors.open,
    sharded({ ["a.weight"] = "model-1.safetensors", ["b.weight"] = "model-1.safetensors", ["x"] = "model-2.safetensors" }))
tools.refuses("tensor that the index lacks", "tensor b%.weight is not in the index", safetensors.open,
    sharded({ ["a.weight"] = "model-1.safetensors" }, { ["model-1.safetensors"] = { A, B } }))
tools.refuses("tensor in two shards", "tensor a%.weight is also in", safetensors.open,
    folder_of({ ["model-1.safetensors"] = { A }, ["model-2.safetensors"] = { A } }))
tools.refuses("shard outside of the folder", "is not a plain file name", safetensors.open,
    sharded({ ["a.weight"] = "../model-1.safetensors" }))
tools.refuses("no files", "no safetensors files", safetensors.open, tools.make_folder("empty"))
do
    local folder = sharded(GOOD)
    write.text(folder .. "/model.safetensors.index.json", "{}")
    tools.refuses("index without a map", "weight_map is missing", safetensors.open, folder)
    write.text(folder .. "/model.safetensors.index.json", "{")
    tools.refuses("index that is not JSON", "not valid JSON", safetensors.open, folder)
    local header, data = write.header({ B })
    write.index(folder .. "/model.safetensors.index.json", GOOD)
    write.text(folder .. "/model-2.safetensors", string.pack("<I8", #header) .. header .. data:sub(1, 50))
    tools.refuses("truncated shard", "model%-2%.safetensors: expected %d+ bytes, found %d+; it is truncated",
        safetensors.open, folder)
end

-- ---- the census ----------------------------------------------------------------------------------------------------------

local function census_of(list, config) return checkpoint.open(folder_of(list, { config = config })) end

local function parts(base, made, edit)
    local list = {}
    if edit then edit(made) end
    encode.add(list, base, made)
    return list
end

local function matrix_refuses(name, pattern, list, ask, config)
    tools.refuses(name, pattern, function()
        census_of(list, config):matrix(ask or { name = "layers.0.mlp.up_proj", n = 16, k = 64 })
    end)
end

local M <const> = "model.layers.0.mlp.up_proj"
local Q <const> = { name = "layers.0.mlp.up_proj", n = 16, k = 64 }

matrix_refuses("missing tensor", "tensor layers%.0%.mlp%.up_proj%.weight is missing; 1 tensors lie beside it",
    parts("model.layers.0.mlp.gate_proj", (e.bf16(16, 64))))
matrix_refuses("wrong rows", "expected 16 rows of 64 columns, found BF16 %[8, 64%]", parts(M, (e.bf16(8, 64))))
matrix_refuses("wrong columns", "expected 64 columns, found BF16 %[16, 32%]", parts(M, (e.bf16(16, 32))))
matrix_refuses("wrong rank", "expected shape %[rows, columns%]", { tensor(M .. ".weight", "BF16", { 2, 8, 64 }) })
matrix_refuses("rows beyond the tensor", "rows 8 to 24 are asked for, found 16", parts(M, (e.bf16(16, 64))),
    { name = Q.name, n = 16, k = 64, rows = { 8, 16 } })
matrix_refuses("row order beyond the tensor", "row 16 is asked for", parts(M, (e.bf16(16, 64))),
    { name = Q.name, n = 2, k = 64, row_order = { 0, 16 } })
matrix_refuses("nvfp4 without scales", "is stored without weight_scale",
    parts(M, (e.nvfp4(16, 64)), function(p) p.weight_scale = nil end))
matrix_refuses("nvfp4 without a global scale", "without weight_scale_2 or weight_global_scale",
    parts(M, (e.nvfp4(16, 64)), function(p) p.weight_scale_2 = nil end))
matrix_refuses("nvfp4 with scales of another shape", "expected scales per 16 of shape %[16, 4%] for weights U8 %[16, 32%], found F8_E4M3 %[8, 4%]",
    parts(M, (e.nvfp4(16, 64)), function(p) p.weight_scale = (e.nvfp4(8, 64)).weight_scale end))
matrix_refuses("nvfp4 with a global of another shape", "expected the global scale of one value",
    parts(M, (e.nvfp4(16, 64)), function(p) p.weight_scale_2 = { "F32", { 2 }, ("\0"):rep(8) } end))
matrix_refuses("MXFP4", "MXFP4 .* no kernel reads", parts(M, (e.nvfp4(16, 64)), function(p) p.weight_scale = { "U8", { 16, 2 }, ("\1"):rep(32) } end))
matrix_refuses("mxfp8 with scales of another shape", "expected scales per 32 of shape %[16, 2%]",
    parts(M, (e.mxfp8(16, 64)), function(p) p.weight_scale = { "U8", { 16, 4 }, ("\1"):rep(64) } end))
matrix_refuses("fp8 without scales", "F8_E4M3 %[16, 64%] is stored without weight_scale or weight_scale_inv",
    parts(M, (e.fp8(16, 64)), function(p) p.weight_scale = nil end))
matrix_refuses("block scales of another shape", "expected one scale or scales of shape %[1, 1%] %(128x128 blocks%)",
    parts(M, (e.fp8_block(16, 64)), function(p) p.weight_scale_inv = { "BF16", { 2, 2 }, ("\0"):rep(8) } end))
matrix_refuses("both kinds of scales", "both weight_scale and weight_scale_inv",
    parts(M, (e.fp8(16, 64)), function(p) p.weight_scale_inv = p.weight_scale end))
matrix_refuses("fp8 scales of integers", "expected scales of dtype F32 or BF16 or F16",
    parts(M, (e.fp8(16, 64)), function(p) p.weight_scale = { "I32", { 1 }, ("\0"):rep(4) } end))
matrix_refuses("E5M2", "is an encoding that no kernel reads", { tensor(M .. ".weight", "F8_E5M2", { 16, 64 }) })
matrix_refuses("affine without scales", "without scales", parts(M, (e.affine(16, 64, 4, 32)), function(p) p.scales = nil end))
matrix_refuses("affine with scales of another shape", "expected scales of shape %[%.%., 16, groups%] for weights U32 %[16, 8%], found BF16 %[8, 4%]",
    parts(M, (e.affine(16, 64, 4, 32)), function(p) p.scales = { "BF16", { 8, 4 }, ("\0"):rep(64) } end))
matrix_refuses("affine without biases", "without biases", parts(M, (e.affine(16, 64, 4, 32)), function(p) p.biases = nil end))
matrix_refuses("affine of 7 bits", "holds no 2, 3, 4, 5, 6 or 8 bits", { tensor(M .. ".weight", "U32", { 16, 14 }), tensor(M .. ".scales", "BF16", { 16, 2 }) })
matrix_refuses("affine with groups of 8", "groups of 8 are not supported",
    parts(M, (e.affine(16, 64, 4, 8))))
matrix_refuses("affine with other biases", "expected biases of shape %[16, 2%]",
    parts(M, (e.affine(16, 64, 4, 32)), function(p) p.biases = { "BF16", { 16, 4 }, ("\0"):rep(128) } end))
matrix_refuses("GPTQ without zero points", "without qzeros", parts(M, (e.int4(16, 64, 32)), function(p) p.qzeros = nil end))
matrix_refuses("GPTQ with scales of another shape", "do not fit weights",
    parts(M, (e.int4(16, 64, 32)), function(p) p.scales = { "F16", { 2, 8 }, ("\0"):rep(32) } end))
matrix_refuses("AWQ", "expected 4%-bit GPTQ words", { tensor(M .. ".qweight", "I32", { 64, 2 }), tensor(M .. ".scales", "F16", { 2, 16 }), tensor(M .. ".qzeros", "I32", { 2, 2 }) })

tools.refuses("a tensor that nothing reads", "1 tensors are read by nothing: model%.surprise%.weight", function()
    local list = parts(M, (e.bf16(16, 64)))
    list[2] = tensor("model.surprise.weight", "BF16", { 1 })
    local census = census_of(list)
    census:matrix(Q)
    census:finish()
end)
tools.refuses("a tensor read by halves only", "up_proj%.weight %(8 of 16 rows%)", function()
    local census = census_of(parts(M, (e.bf16(16, 64))))
    census:matrix{ name = Q.name, n = 8, k = 64, rows = { 0, 8 } }
    census:finish()
end)
tools.refuses("a tensor asked for twice", "is asked for twice", function()
    local census = census_of(parts(M, (e.bf16(16, 64))))
    census:matrix(Q)
    census:matrix(Q)
end)
tools.refuses("rows asked for twice", "is asked for twice", function()
    local census = census_of(parts(M, (e.bf16(16, 64))))
    census:matrix{ name = Q.name, n = 8, k = 64, rows = { 0, 8 } }
    census:matrix{ name = Q.name, n = 8, k = 64, rows = { 7, 8 } }
end)
do
    local list = parts("model.embed_tokens", (e.bf16(16, 64)))
    list[#list + 1] = tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", { 8 })
    list[#list + 1] = tensor("model.visual.patch_embed.proj.weight", "BF16", { 8, 3 })
    local census = census_of(list)
    census:rows{ name = "embed_tokens", rows = 16, dim = 64, shared = true }
    census:matrix{ name = "embed_tokens", n = 16, k = 64, shared = true }
    census:ignore("^visual%.", "vision tower")
    tools.ok(not tools.refusal(census.finish, census) and census.ignored["vision tower"] == 1, "tied embeddings, ignored tensors")
end
tools.refuses("two spellings of one weight", "are the same weight", census_of,
    { tensor("model.norm.weight", "BF16", { 4 }), tensor("model.language_model.norm.weight", "BF16", { 4 }) })
tools.refuses("a name with a line break", "has control characters", census_of, { tensor("model.a\nb", "BF16", { 4 }) })

-- ---- experts, tables, vectors --------------------------------------------------------------------------------------------

local function experts_of(makers, ask)
    local list = {}
    for x, made in ipairs(makers) do encode.add(list, "model.layers.0.mlp.experts." .. x - 1 .. ".up_proj", made) end
    return census_of(list):experts(ask or { prefix = "layers.0.mlp.experts", which = "up", experts = 2, n = 16, k = 64 })
end

tools.refuses("experts of two encodings", "expert", experts_of, { (e.bf16(16, 64)), (e.nvfp4(16, 64)) })
tools.refuses("experts of two shapes", "expected 16 rows", experts_of, { (e.bf16(16, 64)), (e.bf16(8, 64)) })
tools.refuses("a missing expert", "experts%.1%.up_proj%.weight is missing", experts_of, { (e.bf16(16, 64)) })
tools.refuses("a surplus expert", "read by nothing: model%.layers%.0%.mlp%.experts%.2%.up_proj%.weight", function()
    local list = {}
    for x = 0, 2 do encode.add(list, "model.layers.0.mlp.experts." .. x .. ".up_proj", (e.bf16(16, 64))) end
    local census = census_of(list)
    census:experts{ prefix = "layers.0.mlp.experts", which = "up", experts = 2, n = 16, k = 64 }
    census:finish()
end)
tools.refuses("fused experts of another shape", "expected shape %[2, 32, 64%], found BF16 %[2, 30, 64%]", function()
    census_of({ tensor("model.layers.0.mlp.experts.gate_up_proj", "BF16", { 2, 30, 64 }) })
        :experts{ prefix = "layers.0.mlp.experts", which = "up", experts = 2, n = 16, k = 64 }
end)

local function shards_of(makers, rows)
    local list = {}
    for s, made in ipairs(makers) do encode.add(list, "model.t.ngram_embedding.shard_" .. s - 1, made) end
    return census_of(list):rows{ prefix = "t.ngram_embedding", rows = rows, dim = 64 }
end

tools.ok(shards_of({ (e.bf16(4, 64)), (e.bf16(4, 64)) }, 8).encoding == "bf16", "shards make a table")
tools.refuses("a missing shard of a table", "expected 12 rows of 64 in 2 tensors, found 8 rows", shards_of, { (e.bf16(4, 64)), (e.bf16(4, 64)) }, 12)
tools.refuses("shards of two encodings", "is stored as mxfp8", shards_of, { (e.bf16(4, 64)), (e.mxfp8(4, 64)) }, 8)
tools.refuses("shards of two scales", "a table has one scale", shards_of, { (e.fp8(4, 64)), (e.fp8(4, 64)) }, 8)

tools.refuses("a vector of another length", "expected 8 values, found BF16 %[4%]", function()
    census_of({ tensor("model.norm.weight", "BF16", { 4 }) }):vector{ name = "norm", count = 8 }
end)
tools.refuses("a quantised vector", "expected BF16, F16 or F32, found U8", function()
    census_of({ tensor("model.norm.weight", "U8", { 8 }) }):vector{ name = "norm", count = 8 }
end)
tools.refuses("constants of another dtype", "expected I64 %[3%], found I32 %[3%]", function()
    census_of({ tensor("model.multipliers", "I32", { 3 }) }):constants{ name = "multipliers", count = 3 }
end)
do
    local list = census_of({ tensor("model.m", "I64", { 2 }, string.pack("<i8i8", 1270917961434445, -5)) }):constants{ name = "m", count = 2 }
    tools.ok(list[1] == 1270917961434445 and list[2] == -5, "constants are exact")
end

local function norms(first, last)
    local values = {}
    for i = 1, 64 do values[i] = string.pack("<f", first + (last - first) * i / 64) end
    local census = census_of({
        tensor("model.layers.0.input_layernorm.weight", "F32", { 64 }, table.concat(values)),
        tensor("mtp.layers.0.input_layernorm.weight", "F32", { 64 }, string.pack("<f", 0.75):rep(64)),
    })
    local trunk = census:vector{ name = "layers.0.input_layernorm", count = 64, transform = "plus_one" }
    local head = census:vector{ name = "mtp.layers.0.input_layernorm", count = 64, transform = "plus_one" }
    return trunk.transform, head.transform, census.norms
end

do
    local trunk, head, text = norms(-0.5, 0.6)
    tools.ok(trunk == "plus_one" and head == "plus_one" and text:match("^zero%-centred"), "norms near 0 are zero-centred, the head's too", text)
    trunk, head, text = norms(0.5, 1.6)
    tools.ok(trunk == "none" and head == "none" and text:match("^added"), "norms near 1 have the one added", text)
    tools.refuses("norms that are neither", "neither near 0 nor near 1", norms, 5, 6)
    tools.refuses("norms that are NaN", "neither near 0 nor near 1", norms, 0.0 / 0.0, 1)
end

-- ---- config.json against tensors -----------------------------------------------------------------------------------------

local MLX4 <const> = '{"quantization":{"group_size":32,"bits":4}}'
local function accepts(name, list, config)
    local message = tools.refusal(function() census_of(list, config):matrix(Q) end)
    tools.ok(not message, name, message)
end

accepts("MLX settings that agree", parts(M, (e.affine(16, 64, 4, 32))), MLX4)
accepts("a module with settings of its own", parts(M, (e.affine(16, 64, 8, 64))),
    '{"quantization":{"group_size":32,"bits":4,"' .. M .. '":{"group_size":64,"bits":8}}}')
accepts("a smaller group where the common one does not fit", parts(M, (e.affine(16, 64, 4, 32))), '{"quantization":{"group_size":128,"bits":4}}')
accepts("settings under both keys", parts(M, (e.affine(16, 64, 4, 32))),
    '{"quantization":{"group_size":32,"bits":4},"quantization_config":{"group_size":32,"bits":4}}')
accepts("bf16 in a quantised checkpoint", parts(M, (e.bf16(16, 64))), '{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}')
matrix_refuses("bits that contradict", "stored as affine %(4 bits, groups of 32%), which contradicts config.json: quantization says 8 bits",
    parts(M, (e.affine(16, 64, 4, 32))), nil, '{"quantization":{"group_size":32,"bits":8}}')
matrix_refuses("a group that contradicts", "says groups of 64", parts(M, (e.affine(16, 64, 4, 32))), nil, '{"quantization":{"group_size":64,"bits":4}}')
matrix_refuses("a module that should not be quantised", "says not quantised", parts(M, (e.affine(16, 64, 4, 32))), nil,
    '{"quantization":{"group_size":32,"bits":4,"' .. M .. '":false}}')
matrix_refuses("FP8 that is NVFP4", "says quant_method fp8", parts(M, (e.nvfp4(16, 64))), nil, '{"quantization_config":{"quant_method":"fp8"}}')
matrix_refuses("quant_algo that contradicts", "says quant_algo FP8", parts(M, (e.nvfp4(16, 64))), nil,
    '{"quantization_config":{"quant_method":"modelopt","quant_algo":"FP8"}}')
matrix_refuses("int4 groups that contradict", "says groups of 128", parts(M, (e.int4(16, 64, 32))), nil,
    '{"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128}}')
matrix_refuses("an unknown method", "quant_method awq is not known", parts(M, (e.bf16(16, 64))), nil, '{"quantization_config":{"quant_method":"awq"}}')
matrix_refuses("another block size", "weight_block_size is %[64, 64%]", parts(M, (e.bf16(16, 64))), nil,
    '{"quantization_config":{"quant_method":"fp8","weight_block_size":[64,64]}}')
matrix_refuses("an unknown MLX mode", "mode mxfp4", parts(M, (e.bf16(16, 64))), nil, '{"quantization":{"group_size":32,"bits":4,"mode":"mxfp4"}}')
matrix_refuses("a configuration that is no object", "quantization_config is not an object", parts(M, (e.bf16(16, 64))), nil, '{"quantization_config":5}')

-- ---- names ---------------------------------------------------------------------------------------------------------------

for from, to in pairs({
    ["model.language_model.layers.3.x"] = "layers.3.x", ["language_model.model.layers.3.x"] = "layers.3.x", ["model.layers.3.x"] = "layers.3.x",
    ["backbone.layers.3.x"] = "layers.3.x", ["mtp.fc.weight"] = "mtp.fc.weight", ["language_model.mtp.fc.weight"] = "mtp.fc.weight",
    ["lm_head.weight"] = "lm_head.weight", ["language_model.lm_head.weight"] = "lm_head.weight", ["vision_tower.x"] = "visual.x",
    ["model.visual.x"] = "visual.x", ["model.a.ngram_embedding.shards.7.weight"] = "a.ngram_embedding.shard_7.weight",
    ["model.layers.3.self_attn.index_q_norm.weight"] = "layers.3.self_attn.indexer.q_layernorm.weight",
    ["model.layers.3.self_attn.index_qk_proj.weight"] = "layers.3.self_attn.indexer.index_qk_proj.weight",
}) do
    tools.ok(checkpoint.normalise(from) == to, "name " .. from, checkpoint.normalise(from))
end
do
    local list, values = e.bf16(20, 64)
    local census = census_of(parts("model.layers.0.mlp_hyper_connection.input_mix_weight_down", list))
    local down = census:matrix{ name = "layers.0.mlp_hyper_connection.input_mix_weight_down", n = 16, k = 64 }
    local inject = census:matrix{ name = "layers.0.mlp_hyper_connection.block_inject_weight", n = 4, k = 64 }
    tools.ok(#values == 1280 and down.sources[1][1].runs[1][1] == 0 and inject.sources[1][1].runs[1][1] == 16
        and not tools.refusal(census.finish, census), "injection rows fused below the mixing rows")
end

-- ---- recipes -------------------------------------------------------------------------------------------------------------

local CONFIG <const> = { text_config = { num_experts = 512, mtp_num_hidden_layers = 1 } }
for recipe, expected in pairs({
    ["bf16"] = "bf16 bf16 bf16", ["nvfp4-modelopt"] = "nvfp4 bf16 fp8", ["nvfp4-mxfp8"] = "nvfp4 mxfp8 nvfp4",
    ["mlx-4bit-g32"] = "affine affine affine", ["mlx-4bit-g64"] = "affine affine affine", ["fp8-block128"] = "fp8_block bf16 fp8",
    ["fp8"] = "fp8 fp8 fp8",
}) do
    local census = checkpoint.synthetic(CONFIG, recipe)
    local experts = census:experts{ prefix = "layers.0.mlp.experts", which = "up", experts = 512, n = 640, k = 2560 }
    local linear = census:matrix{ name = "layers.0.self_attn.q_proj", n = 12288, k = 2560 }
    local rows = census:rows{ prefix = "layers.1.ple.ple_embedding.ngram_embedding", rows = 320001536, dim = 160, section = "table" }
    local found = table.concat({ experts.encoding, linear.encoding, rows.encoding }, " ")
    tools.ok(found == expected, "recipe " .. recipe, found)
    local layout = require("pack").layout({ experts, linear, rows })
    local row = { bf16 = 320, fp8 = 160, nvfp4 = 90, affine = 100 }
    tools.ok(layout.table_bytes == 320001536 * row[rows.encoding], "recipe " .. recipe .. ": bytes of the table", layout.table_bytes)
    tools.ok(census:has("mtp.fc_hidden") and not tools.refusal(census.finish, census), "recipe " .. recipe .. ": has the draft head")
end
tools.refuses("an unknown recipe", "recipe q9: is not known", checkpoint.synthetic, CONFIG, "q9")

-- ---- the reference checkpoints -------------------------------------------------------------------------------------------

local list = io.popen("ls -d \"${REFERENCE:-../shared/reference}\"/*/ 2>/dev/null")
for folder in list:lines() do
    local message = tools.refusal(function()
        local census = checkpoint.open((folder:gsub("/$", "")))
        local records = require("census_all")(census)
        census:finish()
        require("pack").layout(records)
    end)
    tools.ok(not message, "reads " .. folder:match("([^/]+)/$"), message)
end
list:close()
tools.done()
