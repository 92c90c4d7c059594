// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies of the stand-in for CUDA: done at once.
// Invariant: sizes and alignments that the device refuses are refused here.

#ifndef CUDA_FAKE_PIPELINE_H
#define CUDA_FAKE_PIPELINE_H

#include <cuda_runtime.h>

static inline void __pipeline_memcpy_async(void *to, const void *from, size_t n, size_t zeros = 0)
{
    if ((n != 4 && n != 8 && n != 16) || ((uintptr_t)to | (uintptr_t)from) % n)
        exit(printf("Bail out! an asynchronous copy of %zu bytes is not aligned\n", n));
    memcpy(to, from, n - zeros);
    memset((uint8_t *)to + n - zeros, 0, zeros);
}
static inline void __pipeline_commit()
{
}
static inline void __pipeline_wait_prior(int)
{
}

#endif
