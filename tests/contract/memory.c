// SPDX-License-Identifier: Apache-2.0
//
// The target's memory under a test's hand. See memory.h.

#include "tests/contract/memory.h"
#include "runtime/device.h"

static bool is_closed;
static int refused;

void *__real_device_alloc(int64_t bytes, const char *what, struct error *error);
void *__wrap_device_alloc(int64_t bytes, const char *what, struct error *error);
void *__real_device_host_alloc(int64_t bytes, const char *what, struct error *error);
void *__wrap_device_host_alloc(int64_t bytes, const char *what, struct error *error);
bool __real_mirror_open(struct mirror *mirror, int64_t bytes, const char *what, struct error *error);
bool __wrap_mirror_open(struct mirror *mirror, int64_t bytes, const char *what, struct error *error);

void memory_close(bool closed)
{
    is_closed = closed;
    refused = 0;
}

int memory_refused(void)
{
    return refused;
}

static bool refuse(const char *what, struct error *error)
{
    refused += is_closed;
    if (is_closed)
        error_set(error, "no memory for %s: the test has closed it", what);
    return is_closed;
}

void *__wrap_device_alloc(int64_t bytes, const char *what, struct error *error)
{
    return refuse(what, error) ? NULL : __real_device_alloc(bytes, what, error);
}

void *__wrap_device_host_alloc(int64_t bytes, const char *what, struct error *error)
{
    return refuse(what, error) ? NULL : __real_device_host_alloc(bytes, what, error);
}

bool __wrap_mirror_open(struct mirror *mirror, int64_t bytes, const char *what, struct error *error)
{
    *mirror = (struct mirror){0};
    return !refuse(what, error) && __real_mirror_open(mirror, bytes, what, error);
}
