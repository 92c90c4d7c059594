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

enum {
    CHUNK = 64,         // positions; the bits of a mask
    TILE_ROWS = 8,      // rows that share a decoded chunk, at most
    TILE_ACC = 1 << 16, // fp32 accumulators that fit the scratch
};

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

// What an item keeps in scratch. keys: [dim][CHUNK], so that a score needs no sum across lanes; values: [CHUNK][dim].
struct attention_item {
    const struct attention_args *a;
    int32_t lane, row, rows, kv_head; // rows row .. row + rows - 1 of the pass
    float *keys, *values, *line;
    float *acc;         // [rows][group][dim]
    float *top, *total; // [rows][group]: running maximum of the scores, and sum of weights
    int32_t *cursor;    // [rows]: selected blocks that lie wholly before the next chunk
};

static int32_t attention_tile_rows(const struct attention_args *a)
{
    const int32_t fit = TILE_ACC / (a->heads / a->layout.kv_heads * a->layout.dim);
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
    for (; mask; mask &= mask - 1) {
        const int32_t slot = __builtin_ctzll(mask);
        const uint8_t *key = kv_row(&a->lanes, kv, t->lane, KV_KEYS, start + slot, 1);
        const uint8_t *value = kv_row(&a->lanes, kv, t->lane, KV_VALUES, start + slot, 1);
        kv_decode(t->line, key, kv->kv_heads, t->kv_head, kv->dim, kv->encoding);
        for (int32_t d = 0; d < kv->dim; d++)
            t->keys[(int64_t)d * CHUNK + slot] = t->line[d];
        kv_decode(t->values + (int64_t)slot * kv->dim, value, kv->kv_heads, t->kv_head, kv->dim, kv->encoding);
    }
}

// score[slot] = scale * q . key of every slot; slots that were not decoded get what lies there.
static void attention_scores(const struct attention_item *t, const float *q, float *score)
{
    const vf scale = vf_set1(t->a->scale);
    vf s0 = vf_zero(), s1 = s0, s2 = s0, s3 = s0;
    const float *key = t->keys;
    for (int32_t d = 0; d < t->a->layout.dim; d++, key += CHUNK) {
        const vf x = vf_set1(q[d]);
        s0 = vf_fma(vf_load(key), x, s0);
        s1 = vf_fma(vf_load(key + VEC), x, s1);
        s2 = vf_fma(vf_load(key + 2 * VEC), x, s2);
        s3 = vf_fma(vf_load(key + 3 * VEC), x, s3);
    }
    vf_store(score, vf_mul(s0, scale));
    vf_store(score + VEC, vf_mul(s1, scale));
    vf_store(score + 2 * VEC, vf_mul(s2, scale));
    vf_store(score + 3 * VEC, vf_mul(s3, scale));
}

// acc = acc * keep + sum_j weight[j] * values[slot[j]], in the order of j.
static void attention_add(float *acc, int32_t dim, const float *values, const float *weight, const uint8_t *slot,
                          int32_t count, float keep)
{
    const vf keeps = vf_set1(keep);
    int32_t d = 0;
    for (; d + 4 * VEC <= dim; d += 4 * VEC) {
        vf s0 = vf_mul(vf_load(acc + d), keeps), s1 = vf_mul(vf_load(acc + d + VEC), keeps);
        vf s2 = vf_mul(vf_load(acc + d + 2 * VEC), keeps), s3 = vf_mul(vf_load(acc + d + 3 * VEC), keeps);
        for (int32_t j = 0; j < count; j++) {
            const float *v = values + (int64_t)slot[j] * dim + d;
            const vf w = vf_set1(weight[j]);
            s0 = vf_fma(w, vf_load(v), s0);
            s1 = vf_fma(w, vf_load(v + VEC), s1);
            s2 = vf_fma(w, vf_load(v + 2 * VEC), s2);
            s3 = vf_fma(w, vf_load(v + 3 * VEC), s3);
        }
        vf_store(acc + d, s0);
        vf_store(acc + d + VEC, s1);
        vf_store(acc + d + 2 * VEC, s2);
        vf_store(acc + d + 3 * VEC, s3);
    }
    for (; d < dim; d += VEC) {
        int lanes = row_lanes(dim, d);
        vf s = vf_mul(vf_load_n(acc + d, lanes), keeps);
        for (int32_t j = 0; j < count; j++)
            s = vf_fma(vf_set1(weight[j]), vf_load_n(values + (int64_t)slot[j] * dim + d, lanes), s);
        vf_store_n(acc + d, s, lanes);
    }
}

