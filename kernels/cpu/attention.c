// SPDX-License-Identifier: Apache-2.0
//
// Appending to the caches, and causal attention over all or over selected positions of a paged cache.
//
// Invariant: positions are taken in chunks of CHUNK absolute positions, ascending; a chunk's share of a row depends on the
// row's own mask of the chunk, never on the page size, on the order of pages or on the rows that share the decoded tile.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/row.h"
#include "kernels/cpu/transpose.h"

enum {
    CHUNK = 64,           // positions; the bits of a mask
    GROUPS = CHUNK / VEC, // of positions whose keys are transposed together
    TILE_ROWS = 8,        // rows that share a decoded chunk, at most
    TILE_ACC = 1 << 16,   // fp32 accumulators that fit the scratch
#if defined(__AVX512F__)
    HEADS = 4, // query heads that share a load of keys or values: as many as registers hold
    WIDE = 4,  // vectors of values at a time
    PAIR = 2,  // groups of keys at a time
#else
    HEADS = 2,
    WIDE = 2,
    PAIR = 1,
#endif
};

#define UNROLL _Pragma("GCC unroll 4")

// ---- kv_append: items are rows ---------------------------------------------------------------------------------------------

static int64_t kv_append_items(const void *p)
{
    return ((const struct kv_append_args *)p)->pass->rows;
}

static void kv_append_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct kv_append_args *a = p;
    const struct kv_layout *kv = &a->layout;
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        const int32_t l = a->pass->lane[r], at = a->pass->position[r];
        kv_encode(kv_row(&a->lanes, kv, l, KV_KEYS, at, 1), a->k + r * a->ldk, kv->kv_heads, kv->dim, kv->encoding);
        kv_encode(kv_row(&a->lanes, kv, l, KV_VALUES, at, 1), a->v + r * a->ldv, kv->kv_heads, kv->dim, kv->encoding);
        if (a->index)
            kv_encode(kv_row(&a->lanes, kv, l, KV_INDEX, at, 1), a->index + r * a->ldi, 1, kv->index_dim,
                      kv->index_encoding);
    }
}

const struct kernel ISA_SYM(kernel_kv_append) = {"kv_append", {{kv_append_items, kv_append_run}}};

// ---- attention: items are (lane, tile of rows, kv head) ----------------------------------------------------------------------

// What an item keeps in scratch. keys: [GROUPS][padded dim][VEC], so that a score needs no sum across lanes; lines: a
// group's keys before that, [VEC][padded dim]; values: [CHUNK][padded dim].
struct attention_item {
    const struct attention_args *a;
    int32_t lane, row, rows, kv_head; // rows row .. row + rows - 1 of the pass
    int32_t group, padded;            // query heads a kv head; dim, rounded up to whole vectors
    float *keys, *lines, *values;
    float *acc;         // [rows][group][padded dim]
    float *top, *total; // [rows][group]: running maximum of the scores, and sum of weights
    int32_t *cursor;    // [rows]: selected blocks that lie wholly before the next chunk
};

static int32_t attention_tile_rows(const struct attention_args *a)
{
    const int32_t padded = (int32_t)ceil_div(a->layout.dim, VEC) * VEC;
    const int32_t fit = TILE_ACC / (a->heads / a->layout.kv_heads * padded);
    return fit < 1 ? 1 : least(fit, TILE_ROWS);
}

static int64_t attention_items(const void *p)
{
    const struct attention_args *a = p;
    int64_t tiles = 0;
    for (int32_t l = 0; l < a->lanes.count; l++)
        tiles += ceil_div(a->pass->lane_rows[l], attention_tile_rows(a));
    return tiles * a->layout.kv_heads;
}

// Positions of [first, last] as bits of the chunk that starts at `start`.
static uint64_t span_mask(int64_t start, int64_t first, int64_t last)
{
    first = first > start ? first - start : 0;
    last = last < start + CHUNK - 1 ? last - start : CHUNK - 1;
    if (first > last)
        return 0;
    return (~(uint64_t)0 >> (CHUNK - 1 - (last - first))) << first;
}

// The positions of the chunk that row i of the tile attends.
static uint64_t attention_mask(const struct attention_item *t, int32_t i, int64_t start)
{
    const struct attention_args *a = t->a;
    const int64_t r = t->row + i, position = a->pass->position[r];
    if (!a->counts || a->counts[r] < 0)
        return span_mask(start, 0, position);
    const int32_t *blocks = a->blocks + r * a->keep;
    uint64_t mask = span_mask(start, (position + 1) / a->ratio * a->ratio, position);
    for (; t->cursor[i] < a->counts[r]; t->cursor[i]++) {
        const int64_t first = (int64_t)blocks[t->cursor[i]] * a->ratio, last = first + a->ratio - 1;
        if (first >= start + CHUNK)
            break;
        mask |= span_mask(start, first, last);
        if (last >= start + CHUNK)
            break;
    }
    return mask;
}

