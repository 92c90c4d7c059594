// SPDX-License-Identifier: Apache-2.0
//
// The tiles way of linear.h. Two by two tiles of 16 rows x 16 outputs; a tile of sums takes, 32 k at a time, the row's three
// parts, and (encodings whose numbers need more than a bf16) the row's two higher parts with the weight's low part.
// Invariant: a tile row sees only its own row of activations, and the order of the products is fixed.

#include "kernels/cpu/linear.h"

#if defined(__AMX_BF16__)

struct tile_config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

// Whether a number of the encoding is a bf16 number.
static bool exact_in_bf16(int encoding)
{
    return encoding == ENC_BF16 || encoding == ENC_NVFP4 || encoding == ENC_MXFP8 || encoding == ENC_FP8;
}

// Blocks begin .. end - 1 of a panel as weight tiles (16 pairs of k x 16 outputs), high and, when asked for, low parts.
static void decode_tiles(const struct panel *p, int begin, int end, float *lanes, uint8_t *high, uint8_t *low)
{
    const vi top = vi_set1((int32_t)0xffff0000u);
    for (int b = begin; b < end; b++, high += 1024, low += 1024) {
        panel_decode(p, b, b + 1, lanes);
        for (int i = 0; i < 16; i++) {
            vi even = vi_bits(vf_load(lanes + i * 32)), odd = vi_bits(vf_load(lanes + i * 32 + 16));
            vi even_top = vi_and(even, top), odd_top = vi_and(odd, top);
            vi_store(high + i * 64, vi_or(vi_srl(even_top, 16), odd_top));
            if (exact_in_bf16(p->encoding))
                continue;
            const vi half = vi_set1(0x8000);
            even = vi_add(vi_bits(vf_sub(vf_bits(even), vf_bits(even_top))), half);
            odd = vi_add(vi_bits(vf_sub(vf_bits(odd), vf_bits(odd_top))), half);
            vi_store(low + i * 64, vi_or(vi_srl(even, 16), vi_and(odd, top)));
        }
    }
}

// Sums of up to 2 x 2 tiles over `blocks` blocks. a[i]: the rows' tiles (ROW_BLOCK bytes a block), b[j]: the weights' (1024),
// low[j]: their low parts, or NULL. c[i][j]: 16 x 16 sums, added to when `more`.
VEC_INLINE void tile_block(int M, int N, int blocks, const uint8_t *const *a, const uint8_t *const *b,
                           const uint8_t *const *low, float *const (*c)[2], int more)
{
    if (more) {
        _tile_loadd(0, c[0][0], 64);
        if (N > 1)
            _tile_loadd(1, c[0][1], 64);
        if (M > 1)
            _tile_loadd(2, c[1][0], 64);
        if (M > 1 && N > 1)
            _tile_loadd(3, c[1][1], 64);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < blocks; s++) {
        for (int product = 0; product < (low[0] ? ROW_PARTS + 2 : ROW_PARTS); product++) {
            const int part = product % ROW_PARTS;
            if (part == 0) {
                _tile_loadd(4, (product ? low[0] : b[0]) + s * 1024, 64);
                if (N > 1)
                    _tile_loadd(5, (product ? low[1] : b[1]) + s * 1024, 64);
            }
            _tile_loadd(6, a[0] + s * ROW_BLOCK + part * 1024, 64);
            _tile_dpbf16ps(0, 6, 4);
            if (N > 1)
                _tile_dpbf16ps(1, 6, 5);
            if (M > 1) {
                _tile_loadd(7, a[1] + s * ROW_BLOCK + part * 1024, 64);
                _tile_dpbf16ps(2, 7, 4);
                if (N > 1)
                    _tile_dpbf16ps(3, 7, 5);
            }
        }
    }
    _tile_stored(0, c[0][0], 64);
    if (N > 1)
        _tile_stored(1, c[0][1], 64);
    if (M > 1)
        _tile_stored(2, c[1][0], 64);
    if (M > 1 && N > 1)
        _tile_stored(3, c[1][1], 64);
}

static void tiles_begin(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    _tile_loadconfig(&c);
}

// Copies the tiles of scattered rows, blocks begin .. end - 1, together; rows beyond count are zeros.
static void gather_tiles(const struct row_view *v, const int32_t *rows, int count, int begin, int end,
                         struct linear_room *room)
{
    for (int r = 0; r < (int)round_up(count, 16); r++) {
        uint8_t *to = room->gathered[r / 16] + r % 16 * 64;
        const uint8_t *from = NULL;
        if (r < count)
            from = v->tiles + rows[r] / 16 * 32 * ROW_PARTS * (int64_t)v->kp + (int64_t)begin * ROW_BLOCK +
                   rows[r] % 16 * 64;
        for (int64_t s = 0; s < ROW_PARTS * (end - begin); s++)
            vi_store(to + s * 1024, from ? vi_load(from + s * 1024) : vi_set1(0));
    }
}

void ISA_SYM(tiles_panels)(const struct weight *w, int64_t e, int64_t first, int panels, const struct row_view *v,
                           const int32_t *rows, int count, int consecutive, struct linear_room *room, float *sums)
{
    const uint8_t *b[TILE_PANELS + 1], *low[TILE_PANELS + 1];
    int blocks = (w->k + 31) / 32, exact = exact_in_bf16(w->encoding);
    float lanes[512] __attribute__((aligned(64)));
    tiles_begin();
    for (int begin = 0; begin < blocks; begin += TILE_BLOCKS) {
        int end = begin + TILE_BLOCKS < blocks ? begin + TILE_BLOCKS : blocks;
        for (int i = 0; i < panels; i++) {
            struct panel p = weight_panel(w, e, first + i);
            b[i] = w->encoding == ENC_BF16 ? p.data + (int64_t)begin * 1024 : room->weights[0][i];
            low[i] = exact ? NULL : room->weights[1][i];
            if (w->encoding != ENC_BF16)
                decode_tiles(&p, begin, end, lanes, room->weights[0][i], room->weights[1][i]);
        }
        if (!consecutive)
            gather_tiles(v, rows, count, begin, end, room);
        for (int r = 0; r < count; r += 32) {
            const uint8_t *a[2];
            for (int i = 0; i < 2; i++)
                a[i] = consecutive ? v->tiles + (rows[0] + r + 16 * i) / 16 * 32 * ROW_PARTS * (int64_t)v->kp +
                                         (int64_t)begin * ROW_BLOCK
                                   : room->gathered[r / 16 + i];
            for (int j = 0; j < panels; j += 2) {
                float *to = sums + (j * CHUNK_ROWS + r) * PANEL, *next = to + CHUNK_ROWS * PANEL;
                float *const c[2][2] = {{to, next}, {to + 16 * PANEL, next + 16 * PANEL}};
                if (r + 16 < count && j + 1 < panels)
                    tile_block(2, 2, end - begin, a, b + j, low + j, c, begin > 0);
                else if (r + 16 < count)
                    tile_block(2, 1, end - begin, a, b + j, low + j, c, begin > 0);
                else if (j + 1 < panels)
                    tile_block(1, 2, end - begin, a, b + j, low + j, c, begin > 0);
                else
                    tile_block(1, 1, end - begin, a, b + j, low + j, c, begin > 0);
            }
        }
    }
    _tile_release();
}

#endif
