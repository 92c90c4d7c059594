// SPDX-License-Identifier: Apache-2.0
//
// Decode class: which way a kernel computes a share, by the rows of a tile and the encodings of its launch.
//
// Invariant: no way changes a bit of a row.

#ifndef SHARE_CUH
#define SHARE_CUH

#include "kernels/cuda/eight.cuh"

// Rows of a kernel: up to four, up to eight, or up to eight whose x comes with the weights.
enum { FORM_FEW, FORM_EIGHT, FORM_STAGED };

// BEFORE: what x is made of (before_kind).
template <class CODE, int FORM, int GRAIN, int BEFORE> __device__ __forceinline__ void share_by(share *s)
{
    constexpr bool PARTS = x_of<CODE>::KIND == X_PARTS;
    if constexpr (PARTS && FORM != FORM_FEW)
        eight_parts<CODE, FORM == FORM_STAGED>(s);
    else if constexpr (PARTS)
        share_parts<CODE, BEFORE>(s);
    else if constexpr (FORM != FORM_FEW)
        eight_groups<CODE, GRAIN, FORM == FORM_STAGED>(s);
    else
        share_groups<CODE, GRAIN, BEFORE>(s);
}
template <class CODE, int FORM, int BEFORE> __device__ __forceinline__ void share_form(share *s)
{
    if (x_of<CODE>::GRAIN == 2 && s->grain == 2)
        share_by<CODE, FORM, x_of<CODE>::GRAIN, BEFORE>(s);
    else
        share_by<CODE, FORM, 1, BEFORE>(s);
}

// The same as a function of its own, so that each encoding of a mixed launch has the registers it needs.
template <class CODE, int FORM> __device__ __noinline__ void share_call(share *s)
{
    share_form<CODE, FORM, BEFORE_NOTHING>(s);
}

// Kernels are made for one encoding (CODE), for two, or, with code_mixed, for whatever the weight says.
struct code_mixed {
};
template <class A, class B> struct code_two {
};
template <class CODE, int FORM, int BEFORE = BEFORE_NOTHING> struct share_run {
    static __device__ __forceinline__ void run(share *s)
    {
        share_form<CODE, FORM, BEFORE>(s);
    }
};
// Both ways in the kernel itself: a call would have to keep the share in memory.
template <class A, class B, int FORM, int BEFORE> struct share_run<code_two<A, B>, FORM, BEFORE> {
    static __device__ __forceinline__ void run(share *s)
    {
        if (code_is<A>(s->w))
            share_form<A, FORM, BEFORE>(s);
        else
            share_form<B, FORM, BEFORE>(s);
    }
};
template <int FORM> struct share_run<code_mixed, FORM> {
    static __device__ __forceinline__ void run(share *s)
    {
        with_code(s->w, [&](auto code) { share_call<typename decltype(code)::type, FORM>(s); });
    }
};

#endif