static void attention_decode(const struct attention_item *t, int64_t start, uint64_t mask)
{
    const struct attention_args *a = t->a;
    const struct kv_layout *kv = &a->layout;
    for (int32_t g = 0; g < GROUPS; g++, mask >>= VEC) {
        uint32_t slots = mask & 0xffff;
        if (!slots)
            continue;
        for (; slots; slots &= slots - 1) {
            const int32_t i = __builtin_ctz(slots), slot = g * VEC + i;
            const uint8_t *key = kv_row(&a->lanes, kv, t->lane, KV_KEYS, start + slot, 1);
            const uint8_t *value = key + a->lanes.page * kv->key_bytes; // same place in the same page
            kv_decode(t->lines + (int64_t)i * t->padded, key, kv->kv_heads, t->kv_head, kv->dim, kv->encoding);
            kv_decode(t->values + (int64_t)slot * t->padded, value, kv->kv_heads, t->kv_head, kv->dim, kv->encoding);
        }
        for (int32_t d = 0; d < t->padded; d += VEC)
            transpose_16(t->keys + ((int64_t)g * t->padded + d) * VEC, t->lines + d, t->padded);
    }
}

// score[head][slot] = scale * q . key of every slot, for `heads` heads; slots that were not decoded get what lies there.
VEC_INLINE void attention_scores(const struct attention_item *t, const float *q, const int heads, float (*score)[CHUNK])
{
    const int32_t dim = t->a->layout.dim;
    const vf scale = vf_set1(t->a->scale);
    for (int32_t g = 0; g < GROUPS; g += PAIR) {
        const float *key = t->keys + (int64_t)g * t->padded * VEC;
        vf sum[HEADS][PAIR];
        UNROLL for (int h = 0; h < heads; h++) UNROLL for (int j = 0; j < PAIR; j++) sum[h][j] = vf_zero();
        for (int32_t d = 0; d < dim; d++, key += VEC) {
            vf k[PAIR];
            UNROLL for (int j = 0; j < PAIR; j++) k[j] = vf_load(key + (int64_t)j * t->padded * VEC);
            UNROLL for (int h = 0; h < heads; h++)
            {
                const vf x = vf_set1(q[h * dim + d]);
                UNROLL for (int j = 0; j < PAIR; j++) sum[h][j] = vf_fma(k[j], x, sum[h][j]);
            }
        }
        UNROLL for (int h = 0; h < heads; h++) UNROLL for (int j = 0; j < PAIR; j++)
            vf_store(score[h] + (g + j) * VEC, vf_mul(sum[h][j], scale));
    }
}

// acc[h] = acc[h] * keep[h] + sum_j weight[h][j] * values[slot[j]] for `heads` heads, in the order of j.
VEC_INLINE void attention_add(const struct attention_item *t, float *acc, const int heads, const int wide, int32_t d,
                              float (*weight)[CHUNK], const float *keep, const uint8_t *slot, int32_t count)
{
    vf sum[HEADS][WIDE];
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int i = 0; i < wide; i++) sum[h][i] =
        vf_mul(vf_load(acc + (int64_t)h * t->padded + d + i * VEC), vf_set1(keep[h]));
    for (int32_t j = 0; j < count; j++) {
        const float *from = t->values + (int64_t)slot[j] * t->padded + d;
        vf v[WIDE];
        UNROLL for (int i = 0; i < wide; i++) v[i] = vf_load(from + i * VEC);
        UNROLL for (int h = 0; h < heads; h++)
        {
            const vf w = vf_set1(weight[h][j]);
            UNROLL for (int i = 0; i < wide; i++) sum[h][i] = vf_fma(w, v[i], sum[h][i]);
        }
    }
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int i = 0; i < wide; i++)
        vf_store(acc + (int64_t)h * t->padded + d + i * VEC, sum[h][i]);
}

// Turns the scores of the row's slots into weights, and moves the running maximum and total of one head on. Returns what
// the sums so far are to be multiplied with.
VEC_INLINE float attention_weigh(const float *score, const uint8_t *slot, int32_t count, float *weight, float *top,
                                 float *total)
{
    float most = *top;
    for (int32_t j = 0; j < count; j++) {
        weight[j] = score[slot[j]];
        most = weight[j] > most ? weight[j] : most;
    }
    vf sum = vf_zero();
    for (int32_t j = 0; j < count; j += VEC) {
        int lanes = row_lanes(count, j);
        row_store(weight + j, vf_exp(vf_sub(row_load(weight + j, lanes), vf_set1(most))), lanes);
        sum = vf_add(sum, row_load(weight + j, lanes));
    }
    const float keep = f_exp(*top - most);
    *top = most;
    *total = *total * keep + vf_sum(sum);
    return keep;
}

