// SPDX-License-Identifier: Apache-2.0
//
// The toy's target: launches are queued and run when somebody waits, the latest moment that a real one could choose; memory is
// ordinary memory, and copies and fills that the host orders happen at once. So whoever reuses memory without waiting is
// overtaken by what was launched before.

#include "kernels/cpu/kernel.h"
#include "runtime/device.h"
#include "runtime/pool.h"
#include "runtime/weights.h"
#include "tests/sim/toy.h"
#include "tests/sim/toy_ops.h"
#include <stdlib.h>
#include <string.h>

extern const struct kernel kernel_rows_portable, kernel_gather_portable, kernel_save_streams_portable,
    kernel_draw_portable, kernel_accept_portable, kernel_commit_portable;

enum { QUEUE = 1 << 16 };

struct launch {
    int32_t kernel, bytes; // the arguments follow
};

struct recording {
    int64_t used;
    struct recording_facts facts;
    unsigned char bytes[1 << 14];
};

struct exec {
    struct recording *record;
    int64_t used;
    _Alignas(16) unsigned char queue[QUEUE];
};

static struct exec target;
static struct exec *the_exec = &target;

// ---- the hashed ops ----------------------------------------------------------------------------------------------------------

static uint64_t *cell(const struct lane_set *lanes, int32_t l, int64_t position, bool head)
{
    const int page = lanes->page;
    uint8_t *at = lanes->pages + (int64_t)lanes->table[l][position / page] * lanes->page_bytes;
    return (uint64_t *)(void *)at + (head ? page : 0) + position % page;
}

static void trunk_lane(const struct toy_args *a, int32_t l)
{
    struct lane *lane = a->lanes.lane[l];
    struct toy_state *s = (struct toy_state *)(void *)lane->run;
    uint64_t state = s->state;
    for (int32_t i = 0; i < lane->fold; i++)
        state = toy_mix(state, s->window[i]);
    s->state = state;
    for (int32_t i = 0; i < a->pass->lane_rows[l]; i++) {
        const int32_t r = a->pass->lane_first[l] + i, position = a->pass->position[r];
        const uint64_t input = toy_input(a->pass->token[r], position, a->decode);
        uint64_t seen = 0;
        state = toy_mix(state, input);
        *cell(&a->lanes, l, position, false) = state;
        for (int32_t p = 0; p <= position; p++)
            seen = toy_mix(seen, *cell(&a->lanes, l, p, false));
        a->values[r] = toy_mix(state, seen);
        if (a->direct)
            s->state = state;
        else
            s->window[i] = input;
        for (int32_t k = 0; a->direct && k < LANE_KEEPS; k++)
            if (lane_keeps(lane, k, a->pass->lane_rows[l]) == i + 1)
                ((struct toy_state *)(void *)lane->keep_run[k])->state = state;
    }
    if (toy_chance(faults.row))
        *a->failed = 1;
}

void toy_run(int op, const struct toy_args *a)
{
    for (int32_t l = 0; op == TOY_TRUNK && l < a->lanes.count; l++)
        if (a->lanes.lane[l] && a->pass->lane_rows[l] > 0)
            trunk_lane(a, l);
    for (int32_t r = 0; op != TOY_TRUNK && r < a->pass->rows; r++) {
        const int32_t l = a->pass->lane[r], position = a->pass->position[r], token = a->pass->token[r];
        if (op == TOY_FILL)
            *cell(&a->lanes, l, position, true) = toy_head_cell(a->values[r], token);
        if (a->logits && op == TOY_FILL) // the head guesses what the row after its own will give
            toy_logits(1, token, position + 1, a->logits + (int64_t)r * TOY_VOCABULARY);
        else if (a->logits)
            toy_logits(a->values[r], token, position, a->logits + (int64_t)r * TOY_VOCABULARY);
    }
}

// ---- launches ----------------------------------------------------------------------------------------------------------------

static void run(int kernel, const void *args)
{
    static _Alignas(64) unsigned char scratch[1 << 16];
    const struct kernel *k = kernel == KERNEL_rows           ? &kernel_rows_portable
                             : kernel == KERNEL_gather       ? &kernel_gather_portable
                             : kernel == KERNEL_save_streams ? &kernel_save_streams_portable
                             : kernel == KERNEL_draw         ? &kernel_draw_portable
                             : kernel == KERNEL_accept       ? &kernel_accept_portable
                             : kernel == KERNEL_commit       ? &kernel_commit_portable
                                                             : NULL;
    toy_clock += 1e-6 * (double)(1 + toy_below(3));
    if (k)
        k->phase[0].run(args, 0, k->phase[0].items(args), scratch);
    else
        toy_run(kernel, args);
}

static void flush(void)
{
    for (int64_t at = 0; at < target.used;) {
        const struct launch *l = (const struct launch *)(const void *)(target.queue + at);
        run(l->kernel, target.queue + at + sizeof(struct launch) + 8);
        at += l->bytes;
    }
    target.used = 0;
}

static void append(unsigned char *to, int64_t *used, int64_t size, int kernel, const void *args, size_t bytes)
{
    struct launch l = {kernel, (int32_t)((sizeof l + 8 + bytes + 15) / 16 * 16)};
    if (*used + l.bytes > size)
        abort();
    memcpy(to + *used, &l, sizeof l);
    memcpy(to + *used + sizeof l + 8, args, bytes);
    *used += l.bytes;
}

struct exec *exec_open(const struct exec_options *options, struct error *error)
{
    (void)options, (void)error;
    target.used = 0;
    target.record = NULL;
    return the_exec;
}

