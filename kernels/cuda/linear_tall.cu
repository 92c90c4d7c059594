// SPDX-License-Identifier: Apache-2.0
//
// linear_args, prompt class, on warpgroups, for many rows: which launches have tall tiles, and how tall.
// Invariant: see tall.cuh. Which way is taken changes no bit.

#include "kernels/cuda/tall.cuh"

bool tall_takes(const struct weight *w, int64_t rows)
{
    enum { FEW = 128 }; // a tile of the other way has so many
    return rows > FEW && rows % 8 == 0 && w->k % 64 == 0 && w->n % 128 == 0 && prompt_parts(w) == 1 &&
           (w->encoding == ENC_BF16 || (w->encoding == ENC_AFFINE && w->bits == 4));
}

template <class SHAPE>
static cudaError_t tall_launch(cudaStream_t stream, const struct linear_args *args, const tall_plan &plan)
{
    const int64_t units = (plan.rows + SHAPE::ROWS - 1) / SHAPE::ROWS * (int64_t)plan.tiles;
    const int most = multiprocessors() / plan.team * plan.team;
    const unsigned blocks = (unsigned)(units < most ? units : most);
    auto kernel = linear_tall_kernel<SHAPE>;
    return launch_cluster(stream, dim3(blocks), dim3(SHAPE::THREADS), (size_t)SHAPE::BYTES, (unsigned)plan.team, kernel,
                          *args, plan);
}

template <class CODE>
static cudaError_t tall_launch_code(cudaStream_t stream, const struct linear_args *args, const tall_plan &plan, int nt)
{
    switch (nt) {
    case 32:
        return tall_launch<tall_shape<CODE, 32, false>>(stream, args, plan);
    case 20:
        return tall_launch<tall_shape<CODE, 20, true>>(stream, args, plan);
    default:
        return tall_launch<tall_shape<CODE, 16, true>>(stream, args, plan);
    }
}

// The tiles (of 8 nt rows) that are soonest done, and how long their blocks take, in products of 8 rows of a stage; `most` if no tiles
// take less than that.
struct tall_choice {
    int nt;
    int64_t cost;
};

static tall_choice tall_choose(int64_t rows, int tiles, int slices, int64_t most)
{
    enum { BETWEEN = 4 }; // what a stage takes beside its products
    static const int sizes[] = {32, 20, 16};
    tall_choice best = {0, most};
    for (int nt : sizes) {
        const int64_t units = (rows + 8 * nt - 1) / (8 * nt) * (int64_t)tiles;
        const int64_t cost = (units + multiprocessors() - 1) / multiprocessors() * (nt + BETWEEN);
        if (cost < best.cost &&
            (slices == 1 || nt != 32)) // for sums of slices beside sums of 32 there are no registers
            best = {nt, cost};
    }
    return best;
}

bool tall_pays(int64_t rows, int tiles, int slices)
{
    const int64_t full = (rows + 7) / 8 * tiles; // products of 8 rows, if no multiprocessor were ever idle
    return tall_choose(rows, tiles, slices, full * 8 / (5 * multiprocessors())).nt > 0;
}

cudaError_t linear_tall(cudaStream_t stream, const struct linear_args *args, const wide_rows &x, int take, int aligned,
                        int slices, int64_t rows)
{
    tall_plan plan = {x, take, aligned, slices, 0, (int32_t)rows, 1};
    int first = 0;
    for (int i = args->parts - 1; i >= 0; i--)
        if (take >> i & 1) {
            plan.tiles += args->part[i].w.n / 128;
            first = i;
        }
    plan.team = plan.tiles % 2 == 0 && multiprocessors() > 1 ? 2 : 1;
    const int nt = tall_choose(rows, plan.tiles, slices, INT64_MAX).nt;
    if (args->part[first].w.encoding == ENC_BF16)
        return tall_launch_code<code_bf16>(stream, args, plan, nt);
    return tall_launch_code<code_affine<4>>(stream, args, plan, nt);
}
