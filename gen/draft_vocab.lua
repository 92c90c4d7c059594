-- SPDX-License-Identifier: Apache-2.0
--
-- The tokens that the draft head chooses among. The target chooses among all, so the list changes speed and nothing else.
--
--   require("draft_vocab").read("32768", vocabulary, end_tokens)    -- the lowest ids of a tokenizer are its commonest pieces
--   require("draft_vocab").read("ids.txt", vocabulary, end_tokens)  -- a file of ids: NAME tokenize --draft-vocab N < text
--
-- Both return ascending distinct ids with the end tokens among them; nil when they come to the whole vocabulary.

local fail = require "fail"

local draft_vocab = {}

local LEAST <const> = 16
local OPTION <const> = "DRAFT_VOCAB (--draft-vocab)" -- as people write it

local function ids_of(value, vocabulary)
    local count = math.tointeger(tonumber(value))
    local seen = {}
    if count then
        if count < LEAST or count > vocabulary then
            fail(OPTION .. ": a number of ids from %d to %d, or a file of them, is expected, found %s", LEAST,
                vocabulary, value)
        end
        for id = 0, count - 1 do seen[id] = true end
        return seen
    end
    local f, message = io.open(value, "rb")
    if not f then fail(OPTION .. ": a number of ids or a file of them is expected (%s)", message) end
    local text = f:read("a")
    f:close()
    if not text then fail("%s: is not a file that can be read", value) end
    for word in text:gmatch("[^%s,]+") do
        local id = math.tointeger(tonumber(word))
        if not id or id < 0 or id >= vocabulary then
            fail("%s: ids from 0 to %d are expected, found %s", value, vocabulary - 1, word)
        end
        seen[id] = true
    end
    return seen
end

function draft_vocab.read(value, vocabulary, end_tokens)
    local seen, list = ids_of(value, vocabulary), {}
    for _, id in ipairs(end_tokens) do seen[id] = true end
    for id in pairs(seen) do list[#list + 1] = id end
    if #list < LEAST then fail(OPTION .. ": at least %d ids are expected, found %d", LEAST, #list) end
    table.sort(list)
    return #list < vocabulary and list or nil
end

return draft_vocab
