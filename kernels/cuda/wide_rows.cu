// SPDX-License-Identifier: Apache-2.0
//
// Rows of x for products of warpgroups: 16-bit numbers in the order of fragments, their scales and sums.
// Invariant: what is prepared of a row follows from the row alone, wherever it lies and whoever does it. See wide.cuh.

#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wide.cuh"

// Where rows come from: of `up` times what `x` activates to, or of x alone (up NULL).
struct wide_source {
    const float *x, *up;
    int64_t ldx, ld_up;
    int32_t k, aligned, activation;
};

// Eight k of row r from k `at` on.
__device__ __forceinline__ void wide_load(const wide_source &from, int64_t r, int at, float *v)
{
    load_eight(from.x + r * from.ldx, at, from.k, from.aligned != 0, v);
    if (!from.up)
        return;
    float u[8];
    load_eight(from.up + r * from.ld_up, at, from.k, from.aligned != 0, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = f_mul(f_activate(v[i], from.activation), u[i]);
}

// Four words of each of four neighbouring lanes, turned: lane l gets word l of each of them.
__device__ __forceinline__ uint4 turned(uint32_t *w, int l)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, l & 1 ? w[i] : w[i + 1], 1);
        w[i] = l & 1 ? got : w[i];
        w[i + 1] = l & 1 ? w[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, l & 2 ? w[i] : w[i + 2], 2);
        w[i] = l & 2 ? got : w[i];
        w[i + 2] = l & 2 ? w[i + 2] : got;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Eight k of a row, and of what is left of them, as 16 bits: pair 2 j + c is k 4 j + c and 4 j + c + 2.
template <bool HALF> __device__ __forceinline__ void wide_pairs(float *v, uint32_t *w)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        w[i] = HALF ? half_pack(v[at], v[at + 2]) : pair_pack(v[at], v[at + 2]);
        v[at] -= HALF ? half_float(w[i] & 0xffffu) : bits_float(w[i] << 16);
        v[at + 2] -= HALF ? half_float(w[i] >> 16) : bits_float(w[i] & 0xffff0000u);
    }
}

// The power of two that brings a row's largest magnitude below 2^10.
__device__ __forceinline__ float wide_row_scale(float most)
{
    int e = (int)(__float_as_uint(most) >> 23 & 255u) - 127;
    e = e < -100 ? -100 : e > 120 ? 120 : e;
    return __uint_as_float((uint32_t)(127 + 9 - e) << 23);
}

__device__ __forceinline__ float wide_top(float top, const float *v)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        top = fmaxf(top, fabsf(v[i]));
    return top;
}

// The largest of the TEAM threads that share a row; space: 8 floats of shared memory.
template <int TEAM> __device__ __forceinline__ float wide_row_most(float top, float *space)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    if (TEAM > 32) {
        space[threadIdx.x / 32] = top;
        __syncthreads();
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, space[i]);
    }
    return top;
}

// Stores a thread's eight k of a row as its piece at `place`, in as many parts as x is held in. By whole warps; mine:
// has some.
template <bool HALF>
__device__ __forceinline__ void wide_put(float *v, int parts, unsigned char *place, const wide_rows &to, int l,
                                         bool mine)
{
    for (int p = 0; p < parts; p++) {
        uint32_t w[4];
        wide_pairs<HALF>(v, w);
        const uint4 all = turned(w, l);
        if (mine)
            *(uint4 *)(place + p * to.part_bytes) = all;
    }
}

// Where the sum of block b of row r goes.
__device__ __forceinline__ uint16_t *wide_sum_place(const wide_rows &to, int64_t r, int b)
{
    return (uint16_t *)(to.sums + wide_sums_at(to, r, b >> 3) * 16) + (b & 7);
}

// bf16: eight k a thread, of whatever row.
__global__ void __launch_bounds__(256)
    wide_prepare_kernel(const struct pass *pass, int multiple, const __grid_constant__ wide_source from, int parts,
                        bool early, const __grid_constant__ wide_rows to)
{
    pdl_trigger();
    if (!early)
        pdl_wait();
    const uint32_t all = blockIdx.x * 256 + threadIdx.x, items = (uint32_t)to.blocks * 4, r = all / items;
    const int item = (int)(all - r * items);
    const bool mine = r < (uint32_t)(pass->rows * multiple);
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (mine)
        wide_load(from, r, item * 8, v);
    wide_put<false>(v, parts, to.data + wide_at(to, r, item) * 16, to, threadIdx.x & 3, mine);
    if (early) // who waits for this launch waits for the one before
        pdl_wait();
}

