// SPDX-License-Identifier: Apache-2.0
//
// What a card does once with packed weights before a kernel reads them: the eight codes of a word of nvfp4 panels are put in the order of
// nvfp4_arranged() (nvfp4_word.cuh). All other encodings stay as they are in the pack.

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/launch.cuh"

enum { ARRANGE_THREADS = 256 };
static const int64_t ARRANGE_BLOCKS = 1024; // of a matrix, at most

static __global__ void __launch_bounds__(ARRANGE_THREADS) arrange_kernel(uint4 *data, int64_t count, int64_t stride)
{
    pdl_wait();
    uint4 *own = data + blockIdx.y * stride;
    for (int64_t i = (int64_t)blockIdx.x * ARRANGE_THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * ARRANGE_THREADS) {
        const uint4 v = own[i];
        own[i] = make_uint4(nvfp4_arranged(v.x), nvfp4_arranged(v.y), nvfp4_arranged(v.z), nvfp4_arranged(v.w));
    }
}

// Arranges `experts` (1 or more) packed matrices of w's shape, the first at w->data, in place and on `stream`: exactly once each.
// Returns what the launch said.
extern "C" cudaError_t cuda_arrange(cudaStream_t stream, const struct weight *w, int32_t experts)
{
    if (w->encoding != ENC_NVFP4)
        return cudaSuccess;
    const int64_t count = (int64_t)((w->n + 15) / 16) * ((w->k + 31) / 32) * (code_block_bytes(ENC_NVFP4, 4) / 16),
                  blocks = (count + ARRANGE_THREADS - 1) / ARRANGE_THREADS;
    return launch(stream, dim3((unsigned)(blocks < ARRANGE_BLOCKS ? blocks : ARRANGE_BLOCKS), (unsigned)experts),
                  dim3(ARRANGE_THREADS), 0, arrange_kernel, (uint4 *)(uintptr_t)w->data, count, w->data_stride / 16);
}
