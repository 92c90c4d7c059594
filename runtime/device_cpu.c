// SPDX-License-Identifier: Apache-2.0
//
// Target memory on the CPU: anonymous maps, backed when they are made, so that what a run takes is what the plan said and
// memory cannot run short later. See device.h.

#include "kernels/cpu/ops.h"
#include "runtime/device.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const bool device_apart = false;
const int device_kv_encoding = KV_F32;

void *device_alloc(int64_t bytes, const char *what, struct error *error)
{
    size_t size = (size_t)(bytes > 0 ? bytes : 1);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        error_set(error, "no memory for %s (%.1f MiB); lower --context or --lanes", what, (double)bytes / (1 << 20));
        return NULL;
    }
    madvise(memory, size, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    madvise(memory, size, MADV_POPULATE_WRITE); // an older kernel backs it when it is used
#endif
    return memory;
}

void device_free(void *memory, int64_t bytes)
{
    if (memory)
        munmap(memory, (size_t)(bytes > 0 ? bytes : 1));
}

bool device_copy(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
    return true;
}

void device_zero(void *memory, int64_t bytes)
{
    memset(memory, 0, (size_t)bytes);
}

void device_upload(void *device, const void *host, int64_t bytes)
{
    memcpy(device, host, (size_t)bytes);
}

void device_download(void *host, const void *device, int64_t bytes)
{
    memcpy(host, device, (size_t)bytes);
}

void *device_host_alloc(int64_t bytes, const char *what, struct error *error)
{
    return device_alloc(bytes, what, error);
}

void device_host_free(void *memory, int64_t bytes)
{
    device_free(memory, bytes);
}

void device_settle(void)
{
}

const void *device_view(const void *device, int64_t bytes, void *buffer)
{
    (void)bytes;
    (void)buffer;
    return device;
}

// MemAvailable: what the system would give up its page cache for counts as well.
int64_t device_free_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    long long kilobytes = -1;
    while (file && kilobytes < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &kilobytes) != 1)
            kilobytes = -1;
    if (file)
        fclose(file);
    return kilobytes < 0 ? -1 : (int64_t)kilobytes * 1024;
}

bool mirror_open(struct mirror *mirror, int64_t bytes, const char *what, struct error *error)
{
    void *memory = device_alloc(bytes, what, error);
    *mirror = (struct mirror){memory, memory, bytes};
    return memory != NULL;
}

void mirror_close(struct mirror *mirror)
{
    device_free(mirror->device, mirror->bytes);
    *mirror = (struct mirror){0};
}

void mirror_push(const struct mirror *mirror, int64_t offset, int64_t bytes)
{
    (void)mirror;
    (void)offset;
    (void)bytes;
}

void mirror_pull(const struct mirror *mirror, int64_t offset, int64_t bytes)
{
    (void)mirror;
    (void)offset;
    (void)bytes;
}
