// SPDX-License-Identifier: Apache-2.0
//
// Turns of the stand-in for CUDA (kernels/cuda/turns.cuh): 12 bits of those that still come, 12 of all that do, 24 of bytes that still
// come, then the turn's number.
//
// Invariant: copies are made as late as can be, when somebody waits for the turn that they belong to, so that what is read without a wait
// is not there. With FAKE_BARRIERS=lost nobody waits.

#ifndef CUDA_FAKE_TURNS_H
#define CUDA_FAKE_TURNS_H

#include <cuda_runtime.h>
#include <map>
#include <vector>

struct fake_copy {
    void *to;
    const void *from;
    unsigned bytes;
};
inline std::map<const volatile uint64_t *, std::vector<fake_copy>> fake_copies;

static inline void fake_turn_check(volatile uint64_t *turn)
{
    if ((*turn & 0xffffff000fff) == 0)
        *turn = *turn + ((uint64_t)1 << 48) + (*turn >> 12 & 0xfff);
}
static inline void fake_turn_open(uint64_t *turn, unsigned count)
{
    *turn = (uint64_t)count << 12 | count;
    fake_copies[turn].clear();
}
static inline void fake_turn_come(uint64_t *turn)
{
    *turn -= 1;
    fake_turn_check(turn);
}
static inline void fake_turn_bytes(uint64_t *turn, unsigned bytes)
{
    *turn += (uint64_t)bytes << 24;
}
static inline void fake_turn_take(uint64_t *turn, void *shared, const void *from, unsigned bytes)
{
    if (((uintptr_t)shared | (uintptr_t)from | bytes) % 16)
        exit(printf("Bail out! a copy of %u bytes is not aligned\n", bytes));
    fake_copies[turn].push_back({shared, from, bytes});
}
static inline void fake_turn_wait(volatile uint64_t *turn, int32_t index)
{
    std::vector<fake_copy> &copies = fake_copies[turn];
    while (!fake.lost && (*turn >> 48 & 1) == ((uint64_t)index & 1)) {
        if (copies.empty()) {
            fake_yield();
            continue;
        }
        for (const fake_copy &c : copies) {
            memcpy(c.to, c.from, c.bytes);
            *turn = *turn - ((uint64_t)c.bytes << 24);
        }
        copies.clear();
        fake_turn_check(turn);
    }
}

#endif
