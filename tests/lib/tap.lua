-- SPDX-License-Identifier: Apache-2.0
--
-- TAP for test scripts: tap.ok(condition, name, detail) for each check, tap.done() at the end.

local tap = { count = 0, failures = 0 }

-- detail is shown when the check fails. Returns the condition.
function tap.ok(good, name, detail)
    tap.count = tap.count + 1
    if not good then tap.failures = tap.failures + 1 end
    print((good and "ok " or "not ok ") .. tap.count .. " - " .. name)
    if not good and detail then print("# " .. tostring(detail):gsub("\n", "\n# ")) end
    return good
end

-- Prints the plan and ends the process: 1 when a check failed.
function tap.done()
    print("1.." .. tap.count)
    os.exit(tap.failures == 0 and 0 or 1)
end

return tap
