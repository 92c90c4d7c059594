// SPDX-License-Identifier: Apache-2.0
//
// The n-gram embedding (hashed rows of a table in memory or in a file) and its gated injection into the streams.
//
// Invariant: a row's hashes depend on the ids up to its position alone; what cannot be read becomes zeros and is reported.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/row.h"
#include <errno.h>
#include <unistd.h>

// ---- ngram: items are (row, head) -------------------------------------------------------------------------------------------

static int64_t ngram_items(const void *p)
{
    const struct ngram_args *a = p;
    return (int64_t)a->pass->rows * a->heads;
}

// The table row of head `head` for the id at `position`.
static int64_t ngram_row(const struct ngram_args *a, const int32_t *tokens, int32_t position, int32_t head)
{
    const int32_t n = 2 + head / (a->heads / (a->ngram - 1));
    uint64_t hash = (uint64_t)tokens[position] * (uint64_t)a->multiplier[0];
    int32_t id = -1;
    for (int32_t i = 1; i < n; i++) {
        id = i > position || (i > 1 && id == a->eos) ? a->eos : tokens[position - i];
        hash ^= (uint64_t)id * (uint64_t)a->multiplier[i];
    }
    int64_t rest = (int64_t)hash % a->size[head];
    return a->offset[head] + (rest < 0 ? rest + a->size[head] : rest);
}

// Row `row` of the table, in place or read into `buffer`; NULL when it cannot be read.
static const uint8_t *source_row(const struct row_source *source, int64_t row, uint8_t *buffer)
{
    if (source->memory)
        return source->memory + row * source->row_bytes;
    int64_t done = 0;
    while (done < source->row_bytes) {
        ssize_t got = pread(source->file, buffer + done, (size_t)(source->row_bytes - done),
                            (off_t)(source->offset + row * source->row_bytes + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return NULL;
        done += got;
    }
    return buffer;
}

static void ngram_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct ngram_args *a = p;
    for (int64_t item = begin; item < end; item++) {
        const int64_t r = item / a->heads;
        const int32_t head = (int32_t)(item % a->heads);
        const int32_t *tokens = a->lanes.lane[a->pass->lane[r]]->tokens;
        const uint8_t *row = source_row(a->table, ngram_row(a, tokens, a->pass->position[r], head), scratch);
        float *y = a->y + item * a->dim;
        if (row) {
            row_decode(a->encoding, a->bits, a->group, a->dim, row, a->global, y);
        } else {
            memset(y, 0, (size_t)a->dim * sizeof *y);
            __atomic_store_n(a->failed, 1, __ATOMIC_RELAXED);
        }
    }
}

const struct kernel ISA_SYM(kernel_ngram) = {"ngram", {{ngram_items, ngram_run}}};

// ---- ple_gate: items are (row, stream) --------------------------------------------------------------------------------------

static int64_t ple_gate_items(const void *p)
{
    const struct ple_gate_args *a = p;
    return (int64_t)a->pass->rows * a->streams;
}

static void ple_gate_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct ple_gate_args *a = p;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const float *v = a->v + item / a->streams * a->dim;
        float *u = a->u + item * a->dim;
        float s = row_dot(a->k + item * a->dim, a->q + item * a->dim, a->dim) / __builtin_sqrtf((float)a->dim);
        float size = __builtin_fabsf(s), root = __builtin_sqrtf(size > 1e-6f ? size : 1e-6f);
        const vf gate = vf_set1(f_sigmoid(s > 0 ? root : s < 0 ? -root : 0.0f));
        for (int32_t i = 0; i < a->dim; i += VEC) {
            int lanes = row_lanes(a->dim, i);
            row_store(u + i, vf_mul(gate, row_load(v + i, lanes)), lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_ple_gate) = {"ple_gate", {{ple_gate_items, ple_gate_run}}};

// ---- ple_add: items are (row, block of elements) -----------------------------------------------------------------------------

static int64_t ple_add_items(const void *p)
{
    const struct ple_add_args *a = p;
    return a->pass->rows * ceil_div(a->width, ROW_BLOCK);
}

static void ple_add_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct ple_add_args *a = p;
    const int64_t blocks = ceil_div(a->width, ROW_BLOCK);
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const int64_t row = item / blocks * a->width;
        int32_t first = (int32_t)(item % blocks) * ROW_BLOCK, last = least(first + ROW_BLOCK, a->width);
        for (int32_t i = first; i < last; i += VEC) {
            int lanes = row_lanes(last, i);
            vf add = vf_add(row_load(a->u + row + i, lanes), vf_silu(row_load(a->y + row + i, lanes)));
            row_store(a->r + row + i, vf_add(row_load(a->r + row + i, lanes), add), lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_ple_add) = {"ple_add", {{ple_add_items, ple_add_run}}};
