// SPDX-License-Identifier: Apache-2.0
//
// The kernels of each instruction set, in the order of gen/ops.lua.

#include "graphs/kernels.h"
#include "kernels/cpu/isa.h"
#include <string.h>

#define TABLE(isa) static const struct kernel *const table_##isa[KERNEL_COUNT] = {

#define X(name) extern const struct kernel kernel_##name##_portable;
#include "kernel_list.h"
#undef X
#define X(name) &kernel_##name##_portable,
TABLE(portable)
#include "kernel_list.h"
}
;
#undef X

#ifdef HAVE_X86_ISAS
#define X(name) extern const struct kernel kernel_##name##_avx2, kernel_##name##_avx512, kernel_##name##_amx;
#include "kernel_list.h"
#undef X
#define X(name) &kernel_##name##_avx2,
TABLE(avx2)
#include "kernel_list.h"
}
;
#undef X
#define X(name) &kernel_##name##_avx512,
TABLE(avx512)
#include "kernel_list.h"
}
;
#undef X
#define X(name) &kernel_##name##_amx,
TABLE(amx)
#include "kernel_list.h"
}
;
#undef X
#endif

static const struct kernel *const *table_of(const char *isa)
{
    if (!strcmp(isa, "portable"))
        return table_portable;
#ifdef HAVE_X86_ISAS
    if (!strcmp(isa, "avx2"))
        return table_avx2;
    if (!strcmp(isa, "avx512"))
        return table_avx512;
    if (!strcmp(isa, "amx"))
        return table_amx;
#endif
    return NULL;
}

const struct kernel *const *kernels_find(const char *isa, const char **chosen)
{
    for (int i = 0; i < ISA_COUNT; i++) {
        const char *name = isa_names[i];
        if (isa && strcmp(isa, name))
            continue;
        if (table_of(name) && isa_available(name)) {
            *chosen = name;
            return table_of(name);
        }
    }
    return NULL;
}

const char *const *exec_available(void)
{
    static const char *names[ISA_COUNT + 1];
    int count = 0;
    for (int i = 0; i < ISA_COUNT; i++)
        if (table_of(isa_names[i]) && isa_available(isa_names[i]))
            names[count++] = isa_names[i];
    names[count] = NULL;
    return names;
}
