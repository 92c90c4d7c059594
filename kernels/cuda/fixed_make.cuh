// SPDX-License-Identifier: Apache-2.0
//
// How kernels for one shape and their table are made from a list of shapes: fixed.cu for a model, tests for theirs. Launches of more
// than two encodings stay with the general kernels.

#ifndef CUDA_FIXED_MAKE_CUH
#define CUDA_FIXED_MAKE_CUH

#include "kernels/cuda/experts_beside.cuh"
#include "kernels/cuda/fixed.cuh"
#include "kernels/cuda/linear_decode.cuh"

// The struct that decodes an encoding.
template <int ENCODING, int BITS> struct code_for;
template <int BITS> struct code_for<ENC_F32, BITS> : code_type<code_f32> {
};
template <int BITS> struct code_for<ENC_BF16, BITS> : code_type<code_bf16> {
};
template <int BITS> struct code_for<ENC_F16, BITS> : code_type<code_f16> {
};
template <int BITS> struct code_for<ENC_AFFINE, BITS> : code_type<code_affine<BITS>> {
};
template <int BITS> struct code_for<ENC_NVFP4, BITS> : code_type<code_nvfp4> {
};
template <int BITS> struct code_for<ENC_MXFP8, BITS> : code_type<code_e4m3<ENC_MXFP8>> {
};
template <int BITS> struct code_for<ENC_FP8_BLOCK, BITS> : code_type<code_e4m3<ENC_FP8_BLOCK>> {
};
template <int BITS> struct code_for<ENC_FP8, BITS> : code_type<code_e4m3<ENC_FP8>> {
};
template <int BITS> struct code_for<ENC_INT4, BITS> : code_type<code_int4> {
};

// That of two encodings, which may be the same.
template <class A, class B> struct code_for_two : code_type<code_two<A, B>> {
};
template <class A> struct code_for_two<A, A> : code_type<A> {
};

static constexpr bool part_code_same(const linear_shape &shape, int i, int j)
{
    return shape.part[i].encoding == shape.part[j].encoding &&
           (shape.part[i].encoding != ENC_AFFINE || shape.part[i].bits == shape.part[j].bits);
}

// The last part whose encoding is not the first one's, or 0.
static constexpr int part_other(const linear_shape &shape)
{
    int other = 0;
    for (int i = 1; i < shape.parts; i++)
        other = part_code_same(shape, 0, i) ? other : i;
    return other;
}

static constexpr bool part_third(const linear_shape &shape)
{
    bool third = false;
    for (int i = 1; i < shape.parts; i++)
        third = third || (!part_code_same(shape, 0, i) && !part_code_same(shape, part_other(shape), i));
    return third;
}

template <int ROWS, class S> static constexpr linear_fixed linear_entry(void)
{
    using SHAPE = linear_fixed_shape<S, ROWS>;
    constexpr linear_shape shape = S::value;
    if constexpr (part_third(shape) ||
                  (shape.norm &&
                   (ROWS != 1 || !linear_before_fits(SHAPE::plan, shape.k, shape.norm)))) { // never launched
        return {shape, SHAPE::plan, NULL};
    } else {
        constexpr int other = part_other(shape);
        using A = typename code_for<shape.part[0].encoding, shape.part[0].bits>::type;
        using B = typename code_for<shape.part[other].encoding, shape.part[other].bits>::type;
        return {shape, SHAPE::plan,
                linear_rows_kernel<typename code_for_two<A, B>::type, linear_form(SHAPE::plan), SHAPE>};
    }
}

template <int ROWS, class S> static constexpr experts_fixed<experts_up_args> experts_up_entry(void)
{
    using SHAPE = experts_fixed_shape<S, ROWS>;
    constexpr experts_shape shape = S::value;
    constexpr code_shape other = shape.gated ? shape.gate : shape.code;
    using A = typename code_for<shape.code.encoding, shape.code.bits>::type;
    using B = typename code_for<other.encoding, other.bits>::type;
    return {shape, SHAPE::plan, experts_up_kernel<typename code_for_two<A, B>::type, SHAPE>};
}

template <int ROWS, class S> static constexpr experts_fixed<experts_down_args> experts_down_entry(void)
{
    using SHAPE = experts_fixed_shape<S, ROWS>;
    constexpr experts_shape shape = S::value;
    return {shape, SHAPE::plan,
            experts_down_kernel<typename code_for<shape.code.encoding, shape.code.bits>::type, SHAPE>};
}

template <int ROWS, class S> static constexpr beside_fixed beside_entry(void)
{
    using SHAPE = beside_fixed_shape<S>;
    constexpr beside_shape shape = S::value;
    if constexpr (ROWS != 1 || !beside_fits(SHAPE::plan)) { // never launched
        return {shape, SHAPE::plan, NULL};
    } else {
        constexpr code_shape other = shape.up.gated ? shape.up.gate : shape.up.code;
        using A = typename code_for<shape.up.code.encoding, shape.up.code.bits>::type;
        using B = typename code_for<other.encoding, other.bits>::type;
        using SHARED = typename code_for<shape.code.encoding, shape.code.bits>::type;
        return {shape, SHAPE::plan, experts_beside_kernel<typename code_for_two<A, B>::type, SHARED, SHAPE>};
    }
}

// The experts of such a shape by themselves: a kernel where they cannot be with the others.
template <class S> struct beside_up {
    static constexpr experts_shape value = S::value.up;
};
template <int ROWS, class S> static constexpr experts_fixed<experts_up_args> beside_up_entry(void)
{
    if constexpr (ROWS == 1 && beside_fits(beside_plan_of(S::value)))
        return {S::value.up, experts_plan_of(S::value.up, ROWS), NULL};
    else
        return experts_up_entry<ROWS, beside_up<S>>();
}

// A list of shapes; its entries for ROWS rows, and their end.
template <class... S> struct shape_list {
    template <int ROWS> struct linear {
        static constexpr linear_fixed at[] = {linear_entry<ROWS, S>()..., {}};
    };
    template <int ROWS> struct beside {
        static constexpr beside_fixed at[] = {beside_entry<ROWS, S>()..., {}};
    };
    template <int ROWS> struct down {
        static constexpr experts_fixed<experts_down_args> at[] = {experts_down_entry<ROWS, S>()..., {}};
    };
};

// Experts up of a list by themselves, then those of a list of shapes with choices beside them.
template <int ROWS, class U, class B> struct shape_ups;
template <int ROWS, class... S, class... T> struct shape_ups<ROWS, shape_list<S...>, shape_list<T...>> {
    static constexpr experts_fixed<experts_up_args> at[] = {
        experts_up_entry<ROWS, S>()..., beside_up_entry<ROWS, T>()..., {}};
};

template <class T> static constexpr int32_t entries(const T &at)
{
    return (int32_t)(sizeof at / sizeof *at) - 1;
}

// The table for ROWS rows; L, U, D, B: shape_lists of products, of experts up, of experts down and of experts up with choices beside them.
template <int ROWS, class L, class U, class D, class B = shape_list<>>
static const struct fixed_table *fixed_table_made(void)
{
    using LINEAR = typename L::template linear<ROWS>;
    using UP = shape_ups<ROWS, U, B>;
    using DOWN = typename D::template down<ROWS>;
    using BESIDE = typename B::template beside<ROWS>;
    static const struct fixed_table table = {
        LINEAR::at,          UP::at,          DOWN::at,          BESIDE::at,
        entries(LINEAR::at), entries(UP::at), entries(DOWN::at), entries(BESIDE::at)};
    return &table;
}

#endif
