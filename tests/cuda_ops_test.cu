// SPDX-License-Identifier: Apache-2.0
//
// Every CUDA op but the matrix products against the CPU target's portable kernels, and against itself in bits.
//   cuda_ops_test [group ...]   groups: rows steps append deltanet states attention dense sparse long select caches control draws; all of them without arguments
//   cuda_ops_test bench [attention|deltanet|long|dense]   times of all ops, of what is around attention, of DeltaNet layers, of long contexts, of prompts
// With CUDA_EMULATION the kernels run on the host (tests/cuda_fake), one fiber a thread; the largest vocabulary is left out.

#include "tests/cuda_ops_append.cuh"
#include "tests/cuda_ops_attention.cuh"
#include "tests/cuda_ops_bench.cuh"
#include "tests/cuda_ops_cache.cuh"
#include "tests/cuda_ops_control.cuh"
#include "tests/cuda_ops_deltanet.cuh"
#include "tests/cuda_ops_dense.cuh"
#include "tests/cuda_ops_residual.cuh"
#include "tests/cuda_ops_rows.cuh"
#include "tests/cuda_ops_select.cuh"
#include "tests/cuda_ops_sparse.cuh"
#include "tests/cuda_ops_state.cuh"
#include "tests/cuda_ops_steps.cuh"

static bool wanted(int count, char **names, const char *name)
{
    for (int i = 1; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return count < 2;
}

int main(int count, char **names)
{
#ifdef CUDA_EMULATION
    const int largest = 0;
#else
    const int largest = 1;
#endif
    rig_open();
    if (count >= 2 && strcmp(names[1], "bench") == 0) {
        bench_all(count > 2 ? names[2] : NULL);
        return 0;
    }
    if (wanted(count, names, "rows")) {
        test_norms();
        test_elements();
        test_mixtures();
        test_ngram();
    }
    if (wanted(count, names, "steps")) {
        test_steps();
        test_residual_rows();
    }
    if (wanted(count, names, "append"))
        test_append();
    if (wanted(count, names, "deltanet"))
        test_deltanet();
    if (wanted(count, names, "states"))
        test_states();
    if (wanted(count, names, "attention"))
        test_attention();
    if (wanted(count, names, "dense"))
        test_dense();
    if (wanted(count, names, "sparse"))
        test_sparse();
    if (wanted(count, names, "long"))
        test_long();
    if (wanted(count, names, "select"))
        test_select(largest);
    if (wanted(count, names, "caches"))
        test_caches();
    if (wanted(count, names, "control")) {
        test_rows_of_passes();
        test_moves();
        test_ends();
        test_exchange();
    }
    if (wanted(count, names, "draws"))
        test_draws(largest);
    printf("1..%d\n", rig_tests);
    return rig_failures > 0;
}
