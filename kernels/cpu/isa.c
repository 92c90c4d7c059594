// SPDX-License-Identifier: Apache-2.0
//
// What this machine can run. Compiled once, without instruction set flags.
// Invariant: a name is reported available only if every flag that its kernels are compiled with is.

#include "kernels/cpu/isa.h"

#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

const char *const isa_names[ISA_COUNT] = {"amx", "avx512", "avx2", "portable"};

#if defined(__x86_64__) && defined(__linux__)

enum { REQUEST_XCOMP_PERMISSION = 0x1023, XFEATURE_TILE_DATA = 18 };

static bool has_avx2(void)
{
    // F16C has no name in __builtin_cpu_supports of older compilers.
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_amx(void)
{
    unsigned a, b, c, d;
    if (!has_avx512() || !__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi") ||
        !__builtin_cpu_supports("avx512bf16"))
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (1u << 22)) == 0 || (d & (1u << 24)) == 0)
        return false; // AMX-BF16, AMX-TILE
    return syscall(SYS_arch_prctl, REQUEST_XCOMP_PERMISSION, XFEATURE_TILE_DATA) == 0;
}

bool isa_available(const char *name)
{
    __builtin_cpu_init();
    if (strcmp(name, "amx") == 0)
        return has_amx();
    if (strcmp(name, "avx512") == 0)
        return has_avx512();
    if (strcmp(name, "avx2") == 0)
        return has_avx2();
    return strcmp(name, "portable") == 0;
}

#else

bool isa_available(const char *name)
{
    return strcmp(name, "portable") == 0;
}

#endif
