// SPDX-License-Identifier: Apache-2.0
//
// The indexer of sparse attention: pooled keys of completed blocks, and the choice of a row's blocks.
//
// Invariant: a pooled row depends on its block's raw keys as stored and on the block's number; a row's choice depends on its
// query and the pooled rows before it. Equal scores (the relu makes many zeros) go to the lower block.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/rotary.h"
#include "kernels/cpu/row.h"

// ---- index_pool: items are rows; those that complete a block pool it --------------------------------------------------------

static int64_t index_pool_items(const void *p)
{
    return ((const struct index_pool_args *)p)->pass->rows;
}

static void index_pool_block(const struct index_pool_args *a, int32_t l, int32_t block, float *scratch)
{
    const struct kv_layout *kv = &a->layout;
    const int32_t n = kv->index_dim, first = block * a->ratio;
    float *mean = scratch, *row = mean + n, *cosine = row + n, *sine = cosine + a->rotary / 2;
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int32_t i = 0; i < a->ratio; i++) {
        kv_decode(row, kv_row(&a->lanes, kv, l, KV_INDEX, first + i, 1), 1, 0, n, kv->index_encoding);
        for (int32_t d = 0; d < n; d++)
            mean[d] += row[d];
    }
    for (int32_t d = 0; d < n; d++)
        mean[d] /= (float)a->ratio;
    const float factor = row_rms(mean, n, a->eps);
    for (int32_t d = 0; d < n; d++)
        row[d] = mean[d] * factor * a->w[d];
    rotary_angles(a->inverse_frequency, a->rotary, first, cosine, sine);
    rotary_apply(row, a->rotary, cosine, sine);
    kv_encode(kv_row(&a->lanes, kv, l, KV_POOLED, block, a->ratio), row, 1, n, kv->index_encoding);
}

static void index_pool_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct index_pool_args *a = p;
    for (int64_t r = begin; r < end; r++) {
        const int32_t position = a->pass->position[r];
        if ((position + 1) % a->ratio == 0)
            index_pool_block(a, a->pass->lane[r], position / a->ratio, scratch);
    }
}

const struct kernel ISA_SYM(kernel_index_pool) = {"index_pool", {{index_pool_items, index_pool_run}}};

// ---- index_select: items are rows -------------------------------------------------------------------------------------------

enum {
    SELECT_BINS = 2048,
    // scores that fit a thread's scratch beside the histogram and a decoded key of up to 2048 values
    SELECT_BLOCKS = (KERNEL_SCRATCH - SELECT_BINS * 4 - 2048 * 4) / 4,
};

static int64_t index_select_items(const void *p)
{
    return ((const struct index_select_args *)p)->pass->rows;
}

// The bits of a score that is not negative order like the score.
static uint32_t score_bits(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits;
}

// Writes the `keep` best of n > keep scores to blocks, ascending: those above a threshold, and of those equal to it the first.
static void select_best(const float *score, int32_t n, int32_t keep, int32_t *blocks, uint32_t *bins)
{
    static const int shift[] = {21, 10, 0}, width[] = {11, 11, 10};
    uint32_t found = 0;
    int32_t left = keep; // how many of those with the prefix `found` are wanted
    for (int level = 0; level < 3; level++) {
        memset(bins, 0, SELECT_BINS * sizeof *bins);
        for (int32_t b = 0; b < n; b++) {
            uint32_t bits = score_bits(score[b]) >> shift[level];
            if (bits >> width[level] == found)
                bins[bits & ((1u << width[level]) - 1)]++;
        }
        uint32_t digit = (1u << width[level]) - 1;
        for (; bins[digit] < (uint32_t)left; digit--)
            left -= (int32_t)bins[digit];
        found = found << width[level] | digit;
    }
    int32_t count = 0;
    for (int32_t b = 0; b < n && count < keep; b++) {
        uint32_t bits = score_bits(score[b]);
        if (bits > found || (bits == found && left-- > 0))
            blocks[count++] = b;
    }
}

// Scores of `count` blocks from `first` on, which lie in one page.
static void score_page(const struct index_select_args *a, int32_t l, int32_t first, int32_t count, const float *q,
                       float *key, float *score)
{
    const struct kv_layout *kv = &a->layout;
    const int32_t dim = kv->index_dim;
    const float scale = 1.0f / __builtin_sqrtf((float)dim);
    const uint8_t *row = kv_row(&a->lanes, kv, l, KV_POOLED, first, a->ratio);
    for (int32_t b = 0; b < count; b++, row += kv->index_bytes) {
        kv_decode(key, row, 1, 0, dim, kv->index_encoding);
        float sum = 0;
        for (int32_t h = 0; h < a->heads; h++) {
            float s = row_dot(q + (int64_t)h * dim, key, dim);
            sum += s > 0 ? s : 0.0f;
        }
        score[b] = sum * scale;
    }
}

static void index_select_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct index_select_args *a = p;
    uint32_t *bins = scratch;
    float *key = (float *)(bins + SELECT_BINS), *score = key + 2048;
    for (int64_t r = begin; r < end; r++) {
        const int32_t n = least((a->pass->position[r] + 1) / a->ratio, SELECT_BLOCKS);
        a->counts[r] = n <= a->keep ? -1 : a->keep;
        if (n <= a->keep)
            continue;
        const int32_t page = a->lanes.page / a->ratio;
        for (int32_t first = 0; first < n; first += page)
            score_page(a, a->pass->lane[r], first, least(page, n - first), a->q + r * a->ldq, key, score + first);
        select_best(score, n, a->keep, a->blocks + r * a->keep, bins);
    }
}

const struct kernel ISA_SYM(kernel_index_select) = {"index_select", {{index_select_items, index_select_run}}};
