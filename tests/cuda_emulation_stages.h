// SPDX-License-Identifier: Apache-2.0
//
// Part of tests/cuda_emulation.h: barriers in shared memory, and the copies and numbers that come to them.
//
// Invariant: a copy ends at once, so what this cannot show is a wait that comes too late.

#ifndef CUDA_EMULATION_STAGES_H
#define CUDA_EMULATION_STAGES_H

// Barriers as kernels/cuda/wgmma.cuh has them: count, arrivals that the phase lacks, parity of the phase under way.
static inline void barrier_init(uint64_t *barrier, int count)
{
    *barrier = (uint64_t)count << 32 | (uint64_t)count << 8;
}
static inline void barrier_arrive(shared_place place)
{
    uint64_t *barrier = (uint64_t *)place;
    *barrier -= 1 << 8;
    if ((*barrier >> 8 & 0xffffff) == 0)
        *barrier = (*barrier >> 32) << 32 | (*barrier >> 32) << 8 | ((*barrier & 1) ^ 1);
    emulation.progress++;
}
static inline void barrier_arrive_copied(shared_place barrier)
{
    barrier_arrive(barrier);
}
static inline void barrier_wait(shared_place place, int parity)
{
    const volatile uint64_t *barrier = (const volatile uint64_t *)place;
    while ((*barrier & 1) == (uint64_t)parity)
        emulated_yield();
    emulation.progress++;
}
static inline void barrier_wait_idle(shared_place place, int parity)
{
    barrier_wait(place, parity);
}
static inline void barrier_some(int number, int threads)
{
    emulated_wait(&emulation.here->some[number], (unsigned int)threads);
}
template <int NT, bool HALF>
__attribute__((optimize("O2"))) static void wgmma(float *d, const uint32_t *a, wgmma_source rows)
{
    unsigned int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t(*all)[6] = emulation.here->operand[warp];
    unsigned int piece = (uintptr_t)rows / 16 % 8;
    rows -= piece * 16;
    memcpy(all[lane], a, 16);
    __syncwarp();
    for (int i = 0; i < 4 * NT; i++) {
        unsigned int row = lane / 4 + (i >> 1 & 1) * 8, column = i / 4 * 8 + lane % 4 * 2 + (i & 1);
        for (unsigned int k = 0; k < 16; k++) {
            uint32_t left = all[row % 8 * 4 + k % 8 / 2][(row >= 8) + 2 * (k >= 8)] >> 16 * (k & 1) & 0xffffu, right;
            const unsigned char *at = rows + column * 128 + ((piece + k / 8) ^ (column & 7)) * 16 + k % 8 * 2;
            right = at[0] | (uint32_t)at[1] << 8;
            d[i] += HALF ? half_float(left) * half_float(right)
                         : __uint_as_float(left << 16) * __uint_as_float(right << 16);
        }
    }
    __syncwarp();
}

static inline void emulated_copy(void *to, const void *from, int size, int bytes)
{
    if ((uintptr_t)to % (size_t)size || (uintptr_t)from % (size_t)size) {
        printf("Bail out! copy of %d bytes between misaligned places\n", size);
        exit(1);
    }
    memset(to, 0, (size_t)size);
    if (bytes)
        memcpy(to, from, (size_t)bytes);
}
static inline void copy16(void *shared, const void *global, int bytes)
{
    emulated_copy(shared, global, 16, bytes);
}
static inline void copy8(void *shared, const void *global)
{
    emulated_copy(shared, global, 8, 8);
}
static inline void copy4(void *shared, const void *global, int bytes)
{
    emulated_copy(shared, global, 4, bytes);
}
static inline void copy_commit(void)
{
}
template <int N> static inline void copy_wait(void)
{
}

