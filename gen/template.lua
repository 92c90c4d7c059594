-- SPDX-License-Identifier: Apache-2.0
--
-- The chat template compiler: a checkpoint's chat_template.jinja to C. Stand-alone:
--     lua5.4 gen/template.lua TEMPLATE.jinja OUT.c [SYMBOL]
-- What the language has and the compiler has not stops the build with the template's name, the line and what it was.

-- The folder of this file where it is the program that runs, nil where a program requires it.
local here = arg and arg[0] and debug.getinfo(1, "S").source == "@" .. arg[0] and arg[0]:match("^(.-)[^/]*$")
if here then package.path = here .. "?.lua;" .. package.path end

local fail = require "fail"
local emit = require "template_emit"
local parse = require "template_parse"

local M = {}

-- compile(source, name, constants): `name` is for messages, its last part goes into the C; `constants` are strings that the
-- checkpoint gives to its template (bos_token = "<s>", ...), which are trusted as the template's own text is.
function M.compile(source, name, constants)
    local compiled = { name = name, title = name:match("[^/]*$"), body = parse.parse(source, name), constants = constants or {} }
    emit.emit(compiled, "chat_template") -- so that everything unsupported is found here
    return compiled
end

-- constants(settings): the constants that transformers gives to a template, from the table of tokenizer_config.json; none without one.
function M.constants(settings)
    local result = {}
    settings = settings or result
    for _, name in ipairs({ "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" }) do
        local value = settings[name]
        if type(value) == "table" then value = value.content end
        if type(value) == "string" then result[name] = value end
    end
    return result
end

local function write(path, text)
    local temporary = path .. ".tmp"
    local file, reason = io.open(temporary, "wb")
    if not file then fail("%s: cannot be written (%s)", path, reason) end
    local ok = file:write(text)
    ok = file:close() and ok
    if not ok or not os.rename(temporary, path) then
        os.remove(temporary)
        fail("%s: cannot be written; is the disk full?", path)
    end
end

-- emit(compiled, path, symbol): writes the C that defines `const struct chat_template SYMBOL` (default chat_template).
function M.emit(compiled, path, symbol) write(path, emit.emit(compiled, symbol or "chat_template")) end

-- For a checkpoint that has no template.
function M.emit_none(path, symbol) write(path, emit.none(symbol or "chat_template")) end

local function main()
    if #arg < 2 or #arg > 3 then fail("usage: lua5.4 gen/template.lua TEMPLATE.jinja OUT.c [SYMBOL]") end
    local file, reason = io.open(arg[1], "rb")
    if not file then fail("%s: cannot be read (%s)", arg[1], reason) end
    local source = file:read("a")
    file:close()
    if not source then fail("%s: cannot be read", arg[1]) end
    M.emit(M.compile(source, arg[1]), arg[2], arg[3])
end

if here then
    local ok, problem = xpcall(main, function(e) return fail.is(e) and e or debug.traceback(e, 2) end)
    if not ok then
        io.stderr:write(tostring(problem), "\n")
        os.exit(fail.is(problem) and 2 or 1)
    end
end

return M
