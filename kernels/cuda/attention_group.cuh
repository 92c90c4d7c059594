// SPDX-License-Identifier: Apache-2.0
//
// Dense attention of prompt rows by products of warpgroups, on cards that have them: as attention_dense.cuh, whatever the number of rows.
//
// A warpgroup has 64 pairs for good. Two of them are a tile's keys or values apart, so that one's softmax runs beside the other's scores;
// where pairs are few a block has one.
// Invariant: that of attention_dense.cuh. The chains are the same, but not the machine's sums in a product, so a card has one way alone.

#ifndef CUDA_ATTENTION_GROUP_CUH
#define CUDA_ATTENTION_GROUP_CUH

#include "kernels/cuda/attention_dense.cuh"
#include "kernels/cuda/dense_group.cuh"

enum { GROUP_SLOTS = 4 }; // tiles in shared memory of a block of one warpgroup: two at work, two on their way

// Queries of each warpgroup in parts, then tiles; and what the place may lack to 1024.
template <int DIM, int GROUPS> static constexpr size_t dense_group_bytes(void)
{
    return 1024 + (GROUPS * DENSE_PARTS + (GROUPS > 1 ? (int)DENSE_SLOTS : (int)GROUP_SLOTS)) *
                      sizeof(struct dense_planes<DIM>);
}

// What a warpgroup has of its pairs.
template <int DIM> struct dense_group_pairs {
    struct dense_sums sums;
    int32_t least; // position
    float out[DIM / 8][4];
};

// Takes a tile's scores to weights; sums must be multiplied by keep where that is said.
template <int DIM>
DEVICE bool dense_group_softmax(struct dense_group_pairs<DIM> *mine, float (*score)[4], int32_t tile, float *keep)
{
    if (__any_sync(WHOLE_WARP, (tile + 1) * DENSE_TILE > mine->least + 1))
        dense_mask<DENSE_KEYS>(&mine->sums, score, tile * DENSE_TILE);
    return dense_softmax(&mine->sums, score, keep);
}

// Where a warpgroup's rows of a tile come from: those of one warp, of which there are four.
template <int DIM, bool F32> struct dense_group_copies {
    static constexpr int EACH = DENSE_TILE / GROUP_WARPS;
    const struct attention_args *a;
    const struct dense_pairs *pairs;
    const struct dense_run *run;
    int64_t value_offset;

    __device__ __forceinline__ uint64_t find(int32_t tile) const
    {
        return dense_find<DIM, F32, EACH>(a, pairs, run, tile);
    }
    __device__ __forceinline__ void copy(struct dense_planes<DIM> *to, uint64_t place, int64_t offset) const
    {
        dense_copy<DIM, F32, EACH>(to, place, offset);
    }
};

// Two warpgroups. Item 2 t is the keys of tile t, item 2 t + 1 its values; item i lies in slot i % DENSE_SLOTS. In step i the first takes
// item i and the second the one before. Who makes scores asks for the next item while they are made: BEHIND is the second.
template <int DIM, bool F32, int BEHIND>
DEVICE void dense_pair_step(const struct dense_group_copies<DIM, F32> *copies, int32_t i, int32_t items, int32_t slot,
                            uint64_t *place, const struct dense_planes<DIM> *q, struct dense_planes<DIM> *slots,
                            struct dense_group_pairs<DIM> *mine, float (*score)[4])
{
    const int32_t item = i - BEHIND, at = BEHIND ? (slot > 0 ? slot - 1 : DENSE_SLOTS - 1) : slot;
    if (item % 2 == 0 && item < items) {
        dense_group_scores<DIM>(slots + at, q + BEHIND * DENSE_PARTS, score[0]);
        if (i + 1 < items) {
            copies->copy(slots + (slot + 1 < DENSE_SLOTS ? slot + 1 : 0), *place, BEHIND ? 0 : copies->value_offset);
            *place = copies->find(i / 2 + 1 + BEHIND);
        }
        __pipeline_commit();
        wgmma_settle<DENSE_KEYS * 4>(score[0]);
    } else if (item % 2 == 1) {
        struct dense_weights weights;
        float keep[2];
        if (dense_group_softmax(mine, score, item / 2, keep))
            dense_keep<DIM / 8>(mine->out, keep);
        dense_weights_of(score, &weights);
        dense_group_values<DIM>(slots + at, &weights, mine->out[0]);
        wgmma_settle<DIM / 2>(mine->out[0]);
    }
}

template <int DIM, bool F32>
DEVICE void dense_pair_run(const struct dense_group_copies<DIM, F32> *copies, const struct dense_planes<DIM> *q,
                           struct dense_planes<DIM> *slots, struct dense_group_pairs<DIM> *mine)
{
    const int32_t items = 2 * dense_tiles(*copies->run);
    const int32_t behind = __shfl_sync(WHOLE_WARP, (int32_t)threadIdx.x / (GROUP_WARPS * WARP), 0);
    float score[DENSE_KEYS][4] = {};
    uint64_t place = copies->find(0); // the first brings values, the second keys
    if (behind) {
        copies->copy(slots, place, 0);
        place = copies->find(1);
    }
    __pipeline_commit();
    for (int32_t i = 0, slot = 0; i <= items; i++, slot = slot + 1 < DENSE_SLOTS ? slot + 1 : 0) {
        __pipeline_wait_prior(0);
        wgmma_publish();
        __syncthreads();
        if (behind)
            dense_pair_step<DIM, F32, 1>(copies, i, items, slot, &place, q, slots, mine, score);
        else
            dense_pair_step<DIM, F32, 0>(copies, i, items, slot, &place, q, slots, mine, score);
    }
}

