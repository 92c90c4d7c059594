// SPDX-License-Identifier: Apache-2.0
//
// What the launchers of linear.cu, linear_prompt.cu, experts.cu and experts_prompt.cu share.
//
// Invariant: a kernel's way is chosen by class and shape only.

#ifndef LINEAR_CUH
#define LINEAR_CUH

#include "kernels/cuda/rows.cuh"

enum {
    REDUCE_BYTES = WARPS * 8 * 32 * 4,
    SHARED_HALF = 112 * 1024, // of a block of which two share a multiprocessor
    SHARED_MOST = 224 * 1024,
    BLOCKS_AT_ONCE = 264, // blocks that run together on the chip that the cuts of k are made for
};

typedef linear_args::linear_part linear_part;

// Prompt class (linear_prompt.cu, experts_prompt.cu).
cudaError_t linear_prompt(cudaStream_t stream, const struct linear_args *args, int rows);
cudaError_t experts_up_prompt(cudaStream_t stream, const struct experts_up_args *args, int rows);
cudaError_t experts_down_prompt(cudaStream_t stream, const struct experts_down_args *args, int rows);

static inline int multiprocessors(void)
{
    static int count = 0;
    if (count == 0) {
        int device = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        count = count > 0 ? count : 1;
    }
    return count;
}

static inline int weight_pairs(const struct weight *w)
{
    return (w->n + 31) / 32;
}

static inline int tile_rows_for(int64_t rows)
{
    return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : TILE_ROWS;
}

static inline int32_t rows_aligned(const float *x, int64_t ld)
{
    return (uintptr_t)x % 16 == 0 && ld % 4 == 0;
}

// A warp's room: all blocks of its share when that fits, else as many as leave two blocks to a multiprocessor.
static inline int room_capacity(int share_blocks, int rows, size_t *shared)
{
    int capacity = share_blocks;
    if (REDUCE_BYTES + WARPS * room_bytes(rows, capacity) > SHARED_MOST)
        capacity = ((SHARED_HALF - REDUCE_BYTES) / WARPS - 16) / (132 * rows);
    *shared = REDUCE_BYTES + (size_t)(WARPS * room_bytes(rows, capacity));
    return capacity;
}

// Whether two weights are decoded by the same kernel.
static inline bool same_code(const struct weight *a, const struct weight *b)
{
    return a->encoding == b->encoding && (a->encoding != ENC_AFFINE || a->bits == b->bits);
}

template <class DO> static inline void with_kernel(const struct weight *w, bool mixed, DO do_it)
{
    if (mixed)
        do_it(code_type<code_mixed>());
    else
        with_code(w, do_it);
}

#endif
