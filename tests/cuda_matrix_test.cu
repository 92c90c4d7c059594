// SPDX-License-Identifier: Apache-2.0
//
// CUDA matrix kernels against double precision in every encoding and class, and the bits of a row whatever its company.
// With CUDA_EMULATION the same tests run on the host, on fewer rows.

#include "tests/cuda_matrix_rig.h"

#ifdef CUDA_EMULATION
enum { ROWS = 20 };
static const int counts[] = {1, 3, 8, 17};
#else
enum { ROWS = 200 };
static const int counts[] = {1, 2, 3, 5, 8, 16, 17, 64, 199};
#endif
enum { GUARD = 3, COUNTS = sizeof counts / sizeof *counts };

static const struct {
    int encoding, bits, group, n, k;
} shapes[] = {
    {ENC_F32, 0, 0, 1, 1},           {ENC_F32, 0, 0, 37, 100},      {ENC_BF16, 0, 0, 3, 24},
    {ENC_BF16, 0, 0, 53, 333},       {ENC_BF16, 0, 0, 33, 2100},    {ENC_F16, 0, 0, 21, 97},
    {ENC_AFFINE, 2, 64, 20, 192},    {ENC_AFFINE, 3, 32, 20, 96},   {ENC_AFFINE, 4, 32, 33, 160},
    {ENC_AFFINE, 4, 64, 48, 576},    {ENC_AFFINE, 4, 128, 7, 1152}, {ENC_AFFINE, 5, 32, 16, 320},
    {ENC_AFFINE, 6, 64, 19, 320},    {ENC_AFFINE, 8, 32, 19, 352},  {ENC_AFFINE, 8, 128, 300, 256},
    {ENC_NVFP4, 0, 0, 35, 16},       {ENC_NVFP4, 0, 0, 35, 304},    {ENC_NVFP4, 0, 0, 64, 1024},
    {ENC_MXFP8, 0, 0, 35, 32},       {ENC_MXFP8, 0, 0, 50, 608},    {ENC_FP8_BLOCK, 0, 0, 150, 65},
    {ENC_FP8_BLOCK, 0, 0, 160, 640}, {ENC_FP8, 0, 0, 17, 200},      {ENC_INT4, 4, 128, 24, 384},
    {ENC_INT4, 4, 32, 9, 96},        {ENC_NVFP4, 0, 0, 40, 4608},   {ENC_AFFINE, 4, 32, 70, 5120},
    {ENC_AFFINE, 4, 32, 1100, 160},  {ENC_NVFP4, 0, 0, 1030, 96},   {ENC_MXFP8, 0, 0, 1032, 64},
    {ENC_F16, 0, 0, 1025, 40},       {ENC_BF16, 0, 0, 1056, 64},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct linear_case {
    const struct matrix *m, *other;
    struct weight w, other_w;
    int row_class, ld;
    const float *x; // [ROWS][k + 8], on the device
    int ldx;
};

// `count` rows from `first` on, in a launch for `capacity` rows; y: host [count][n + GUARD]. mixed: between two other parts.
static void linear_call(const struct linear_case *c, int first, int count, int capacity, bool mixed, float *y)
{
    int memory = rig_memory_count, at = mixed ? 2 : 0;
    struct linear_args a = {};
    a.pass = put_pass(count, NULL);
    a.row_class = c->row_class;
    a.k = c->m->w.k;
    a.ldx = c->ldx;
    a.x = c->x + (int64_t)first * c->ldx;
    a.parts = mixed ? 3 : 1;
    a.scratch = put(NULL, linear_scratch_bytes(capacity, a.k));
    for (int i = 0; i < a.parts; i++) {
        int n = i == 1 ? c->other_w.n : c->w.n;
        a.part[i].w = i == 1 ? c->other_w : c->w;
        a.part[i].ldy = n + GUARD;
        a.part[i].y = (float *)put(NULL, (int64_t)count * (n + GUARD) * 4);
        a.part[i].activation = mixed && i == 0 ? ACT_RELU2 : ACT_NONE;
        a.part[i].alpha = mixed && i == 0 ? -2.0f : 1.0f;
    }
    must(cuda_linear(0, &a, capacity), "cuda_linear");
    rig_finish("linear");
    rig_copy(y, a.part[at].y, (size_t)count * (size_t)(c->w.n + GUARD) * 4);
    if (mixed) { // the first part is a function of the third
        float *t = (float *)malloc((size_t)count * (size_t)(c->w.n + GUARD) * 4);
        rig_copy(t, a.part[0].y, (size_t)count * (size_t)(c->w.n + GUARD) * 4);
        for (int i = 0; i < count * (c->w.n + GUARD); i++) {
            float v = -2.0f * y[i], want = v > 0 ? v * v : 0;
            if (i % (c->w.n + GUARD) < c->w.n && !(fabsf(t[i] - want) <= 1e-5f * want + 1e-30f))
                y[i] = NAN;
        }
        free(t);
    }
    put_back(memory);
}

// What a number of a row may be off by in the decode class. As an integer: half of the last of 16 bits of its group's largest, which is
// rounded up there by 1/64 at most. As halves (kernels/cuda/halves.cuh): with the group's largest scaled to 2^14 and more, the low half's
// rounding, 2^-11 of what the high one leaves, which is 2^-11 of the number; where the low half is subnormal half of f16's last place,
// 2^-25. As parts: the low part's rounding, 2^-8 of 2^-8.
static double held(const struct weight *w, const float *x, int i)
{
    const int kind = weight_kind(w), group = w->k % 64 == 0 ? 64 : 32, from = i / group * group;
    const double v = fabs((double)x[i]);
    double most = 0;
    if (kind == X_PARTS)
        return v * 0x1p-16;
    for (int j = from; j < from + group && j < w->k; j++)
        most = fmax(most, fabs((double)x[j]));
    return kind == X_INTEGERS ? most * 1.02 * 0x1p-15 : fmax(v * 0x1p-22, most * 0x1p-39);
}

// Largest error over its bound, and in *distance ||y - ref|| / ||ref||. The bound: what x is held to in the decode class, 2^-8 (one part) in
// the prompt class, and fp32 sums (2^-17 of the sum of magnitudes).
static double linear_error(const struct matrix *m, int row_class, const float *x, int ldx, const float *y, int rows,
                           double *distance)
{
    double worst = 0, difference = 0, norm = 1e-300;
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < m->w.n; o++) {
            double sum = 0, bound = 1e-30;
            for (int i = 0; i < m->w.k; i++) {
                double v = (double)x[(int64_t)r * ldx + i];
                sum += v * m->value[(int64_t)o * m->w.k + i];
                double off = row_class == CLASS_PROMPT ? fabs(v) * 0x1p-8 : held(&m->w, x + (int64_t)r * ldx, i);
                bound += (off + fabs(v) * 0x1p-17) * m->magnitude[(int64_t)o * m->w.k + i];
            }
            double error = sum - (double)y[(int64_t)r * (m->w.n + GUARD) + o];
            worst = !(fabs(error) / bound <= worst) ? fabs(error) / bound : worst;
            difference += error * error;
            norm += sum * sum;
        }
    *distance = sqrt(difference / norm);
    return worst;
}

