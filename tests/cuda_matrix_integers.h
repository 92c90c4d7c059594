// SPDX-License-Identifier: Apache-2.0
//
// Rows of x as integers (kernels/cuda/integer.cuh): rows whose numbers are hard to hold. A row that is not finite gives no numbers and
// leaves its neighbours alone, zeros give zeros, and the largest of a group may be any number just under a power of two, where a
// digit would overflow.
//
// Red control: the bound of another row, whose numbers are a thousandth, is too small.

#ifndef CUDA_MATRIX_INTEGERS_H
#define CUDA_MATRIX_INTEGERS_H

enum { HARD_ROWS = 8 };
enum hard_row { HARD_PLAIN, HARD_NAN, HARD_INFINITE, HARD_ZERO, HARD_UNDER, HARD_OUTLIER, HARD_TINY, HARD_HUGE };

// A number of row r, whose plain one is v.
static float hard_number(int r, int i, float v)
{
    switch (r) {
    case HARD_NAN:
        return i == 5 ? NAN : v;
    case HARD_INFINITE:
        return i == 40 ? -INFINITY : v;
    case HARD_ZERO:
        return i % 2 ? 0.0f : -0.0f;
    case HARD_UNDER: // numbers of 16 bits under 2, of either sign, near where the digits end
        return (i % 3 ? 1.0f : -1.0f) * (1.984375f + (float)(i % 32) * 0x1p-15f * 16.0f - (i % 7 ? 0x1p-23f : 0.0f));
    case HARD_OUTLIER:
        return i % 64 == 9 ? 3000.0f * v : v;
    case HARD_TINY:
        return v * 0x1p-100f;
    case HARD_HUGE:
        return v * 0x1p80f;
    default:
        return v;
    }
}

static void test_hard(int encoding, int bits, int group, int n, int k)
{
    struct matrix m = matrix_make(encoding, bits, group, n, k, 77);
    struct matrix other = matrix_make(ENC_BF16, 0, 0, 8, k, 99);
    struct linear_case c = {&m, &other, put_weight(&m), put_weight(&other), CLASS_DECODE, 0, NULL, k};
    const int ld = n + GUARD;
    float *x = (float *)malloc((size_t)(3 * ROWS * k) * 4), *all = (float *)malloc((size_t)(HARD_ROWS * ld) * 4),
          *one = (float *)malloc((size_t)ld * 4);
    for (int i = 0; i < 3 * ROWS * k; i++)
        x[i] = hard_number(i / k, i % k, matrix_uniform());
    c.x = (const float *)put(x, (int64_t)3 * ROWS * k * 4);
    linear_call(&c, 0, HARD_ROWS, HARD_ROWS, false, all);
    bool none = true, zero = true, same = true;
    double worst = 0, distance, little = 0;
    for (int r = 0; r < HARD_ROWS; r++) {
        linear_call(&c, r, 1, 1, false, one);
        same = same && memcmp(one, all + r * ld, (size_t)n * 4) == 0;
        for (int o = 0; o < n; o++) {
            none = none && (r != HARD_NAN && r != HARD_INFINITE ? isfinite(all[r * ld + o]) : isnan(all[r * ld + o]));
            zero = zero && (r != HARD_ZERO || all[r * ld + o] == 0);
        }
        if (r == HARD_NAN || r == HARD_INFINITE || r == HARD_ZERO)
            continue;
        const double error = linear_error(&m, CLASS_DECODE, x + r * k, k, all + r * ld, 1, &distance);
        worst = !(error <= worst) ? error : worst;
    }
    for (int i = 0; i < k; i++)
        x[i] *= 1e-3f;
    little = linear_error(&m, CLASS_DECODE, x, k, all, 1, &distance);
    const char *name = encoding_name(encoding);
    ok(worst <= 1, "hard rows, %s %d bits, group %d: agree with double precision (%.3g of the bound)", name, bits,
       group, worst);
    ok(none && zero, "hard rows, %s %d bits, group %d: no numbers of what is none, and zeros of zeros", name, bits,
       group);
    ok(same, "hard rows, %s %d bits, group %d: the bits of a row alone", name, bits, group);
    ok(!(little <= 1), "hard rows, %s %d bits, group %d: another row is found", name, bits, group);
    free(x);
    free(all);
    free(one);
    put_back(0);
    matrix_free(&m);
    matrix_free(&other);
}

static void test_integers(void)
{
    test_hard(ENC_AFFINE, 4, 64, 40, 192);
    test_hard(ENC_AFFINE, 8, 32, 20, 96);
    test_hard(ENC_INT4, 4, 128, 20, 128);
}

#endif
