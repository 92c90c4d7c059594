#!/usr/bin/env lua5.4
-- SPDX-License-Identifier: Apache-2.0
--
-- The embedded model against the replies of its bf16 weights: prompts tokenize as recorded, most greedy replies are the same in
-- spite of the packing, and drafts are right about as often as the packed head should be.

local cjson = require "cjson"
local binary = os.getenv("BINARY") or "build/flashnext/flashnext"
local tests, failures = 0, 0

local function ok(good, name, note)
    tests = tests + 1
    if not good then failures = failures + 1 end
    print(string.format("%sok %d - %s", good and "" or "not ", tests, name))
    if note then print("# " .. note) end
end

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end

local function capture(command)
    local pipe = assert(io.popen(command))
    local text = pipe:read("a")
    return pipe:close() and text or nil
end

local function ids_text(ids, separator)
    local out = {}
    for i, id in ipairs(ids) do out[i] = string.format("%d", id) end
    return table.concat(out, separator)
end

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local replies = cjson.decode(read("tests/fixtures/embedded/replies.json"))

local rendered = {}
for i, r in ipairs(replies) do rendered[i] = cjson.encode(r.rendered) end
local path = os.tmpname()
local file = assert(io.open(path, "w"))
assert(file:write(table.concat(rendered, "\n"), "\n"))
file:close()
local lines = {}
for line in (capture(binary .. " tokenize --jsonl <" .. path) or ""):gmatch("[^\n]+") do lines[#lines + 1] = cjson.decode(line) end
os.remove(path)
local same = #lines == #replies
for i, r in ipairs(replies) do same = same and ids_text(lines[i], ",") == ids_text(r.prompt_ids, ",") end
ok(same, "the rendered prompts tokenize as recorded")

local equal, drafted, accepted, answered, templated = 0, 0, 0, 0, true
for _, r in ipairs(replies) do
    local text = capture(string.format("%s eval --quiet --tokens %s --greedy %d 2>&1", binary, ids_text(r.prompt_ids, ","), #r.reply_ids))
    if text == ids_text(r.reply_ids, " ") .. "\n" then equal = equal + 1 end
    if #r.messages == 1 then
        local summary = capture(string.format("%s run -p %s --temperature 0 2>&1 >/dev/null", binary, quoted(r.messages[1].content))) or ""
        local d, a = summary:match("drafted (%d+), accepted (%d+)")
        local prompt = summary:match("prompt (%d+) tokens")
        if d then drafted, accepted, answered = drafted + d, accepted + a, answered + 1 end
        templated = templated and tonumber(prompt) == #r.prompt_ids
    end
end
ok(equal * 10 >= #replies * 6, "most greedy replies are those of the bf16 weights", string.format("%d of %d", equal, #replies))
ok(templated and answered > 0, "run renders and tokenizes a message as recorded")
ok(drafted > 0 and accepted * 2 > drafted, "more than half of the drafts are accepted", string.format("%d of %d", accepted, drafted))

print("1.." .. tests)
os.exit(failures == 0)