// One warpgroup. A step has the values of its tile and the keys of the next one, in two slots: the next tile's scores are made first, and
// its softmax beside this one's values. What a step asks for comes meanwhile to the other two.
template <int DIM, bool F32>
DEVICE void dense_one_run(const struct dense_group_copies<DIM, F32> *copies, const struct dense_planes<DIM> *q,
                          struct dense_planes<DIM> *slots, struct dense_group_pairs<DIM> *mine)
{
    const int32_t tiles = dense_tiles(*copies->run);
    struct dense_weights weights;
    float score[DENSE_KEYS][4], keep[2];
    uint64_t place = copies->find(0), next = copies->find(1);
    auto copy = [&](int32_t t) { // of step t
        struct dense_planes<DIM> *to = slots + t % 2 * 2;
        copies->copy(to + 1, place, copies->value_offset);
        place = next;
        copies->copy(to, place, 0); // behind the last tile: of nothing that is used
        __pipeline_commit();
        next = copies->find(t + 2);
    };
    auto come = [&]() {
        __pipeline_wait_prior(0);
        wgmma_publish();
        __syncthreads();
    };
    copies->copy(slots + 2, place, 0);
    __pipeline_commit();
    come();
    dense_group_scores<DIM>(slots + 2, q, score[0]);
    copy(0);
    wgmma_settle<DENSE_KEYS * 4>(score[0]);
    dense_group_softmax(mine, score, 0, keep); // there are no sums yet
    dense_weights_of(score, &weights);
    for (int32_t t = 0; t < tiles; t++) {
        const struct dense_planes<DIM> *stage = slots + t % 2 * 2;
        come();
        dense_group_scores<DIM>(stage, q, score[0]);
        dense_group_values<DIM>(stage + 1, &weights, mine->out[0]);
        if (t + 1 < tiles)
            copy(t + 1);
        wgmma_settle<DENSE_KEYS * 4, 1>(score[0]);
        const bool less = t + 1 < tiles && dense_group_softmax(mine, score, t + 1, keep);
        wgmma_settle<DIM / 2>(mine->out[0]);
        if (less)
            dense_keep<DIM / 8>(mine->out, keep);
        dense_weights_of(score, &weights);
    }
}

template <int DIM, bool F32, int GROUPS>
__global__ void __launch_bounds__(GROUPS *GROUP_WARPS *WARP, 1)
    dense_groups(const __grid_constant__ struct attention_args a)
{
    SHARED_BYTES(room);
    struct dense_planes<DIM> *q = reinterpret_cast<struct dense_planes<DIM> *>(room + (-(uintptr_t)room & 1023));
    struct dense_planes<DIM> *slots = q + GROUPS * DENSE_PARTS;
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    pdl_wait();
    pdl_trigger();
    const struct dense_pairs pairs = dense_pairs_of<GROUPS * GROUP_PAIRS>(&a);
    if (pairs.first >= pairs.all)
        return;
    const int32_t first = pairs.first + warp * DENSE_PAIRS;
    struct dense_group_pairs<DIM> mine = {
        dense_none(), 0,
        {
        }
    };
    dense_take_queries<DIM>(&a, &pairs, first, 0, 1, [&](int p, int32_t step, int i, uint32_t word) {
        uint16_t *row = q[warp / GROUP_WARPS * DENSE_PARTS + p].place(
            warp % GROUP_WARPS * DENSE_PAIRS + lane / 4 + i % 2 * 8, 2 * step + i / 2);
        *reinterpret_cast<uint32_t *>(row + lane % 4 * 2) = word;
    });
    dense_runs<GROUPS * GROUP_PAIRS>(&a, &pairs, [&](const struct dense_run &run) { // begins with a barrier
        const struct dense_group_copies<DIM, F32> copies = {
            &a, &pairs, &run, dense_value_offset(&a)
        };
        dense_positions(&a, &pairs, &run, first, &mine.sums);
        mine.least = mine.sums.position[0] < mine.sums.position[1] ? mine.sums.position[0] : mine.sums.position[1];
        if constexpr (GROUPS > 1)
            dense_pair_run<DIM, F32>(&copies, q, slots, &mine);
        else
            dense_one_run<DIM, F32>(&copies, q, slots, &mine);
    });
    dense_write<DIM, DIM>(&a, &pairs, first, 0, &mine.sums, mine.out);
}

// Whether the card and the build have the products.
static bool attention_group_available(void)
{
#if defined(WITH_WGMMA) || defined(CUDA_FIBERS)
    static int state = -1;
    if (state < 0) {
        state = card_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && dense_group_bytes<256, 2>() <= block_room();
    }
    return state;
#else
    return false;
#endif
}

template <int DIM, bool F32>
static cudaError_t dense_group_launch(cudaStream_t stream, const struct attention_args *a, int rows)
{
    enum { ONE_COST = 12, TWO_COST = 20 };
    if (dense_cost(a, rows, 2 * GROUP_PAIRS, TWO_COST) <= dense_cost(a, rows, GROUP_PAIRS, ONE_COST))
        return launch(stream, (unsigned)dense_blocks(a, rows, 2 * GROUP_PAIRS), 2 * GROUP_WARPS * WARP,
                      dense_group_bytes<DIM, 2>(), dense_groups<DIM, F32, 2>, *a);
    return launch(stream, (unsigned)dense_blocks(a, rows, GROUP_PAIRS), GROUP_WARPS * WARP, dense_group_bytes<DIM, 1>(),
                  dense_groups<DIM, F32, 1>, *a);
}

static cudaError_t attention_group(cudaStream_t stream, const struct attention_args *a, int rows)
{
    return with_dense_shape(
        a, [&](auto s) { return dense_group_launch<decltype(s)::DIM, decltype(s)::F32>(stream, a, rows); });
}

#endif
