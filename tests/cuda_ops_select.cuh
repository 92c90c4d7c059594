// SPDX-License-Identifier: Apache-2.0
//
// index_select alone, over rows of so many blocks that several clusters score them, or that a launch has no room for all their scores:
// the choices of the CPU target, which are exact, since queries and pooled rows are small integers (so many scores are equal, too).
// Faults that must be found: a counter that is not cleared, a choice by a cluster before the last, scores of another range.

#ifndef CUDA_OPS_SELECT_CUH
#define CUDA_OPS_SELECT_CUH

#include "tests/cuda_ops_cache.cuh"

enum { SELECT_PAGE = 64, SELECT_KEEP = 96, SELECT_TEST_HEADS = 3, SELECT_TEST_ROWS = 3 };

// Whether the device wrote anything to the scratch.
static bool select_touched(const uint8_t *scratch, int64_t bytes)
{
    const uint8_t *seen = pull(scratch, bytes);
    for (int64_t i = 0; i < bytes; i++)
        if (seen[i] != 0xff)
            return true;
    return false;
}

// Rows of the decode class: one at the last position, one in the middle, one with few blocks. Of the prompt class: neighbours of three lanes.
static void select_rows(struct pass *pass, int32_t positions, enum row_class row_class)
{
    const bool prompt = row_class == CLASS_PROMPT;
    pass_clear(pass);
    pass_add(pass, 0, positions - (prompt ? 6 : 1), prompt ? 6 : 1);
    pass_add(pass, prompt, positions / 2, prompt ? 3 : 1);
    pass_add(pass, prompt ? 2 : 0, SELECT_KEEP * RATIO - (prompt ? 3 : 1), prompt ? 7 : 1);
}

// `blocks` pooled rows of `dim` numbers in pages in descending order. capacity: of the launch, which is made `times` times. together: several
// clusters score the last row, where a block has room.
static void test_select_of(int32_t blocks, int capacity, int times, bool together, int32_t dim = 16,
                           enum row_class row_class = CLASS_DECODE)
{
    rig_reset();
    const int32_t positions = blocks * RATIO, pages = (positions + SELECT_PAGE - 1) / SELECT_PAGE,
                  width = SELECT_TEST_HEADS * dim;
    struct lane_set lanes = {};
    struct kv_layout kv = {};
    kv.encoding = kv.index_encoding = KV_BF16;
    kv.kv_heads = 1;
    kv.dim = 8;
    kv.index_dim = dim;
    kv.key_bytes = 16;
    kv.index_bytes = 2 * dim;
    lanes.count = 3;
    lanes.page = SELECT_PAGE;
    lanes.page_bytes = SELECT_PAGE * (2 * kv.key_bytes + kv.index_bytes + kv.index_bytes / RATIO);
    lanes.pages = take<uint8_t>(lanes.page_bytes * pages);
    for (int64_t i = 0; i < lanes.page_bytes * pages / 2; i++) {
        static const uint16_t numbers[] = {0xc000, 0xbf80, 0, 0x3f80, 0x4000}; // -2 .. 2 in bf16
        ((uint16_t *)lanes.pages)[i] = numbers[rig_below(5)];
    }
    for (int32_t l = 0; l < lanes.count; l++) {
        uint32_t *table = take<uint32_t>(pages);
        for (int32_t i = 0; i < pages; i++)
            table[i] = (uint32_t)(pages - 1 - (i + l) % pages);
        lanes.table[l] = table;
        lanes.lane[l] = take_lane(64, 8);
    }
    struct pass *pass = take_pass(capacity);
    float *q = take<float>((int64_t)capacity * width);
    select_rows(pass, positions, row_class);
    const int32_t rows = pass->rows;
    for (int32_t i = 0; i < rows * width; i++)
        q[i] = (float)(rig_below(5) - 2);
    int32_t *chosen = take<int32_t>((int64_t)capacity * SELECT_KEEP), *counts = take<int32_t>(capacity);
    const int64_t scores = index_select_scratch_bytes(capacity);
    uint8_t *scratch = take<uint8_t>(scores);
    push_all();
    push_pass(pass, capacity);
    struct index_select_args a = {pass, lanes,  kv,     SELECT_TEST_HEADS, RATIO,    SELECT_KEEP, width,
                                  q,    chosen, counts, scratch,           row_class};
    bool good = true;
    for (int i = 0; i < times; i++) {
        memset(chosen, 0xff, 4 * SELECT_KEEP * (size_t)rows);
        push(chosen, 4 * SELECT_KEEP * rows);
        gpu(cuda_index_select, &a, capacity);
        cpu(&kernel_index_select_portable, &a);
        const int32_t *seen = pull(counts, rows);
        good = good && memcmp(seen, counts, sizeof *seen * (size_t)rows) == 0 && counts[0] == SELECT_KEEP;
        seen = pull(chosen, rows * SELECT_KEEP);
        for (int32_t r = 0; r < rows; r++)
            good = good &&
                   (counts[r] < 0 || memcmp(seen + r * SELECT_KEEP, chosen + r * SELECT_KEEP, 4 * SELECT_KEEP) == 0);
    }
    if (!getenv("FAKE_ROOM"))
        good = good && select_touched(scratch, scores) == together;
    ok(good, "%d blocks in a launch of %d rows%s, %d times%s: the choices of the CPU target", blocks, capacity,
       row_class == CLASS_PROMPT ? " of a prompt" : "", times, together ? ", scored together" : "");
}

static void test_select(bool largest)
{
    test_select_of(300, SELECT_TEST_ROWS, 1, false);
    test_select_of(2500, SELECT_TEST_ROWS, 1, false);
    test_select_of(2500, 130, 1, false);
    test_select_of(3072, SELECT_TEST_ROWS, 2, true); // 5 clusters a row
    test_select_of(6500, 7, 3, true);
    test_select_of(3100, 8, 1, false);
    test_select_of(101, 16, 1, false, 128, CLASS_PROMPT);
    test_select_of(2049, 16, 1, false, 64, CLASS_PROMPT); // one block more than a range
    test_select_of(5000, 19, 1, false, 128, CLASS_PROMPT);
    if (!largest)
        return;
    test_select_of(32768, 4, 3, true);
    test_select_of(INDEX_SCORES, SELECT_TEST_ROWS, 3, true);
    test_select_of(70000, SELECT_TEST_ROWS, 2, true); // the row in the middle
    test_select_of(70000, 16, 1, false, 128, CLASS_PROMPT);
}

#endif
