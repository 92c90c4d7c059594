// SPDX-License-Identifier: Apache-2.0
//
// Words of nvfp4 as cuda_arrange() leaves them: each code where nvfp4_pair() and nvfp4_code() find it; hard rows beside such codes.

#ifndef CUDA_MATRIX_WORDS_H
#define CUDA_MATRIX_WORDS_H

#include "tests/cuda_matrix_integers.h"

enum { WORDS_N = 16, WORDS_K = 2048, WORDS_EXPERTS = 3, WORDS = WORDS_N * WORDS_K / 8 };

// Whether words `is` hold the codes of the pack's words `was`, as pairs of bf16 and alone.
static bool words_right(const uint32_t *was, const uint32_t *is)
{
    bool right = true;
    for (int w = 0; w < WORDS; w++)
        for (int i = 0; i < 8; i++) {
            const uint32_t code = was[w] >> (8 * (i % 4) + 4 * (i / 4)) & 15u,
                           number = (code & 8u) << 12 | (code & 7u) << 6, pair = nvfp4_pair(is[w], i / 4, i % 2);
            right = right && (i & 2 ? pair >> 16 : pair & 0xffffu) == number && nvfp4_code(is[w], i) == code;
        }
    return right;
}

static void test_words(void)
{
    enum { STRIDE = WORDS + 16 }; // words from an expert to the next
    static uint32_t was[WORDS_EXPERTS * STRIDE], is[WORDS_EXPERTS * STRIDE];
    for (int i = 0; i < WORDS_EXPERTS * STRIDE; i++)
        was[i] = matrix_random() ^ matrix_random() << 16;
    uint8_t *data = (uint8_t *)put(was, sizeof was);
    struct weight w = {};
    w.encoding = ENC_NVFP4;
    w.n = WORDS_N;
    w.k = WORDS_K;
    w.data = data;
    w.data_stride = STRIDE * 4;
    put_arranged(&w, WORDS_EXPERTS);
    rig_copy(is, data, sizeof is);
    bool right = true, between = true;
    for (int e = 0; e < WORDS_EXPERTS; e++) {
        right = right && words_right(was + e * STRIDE, is + e * STRIDE);
        between = between && memcmp(was + e * STRIDE + WORDS, is + e * STRIDE + WORDS, (STRIDE - WORDS) * 4) == 0;
    }
    ok(right, "words of nvfp4: each code at its place");
    ok(between, "words of nvfp4: what lies between experts is left alone");
    ok(!words_right(was, was), "words of nvfp4: those of the pack are found");
    put_back(0);
    test_hard(ENC_NVFP4, 0, 0, 40, 192);
}

#endif
