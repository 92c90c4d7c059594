// SPDX-License-Identifier: Apache-2.0
//
// Decode class: which way a kernel computes a share, by the rows of a tile and the encodings of its launch.
//
// Invariant: no way changes a bit of a row.

#ifndef SHARE_CUH
#define SHARE_CUH

#include "kernels/cuda/staged.cuh"

// Rows of a kernel: up to four, up to eight, or up to eight whose x comes with the weights.
enum { FORM_FEW, FORM_EIGHT, FORM_STAGED };

// SUMS: whether any encoding of the launch has biases.
template <class CODE, int FORM, bool SUMS> __device__ __forceinline__ void share_form(share *s)
{
    if constexpr (FORM == FORM_STAGED)
        staged_products<CODE>(s);
    else
        share_products<CODE, FORM == FORM_EIGHT, SUMS>(s);
}

// The same as a function of its own, so that each encoding of a mixed launch has the registers it needs.
template <class CODE, int FORM> __device__ __noinline__ void share_call(share *s)
{
    share_form<CODE, FORM, true>(s);
}

// Kernels are made for one encoding (CODE), for two, or, with code_mixed, for whatever the weight says.
struct code_mixed {
};
template <class A, class B> struct code_two {
};
template <class CODE, int FORM> struct share_run {
    static __device__ __forceinline__ void run(share *s)
    {
        share_form<CODE, FORM, CODE::BIASED>(s);
    }
};
// Both ways in the kernel itself: a call would have to keep the share in memory.
template <class A, class B, int FORM> struct share_run<code_two<A, B>, FORM> {
    static __device__ __forceinline__ void run(share *s)
    {
        constexpr bool SUMS = A::BIASED || B::BIASED;
        if (code_is<A>(s->w))
            share_form<A, FORM, SUMS>(s);
        else
            share_form<B, FORM, SUMS>(s);
    }
};
template <int FORM> struct share_run<code_mixed, FORM> {
    static __device__ __forceinline__ void run(share *s)
    {
        with_code(s->w, [&](auto code) { share_call<typename decltype(code)::type, FORM>(s); });
    }
};

#endif
