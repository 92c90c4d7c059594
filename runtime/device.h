// SPDX-License-Identifier: Apache-2.0
//
// Memory of the target. Kernels see only this; the host moves bytes in and out in the order of the launches.
// On the CPU it is ordinary memory and nothing moves. One implementation a target: device_cpu.c, device_cuda.c.

#ifndef DEVICE_H
#define DEVICE_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Zeroed memory, aligned to 256 bytes, backed at once where the target can. NULL with an error that names `what`.
void *device_alloc(int64_t bytes, const char *what, struct error *error);
void device_free(void *memory, int64_t bytes);

bool device_copy(void *to, const void *from, int64_t bytes); // device to device; false when it could not be ordered
void device_zero(void *memory, int64_t bytes);
void device_upload(void *device, const void *host, int64_t bytes);
void device_download(void *host, const void *device, int64_t bytes); // waits for what was launched before

// Host memory that the target copies to and from without a detour, for uploads and downloads in pieces. As device_alloc.
void *device_host_alloc(int64_t bytes, const char *what, struct error *error);
void device_host_free(void *memory, int64_t bytes);

// Waits until what was ordered before is done, so that the source of an upload may change.
void device_settle(void);

// Bytes as the host sees them: the memory itself on the CPU, else copied into `buffer`.
const void *device_view(const void *device, int64_t bytes, void *buffer);

// Bytes that can still be allocated, as far as the target tells; -1: unknown.
int64_t device_free_bytes(void);

// Whether device memory is memory of its own, which ends at what the device has; else it is the host's.
extern const bool device_apart;

// How caches are kept unless --kv-cache says otherwise, an enum kv_encoding: what the target's attention is made for.
extern const int device_kv_encoding;

// A block that host and device both keep: the host writes and pushes, or pulls and reads. The same memory on the CPU.
struct mirror {
    void *host, *device;
    int64_t bytes;
};

bool mirror_open(struct mirror *mirror, int64_t bytes, const char *what, struct error *error);
void mirror_close(struct mirror *mirror);
void mirror_push(const struct mirror *mirror, int64_t offset, int64_t bytes);
void mirror_pull(const struct mirror *mirror, int64_t offset, int64_t bytes);

#endif