static bool same_bits(const struct linear_case *c, const float *all)
{
    int ld = c->w.n + GUARD;
    float *y = (float *)malloc((size_t)ROWS * (size_t)ld * 4);
    bool same = true;
    for (int i = 0; i < COUNTS; i++) {
        int count = counts[i], first = (int)(matrix_random() % (unsigned)(ROWS - count + 1));
        linear_call(c, first, count, i % 2 ? 2 * ROWS : count, i % 3 == 0, y);
        for (int r = 0; r < count; r++) {
            bool row = memcmp(y + r * ld, all + (first + r) * ld, (size_t)c->w.n * 4) == 0;
            for (int g = c->w.n; g < ld; g++) {
                uint32_t u;
                memcpy(&u, &y[r * ld + g], 4);
                row = row && u == 0xffffffffu;
            }
            if (!row && same)
                printf("# %d rows from %d: row %d differs\n", count, first, r);
            same = same && row;
        }
    }
    free(y);
    return same;
}

static void test_shape(int i)
{
    struct matrix m =
        matrix_make(shapes[i].encoding, shapes[i].bits, shapes[i].group, shapes[i].n, shapes[i].k, (uint64_t)i + 1);
    struct matrix other = matrix_make(i % 2 ? ENC_BF16 : ENC_FP8, 0, 0, 41, shapes[i].k, 99);
    struct linear_case c = {&m, &other, put_weight(&m), put_weight(&other), 0, 0, NULL, 0};
    int k = m.w.k, ld = m.w.n + GUARD;
    c.ldx = i % 2 ? k + 5 : (k + 7) / 4 * 4; // rows that begin at multiples of 16 bytes, and others
    float *x = (float *)malloc((size_t)(3 * ROWS * c.ldx) * 4), *all = (float *)malloc((size_t)(ROWS * ld) * 4);
    for (int j = 0; j < 3 * ROWS * c.ldx; j++) // a launch may read as many rows as it has room for
        x[j] = j % c.ldx < k ? matrix_uniform() * (j % 61 == 0 ? 30.0f : 1.0f) : NAN;
    c.x = (const float *)put(x, (int64_t)3 * ROWS * c.ldx * 4);
    for (c.row_class = CLASS_DECODE; c.row_class <= CLASS_PROMPT; c.row_class++) {
        char name[128];
        snprintf(name, sizeof name, "linear %s %d bits, group %d, [%d, %d], %s", encoding_name(m.w.encoding), m.w.bits,
                 m.w.group, m.w.n, k, c.row_class == CLASS_PROMPT ? "prompt" : "decode");
        linear_call(&c, 0, ROWS, ROWS, false, all);
        double distance, error = linear_error(&m, c.row_class, x, c.ldx, all, ROWS, &distance);
        const double decode = weight_kind(&m.w) == X_INTEGERS ? 2e-4 : weight_kind(&m.w) == X_HALVES ? 1e-6 : 5e-5;
        ok(error <= 1 && distance <= (c.row_class == CLASS_PROMPT ? 5e-3 : decode),
           "%s: agrees with double precision (%.3g of the bound, distance %.2g)", name, error, distance);
        ok(same_bits(&c, all), "%s: a row's bits are its own", name);
    }
    free(x);
    free(all);
    put_back(0);
    matrix_free(&m);
    matrix_free(&other);
}

