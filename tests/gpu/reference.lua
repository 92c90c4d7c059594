-- SPDX-License-Identifier: Apache-2.0
--
-- The reference folders on a GPU: the relative distance of the logits is not above that of transformers' own bf16 run on the same
-- kind of card (bf16.json in each folder), greedy ids agree wherever the margin exceeds five times the error, and the bytes are the same
-- for any chunk of the prompt, page size, replayed or eager. TAP.
--
--   reference.lua [--root build/cuda] FOLDER ...        root: where the folders' binaries are

package.path = "tests/lib/?.lua;" .. package.path
local cjson = require "cjson"
local reference = require "reference"
local tap = require "tap"

local OUT = "build/tests/gpu/" -- and the folder's name: several run at a time
local function read(path)
    local f = io.open(path, "rb")
    if not f then return "" end
    local text = f:read("a")
    f:close()
    return text
end

local function eval(binary, ids, rows, options)
    local f = assert(io.open(OUT .. "ids", "wb"))
    f:write(table.concat(ids, ","))
    f:close()
    os.remove(OUT .. "logits")
    local command = string.format("%s eval --tokens-file %sids --last %d --out %slogits %s", binary, OUT, rows, OUT, options or "")
    local pipe = io.popen(command .. " 2>" .. OUT .. "err")
    local printed = pipe:read("a")
    pipe:close()
    return read(OUT .. "logits"), printed
end

-- ||a - b|| / ||b||; infinite when lengths differ or a number is not finite.
local function relative(a, b)
    if #a ~= #b or #a == 0 then return math.huge end
    local up, down = 0, 0
    for i, x in ipairs(a) do up, down = up + (x - b[i]) ^ 2, down + b[i] ^ 2 end
    return up == up and math.sqrt(up / down) or math.huge
end

local function root_mean_square(values)
    local sum = 0
    for _, v in ipairs(values) do sum = sum + v * v end
    return math.sqrt(sum / #values)
end

local function folder(path, name, binary)
    OUT = "build/tests/gpu/" .. name .. "-"
    local e = reference.load(path .. "/expected.safetensors")
    local yardstick = cjson.decode(read(path .. "/bf16.json"))
    for p = 0, 5 do
        local ids, logits, greedy = e["prompt_" .. p].values, e["logits_" .. p], e["greedy_" .. p]
        local _, printed = eval(binary, ids, logits.shape[1], greedy and "--greedy " .. #greedy.values or "")
        local distance = relative(reference.floats(OUT .. "logits"), logits.values)
        tap.ok(distance <= yardstick[p + 1], string.format("%s, prompt %d: %.1e away, bf16 %.1e", name, p, distance, yardstick[p + 1]),
            read(OUT .. "err"))
        local wrong, i = nil, 0
        for id in printed:gmatch("%d+") do
            i = i + 1
            if greedy and tonumber(id) ~= greedy.values[i] then
                wrong = e["margin_" .. p].values[i] > 5 * distance * root_mean_square(logits.values)
                break
            end
        end
        if greedy then tap.ok(not wrong, name .. ", prompt " .. p .. ": greedy ids") end
    end
    local ids, rows = e.prompt_5.values, e.logits_5.shape[1]
    local whole = eval(binary, ids, rows)
    for _, options in ipairs { "--chunk 1", "--chunk 7", "--chunk 64", "--eager", "--page 4", "--page 16" } do
        tap.ok(#whole > 0 and eval(binary, ids, rows, options) == whole, name .. ": the same bytes with " .. options)
    end
end

local root, first = "build/cuda", 1
if arg[1] == "--root" then root, first = arg[2], 3 end
os.execute("mkdir -p " .. OUT)
for i = first, #arg do
    local name = arg[i]:match("([^/]+)/?$")
    folder(arg[i], name, string.format("%s/reference-%s/reference-%s", root, name, name))
end
tap.done()
