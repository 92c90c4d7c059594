-- SPDX-License-Identifier: Apache-2.0
--
-- Rewrites of a program's ops, each with a name and a test of its own. A rewrite never changes a result's bits.

local fuse = {}

local MAX_PARTS = 6 -- LINEAR_PARTS of kernels/cpu/ops.h

-- Set of the buffers that an op writes.
local function written(op)
    local set = {}
    for _, a in ipairs(op.args or {}) do
        if (a[2] == "inout" or a[2] == "out") and a[3] then set[a[3].buffer] = true end
    end
    return set
end

-- Products that read the same rows become one launch (gate + up, q + k + v, down + inject ...): a later one moves up to the
-- first, which is allowed as long as nothing between them changes what they read.
function fuse.shared_input(ops)
    local out, open = {}, {}
    for _, op in ipairs(ops) do
        local host
        if op.name == "linear" then
            local f = op.facts
            for i = #open, 1, -1 do
                local g = open[i].facts
                if g.x.buffer == f.x.buffer and g.x.offset == f.x.offset and g.k == f.k and g.row_multiple == f.row_multiple
                    and open[i].pass == op.pass and #g.parts < MAX_PARTS then
                    host = open[i]
                    break
                end
            end
            if host then
                for _, part in ipairs(f.parts) do table.insert(host.facts.parts, part) end
                host.facts.shape = host.facts.shape .. " + " .. f.shape
            else
                open[#open + 1] = op
            end
        else
            local changed = written(op)
            for i = #open, 1, -1 do
                if op.name == "rows" or changed[open[i].facts.x.buffer] then table.remove(open, i) end
            end
        end
        if not host then out[#out + 1] = op end
    end
    return out
end

-- All rewrites, in order. skip: set of names to leave out.
fuse.passes = { "shared_input" }

function fuse.run(ops, skip)
    for _, name in ipairs(fuse.passes) do
        if not (skip and skip[name]) then ops = fuse[name](ops) end
    end
    return ops
end

return fuse
