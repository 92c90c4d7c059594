-- SPDX-License-Identifier: Apache-2.0
--
-- Mutates chat templates: compiling either works or ends with fail(); never another Lua error, never a hang.
--     lua5.4 tests/fuzz/template.lua [ROUNDS] [SEED]

package.path = "gen/?.lua;" .. package.path
local cjson = require "cjson"
local fail = require "fail"
local template = require "template"

local FIXTURES = "tests/fixtures/templates/"
local STEPS = 20000000 -- Lua instructions that one compile may take
local PIECES = { "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", "|", ".", "(", ")", "[", "]", "{", "}", "'", '"', "\\", "\n", " ", ",", ":",
    "=", "~", "**", "//", "is", "not", "in", "if", "else", "elif", "endif", "for", "endfor", "set", "endset", "macro", "endmacro", "loop",
    "ns.x", "namespace()", "tojson", "map('x')", "raw", "endraw", "break", "continue", "with", "endwith", "generation", "endgeneration",
    "1e9",
    "0x",
    "\\u12", "é", "\xff", "\0", "true", "none", "loop.last", "caller", "self", "__class__", "recursive", "a=1", "*a", "**k" }

local rounds, seed = tonumber(arg[1]) or 2000, tonumber(arg[2]) or 1
math.randomseed(seed)

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end

local corpus = {}
for _, name in ipairs({ "qwen3", "qwen3_coder", "qwen3_6", "flash_next", "nemotron", "embedded" }) do
    corpus[#corpus + 1] = read(FIXTURES .. name .. ".jinja")
end
for _, case in ipairs(cjson.decode(read(FIXTURES .. "snippets.json")).cases) do corpus[#corpus + 1] = case.template end

local function mutate(text)
    for _ = 1, math.random(1, 6) do
        local at = math.random(1, #text + 1)
        local kind = math.random(5)
        if kind == 1 then
            text = text:sub(1, at - 1) .. PIECES[math.random(#PIECES)] .. text:sub(at)
        elseif kind == 2 then
            text = text:sub(1, at - 1) .. text:sub(at + math.random(1, 12))
        elseif kind == 3 then
            local other = corpus[math.random(#corpus)]
            local from = math.random(1, #other)
            text = text:sub(1, at - 1) .. other:sub(from, from + math.random(1, 40)) .. text:sub(at)
        elseif kind == 4 then
            text = text:sub(1, at - 1) .. text:sub(at, at + 10):rep(math.random(1, 30)) .. text:sub(at + 11)
        else
            text = text:sub(1, at - 1) .. string.char(math.random(0, 255)) .. text:sub(at + 1)
        end
    end
    return text
end

local good, refused = 0, 0
for round = 1, rounds do
    local source = mutate(corpus[math.random(#corpus)])
    local watch = coroutine.create(function() template.compile(source, "fuzz") end)
    debug.sethook(watch, function() error("too many steps") end, "", STEPS)
    local ok, problem = coroutine.resume(watch)
    if ok then
        good = good + 1
    elseif fail.is(problem) and not tostring(problem):find("internal", 1, true) then
        refused = refused + 1
    else
        io.stderr:write(("seed %d round %d: %s\n%s\n"):format(seed, round, debug.traceback(watch, tostring(problem)), source))
        os.exit(1)
    end
end
print(("ok: %d mutated templates compiled, %d were refused with their line"):format(good, refused))
