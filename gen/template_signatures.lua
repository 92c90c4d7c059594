-- SPDX-License-Identifier: Apache-2.0
--
-- Parameters of every filter, test, method and function that compiled templates can use, in the order in which
-- runtime/template_library.h takes them. The compiler binds arguments to them, so a wrong call fails at build time.

local function list(text)
    local result = {}
    for name in text:gmatch("%S+") do result[#result + 1] = name end
    return result
end

-- "name: parameters" lines; a '*' marks parameters that must be given.
local function signatures(text)
    local result = {}
    for line in text:gmatch("[^\n]+") do
        local name, parameters = line:match("^%s*([%w_]+):%s*(.-)%s*$")
        if name then
            local entry = { name = name, parameters = list((parameters:gsub("%*", ""))), required = {} }
            for i, parameter in ipairs(list(parameters)) do entry.required[i] = parameter:sub(1, 1) == "*" end
            result[name] = entry
        end
    end
    return result
end

local function alias(map, text)
    for new, old in text:gmatch("(%S+)=(%S+)") do map[new] = map[old] end
    return map
end

local M = {}

M.filters = alias(signatures [[
    abs:
    attr: *name
    capitalize:
    default: default_value boolean
    dictsort: case_sensitive by reverse
    escape:
    first:
    float: default
    indent: width first blank
    int: default base
    items:
    join: d attribute
    last:
    length:
    list:
    lower:
    max: case_sensitive attribute
    min: case_sensitive attribute
    replace: *old *new count
    reverse:
    round: precision method
    safe:
    sort: reverse case_sensitive attribute
    string:
    sum: attribute start
    title:
    tojson: ensure_ascii indent separators sort_keys
    trim: chars
    unique: case_sensitive attribute
    upper:
]], "count=length d=default e=escape")

M.tests = alias(signatures [[
    boolean:
    callable:
    defined:
    divisibleby: *num
    eq: *other
    even:
    false:
    float:
    ge: *other
    gt: *other
    in: *seq
    integer:
    iterable:
    le: *other
    lower:
    lt: *other
    mapping:
    ne: *other
    none:
    number:
    odd:
    sameas: *other
    sequence:
    string:
    true:
    undefined:
    upper:
]], "equalto=eq greaterthan=gt lessthan=lt ==eq !==ne")

M.methods = signatures [[
    capitalize:
    copy:
    count: *value
    endswith: *suffix
    find: *sub start
    get: *key default
    index: *value start
    isalnum:
    isalpha:
    isdigit:
    isspace:
    items:
    join: *iterable
    keys:
    lower:
    lstrip: chars
    removeprefix: *prefix
    removesuffix: *suffix
    replace: *old *new count
    rfind: *sub start
    rsplit: sep maxsplit
    rstrip: chars
    split: sep maxsplit
    splitlines:
    startswith: *prefix
    strip: chars
    title:
    upper:
    values:
]]

M.functions = signatures [[
    raise_exception: *message
    range: *start stop step
    strftime_now: *format
]]

return M
