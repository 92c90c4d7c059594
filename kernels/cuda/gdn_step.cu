// SPDX-License-Identifier: Apache-2.0
//
// conv, gdn and gated_norm in one launch: a block a (key head, lane).
//
// Invariant: no block reads what another one writes.

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gdn_step.cuh"

struct gdn_step_args {
    struct conv_args conv;
    struct gdn_args gdn;
    struct gated_norm_args norm;
};

// Registers as in a block with one warp more.
template <int PER>
__global__ void __launch_bounds__(GDN_STEP_THREADS + WARP, 1)
    gdn_step_kernel(const __grid_constant__ struct gdn_step_args a)
{
    SHARED_BYTES(shared);
    gdn_step_prefetch(a.conv, a.gdn, (int32_t)blockIdx.y, (int32_t)blockIdx.x);
    pdl_wait();
    pdl_trigger();
    gdn_step_unit<PER>(a.conv, a.gdn, a.norm, (int32_t)blockIdx.y, (int32_t)blockIdx.x,
                       reinterpret_cast<float *>(shared));
}

extern "C" cudaError_t cuda_conv_gdn_norm(cudaStream_t stream, const void *const *args, int rows)
{
    const struct gdn_step_args a = {*(const struct conv_args *)args[0], *(const struct gdn_args *)args[1],
                                    *(const struct gated_norm_args *)args[2]};
    if (!gdn_step_fits(&a.conv, &a.gdn, &a.norm, rows))
        return cudaErrorNotSupported;
    const dim3 grid((unsigned)a.gdn.nk, (unsigned)a.gdn.lanes.count);
    const size_t bytes = (size_t)gdn_step_bytes(&a.gdn);
    switch (gdn_step_per(a.gdn.dk)) {
    case 4:
        return launch(stream, grid, GDN_STEP_THREADS, bytes, gdn_step_kernel<4>, a);
    case 8:
        return launch(stream, grid, GDN_STEP_THREADS, bytes, gdn_step_kernel<8>, a);
    default:
        return launch(stream, grid, GDN_STEP_THREADS, bytes, gdn_step_kernel<16>, a);
    }
}