// Merges a chunk into heads head .. head + heads - 1 (of the group) of row i.
VEC_INLINE void attention_merge(const struct attention_item *t, int32_t i, int32_t head, const int heads,
                                const uint8_t *slot, int32_t count)
{
    const struct attention_args *a = t->a;
    const int32_t at = i * t->group + head;
    const float *q = a->q + (t->row + i) * (int64_t)a->ldq + (int64_t)(t->kv_head * t->group + head) * a->layout.dim;
    float score[HEADS][CHUNK], weight[HEADS][CHUNK], keep[HEADS], *acc = t->acc + (int64_t)at * t->padded;
    attention_scores(t, q, heads, score);
    for (int h = 0; h < heads; h++)
        keep[h] = attention_weigh(score[h], slot, count, weight[h], t->top + at + h, t->total + at + h);
    int32_t d = 0;
    for (; d + WIDE * VEC <= t->padded; d += WIDE * VEC)
        attention_add(t, acc, heads, WIDE, d, weight, keep, slot, count);
    for (; d < t->padded; d += VEC)
        attention_add(t, acc, heads, 1, d, weight, keep, slot, count);
}

static void attention_row(const struct attention_item *t, int32_t i, uint64_t mask)
{
    uint8_t slot[CHUNK];
    int32_t count = 0, head = 0;
    for (; mask; mask &= mask - 1)
        slot[count++] = (uint8_t)__builtin_ctzll(mask);
    for (; head + HEADS <= t->group; head += HEADS)
        attention_merge(t, i, head, HEADS, slot, count);
    for (; head < t->group; head++)
        attention_merge(t, i, head, 1, slot, count);
}

static void attention_finish(const struct attention_item *t, int32_t i, int32_t head)
{
    const struct attention_args *a = t->a;
    const int32_t dim = a->layout.dim, h = t->kv_head * t->group + head;
    const int64_t r = t->row + i;
    const float *acc = t->acc + (int64_t)(i * t->group + head) * t->padded;
    const float *gate = a->gate ? a->gate + r * a->ldg + (int64_t)h * a->gate_stride : NULL;
    float *y = a->y + r * a->ldy + (int64_t)h * dim;
    const vf total = vf_set1(t->total[i * t->group + head]);
    for (int32_t d = 0; d < dim; d += VEC) {
        int lanes = row_lanes(dim, d);
        vf o = vf_div(row_load(acc + d, lanes), total);
        if (gate)
            o = vf_mul(o, vf_sigmoid(row_load(gate + d, lanes)));
        row_store(y + d, o, lanes);
    }
}

static void attention_tile(const struct attention_item *t)
{
    const struct attention_args *a = t->a;
    memset(t->acc, 0, (size_t)(t->rows * t->group) * (size_t)t->padded * sizeof *t->acc);
    for (int32_t i = 0; i < t->rows * t->group; i++) {
        t->top[i] = -__builtin_inff();
        t->total[i] = 0;
    }
    memset(t->cursor, 0, (size_t)t->rows * sizeof *t->cursor);
    const int64_t last = a->pass->position[t->row + t->rows - 1];
    for (int64_t start = 0; start <= last; start += CHUNK) {
        uint64_t mask[TILE_ROWS], all = 0;
        for (int32_t i = 0; i < t->rows; i++)
            all |= mask[i] = attention_mask(t, i, start);
        attention_decode(t, start, all);
        for (int32_t i = 0; i < t->rows; i++)
            if (mask[i])
                attention_row(t, i, mask[i]);
    }
    for (int32_t i = 0; i < t->rows; i++)
        for (int32_t head = 0; head < t->group; head++)
            attention_finish(t, i, head);
}

static void attention_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct attention_args *a = p;
    const int32_t tile = attention_tile_rows(a);
    struct attention_item t = {.a = a, .keys = scratch, .group = a->heads / a->layout.kv_heads};
    t.padded = (int32_t)ceil_div(a->layout.dim, VEC) * VEC;
    t.lines = t.keys + (int64_t)CHUNK * t.padded;
    t.values = t.lines + (int64_t)VEC * t.padded;
    t.acc = t.values + (int64_t)CHUNK * t.padded;
    t.top = t.acc + (int64_t)tile * t.group * t.padded;
    t.total = t.top + tile * t.group;
    t.cursor = (int32_t *)(t.total + tile * t.group);
    for (int64_t item = begin; item < end; item++) {
        int64_t index = item / a->layout.kv_heads;
        t.kv_head = (int32_t)(item % a->layout.kv_heads);
        for (t.lane = 0; index >= ceil_div(a->pass->lane_rows[t.lane], tile); t.lane++)
            index -= ceil_div(a->pass->lane_rows[t.lane], tile);
        const int32_t first = (int32_t)index * tile;
        t.row = a->pass->lane_first[t.lane] + first;
        t.rows = least(a->pass->lane_rows[t.lane] - first, tile);
        attention_tile(&t);
    }
}

const struct kernel ISA_SYM(kernel_attention) = {"attention", {{attention_items, attention_run}}};
