// SPDX-License-Identifier: Apache-2.0
//
// The keyed draw of kernels/cpu/sampler.h on a cluster of blocks a row, each with a range of ids.
//
// Invariant: the token is the one that the CPU target draws from the same logits: what crosses threads and blocks are integer
// sums and maxima, and every function of a number is the one of kernels/cpu/sampler_math.h.

#include "kernels/cuda/draw.cuh"
#include "kernels/cuda/draw_history.cuh"
#include "kernels/cuda/draw_logprobs.cuh"

// Those before which less than top_p of the candidates' probability lies.
DEVICE struct draw_cut draw_mass(struct draw_space *s, const struct draw_row *row, struct draw_cut cut)
{
    const double temperature = (double)row->temperature;
    cluster_sync();
    draw_clear(s);
    for (int level = 0; level < 3; level++) {
        const uint32_t found = s->found;
        draw_each(row, [&](int32_t id, float logit) {
            const uint32_t key = sampler_key(logit);
            if (draw_within(key, id, cut) && sampler_prefix(key, level) == found)
                draw_add(s, level, key, sampler_weight(logit, row->peak, temperature), false);
        });
        draw_digit(s, level, row->parts, false, level > 0 ? -1 : row->top_p > 0 ? (double)row->top_p : 0.0);
    }
    const uint64_t weight = sampler_weight(sampler_value(s->found), row->peak, temperature), left = s->left;
    const uint64_t count = weight ? (left + weight - 1) / weight : 1;
    cut.key = s->found;
    cut.last = draw_last(s, row, cut.key, count);
    return cut;
}

// Whether candidate (score, id) comes before (best, token).
DEVICE bool draw_better(double score, int32_t id, double best, int32_t token)
{
    return score > best || (score == best && id < token);
}

DEVICE int32_t draw_gumbel(struct draw_space *s, const struct draw_row *row, struct draw_cut cut, int32_t top,
                           int64_t position)
{
    const uint64_t base = sampler_base(row->seed, position);
    const double temperature = (double)row->temperature, peak = (double)row->peak;
    double best = 0.0 - sampler_gumbel_of(sampler_noise(base, row->names ? row->names[top] : top));
    int32_t token = top;
    const float shrink = 1.0f / row->temperature;
    draw_each(row, [&](int32_t id, float logit) {
        if (!draw_within(sampler_key(logit), id, cut) || id == top)
            return;
        // First in fp32, with room for its rounding: most tokens are far from winning.
        const uint64_t k = sampler_noise(base, row->names ? row->names[id] : id);
        const float near = (logit - row->peak) * shrink;
        if (near + (float)sampler_noise_bound(k) + 0.01f - 1e-5f * near < (float)best)
            return;
        const double x = ((double)logit - peak) / temperature;
        if (!(x + sampler_noise_bound(k) >= best) || (row->min_p > 0 && sampler_exp(x) < (double)row->min_p))
            return;
        const double score = x - sampler_gumbel_of(k);
        if (draw_better(score, id, best, token)) {
            best = score;
            token = id;
        }
    });
#pragma unroll
    for (int half = WARP / 2; half > 0; half /= 2) {
        const double score = __shfl_xor_sync(WHOLE_WARP, best, half);
        const int32_t id = __shfl_xor_sync(WHOLE_WARP, token, half);
        if (draw_better(score, id, best, token)) {
            best = score;
            token = id;
        }
    }
    // One entry a warp: the score's bits in the scan space, the id beside it in the bins, which nobody reads any more.
    cluster_sync();
    int32_t *ids = reinterpret_cast<int32_t *>(s->mass);
    if (threadIdx.x % WARP == 0) {
        s->scan[threadIdx.x / WARP] = (uint64_t)__double_as_longlong(best);
        ids[threadIdx.x / WARP] = token;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < DRAW_THREADS / WARP; w++) {
            const double score = __longlong_as_double((long long)s->scan[w]);
            if (draw_better(score, ids[w], best, token)) {
                best = score;
                token = ids[w];
            }
        }
        s->score = best;
        s->token = token;
    }
    cluster_sync();
    for (int32_t p = 0; p < row->parts; p++) {
        const double score = *cluster_map(&s->score, (unsigned)p);
        const int32_t id = *cluster_map(&s->token, (unsigned)p);
        if (p == 0 || draw_better(score, id, best, token)) {
            best = score;
            token = id;
        }
    }
    return token;
}

