// SPDX-License-Identifier: Apache-2.0
//
// What the card in use says of itself. For the host.

#ifndef CARD_CUH
#define CARD_CUH

#include <cuda_runtime.h>

// Asks the driver each time: callers that launch keep the answer. 0: it does not say.
template <class ATTRIBUTE> static inline int card_attribute(ATTRIBUTE attribute)
{
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, attribute, device);
    return value;
}

static inline int multiprocessors(void)
{
    static int count = 0;
    if (count == 0) {
        count = card_attribute(cudaDevAttrMultiProcessorCount);
        count = count > 0 ? count : 1;
    }
    return count;
}

#endif
