// SPDX-License-Identifier: Apache-2.0
//
// What linear.c and experts.c share: dot products of rows with the panels of a weight.
//
// Four ways to the same products, chosen by instruction set, class and encoding only:
//   lanes  (linear_dot.c) fp32. k is cut into chunks of CHUNK_BLOCKS * 32; in a chunk, PHASES partial sums take every
//          PHASES-th k and are added as a tree; the chunk's sum is added to the row's running sum; chunks in ascending order.
//   digits (linear_int.c, AVX-512 VNNI; codes of at most 8 bits and NVFP4) the row as three signed base-256 digits under one
//          power of two per 128 k: a group's sum is exact in integers, then scaled into a running fp32 sum, groups in order.
//   bytes  (linear_fp8.c, AVX-512 VBMI; E4M3 codes) fp32 like lanes, a chunk being a span of k that shares its scale.
//   tiles  (linear_amx.c, AMX, prompt class) the row as three bf16 parts, the weight as bf16, with a low part where the
//          encoding needs one: sums in fp32 by the tile unit, 32 k at a time in ascending order.
// Invariant: nothing of that depends on the number of rows, their places, or who runs them.

#ifndef LINEAR_H
#define LINEAR_H

#include "kernels/cpu/decode.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"

enum {
    CHUNK_BLOCKS = 8,
    CHUNK_ROWS = 256,             // rows that run together, so that running sums fit the scratch
    TILE_PANELS = 8,              // panels of an item of the tiles way
    TILE_BLOCKS = 8,              // blocks of k whose weights are decoded together
    ROW_PARTS = 3,                // bf16 parts of a row: together all 24 bits of a number
    ROW_BLOCK = ROW_PARTS * 1024, // bytes of 16 rows x 32 k in the tiles
};

// Rows of activations, prepared: x padded to blocks, digits, tiles, as the weights of the launch need.
struct row_view {
    const float *x; // row r at x + r * ld; readable up to round_up(k, 32) with zeros beyond k
    int64_t ld;
    int32_t k, kp;   // kp = round_up(k, 128)
    uint8_t *tiles;  // [row / 16][kp / 32][ROW_PARTS][16][32] bf16, high part first; also the padded copies of x
    uint8_t *digits; // [row][4 * kp], see linear_rows.c
};

// What a launch needs prepared, as bits.
enum { NEED_PADDED = 1, NEED_DIGITS = 2, NEED_TILES = 4 };

enum { PREPARE_COLUMNS = 512 }; // columns of an item of the preparation

// Scratch of a thread.
struct linear_room {
    int32_t rows[CHUNK_ROWS];
    float sums[TILE_PANELS * CHUNK_ROWS * PANEL];
    union {
        float lanes[CHUNK_BLOCKS * 32 * PANEL];
        struct {
            uint8_t weights[2][TILE_PANELS][TILE_BLOCKS * 1024]; // high, low
            uint8_t gathered[CHUNK_ROWS / 16][TILE_BLOCKS * ROW_BLOCK];
        };
    };
};

// The ways that products of class with w take, as a NEED.
int ISA_SYM(product_need)(int class, const struct weight *w, int k);

// The view of `rows` rows of k at x whose preparation lies in scratch (linear_scratch_bytes).
struct row_view ISA_SYM(view_make)(const float *x, int64_t ld, int32_t k, int64_t rows, void *scratch, int needs);

// Items of the preparation of `rows` rows of k, and items begin .. end - 1 of it.
int64_t ISA_SYM(view_items)(int64_t rows, int32_t k, int needs);
void ISA_SYM(view_prepare)(const struct row_view *v, const float *x, int64_t ld, int64_t rows, int needs, int64_t begin,
                           int64_t end);

// sums[panel - first][i][16] of panels first .. first + panels - 1 (at most TILE_PANELS) of expert e with rows rows[0] ..
// rows[count - 1] (count <= CHUNK_ROWS; the rows of linear are consecutive from a multiple of 16: consecutive != 0).
void ISA_SYM(products)(int class, const struct weight *w, int64_t e, int64_t first, int panels,
                       const struct row_view *v, const int32_t *rows, int count, int consecutive,
                       struct linear_room *room, float *sums);

// Panels of an item: TILE_PANELS when the products go the tiles way, else 1.
static inline int item_panels(int need)
{
    return need & NEED_TILES ? TILE_PANELS : 1;
}

// The ways, for one panel or (tiles) several.
void ISA_SYM(lanes_panel)(const struct panel *p, const struct row_view *v, const int32_t *rows, int count, float *lanes,
                          float *sums);
void ISA_SYM(digits_panel)(const struct panel *p, const struct row_view *v, const int32_t *rows, int count,
                           float *sums);
void ISA_SYM(bytes_panel)(const struct panel *p, const struct row_view *v, const int32_t *rows, int count, float *sums);
void ISA_SYM(tiles_panels)(const struct weight *w, int64_t e, int64_t first, int panels, const struct row_view *v,
                           const int32_t *rows, int count, int consecutive, struct linear_room *room, float *sums);

// act(alpha * sum) lane by lane.
VEC_INLINE vf finish(vf v, float alpha, int activation)
{
    v = vf_mul(v, vf_set1(alpha));
    switch (activation) {
    case ACT_SILU:
        return vf_silu(v);
    case ACT_SIGMOID:
        return vf_sigmoid(v);
    case ACT_RELU2:
        return vf_relu2(v);
    default:
        return v;
    }
}

// The first `outputs` lanes to y.
VEC_INLINE void store_outputs(float *y, vf v, int outputs)
{
    if (outputs >= PANEL)
        vf_store(y, v);
    else
        vf_store_n(y, v, outputs);
}

static inline int panel_outputs(int n, int64_t p)
{
    int64_t left = n - p * PANEL;
    return left < PANEL ? (int)left : PANEL;
}

// Where a row's digits are: per 4 k the four bytes of each digit, highest first; per 16 k three int32, -12 * sum of each digit; per 32 k
// the fp32 sum of x; per 128 k the unit as fp32, and the unit * 2^59.
static inline const uint8_t *digits_row(const struct row_view *v, int64_t r)
{
    return v->digits + r * 4 * v->kp;
}
static inline const int32_t *digits_offset(const uint8_t *row, int32_t kp)
{
    return (const int32_t *)(const void *)(row + 3 * (int64_t)kp);
}
static inline const float *digits_sum(const uint8_t *row, int32_t kp)
{
    return (const float *)(const void *)(row + 3 * (int64_t)kp + kp / 16 * 12);
}
static inline const float *digits_unit(const uint8_t *row, int32_t kp)
{
    return digits_sum(row, kp) + kp / 32;
}

#endif
