// SPDX-License-Identifier: Apache-2.0
//
// Weights on a GPU: the resident section is copied to the device; so is the n-gram table when it fits beside it, else it lies
// in pinned host memory that the device reads. See weights.h.

#include "runtime/model.h"
#include "runtime/weights.h"
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STAGE = 64 << 20 };
static const int64_t RESERVE = 1ll << 30; // left for graphs and the driver

// kernels/cuda/synthetic.cu: fills one entry with generated codes and scales.
cudaError_t cuda_synthetic(cudaStream_t stream, uint8_t *base, const struct pack_entry *entry);
// kernels/cuda/arrange.cu: puts codes in the order that kernels read.
cudaError_t cuda_arrange(cudaStream_t stream, const struct weight *w, int32_t experts);

// Copies to the device through two pinned buffers; from memory, or from a file at an offset.
static bool upload(uint8_t *device, const uint8_t *from, int file, int64_t offset, int64_t bytes, const char *what,
                   struct error *error)
{
    uint8_t *stage[2] = {NULL, NULL};
    cudaEvent_t free_again[2];
    bool ok = cudaHostAlloc((void **)&stage[0], STAGE, 0) == cudaSuccess &&
              cudaHostAlloc((void **)&stage[1], STAGE, 0) == cudaSuccess;
    for (int i = 0; i < 2; i++)
        cudaEventCreateWithFlags(&free_again[i], cudaEventDisableTiming);
    for (int64_t at = 0, turn = 0; ok && at < bytes; at += STAGE, turn ^= 1) {
        int64_t n = bytes - at < STAGE ? bytes - at : STAGE;
        cudaEventSynchronize(free_again[turn]);
        if (from)
            memcpy(stage[turn], from + at, (size_t)n);
        for (int64_t done = 0; !from && ok && done < n;) {
            ssize_t got = pread(file, stage[turn] + done, (size_t)(n - done), (off_t)(offset + at + done));
            ok = got > 0;
            done += got;
        }
        ok = ok && cudaMemcpyAsync(device + at, stage[turn], (size_t)n, cudaMemcpyHostToDevice, cudaStreamPerThread) ==
                       cudaSuccess;
        cudaEventRecord(free_again[turn], cudaStreamPerThread);
        if (bytes > (1ll << 30))
            fprintf(stderr, "\rto the GPU: %s %.1f of %.1f GiB%s", what, (double)(at + n) / (1 << 30),
                    (double)bytes / (1 << 30), at + n == bytes ? "\n" : "");
    }
    ok = cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess && ok;
    for (int i = 0; i < 2; i++) {
        cudaEventDestroy(free_again[i]);
        cudaFreeHost(stage[i]);
    }
    return ok ||
           error_set(error, "%s could not be copied to the GPU: %s", what, cudaGetErrorString(cudaGetLastError()));
}

// Room for the sections; the table goes to pinned memory when the device has no room for it.
static bool allocate(struct weights *w, struct error *error)
{
    int64_t room = device_free_bytes() - RESERVE;
    w->memory_bytes[0] = model.weight_bytes;
    w->memory_bytes[1] = model.table_bytes;
    if (model.weight_bytes > room)
        return error_set(error,
                         "the weights need %.1f GiB of GPU memory, %.1f GiB are free after a reserve of %.1f GiB: a "
                         "smaller encoding or a larger card is needed",
                         (double)model.weight_bytes / (1 << 30), (double)room / (1 << 30), (double)RESERVE / (1 << 30));
    w->memory[0] = device_alloc(model.weight_bytes, "the weights", error);
    if (!w->memory[0])
        return false;
    if (model.table_bytes == 0)
        return true;
    w->table_on_host = model.weight_bytes + model.table_bytes > room - w->spare;
    if (!w->table_on_host)
        return (w->memory[1] = device_alloc(model.table_bytes, "the n-gram table", error)) != NULL;
    if (cudaHostAlloc(&w->memory[1], (size_t)model.table_bytes, cudaHostAllocMapped) != cudaSuccess)
        return error_set(error,
                         "the n-gram table needs %.1f GiB of pinned host memory, which this machine does not give",
                         (double)model.table_bytes / (1 << 30));
    return true;
}

static bool place_rows(struct weights *w, struct error *error)
{
    if (!weights_constants(w, error) ||
        !mirror_open(&w->rows, (model.table_count + 1) * (int64_t)sizeof(struct row_source), "the table list", error))
        return false;
    struct row_source *rows = w->rows.host;
    for (int i = 0; i < model.table_count; i++) {
        const struct pack_entry *e = &model.entries[model.tables[i]];
        rows[i] = (struct row_source){
            .memory = (const uint8_t *)w->memory[1] + e->data_offset, .file = -1, .row_bytes = e->row_bytes};
    }
    mirror_push(&w->rows, 0, w->rows.bytes);
    w->resident = w->memory[0];
    return true;
}

// Generated weights are as good in one order as in another; those of a pack are arranged here.
static bool arrange(const struct weights *w, struct error *error)
{
    bool ok = true;
    for (int i = 0; ok && i < model.entry_count; i++) {
        const struct pack_entry *e = &model.entries[i];
        const struct weight matrix = {.encoding = e->encoding,
                                      .n = e->n,
                                      .k = e->k,
                                      .data = (const uint8_t *)w->memory[0] + e->data_offset,
                                      .data_stride = e->data_stride};
        if (e->section == PACK_RESIDENT && e->layout == PACK_PANEL)
            ok = cuda_arrange(cudaStreamPerThread, &matrix, e->experts > 0 ? e->experts : 1) == cudaSuccess;
    }
    return (cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess && ok) ||
           error_set(error, "the weights could not be arranged on the GPU: %s", cudaGetErrorString(cudaGetLastError()));
}

bool weights_place(struct weights *w, const struct pack *pack, struct error *error)
{
    if (!allocate(w, error) || !upload(w->memory[0], pack->weights, -1, 0, model.weight_bytes, "weights", error) ||
        !arrange(w, error))
        return false;
    if (model.table_bytes > 0 &&
        !upload(w->memory[1], pack->table, pack->file, pack->table_offset, model.table_bytes, "n-gram table", error))
        return false;
    return place_rows(w, error);
}

bool weights_synthetic(struct weights *w, struct pack *pack, const struct pack_shape *shape, struct error *error)
{
    (void)pack;
    (void)shape;
    if (!allocate(w, error))
        return false;
    for (int i = 0; i < model.entry_count; i++) {
        const struct pack_entry *e = &model.entries[i];
        if (e->section == PACK_RESIDENT && cuda_synthetic(cudaStreamPerThread, w->memory[0], e) != cudaSuccess)
            return error_set(error, "%s: generated weights could not be made: %s", e->name,
                             cudaGetErrorString(cudaGetLastError()));
    }
    return place_rows(w, error);
}

void weights_release(struct weights *w)
{
    mirror_close(&w->rows);
    mirror_close(&w->constants);
    device_free(w->memory[0], w->memory_bytes[0]);
    if (w->table_on_host)
        cudaFreeHost(w->memory[1]);
    else
        device_free(w->memory[1], w->memory_bytes[1]);
    *w = (struct weights){0};
}