// A thread's eight k of a row in fp16, piece `item` of the row, and the share of the block's sum. By whole warps; mine: has some.
__device__ __forceinline__ void wide_put_half(float *v, float scale, int parts, const wide_rows &to, int64_t r,
                                              int item, bool mine)
{
    const int l = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] *= scale;
    float sum = sum_eight(v);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (mine && l == 0)
        *wide_sum_place(to, r, item >> 2) = (uint16_t)half_pack(sum, 0);
    wide_put<true>(v, parts, to.data + wide_at(to, r, item) * 16, to, l, mine);
}

// fp16, whose rows have a scale: TEAM threads a row, of which each takes eight k at a time, KEPT times at most; or, if KEPT is 0, as often
// as it takes, and reads the row twice.
template <int TEAM, int KEPT>
__global__ void __launch_bounds__(256)
    wide_prepare_half_kernel(const struct pass *pass, int multiple, const __grid_constant__ wide_source from, int parts,
                             bool early, const __grid_constant__ wide_rows to)
{
    __shared__ float space[8];
    pdl_trigger();
    if (!early)
        pdl_wait();
    const int t = threadIdx.x % TEAM, items = to.blocks * 4;
    const int64_t r = (int64_t)blockIdx.x * (256 / TEAM) + threadIdx.x / TEAM, rows = (int64_t)pass->rows * multiple;
    const bool live = r < rows;
    float v[KEPT > 0 ? KEPT : 1][8] = {}, top = 0;
#pragma unroll
    for (int n = 0; n < KEPT; n++)
        if (live && t + n * TEAM < items)
            wide_load(from, r, (t + n * TEAM) * 8, v[n]);
#pragma unroll
    for (int n = 0; n < KEPT; n++)
        top = wide_top(top, v[n]);
    for (int item = t; KEPT == 0 && live && item < items; item += TEAM) {
        wide_load(from, r, item * 8, v[0]);
        top = wide_top(top, v[0]);
    }
    const float scale = wide_row_scale(wide_row_most<TEAM>(top, space));
    if (live && t == 0)
        to.scale[r] = 1.0f / scale;
#pragma unroll
    for (int n = 0; n < KEPT; n++)
        if (n * TEAM < items) // whole warps, for the shuffles
            wide_put_half(v[n], scale, parts, to, r, t + n * TEAM, live && t + n * TEAM < items);
    for (int item = t; KEPT == 0 && item - t < items; item += TEAM) {
        const bool mine = live && item < items;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[0][i] = 0;
        if (mine)
            wide_load(from, r, item * 8, v[0]);
        wide_put_half(v[0], scale, parts, to, r, item, mine);
    }
    for (int b = to.blocks + t; live && b < (to.blocks + 63) / 64 * 64; b += TEAM)
        *wide_sum_place(to, r, b) = 0;
    if (early)
        pdl_wait();
}

cudaError_t wide_prepare(cudaStream_t stream, const struct pass *pass, int multiple, const float *x, int64_t ldx, int k,
                         int64_t rows, bool half, int parts, bool early, const wide_rows &to,
                         const struct glu_args *glu)
{
    enum { SHORT = 1024, SOME = 3, MANY = 9 };
    wide_source from = {x, NULL, ldx, 0, k, rows_aligned(x, ldx), ACT_NONE};
    if (glu)
        from = {glu->g,         glu->u, glu->ldg,
                glu->ldu,       k,      rows_aligned(glu->g, glu->ldg) && rows_aligned(glu->u, glu->ldu),
                glu->activation};
    const int team = k <= SHORT ? 32 : 256;
    const int64_t items = half ? rows * team : rows * to.blocks * 4;
    const dim3 grid((unsigned int)((items + 255) / 256));
    if (!half)
        return launch(stream, grid, dim3(256), 0, wide_prepare_kernel, pass, multiple, from, parts, early, to);
    auto kernel = k <= SHORT            ? wide_prepare_half_kernel<32, SHORT / 8 / 32>
                  : k <= SOME * 8 * 256 ? wide_prepare_half_kernel<256, SOME>
                  : k <= MANY * 8 * 256 ? wide_prepare_half_kernel<256, MANY>
                                        : wide_prepare_half_kernel<256, 0>;
    return launch(stream, grid, dim3(256), 0, kernel, pass, multiple, from, parts, early, to);
}