#include "tests/cuda_matrix_bench.h"
#include "tests/cuda_matrix_chosen.h"
#include "tests/cuda_matrix_experts.h"
#include "tests/cuda_matrix_gated.h"
#include "tests/cuda_matrix_halves.h"
#include "tests/cuda_matrix_integers.h"
#include "tests/cuda_matrix_slices.h"
#include "tests/cuda_matrix_steps.h"
#include "tests/cuda_matrix_streams.h"
#include "tests/cuda_matrix_two.h"
#include "tests/cuda_matrix_words.h"

#include "tests/cuda_matrix_before.h"
#include "tests/cuda_matrix_beside.h"
#include "tests/cuda_matrix_between.h"
#include "tests/cuda_matrix_fixed.h"
#include "tests/cuda_matrix_staged.h"

// What an argument asks for: a shape's number that shape, EXPERTS_AND_STEPS the experts and steps, EXPERTS_ALONE + c the case c of experts, and
// these; without one everything is run.
enum { BESIDE_ALONE = 90, WORDS_ALONE, EXPERTS_AND_STEPS = 99, EXPERTS_ALONE = 100 };
static const struct {
    int number;
    void (*run)(void);
} groups[] = {
    {BESIDE_ALONE, test_beside}, // experts with choices beside them
    {WORDS_ALONE, test_words},   // of nvfp4
    {91, test_chosen},           // which experts
    {92, test_before},           // a residual before a product
    {92, test_row_between},      // a row between two blocks
    {93, test_halves},           // what E4M3 codes begin with
    {94, test_integers},         // hard rows
    {95, test_staged},           // x with the stages
    {96, test_streams},          // a prompt's rows between products
    {96, test_gated},
    {97, test_fixed},  // kernels for one shape
    {98, test_slices}, // of k
};

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "bench") == 0)
        return bench(count - 2, arguments + 2);
    const int last = EXPERTS_ALONE + (int)(sizeof expert_cases / sizeof *expert_cases) - 1;
    char *end = NULL;
    const long asked = count > 1 ? strtol(arguments[1], &end, 10) : -1;
    if (count > 2 || (count > 1 && (end == arguments[1] || *end || asked < 0 || asked > last))) {
        fprintf(stderr, "usage: matrix [0 to %d] or matrix bench [...]; found %s\n", last, arguments[count - 1]);
        return 2;
    }
    const int only = (int)asked;
    for (int i = 0; i < SHAPES; i++)
        if (only < 0 || only == i)
            test_shape(i);
    const int expert_case = only - EXPERTS_ALONE;
    if (expert_case >= 0 && expert_case < (int)(sizeof expert_cases / sizeof *expert_cases))
        test_moe(expert_case);
    else if (only < 0 || (only >= SHAPES && (only < BESIDE_ALONE || only == EXPERTS_AND_STEPS))) {
        test_experts();
        test_linear_steps();
        test_two();
    }
    for (const auto &group : groups)
        if (only < 0 || only == group.number)
            group.run();
    return done();
}