// Merges a chunk into head `head` (of the group) of row i.
static void attention_merge(const struct attention_item *t, int32_t i, int32_t head, uint64_t mask)
{
    const struct attention_args *a = t->a;
    const int32_t group = a->heads / a->layout.kv_heads, dim = a->layout.dim, at = i * group + head;
    float score[CHUNK], weight[CHUNK];
    uint8_t slot[CHUNK];
    int32_t count = 0;
    attention_scores(t, a->q + (t->row + i) * (int64_t)a->ldq + (int64_t)(t->kv_head * group + head) * dim, score);
    float top = t->top[at];
    for (; mask; mask &= mask - 1) {
        slot[count] = (uint8_t)__builtin_ctzll(mask);
        weight[count] = score[slot[count]];
        top = weight[count] > top ? weight[count] : top;
        count++;
    }
    const vf tops = vf_set1(top);
    vf sum = vf_zero();
    for (int32_t j = 0; j < count; j += VEC) {
        int lanes = row_lanes(count, j);
        vf_store_n(weight + j, vf_exp(vf_sub(vf_load_n(weight + j, lanes), tops)), lanes);
        sum = vf_add(sum, vf_load_n(weight + j, lanes));
    }
    const float keep = f_exp(t->top[at] - top);
    t->top[at] = top;
    t->total[at] = t->total[at] * keep + vf_sum(sum);
    attention_add(t->acc + (int64_t)at * dim, dim, t->values, weight, slot, count, keep);
}

static void attention_finish(const struct attention_item *t, int32_t i, int32_t head)
{
    const struct attention_args *a = t->a;
    const int32_t group = a->heads / a->layout.kv_heads, dim = a->layout.dim, h = t->kv_head * group + head;
    const int64_t r = t->row + i;
    const float *acc = t->acc + (int64_t)(i * group + head) * dim;
    const float *gate = a->gate ? a->gate + r * a->ldg + (int64_t)h * a->gate_stride : NULL;
    float *y = a->y + r * a->ldy + (int64_t)h * dim;
    const vf total = vf_set1(t->total[i * group + head]);
    for (int32_t d = 0; d < dim; d += VEC) {
        int lanes = row_lanes(dim, d);
        vf o = vf_div(vf_load_n(acc + d, lanes), total);
        if (gate)
            o = vf_mul(o, vf_sigmoid(vf_load_n(gate + d, lanes)));
        vf_store_n(y + d, o, lanes);
    }
}

static void attention_tile(const struct attention_item *t)
{
    const struct attention_args *a = t->a;
    const int32_t group = a->heads / a->layout.kv_heads;
    memset(t->acc, 0, (size_t)(t->rows * group) * (size_t)a->layout.dim * sizeof *t->acc);
    for (int32_t i = 0; i < t->rows * group; i++) {
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
            for (int32_t head = 0; mask[i] && head < group; head++)
                attention_merge(t, i, head, mask[i]);
    }
    for (int32_t i = 0; i < t->rows; i++)
        for (int32_t head = 0; head < group; head++)
            attention_finish(t, i, head);
}

static void attention_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct attention_args *a = p;
    const int32_t tile = attention_tile_rows(a), group = a->heads / a->layout.kv_heads, dim = a->layout.dim;
    struct attention_item t = {.a = a, .keys = scratch};
    t.values = t.keys + (int64_t)CHUNK * dim;
    t.line = t.values + (int64_t)CHUNK * dim;
    t.acc = t.line + dim;
    t.top = t.acc + (int64_t)tile * group * dim;
    t.total = t.top + tile * group;
    t.cursor = (int32_t *)(t.total + tile * group);
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
