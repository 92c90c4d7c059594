// SPDX-License-Identifier: Apache-2.0
//
// Decode class: how a block holds rows of x in shared memory, which follows from the encodings of its launch.
//
// Each encoding multiplies one kind of x: two bf16 parts (16 significant bits), two f16 halves of a group (halves.cuh), or integers of a
// group (integer.cuh). A window holds x as the unit in hand needs it, where its rows came to, and is filled anew for a unit of another
// kind; stages that bring x (eight.cuh) bring each kind that the launch's weights need.
//
// Invariant: what a weight multiplies depends on its own encoding and on k alone, so its bits are those of a launch of its own.

#ifndef X_FORM_CUH
#define X_FORM_CUH

#include "kernels/cuda/decode.cuh"

// The kinds of x, a bit each, in the order in which they lie.
enum { X_PARTS = 1, X_HALVES = 2, X_INTEGERS = 4, X_ANY = 7 };

// The kind that a weight multiplies.
__host__ __device__ __forceinline__ constexpr int weight_kind(const struct weight *w)
{
    switch (w->encoding) {
    case ENC_AFFINE:
    case ENC_INT4:
        return X_INTEGERS;
    case ENC_MXFP8:
    case ENC_FP8_BLOCK:
    case ENC_FP8:
        return X_HALVES;
    default:
        return X_PARTS;
    }
}

// Neighbouring blocks of k that are multiplied together, since they have one scale and x one factor: 1 or 2. Of halves 1, whose stages
// of two blocks a warp with the x of eight rows in them would be too long.
__host__ __device__ __forceinline__ constexpr int weight_grain(const struct weight *w)
{
    return weight_kind(w) == X_INTEGERS && w->group >= 64 && w->k % 64 == 0 ? 2 : 1;
}

// The same of CODE: GRAIN is the most that its weights have.
template <class CODE> struct x_of {
    static constexpr int KIND = CODE::BIASED ? X_INTEGERS : X_PARTS, GRAIN = CODE::BIASED ? 2 : 1;
};
template <int ENCODING> struct x_of<code_e4m3<ENCODING>> {
    static constexpr int KIND = X_HALVES, GRAIN = 1;
};

// What a launch has of x: its kinds, and blocks of 32 k of a group: 1 or 2.
struct x_form {
    int32_t kinds, grain;
};

static constexpr bool x_form_same(const x_form &a, const x_form &b)
{
    return a.kinds == b.kinds && a.grain == b.grain;
}

// What a launch of `count` weights of rows of k numbers needs. weight(i): the address of one.
template <class WEIGHT> static constexpr x_form x_form_of(int count, int k, const WEIGHT &weight)
{
    int kinds = 0;
    for (int i = 0; i < count; i++)
        kinds |= weight_kind(weight(i));
    return {kinds, kinds != X_PARTS && k % 64 == 0 ? 2 : 1};
}

// Bytes of a row's block of 32 k: both of its parts, halves or digits, in the order of k.
__host__ __device__ __forceinline__ constexpr int x_bytes(int kind)
{
    return kind == X_INTEGERS ? 64 : 128;
}

// ---- eight rows, block of k after block of k (eight.cuh) ---------------------------------------------------------------------

enum {
    TILE_ROWS = 8,
    X_LOW = TILE_ROWS * 64, // where low parts lie behind the high ones, [row][32] each
};

// Where factors lie behind the rows of a kind that has groups; its bytes of a block; those of the kinds of `kinds` before it; of all.
__host__ __device__ __forceinline__ constexpr int x_factors(int kind)
{
    return TILE_ROWS * x_bytes(kind);
}
__host__ __device__ __forceinline__ constexpr int x_block(int kind)
{
    return x_factors(kind) + (kind == X_PARTS ? 0 : TILE_ROWS * 8);
}
__host__ __device__ __forceinline__ constexpr int x_before(int kinds, int kind)
{
    int at = 0;
    for (int before = 1; before < kind; before *= 2)
        at += kinds & before ? x_block(before) : 0;
    return at;
}
__host__ __device__ __forceinline__ constexpr int x_blocks(int kinds)
{
    return x_before(kinds, X_ANY + 1);
}
__host__ __device__ __forceinline__ constexpr int x_longest(int kinds)
{
    return kinds & X_HALVES ? x_block(X_HALVES) : kinds & X_PARTS ? x_block(X_PARTS) : x_block(X_INTEGERS);
}

// ---- in a window of `capacity` blocks of k -----------------------------------------------------------------------------------

enum { X_PITCH = 128 }; // bytes of a row's block, however it is held: rows come there as they are

// Of up to four rows: bytes from a row to the next: neighbours lie in different banks.
__host__ __device__ __forceinline__ constexpr int window_stride(int capacity)
{
    return capacity * X_PITCH + 64;
}

// Where the factors of kinds that have groups lie, one a block and row, those of a group's blocks side by side; then the window ends.
__host__ __device__ __forceinline__ constexpr int factors_at(int rows, int capacity)
{
    return rows * window_stride(capacity);
}

__host__ __device__ __forceinline__ constexpr int window_bytes(const x_form &form, int rows, int capacity)
{
    return rows == TILE_ROWS
               ? capacity * x_longest(form.kinds)
               : factors_at(rows, capacity) + (form.kinds != X_PARTS ? (rows * capacity * 8 + 15) / 16 * 16 : 0);
}

#endif
