// SPDX-License-Identifier: Apache-2.0
//
// Which experts a launch has to do with (experts_chosen.cuh): lists of every length against a plain search.

#ifndef CUDA_MATRIX_CHOSEN_H
#define CUDA_MATRIX_CHOSEN_H

#include "kernels/cuda/experts_chosen.cuh"

enum { CHOSEN_MOST = 640, CHOSEN_OUT = 1 + 3 * CHOSEN_MOST + 1 };

// out: the count, `first`, `offset`, the list.
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    chosen_kernel(const int32_t *ids, int pairs, int capacity, int slots, int experts, int most, int32_t *out)
{
    SHARED_ROOM(memory);
    __shared__ int count;
    const experts_chosen c = chosen_view((int32_t *)memory, capacity, pairs);
    if (threadIdx.x < TAKERS) {
        const int chosen = choose(c, ids, capacity, slots, experts, most);
        if (threadIdx.x == 0)
            count = chosen;
    }
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    out[0] = count;
    for (int i = 0; i < count; i++)
        out[1 + i] = c.first[i];
    for (int i = 0; i <= count; i++)
        out[1 + CHOSEN_MOST + i] = c.offset[i];
    for (int i = 0; i < c.offset[count]; i++)
        out[2 + 2 * CHOSEN_MOST + i] = c.list[i];
}

// The same, one after the other: experts in the order of their first (row, slot), up to `most` (row, slot)s in a list.
static void chosen_plainly(const int32_t *ids, int pairs, int experts, int most, int32_t *out)
{
    int count = 0, at = 0;
    for (int i = 0; i < pairs; i++) {
        int before = 0, left = most;
        for (int j = 0; j < i; j++)
            before += ids[j] == ids[i];
        if (ids[i] < 0 || ids[i] >= experts || before % most)
            continue;
        out[1 + count] = i;
        out[1 + CHOSEN_MOST + count++] = at;
        for (int j = i; j < pairs && left > 0; j++)
            if (ids[j] == ids[i]) {
                out[2 + 2 * CHOSEN_MOST + at++] = j;
                left--;
            }
    }
    out[1 + CHOSEN_MOST + count] = at;
    out[0] = count;
}

// pairs of `capacity` (row, slot)s that choose among the first `among` of `experts`; what is beyond names an expert as well.
static bool chosen_right(int pairs, int capacity, int slots, int experts, int most, int among)
{
    static int32_t ids[CHOSEN_MOST], is[CHOSEN_OUT], want[CHOSEN_OUT];
    for (int i = 0; i < capacity; i++)
        ids[i] = (int32_t)(matrix_random() % (unsigned)among) - (i % 29 == 7);
    if (pairs == slots)
        for (int i = 0; i < slots; i++)
            ids[i] = (i * 5 + 1) % experts; // of one row: all different
    memset(is, 0, sizeof is);
    memset(want, 0, sizeof want);
    chosen_plainly(ids, pairs, experts, chosen_by_lanes(capacity) ? most : CHOSEN_MOST, want);
    int32_t *out = (int32_t *)put(is, sizeof is);
    must(launch(0, dim3(1), dim3(BLOCK_THREADS), (size_t)chosen_bytes(capacity, experts), chosen_kernel,
                (const int32_t *)put(ids, capacity * 4), pairs, capacity, slots, experts, most, out),
         "chosen_kernel");
    rig_finish("chosen");
    rig_copy(is, out, sizeof is);
    put_back(0);
    return memcmp(is, want, sizeof is) == 0;
}

static void test_chosen(void)
{
    static const int capacities[] = {1, 2, 20, 32, 33, 40, 64, 80, 96, 97, 128, 129, 160, 600};
    for (int capacity : capacities) {
        const int slots = capacity % 10 ? capacity % 8 ? 1 : 8 : 10;
        bool right = true;
        for (int most = 1; most <= EXPERT_TILE_ROWS; most *= 2)
            for (int among : {1, 3, 61, 511})
                for (int pairs : {0, slots, capacity / 2, capacity - slots, capacity})
                    right = right && chosen_right(pairs, capacity, slots, 511, most, among);
        ok(right, "lists of experts: %d (row, slot)s", capacity);
    }
}

#endif
