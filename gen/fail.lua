-- SPDX-License-Identifier: Apache-2.0
--
-- Errors that a person can act on. `fail("config.json: key %s is missing", key)` ends the build with that one line and exit
-- code 2; any other Lua error is a bug of the generator and shows its traceback.

local Failure = {}
Failure.__index = Failure
Failure.__tostring = function(self) return self.message end

return setmetatable({
    -- is(e): whether e was raised by fail().
    is = function(e) return getmetatable(e) == Failure end,
}, {
    __call = function(_, format, ...)
        error(setmetatable({ message = string.format(format, ...) }, Failure), 0)
    end,
})
