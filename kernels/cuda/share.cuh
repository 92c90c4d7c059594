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

// KINDS: what the encodings of the launch may need of x.
template <class CODE, int FORM, int GRAIN, int KINDS> __device__ __forceinline__ void share_by(share *s)
{
    if constexpr (!CODE::BIASED && FORM == FORM_STAGED)
        staged_parts<CODE>(s);
    else if constexpr (!CODE::BIASED)
        share_parts<CODE, FORM == FORM_EIGHT, KINDS>(s);
    else if constexpr (FORM == FORM_STAGED)
        staged_integers<CODE, GRAIN>(s);
    else
        share_integers<CODE, GRAIN, FORM == FORM_EIGHT, KINDS>(s);
}
template <class CODE, int FORM, int KINDS> __device__ __forceinline__ void share_form(share *s)
{
    if (CODE::BIASED && s->grain == 2)
        share_by<CODE, FORM, 2, KINDS>(s);
    else
        share_by<CODE, FORM, 1, KINDS>(s);
}

// The same as a function of its own, so that each encoding of a mixed launch has the registers it needs.
template <class CODE, int FORM> __device__ __noinline__ void share_call(share *s)
{
    share_form<CODE, FORM, X_BOTH>(s);
}

// Kernels are made for one encoding (CODE), for two, or, with code_mixed, for whatever the weight says.
struct code_mixed {
};
template <class A, class B> struct code_two {
};
// MORE: X_BEFORE or 0.
template <class CODE, int FORM, int MORE = 0> struct share_run {
    static __device__ __forceinline__ void run(share *s)
    {
        share_form<CODE, FORM, x_kinds_of<CODE>::value | MORE>(s);
    }
};
// Both ways in the kernel itself: a call would have to keep the share in memory.
template <class A, class B, int FORM, int MORE> struct share_run<code_two<A, B>, FORM, MORE> {
    static __device__ __forceinline__ void run(share *s)
    {
        constexpr int KINDS = x_kinds_of<A>::value | x_kinds_of<B>::value | MORE;
        if (code_is<A>(s->w))
            share_form<A, FORM, KINDS>(s);
        else
            share_form<B, FORM, KINDS>(s);
    }
};
template <int FORM> struct share_run<code_mixed, FORM> {
    static __device__ __forceinline__ void run(share *s)
    {
        with_code(s->w, [&](auto code) { share_call<typename decltype(code)::type, FORM>(s); });
    }
};

#endif
