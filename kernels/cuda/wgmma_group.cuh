// SPDX-License-Identifier: Apache-2.0
//
// What all products of warpgroups (sm_90a) share, whatever their operands: groups of them, waits, lists of registers.
// Invariant: none; see wgmma.cuh and dense_group.cuh.

#ifndef WGMMA_GROUP_CUH
#define WGMMA_GROUP_CUH

// Whether this pass of the compiler may emit the instructions. The host asks wide_available().
#if defined(CUDA_EMULATION) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA_HERE 1
#else
#define WGMMA_HERE 0
#endif

#if !defined(CUDA_EMULATION) && !defined(CUDA_FIBERS)
__device__ __forceinline__ void wgmma_commit(void)
{
#if WGMMA_HERE
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until at most N of the newest groups are under way.
template <int N> __device__ __forceinline__ void wgmma_wait(void)
{
#if WGMMA_HERE
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
// Waits until at most LEFT of the newest groups are under way, and keeps every later use of the N sums d behind the wait.
template <int N, int LEFT = 0> __device__ __forceinline__ void wgmma_settle(float *d)
{
    wgmma_wait<LEFT>();
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
// Makes what this thread wrote to shared memory visible to products that start after the next barrier.
__device__ __forceinline__ void wgmma_publish(void)
{
#if WGMMA_HERE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Registers of a list of sums d from i on, and their numbers as operands.
#define D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define P4     "%0,%1,%2,%3"
#define P8     "%0,%1,%2,%3,%4,%5,%6,%7"
#define P24    P0 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define P0     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define P16    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define P32    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define P48    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define P64    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define P80    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define P96    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define P112   "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#endif

#endif
