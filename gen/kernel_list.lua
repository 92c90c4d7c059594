-- SPDX-License-Identifier: Apache-2.0
--
-- Prints the kernels in the order of the op table, as the X-macro list that graphs/ numbers them by.

local here = arg[0]:match("^(.*)/gen/[^/]*$") or "."
package.path = here .. "/gen/?.lua;" .. package.path

for _, op in ipairs(require "ops") do print("X(" .. op.name .. ")") end