void exec_close(struct exec *exec)
{
    exec->used = 0;
}

const char *exec_kernels(const struct exec *exec)
{
    (void)exec;
    return "toy";
}

int exec_threads(const struct exec *exec)
{
    (void)exec;
    return 1;
}

bool exec_behind(const struct exec *exec)
{
    (void)exec;
    return true;
}

void exec_launch(struct exec *exec, int kernel, const void *args, size_t bytes, int number, int rows)
{
    (void)number, (void)rows;
    struct recording *r = exec->record;
    if (r) {
        append(r->bytes, &r->used, sizeof r->bytes, kernel, args, bytes);
        r->facts.launches++;
    } else {
        append(exec->queue, &exec->used, QUEUE, kernel, args, bytes);
    }
}

struct recording *exec_capture(struct exec *exec, void (*emit)(struct exec *, const struct bind *),
                               const struct bind *bind, int64_t *bytes)
{
    struct recording *r = toy_chance(faults.capture) ? NULL : malloc(sizeof *r);
    *bytes = 0;
    if (!r)
        return NULL;
    r->used = 0;
    r->facts = (struct recording_facts){.bytes = (int64_t)sizeof *r};
    exec->record = r;
    emit(exec, bind);
    exec->record = NULL;
    *bytes = (int64_t)sizeof *r;
    return r;
}

void exec_replay(struct exec *exec, const struct recording *r)
{
    if (faults.asks)
        device_free(device_alloc(1, "a replay", NULL), 1);
    if (exec->used + r->used > QUEUE)
        abort();
    memcpy(exec->queue + exec->used, r->bytes, (size_t)r->used);
    exec->used += r->used;
}

void exec_forget(struct recording *r)
{
    free(r);
}

const struct recording_facts *exec_recording_facts(const struct recording *r)
{
    return &r->facts;
}

bool exec_exchange(struct exec *exec, struct exchange *host, void *device, int64_t bytes, struct error *error)
{
    (void)exec, (void)host, (void)device, (void)bytes, (void)error;
    return true;
}

const struct exec_times *exec_times(const struct exec *exec)
{
    static struct exec_times now;
    (void)exec;
    now.begun = toy_clock;
    return &now;
}

bool exec_profiling(const struct exec *exec, void (*emit)(struct exec *, const struct bind *))
{
    (void)exec, (void)emit;
    return false;
}

void exec_run(struct exec *exec, void (*emit)(struct exec *, const struct bind *), const struct bind *bind)
{
    emit(exec, bind);
}

bool exec_sync(struct exec *exec, struct error *error)
{
    (void)exec, (void)error;
    flush();
    return true;
}

// ---- memory ------------------------------------------------------------------------------------------------------------------

void *device_alloc(int64_t bytes, const char *what, struct error *error)
{
    (void)what;
    faults.late += faults.ready;
    void *memory = (!error || faults.armed) && toy_chance(faults.allocation) ? NULL : calloc(1, (size_t)bytes + 64);
    if (!memory)
        error_set(error, "no memory");
    return memory;
}

void device_free(void *memory, int64_t bytes)
{
    (void)bytes;
    free(memory);
}

bool device_copy(void *to, const void *from, int64_t bytes)
{
    toy_clock += 1e-6 * (double)toy_below(200); // copies may be slow
    if (toy_chance(faults.copy))
        return false;
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
    flush();
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
    flush();
}

const void *device_view(const void *device, int64_t bytes, void *buffer)
{
    (void)bytes, (void)buffer;
    flush();
    return device;
}

bool mirror_open(struct mirror *mirror, int64_t bytes, const char *what, struct error *error)
{
    void *memory = device_alloc(bytes, what, error);
    *mirror = (struct mirror){memory, memory, bytes};
    return memory != NULL;
}

void mirror_close(struct mirror *mirror)
{
    free(mirror->host);
    *mirror = (struct mirror){0};
}

void mirror_push(const struct mirror *mirror, int64_t offset, int64_t bytes)
{
    (void)mirror, (void)offset, (void)bytes;
}

void mirror_pull(const struct mirror *mirror, int64_t offset, int64_t bytes)
{
    (void)mirror, (void)offset, (void)bytes;
    flush();
}

int64_t device_free_bytes(void)
{
    return INT64_MAX;
}

const bool device_apart = false;
const int device_kv_encoding = KV_F32;

// ---- the toy has no weights --------------------------------------------------------------------------------------------------

bool weights_synthetic(struct weights *weights, struct pack *pack, const struct pack_shape *shape, struct error *error)
{
    (void)weights, (void)pack, (void)shape, (void)error;
    return true;
}

bool weights_place(struct weights *weights, const struct pack *pack, struct error *error)
{
    (void)weights, (void)pack, (void)error;
    return true;
}

void weights_release(struct weights *weights)
{
    (void)weights;
}

bool pack_open(struct pack *pack, const char *path, const struct pack_shape *shape, enum pack_mode mode,
               void (*progress)(void *, uint64_t, uint64_t), void *user, struct error *error)
{
    (void)pack, (void)path, (void)shape, (void)mode, (void)progress, (void)user;
    return error_set(error, "the toy has no weights");
}

bool pack_open_memory(struct pack *pack, const void *data, uint64_t bytes, const struct pack_shape *shape,
                      struct error *error)
{
    (void)pack, (void)data, (void)bytes, (void)shape;
    return error_set(error, "the toy has no weights");
}

void pack_close(struct pack *pack)
{
    (void)pack;
}

int pool_cores(void)
{
    return 1;
}