// Stages: a copy ends at once; bytes that were announced and copied must be as many when somebody waits. A barrier's word:
// arrivals a turn, arrivals to come, turns done, and the bytes to come.
enum { STAGE_PUTTERS = 1 };
struct emulated_stage {
    uint32_t count : 11, pending : 11, turns : 10;
    int32_t bytes;
};
static inline void stage_open(uint64_t *barrier, int count)
{
    struct emulated_stage s = {(unsigned int)count, (unsigned int)count, 0, 0};
    memcpy(barrier, &s, sizeof s);
}
static inline void stage_opened(void)
{
}
static inline void stage_arrive(uint64_t *barrier)
{
    struct emulated_stage s;
    memcpy(&s, barrier, sizeof s);
    emulation.progress++;
    if (--s.pending == 0) {
        s.pending = s.count;
        s.turns++;
    }
    memcpy(barrier, &s, sizeof s);
}
static inline void emulated_expect(uint64_t *barrier, int bytes)
{
    struct emulated_stage s;
    memcpy(&s, barrier, sizeof s);
    s.bytes += bytes;
    memcpy(barrier, &s, sizeof s);
}
static inline void stage_expect(uint64_t *barrier, int bytes, int lane)
{
    emulated_expect(barrier, lane == 0 ? bytes : 0);
}
static inline void stage_copy(void *shared, const void *global, int bytes, uint64_t *barrier, bool mine)
{
    if (!mine)
        return;
    if (bytes % 16) {
        printf("Bail out! a copy of %d bytes\n", bytes);
        exit(1);
    }
    for (int i = 0; i < bytes; i += 16)
        emulated_copy((char *)shared + i, (const char *)global + i, 16, 16);
    emulated_expect(barrier, -bytes);
}
static inline void stage_written(void)
{
}
static inline void stage_commit(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        struct emulated_stage s;
        memcpy(&s, barrier, sizeof s);
        if (s.bytes) {
            printf("Bail out! a stage lacks %d bytes\n", s.bytes);
            exit(1);
        }
        stage_arrive(barrier);
    }
    __syncwarp();
}
static inline void stage_wait(uint64_t *barrier, uint32_t parity)
{
    struct emulated_stage s;
    for (;;) {
        memcpy(&s, barrier, sizeof s);
        if ((s.turns & 1) != parity)
            break;
        emulated_yield();
    }
    emulation.progress++;
}
static inline void stage_wait_here(uint64_t *barrier, int parity)
{
    stage_wait(barrier, (uint32_t)parity);
}
// The same with bytes that come from other blocks too: a turn ends with its last arrival or its last byte.
static inline void emulated_come(uint64_t *barrier, int arrivals, int bytes)
{
    struct emulated_stage s;
    memcpy(&s, barrier, sizeof s);
    emulation.progress++;
    s.bytes += bytes;
    s.pending -= (unsigned int)arrivals;
    if (s.pending == 0 && s.bytes == 0) {
        s.pending = s.count;
        s.turns++;
    }
    memcpy(barrier, &s, sizeof s);
}
static inline void stage_announce(uint64_t *barrier, int bytes)
{
    emulated_come(barrier, 1, bytes);
}
static inline void stage_send(void *shared, const void *global, int bytes, uint64_t *barrier, int team)
{
    for (int rank = 0; rank < team; rank++) {
        char *to = team > 1 ? cluster_map((char *)shared, (unsigned)rank) : (char *)shared;
        for (int i = 0; i < bytes; i += 16)
            emulated_copy(to + i, (const char *)global + i, 16, 16);
        emulated_come(team > 1 ? cluster_map(barrier, (unsigned)rank) : barrier, 0, -bytes);
    }
}
static inline void barrier_arrive_at(shared_place barrier, int rank)
{
    barrier_arrive(cluster_map(barrier, (unsigned)rank));
}
// Boxes (kernels/cuda/cluster.cuh): a stage whose bytes other blocks put.
static inline void box_open(uint64_t *came, int bytes)
{
    stage_open(came, 1);
    emulated_expect(came, bytes);
}
static inline void box_put(float *to, uint64_t *came, unsigned int rank, float x, float y)
{
    struct emulated_stage s;
    float *place = cluster_map(to, rank);
    place[0] = x;
    place[1] = y;
    came = cluster_map(came, rank);
    emulated_expect(came, -8);
    memcpy(&s, came, sizeof s);
    if (s.bytes == 0)
        stage_arrive(came);
}
static inline void box_wait(uint64_t *came)
{
    stage_wait(came, 0);
}
static inline void some_wait(int threads)
{
    emulated_wait(&emulation.here->some[0], (unsigned int)threads);
}

#endif
