-- SPDX-License-Identifier: Apache-2.0
--
-- The constants of the n-gram embedding (2.5): table sizes are primes, offsets their running sums, multipliers a splitmix64
-- sequence. All are functions of the config; the checkpoint's own copies must equal them.

local ngram = {}

local function is_prime(v)
    if v < 2 then return false end
    for d = 2, math.floor(math.sqrt(v)) do
        if v % d == 0 then return false end
    end
    return true
end

-- The count primes after the first `skip` ones that are at least base.
local function primes(base, skip, count)
    local out, v = {}, base - 1
    while #out < skip + count do
        v = v + 1
        if is_prime(v) then out[#out + 1] = v end
    end
    return table.move(out, skip + 1, skip + count, 1, {})
end

local GOLDEN = 0x9E3779B97F4A7C15

local function mix(v)
    v = v + GOLDEN
    v = (v ~ (v >> 30)) * 0xBF58476D1CE4E5B9
    v = (v ~ (v >> 27)) * 0x94D049BB133111EB
    return v ~ (v >> 31)
end

local function multipliers(vocabulary, count, seed, index)
    local half = math.max(1, (math.maxinteger // vocabulary) // 2)
    local out = {}
    for i = 0, count - 1 do
        local h = mix(seed + 10007 * index + GOLDEN * (i + 1))
        -- h is unsigned: take it modulo half through its two halves of the range
        local r = h >= 0 and h % half or (math.ult(h, half) and h or (((h >> 1) % half) * 2 + (h & 1)) % half)
        out[i + 1] = 2 * r + 1
    end
    return out
end

function ngram.check(c, fail)
    c.ple_layers = {}
    for i, id in ipairs(c.ple_layer_ids or {}) do
        id = type(id) == "number" and math.tointeger(id) or fail("ple_layer_ids: whole numbers are expected")
        if id < 1 or id > c.num_hidden_layers then fail("ple_layer_ids: %d is not one of 1 .. %d", id, c.num_hidden_layers) end
        c.ple_layers[id - 1] = i - 1
    end
    if not next(c.ple_layers) then return end
    if c.ngram_size < 2 then fail("ngram_size: %d; at least 2 is needed", c.ngram_size) end
    local heads = (c.ngram_size - 1) * c.heads_per_ngram
    if c.ple_embed_dim < heads or c.ple_embed_dim % heads ~= 0 then
        fail("ple_embed_dim %d is no multiple of the %d n-gram heads", c.ple_embed_dim, heads)
    end
    if c.ngram_vocab_size_base < 2 then fail("ngram_vocab_size_base: %d; at least 2 is needed", c.ngram_vocab_size_base) end
    if not c.eos then fail("eos_token_id: missing; the n-gram embedding needs it as separator") end
end

-- What Builder:ngram needs for layer l (0-indexed).
function ngram.spec(c, l)
    local index = c.ple_layers[l]
    local heads = (c.ngram_size - 1) * c.heads_per_ngram
    local size = primes(c.ngram_vocab_size_base, index * heads, heads)
    local offset, total = {}, 0
    for i, s in ipairs(size) do
        offset[i] = total
        total = total + s
    end
    local d = c.make_ngram_vocab_size_divisible_by
    return {
        name = "layers." .. l .. ".ple.ple_embedding.", heads = heads, dim = c.ple_embed_dim // heads, ngram = c.ngram_size, eos = c.eos,
        size = size, offset = offset, rows = (total + d - 1) // d * d,
        multiplier = multipliers(c.vocab_size, c.ngram_size, c.seed, index),
    }
end

return ngram
