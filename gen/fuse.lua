-- SPDX-License-Identifier: Apache-2.0
--
-- Rewrites of a program's ops, each with a name and a test of its own. A rewrite never changes a result's bits.

local fuse = {}

local MAX_PARTS = 6 -- LINEAR_PARTS of kernels/cpu/ops.h
local STEP_MOST = 6 -- ops of a step

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

-- The operand of an op by name.
function fuse.arg(op, name)
    for _, a in ipairs(op.args or {}) do
        if a[1] == name then return a[3] end
    end
end

local arg = fuse.arg

local function same(a, b) return a and b and a.buffer == b.buffer and a.offset == b.offset end

-- Whether nobody but op `reader` sees what `writer` left in v.
local function only_reader(ops, at, v, reader)
    for i = at + 1, #ops do
        local op = ops[i]
        if op.name == "linear" and i ~= reader and same(op.facts.x, v) then return false end
        for _, a in ipairs(op.args or {}) do
            if i ~= reader and type(a[3]) == "table" and a[3].buffer == v.buffer then
                return a[2] == "out" -- written anew before anybody else reads it
            end
        end
    end
    return not v.keep
end

-- Whether op i is one of that name and the next one the product of its rows, which nobody else reads.
local function product_of(ops, i, name)
    local op, product = ops[i], ops[i + 1]
    return op.name == name and product and product.name == "linear" and product.pass == op.pass
        and same(arg(op, "y"), product.facts.x) and only_reader(ops, i, arg(op, "y"), i + 1)
end
local function glu_product(ops, i) return product_of(ops, i, "glu") end

-- Whether an op reads a buffer of `changed`.
local function reads(op, changed)
    for _, a in ipairs(op.args or {}) do
        if a[2] == "in" and a[3] and changed[a[3].buffer] then return true end
    end
    return false
end

-- Ops from `i` on that make keys, put them into the cache, pool its blocks, and norm queries: none reads what another
-- one leaves, but the keys, which nobody else reads.
local function append_step(ops, i)
    local op, second, next = ops[i], ops[i + 1], i + 2
    if op.name ~= "head_norm" or second.name ~= "kv_append" or not same(arg(op, "y"), arg(second, "k"))
        or not only_reader(ops, i, arg(op, "y"), i + 1) then
        return 1
    end
    local function is(at, name) return ops[at] and ops[at].name == name and ops[at].pass == op.pass end
    local pools = is(next, "index_pool")
    local norms = pools and 2 or 1
    if pools then next = next + 1 end
    for at = next, next + norms - 1 do
        if not is(at, "head_norm") or reads(ops[at], written(op)) then return next - i end
    end
    return next + norms - i
end

-- Ops that add a row to what they change, by the operand that they change.
local RESIDUAL = { hc_inject = "r", add = "x" }

-- Whether `norm` norms what the residual op `op` leaves.
local function normed(op, norm)
    return norm and norm.name == "norm" and same(arg(op, RESIDUAL[op.name]), arg(norm, "x"))
end

-- Whether op i is the product of gates and the next one the mix behind them, which nobody else reads.
local function gates_mixed(ops, i)
    local op, mix = ops[i], ops[i + 1]
    return op and op.name == "linear" and mix and mix.name == "hc_mix" and mix.pass == op.pass and #op.facts.parts == 1
        and same(op.facts.parts[1].y, arg(mix, "gate")) and only_reader(ops, i, op.facts.parts[1].y, i + 1)
end

-- Ops of a residual's norm at `i` and of what reads it: 4 where these are the gates' two products and the mix, which nobody else
-- reads the normed rows beside, else 1.
local function norm_and_gates(ops, i)
    local norm, first = ops[i], ops[i + 1]
    local y = arg(norm, "y")
    if not first or first.name ~= "linear" or first.pass ~= norm.pass or not same(y, first.facts.x) or not gates_mixed(ops, i + 2)
        or not same(y, arg(ops[i + 3], "xn")) then
        return 1
    end
    for at = i + 4, #ops do
        local op = ops[at]
        if op.name == "linear" and same(op.facts.x, y) then return 1 end
        for _, a in ipairs(op.args or {}) do
            if type(a[3]) == "table" and a[3].buffer == y.buffer then return a[2] == "out" and 4 or 1 end
        end
    end
    return y.keep and 1 or 4
end

