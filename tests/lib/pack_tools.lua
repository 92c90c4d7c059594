-- SPDX-License-Identifier: Apache-2.0
--
-- What the tests of checkpoint reading and packing share: TAP lines, C tools built with sanitizers, packing of a census.
-- Run from the repository root. Invariant: everything is written below build/tests/.

package.path = "gen/?.lua;tests/lib/?.lua;" .. package.path

local fail = require "fail"
local tap = require "tap"

local tools = { folder = "build/tests/pack" }
tools.ok, tools.done = tap.ok, tap.done

-- Runs f; returns the message of fail(), or nil when it succeeded. Any other error is a bug and ends the test.
function tools.refusal(f, ...)
    local arguments = table.pack(...)
    local ok, e = xpcall(function() return f(table.unpack(arguments)) end, function(e)
        return fail.is(e) and e or debug.traceback(tostring(e))
    end)
    if ok then return nil end
    if not fail.is(e) then error(e, 0) end
    return e.message
end

-- Checks that f refuses with one line that matches the pattern.
function tools.refuses(name, pattern, f, ...)
    local message = tools.refusal(f, ...)
    tools.ok(message and message:find(pattern) and not message:find("\n"), name, message or "it was accepted")
end

function tools.shell(command)
    local pipe = assert(io.popen("(" .. command .. ") 2>&1"))
    local text = pipe:read("a")
    local _, _, code = pipe:close()
    return code, text
end

function tools.path(name) return tools.folder .. "/" .. name end

function tools.make_folder(name)
    local path = tools.path(name)
    os.execute("rm -rf '" .. path .. "' && mkdir -p '" .. path .. "'")
    return path
end

local SOURCES <const> = "runtime/pack.c runtime/packer_plan.c kernels/cpu/layout.c kernels/cpu/layout_row.c"

-- Builds packer and pack_dump with sanitizers when they are older than a source; returns their paths.
function tools.build()
    os.execute("mkdir -p " .. tools.folder)
    local programs = {
        packer = SOURCES .. " runtime/packer.c runtime/packer_source.c runtime/packer_write.c", pack_dump = SOURCES .. " tests/pack_dump.c",
    }
    for name, sources in pairs(programs) do
        local path = tools.path(name)
        local stale = os.execute("test -x " .. path .. " && test -z \"$(find runtime/pack*.[ch] kernels/cpu/*.h kernels/cpu/layout*.c "
            .. "tests/pack_dump.c -newer " .. path .. ")\"") == nil
        if stale then
            local code, text = tools.shell("${CC:-cc} -std=gnu11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -I. "
                .. sources .. " -o " .. path .. " -lxxhash -lm -lpthread")
            if code ~= 0 then
                print("Bail out! " .. name .. " does not build: " .. text)
                os.exit(1)
            end
        end
    end
    return tools.path("packer"), tools.path("pack_dump")
end

-- Packs records; returns the exit code, what was printed, and the path of the pack (its plan is beside it).
function tools.pack(census, records, name)
    local pack = require "pack"
    local layout = pack.layout(records)
    local path = tools.path(name .. ".pack")
    pack.write_plan(tools.path(name .. ".plan"), layout, census)
    local code, text = tools.shell(tools.path("packer") .. " " .. tools.path(name .. ".plan") .. " " .. path)
    return code, text, path, layout
end

-- All weights of a pack as one array of numbers, in the order of the layout's entries.
function tools.dump(name, mode)
    local out = tools.path(name .. ".f32")
    local code, text = tools.shell(string.format("%s %s %s %s > %s", tools.path("pack_dump"), tools.path(name .. ".plan"),
        tools.path(name .. ".pack"), mode or "", out))
    if code ~= 0 then return nil, text end
    local file = assert(io.open(out, "rb"))
    local data = file:read("a")
    file:close()
    return data
end

return tools
