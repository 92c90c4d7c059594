-- SPDX-License-Identifier: Apache-2.0
--
-- Gives every buffer its place in one static arena. Buffers with a `keep` name outlive their program and get places of their
-- own at the start, the same in all programs; the others share the rest by lifetime, first fit in the order of first use.
-- Invariant: two buffers that are alive at the same launch, or in the same step (fuse.together), never overlap. Where a buffer lies
-- never changes a bit.

local place = {}

local ALIGN = 64

local function round(n) return (n + ALIGN - 1) // ALIGN * ALIGN end

local function each_value(op, f)
    for _, a in ipairs(op.args) do
        local kind, v = a[2], a[3]
        if v and (kind == "in" or kind == "out" or kind == "inout" or kind == "scratch") then
            f(v.buffer)
        elseif kind == "parts" then
            for _, part in ipairs(v) do f(part.y.buffer) end
        end
    end
end

-- kept: name -> { offset, bytes }, shared by all programs; grows here. Returns nothing.
function place.keep(program, kept)
    for _, op in ipairs(program.ops) do
        each_value(op, function(b)
            if b.keep then
                local k = kept[b.keep]
                if not k then
                    k = { name = b.keep, bytes = 0, order = kept.count or 0 }
                    kept.count = k.order + 1
                    kept[b.keep] = k
                    kept[#kept + 1] = k
                end
                k.bytes = math.max(k.bytes, b.bytes)
            end
        end)
    end
end

-- Offsets of the kept buffers; returns where the shared part begins.
function place.fix(kept)
    local at = 0
    for _, k in ipairs(kept) do
        k.offset = at
        at = at + round(k.bytes)
    end
    return at
end

-- Offsets of one program's buffers from `base` on; returns the end. permute: a seed that shuffles the order (tests).
function place.program(program, kept, base, permute)
    local buffers, by_buffer = {}, {}
    local first, last = 0, 0 -- ops of the step that op i is in: they may run as one
    for i, op in ipairs(program.ops) do
        if i > last then first, last = i, i + (op.together or 1) - 1 end
        each_value(op, function(b)
            local e = by_buffer[b]
            if not e then
                e = { buffer = b, first = first, bytes = round(b.bytes) }
                by_buffer[b] = e
                buffers[#buffers + 1] = e
            end
            e.last = last
        end)
    end
    if permute then
        local state = permute
        for i = #buffers, 2, -1 do
            state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
            local j = (state >> 20) % i + 1
            buffers[i], buffers[j] = buffers[j], buffers[i]
        end
    end
    local placed, finish = {}, base
    local alive = {} -- op -> placed buffers that are alive at it
    for i = 1, #program.ops do alive[i] = {} end
    for _, e in ipairs(buffers) do
        local b = e.buffer
        if b.keep then
            b.at = kept[b.keep].offset
        else
            b.at = place.first_fit(place.neighbours(e, alive), base, e.bytes)
            for i = e.first, e.last do table.insert(alive[i], e) end
            placed[#placed + 1] = e
            finish = math.max(finish, b.at + e.bytes)
        end
    end
    place.check(placed)
    return finish
end

-- Placed buffers that share a launch with e, by address.
function place.neighbours(e, alive)
    local busy, seen = {}, {}
    for i = e.first, e.last do
        for _, p in ipairs(alive[i]) do
            if not seen[p] then busy[#busy + 1] = p end
            seen[p] = true
        end
    end
    table.sort(busy, function(x, y)
        if x.buffer.at ~= y.buffer.at then return x.buffer.at < y.buffer.at end
        return x.first < y.first
    end)
    return busy
end

-- The lowest address from base on where `bytes` fit between the busy buffers, which are sorted by address.
function place.first_fit(busy, base, bytes)
    local at = base
    for _, p in ipairs(busy) do
        if p.buffer.at < at + bytes and at < p.buffer.at + p.bytes then at = p.buffer.at + p.bytes end
    end
    return at
end

-- The invariant, asserted on every build: in the order of first use, each buffer against those that are still alive.
function place.check(placed)
    local order, live = table.move(placed, 1, #placed, 1, {}), {}
    table.sort(order, function(x, y)
        if x.first ~= y.first then return x.first < y.first end
        return x.buffer.at < y.buffer.at
    end)
    for _, a in ipairs(order) do
        local still = {}
        for _, b in ipairs(live) do
            if b.last >= a.first then
                still[#still + 1] = b
                local overlap = a.buffer.at < b.buffer.at + b.bytes and b.buffer.at < a.buffer.at + a.bytes
                assert(not overlap, "two live buffers share memory")
            end
        end
        still[#still + 1] = a
        live = still
    end
end

return place