-- Whether op i is the first half of experts and the next one the second, and nobody else reads what lies between them.
local function both_halves(ops, i)
    local up, down = ops[i], ops[i + 1]
    return up and up.name == "experts_up" and down and down.name == "experts_down" and down.pass == up.pass
        and same(arg(up, "h"), arg(down, "h")) and only_reader(ops, i, arg(up, "h"), i + 1)
end

-- Whether decode rows' experts at `at` go by the choices of op i and read nothing that stands between.
local function chosen_experts(ops, i, at)
    local up, route = ops[at], ops[i]
    if not both_halves(ops, at) or up.pass ~= route.pass or arg(up, "row_class") ~= "decode" or not same(arg(route, "ids"), arg(up, "ids"))
        or not same(arg(route, "ids"), arg(ops[at + 1], "ids")) then
        return false
    end
    for between = i + 1, at - 1 do
        local changed = written(ops[between])
        for _, part in ipairs(ops[between].name == "linear" and ops[between].facts.parts or {}) do changed[part.y.buffer] = true end
        if reads(up, changed) then return false end
    end
    return true
end

-- How many ops from `i` on a target may do as one. Of what they leave, others read the last one's outputs, what the first changes
-- in place, choices of experts, normed queries, a residual's normed rows, and what products leave for others.
local function step(ops, i)
    local op, second, third = ops[i], ops[i + 1], ops[i + 2]
    if not second or second.pass ~= op.pass then return 1 end
    if third and third.pass ~= op.pass then third = nil end
    if op.name == "add" and normed(op, second) and third and third.name == "linear" and same(arg(second, "y"), third.facts.x) then
        return 3
    end
    if RESIDUAL[op.name] and normed(op, second) then return 1 + norm_and_gates(ops, i + 1) end
    if op.name == "moe_sum" and RESIDUAL[second.name] and same(arg(op, "y"), arg(second, "y"))
        and only_reader(ops, i, arg(op, "y"), i + 1) then
        return normed(second, third) and 2 + norm_and_gates(ops, i + 2) or 2
    end
    if glu_product(ops, i) then return 2 end
    if op.name == "route" and third and glu_product(ops, i + 1) and not reads(second, written(op)) then
        return chosen_experts(ops, i, i + 3) and 5 or 3
    end
    if gates_mixed(ops, i) then return 2 end
    if both_halves(ops, i) then return 2 end
    if op.name == "conv" and second.name == "gdn" and third and third.name == "gated_norm"
        and same(arg(op, "y"), arg(second, "c")) and only_reader(ops, i, arg(op, "y"), i + 1)
        and same(arg(second, "y"), arg(third, "x")) and only_reader(ops, i + 1, arg(second, "y"), i + 2) then
        return product_of(ops, i + 2, "gated_norm") and 4 or 3
    end
    if product_of(ops, i, "gated_norm") then return 2 end
    return append_step(ops, i)
end

-- Marks ops that form one step, for targets whose launches are dear: op.together is the number of ops from it on.
function fuse.together(ops)
    local i = 1
    while i <= #ops do
        local count = step(ops, i)
        if count > 1 then ops[i].together = count end
        i = i + count
    end
    return ops
end

-- Whether an op's operands named, and what it reads of the caches, were there before the launch right before it, which
-- is an op or a step.
local function there(ops, at, names)
    local first = at - 1
    for back = 1, STEP_MOST do
        local op = ops[at - back]
        if op and op.together and op.together >= back then first = at - back end
    end
    for i = math.max(1, first), at - 1 do
        local changed = written(ops[i])
        for _, part in ipairs(ops[i].name == "linear" and ops[i].facts.parts or {}) do changed[part.y.buffer] = true end
        if ops[i].name == "kv_append" then return false end
        for _, name in ipairs(names) do
            local v = arg(ops[at], name)
            if v and changed[v.buffer] then return false end
        end
    end
    return true
end

local EARLY = { experts_up = { "x", "ids" }, attention = { "q", "gate" } }

-- Marks experts whose rows and choices, and attention whose queries and cache, were there before the launch right
-- before them: a target may begin them beside it.
function fuse.early(ops)
    for i, op in ipairs(ops) do
        if EARLY[op.name] and there(ops, i, EARLY[op.name]) then
            for _, a in ipairs(op.args) do
                if a[1] == "early" then a[3] = 1 end
            end
        end
    end
    return ops
end

-- All rewrites, in order. skip: set of names to leave out.
fuse.passes = { "shared_input", "together", "early" }

function fuse.run(ops, skip)
    for _, name in ipairs(fuse.passes) do
        if not (skip and skip[name]) then ops = fuse[name](ops) end
    end
    return ops
end

return fuse