// The row's token; every thread of the cluster takes the same way.
DEVICE int32_t draw_token(struct draw_space *s, struct draw_row *row, int64_t position)
{
    const uint64_t mine = draw_mine(row);
    uint64_t highest = draw_highest(s, mine, row->parts);
    if (highest == 0) {
        uint64_t any = 0;
        draw_each(row, [&](int32_t id, float logit) {
            // Under a mask the lowest id that it allows.
            const uint32_t key = !row->mask ? sampler_key(logit) : draw_allowed(row, id);
            any = draw_max(any, (uint64_t)key << 32 | (uint32_t)~id);
        });
        cluster_sync();
        highest = draw_highest(s, any, row->parts);
    }
    const int32_t top = (int32_t) ~(uint32_t)highest;
    row->peak = row->logits[top];
    if (!(row->temperature > 0) || !isfinite(row->peak))
        return top;
    struct draw_cut cut = {0, INT32_MAX};
    if (row->top_k > 0 && row->top_k < row->n)
        cut = draw_count(s, row, (uint32_t)(mine >> 32));
    if (row->top_p < 1)
        cut = draw_mass(s, row, cut);
    return draw_gumbel(s, row, cut, top, position);
}

__global__ void __launch_bounds__(DRAW_THREADS)
    draw_kernel(const __grid_constant__ struct draw_args a, int32_t parts, int32_t words)
{
    extern __shared__ __align__(16) uint8_t shared[];
    struct draw_space *s = reinterpret_cast<struct draw_space *>(shared);
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    const int32_t l = a.pass->lane[r], place = (int32_t)r - a.pass->lane_first[l];
    const int32_t position = a.pass->position[r], size = ((a.vocabulary + parts - 1) / parts + 3) / 4 * 4;
    const struct lane *lane = a.lanes.lane[l];
    struct draw_row row = {};
    row.logits = a.logits + r * a.ldl;
    row.n = a.vocabulary;
    row.part = (int32_t)blockIdx.x;
    row.parts = parts;
    row.first = size * row.part < row.n ? size * row.part : row.n;
    row.end = row.first + size < row.n ? row.first + size : row.n;
    row.temperature = lane->temperature;
    row.top_p = lane->top_p;
    row.min_p = lane->min_p;
    row.top_k = lane->top_k;
    row.seed = lane->seed;
    const struct draw_history history = draw_history_of(&a, lane, place, position);
    struct logprobs *logprobs = a.store < 0 && place < MAX_WINDOW && lane->logprobs ? lane->logprobs + place : NULL;
    struct draw_whole whole = {};
    if (logprobs)
        whole = draw_logprobs(s, &row, lane->alternatives, logprobs);
    row.mask = lane->mask && a.ahead == 1 ? lane->mask + (int64_t)place * words : NULL;
    if (history.list)
        draw_penalise(s, &row, &history);
    row.names = a.ids;
    const int32_t column = draw_token(s, &row, (int64_t)position + a.ahead);
    cluster_sync();
    if (history.list)
        draw_restore(s, &row, &history);
    if (row.part == 0 && threadIdx.x == 0) {
        const int32_t token = a.ids ? a.ids[column] : column;
        a.drawn[r] = token;
        if (logprobs)
            logprobs->chosen = sampler_logprob(row.logits[token], whole.peak, whole.log);
        if (a.store >= 0)
            lane->tokens[position + a.store] = token;
    }
}

extern "C" cudaError_t cuda_draw(cudaStream_t stream, const struct draw_args *a, int rows)
{
    const int32_t parts = clusters_available() ? DRAW_PARTS : 1;
    return launch_cluster(stream, dim3((unsigned)parts, (unsigned)rows), DRAW_THREADS, sizeof(struct draw_space),
                          (unsigned)parts, draw_kernel, *a, parts, mask_words(a->vocabulary));
}
