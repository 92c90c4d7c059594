// SPDX-License-Identifier: Apache-2.0
//
// What graphs/exec_cuda.c asks of the driver: a replayed program costs a call a piece, waiting for it none; the
// host's block changes when somebody waits; a device that fails is found; a step is launched in the longest parts that have a kernel. Red control: without the block the wait is a call of
// the driver's, which the counts see.

#include "graphs/exec_cuda.c"
#include "tests/tap.h"

enum { WORK = 100, FEW = 20, UNITS = 4 }; // launches of a program of two pieces, and of one of a single piece

// What the two ends of a program do (kernels/cuda/exchange.cu).
static void run_take(void *device, const void *host, int units)
{
    memcpy((char *)device + EXCHANGE_UNIT, (const char *)host + EXCHANGE_UNIT, (size_t)(units - 1) * EXCHANGE_UNIT);
}

static void run_give(void *host, const void *device, int units)
{
    run_take(host, device, units);
    ((struct exchange *)host)->done = ((const struct exchange *)device)->wanted;
}

cudaError_t cuda_take(cudaStream_t stream, const void *host, void *device, int units)
{
    (void)stream;
    return fake_launch((struct fake_node){run_take, device, host, units});
}

cudaError_t cuda_give(cudaStream_t stream, void *host, const void *device, int units)
{
    (void)stream;
    return fake_launch((struct fake_node){run_give, host, device, units});
}

// Programs here have no kernels for one shape.
int cuda_fixed_count(int rows)
{
    (void)rows;
    return 0;
}

void cuda_fixed_use(int used)
{
    (void)used;
}

struct block {
    struct exchange exchange;
    int32_t value, more[3];
};

static void run_add(void *to, const void *from, int units)
{
    (void)from, (void)units;
    ((struct block *)to)->value++;
}

// Every op adds one to the block that its arguments point to, and so does a step whose kernel is there.
static const char *served = "";

static cudaError_t add_one(const void *args)
{
    struct block *b;
    memcpy(&b, args, sizeof b);
    return fake_launch((struct fake_node){run_add, b, NULL, 0});
}

#define X(name)                                                                                                        \
    cudaError_t cuda_##name(cudaStream_t stream, const void *args, int rows)                                           \
    {                                                                                                                  \
        (void)stream, (void)rows;                                                                                      \
        return add_one(args);                                                                                          \
    }
#include "kernel_list.h"
#undef X
#define X(name, ...)                                                                                                   \
    cudaError_t cuda_##name(cudaStream_t stream, const void *const *args, int rows)                                    \
    {                                                                                                                  \
        (void)stream, (void)rows;                                                                                      \
        return strstr(served, "," #name ",") ? add_one(args[0]) : cudaErrorNotSupported;                               \
    }
STEPS(X)
#undef X

static struct block host, device;

static void emit_some(struct exec *e, int count)
{
    struct block *b = &device;
    for (int i = 0; i < count; i++) {
        if (i % 10 == 8)
            exec_together(e, 2);
        exec_launch(e, i % 2 ? KERNEL_norm : KERNEL_hc_inject, &b, sizeof b, i, 1);
    }
}

static void emit(struct exec *e, const struct bind *bind)
{
    (void)bind;
    emit_some(e, WORK);
}

static void emit_few(struct exec *e, const struct bind *bind)
{
    (void)bind;
    emit_some(e, FEW);
}

static struct exec *open_exec(bool exchange)
{
    struct exec_options options = {0};
    struct error error;
    fake.patience = 0;
    memset(&host, 0, sizeof host);
    memset(&device, 0, sizeof device);
    struct exec *e = exec_open(&options, &error);
    if (!e || (exchange && !exec_exchange(e, &host.exchange, &device, UNITS * EXCHANGE_UNIT, &error)))
        exit(1);
    return e;
}

static int calls(void)
{
    return fake.launches + fake.queries + fake.waits + fake.others;
}

static void replays(void)
{
    struct exec *e = open_exec(true);
    struct error error;
    int64_t bytes;
    fake.uploads = 0;
    struct recording *r = exec_capture(e, emit, NULL, &bytes);
    const struct recording_facts *f = r ? exec_recording_facts(r) : NULL;
    ok(r && f->launches == WORK + 2 && f->bytes == bytes && f->capture_seconds > 0 && fake.uploads == 2,
       "a capture has every launch and both ends, and lies on the device in two pieces", NULL);
    if (!r)
        exit(done());
    ok(device.value == 0 && host.value == 0, "capturing runs nothing", NULL);
    host.value = 5;
    int before = calls();
    fake.first = 0;
    exec_replay(e, r);
    ok(calls() - before == 2, "a replay is a call a piece", NULL);
    ok(fake.first == 1 + PIECE_LAUNCHES, "the first has the program's beginning and few launches", NULL);
    ok(host.value == 5, "the host's block stays as it is until somebody waits", NULL);
    before = calls();
    ok(exec_sync(e, &error) && host.value == 5 + WORK, "then it is what the program made of it", NULL);
    ok(calls() == before, "waiting for a program that is done calls nothing", NULL);
    ok(exec_times(e)->call > 0 && exec_times(e)->begun > 0, "the launch call is timed", NULL);
    fake.patience = 3;
    host.value = 1;
    exec_replay(e, r);
    ok(exec_sync(e, &error) && host.value == 1 + WORK && fake.queue.count == 0,
       "a program that takes long is waited for", NULL);
    host.value = 2;
    exec_run(e, emit, NULL);
    ok(exec_sync(e, &error) && host.value == 2 + WORK, "eager: the same", NULL);
    exec_forget(r);
    exec_close(e);
}

static void short_program(void)
{
    struct exec *e = open_exec(true);
    struct error error;
    int64_t bytes;
    struct recording *r = exec_capture(e, emit_few, NULL, &bytes);
    const int before = calls();
    exec_replay(e, r);
    ok(calls() - before == 1 && exec_sync(e, &error) && host.value == FEW, "a program of few launches is one piece",
       NULL);
    const int pieces = fake.instances;
    exec_forget(r);
    ok(pieces == 1 && fake.instances == 0, "and nothing is left of it", NULL);
    r = exec_capture(e, emit, NULL, &bytes);
    r->pieces--;
    host.value = 3;
    fake.patience = 3;
    exec_replay(e, r);
    ok(!exec_sync(e, &error) && host.value == 3, "red: without its second piece a program is found not to have ended",
       error.text);
    r->pieces++;
    exec_forget(r);
    exec_close(e);
}

static void without_block(void)
{
    struct exec *e = open_exec(false);
    struct error error;
    int64_t bytes;
    struct recording *r = exec_capture(e, emit, NULL, &bytes);
    exec_replay(e, r);
    int before = calls();
    ok(exec_sync(e, &error) && calls() == before + 1 && device.value == WORK,
       "red: without a block the driver is asked, and the counts say so", NULL);
    exec_forget(r);
    exec_close(e);
}

static void failures(void)
{
    struct exec *e = open_exec(true);
    struct error error = {0};
    int64_t bytes;
    const int instances = fake.instances;
    for (int piece = 1; piece <= 2; piece++) {
        fake.fail_end = piece; // that piece of the capture turns out to be broken
        ok(!exec_capture(e, emit, NULL, &bytes) && device.value == 0 && fake.instances == instances &&
               fake.queue.count == 0 && fake.fail_end == 0,
           piece == 1 ? "a capture that fails runs nothing and keeps nothing" : "nor does one whose end fails", NULL);
    }
    exec_run(e, emit, NULL);
    ok(exec_sync(e, &error) && host.value == WORK, "and the program runs eagerly", NULL);
    struct recording *r = exec_capture(e, emit, NULL, &bytes);
    host.value = 7;
    fake.patience = 3;
    fake.broken = cudaErrorIllegalAddress;
    exec_replay(e, r);
    ok(!exec_sync(e, &error) && error.code == 3 && strstr(error.text, "cudaErrorIllegalAddress"),
       "a device that fails is found while it is waited for", error.text);
    ok(host.value == 7, "and the host's block is not touched", NULL);
    fake.broken = cudaSuccess;
    exec_forget(r);
    exec_close(e);
}

static void emit_step(struct exec *e, const struct bind *bind)
{
    static const int step[] = {KERNEL_moe_sum, KERNEL_hc_inject, KERNEL_norm,
                               KERNEL_linear,  KERNEL_linear,    KERNEL_hc_mix};
    struct block *b = &device;
    (void)bind;
    exec_together(e, 6);
    for (int i = 0; i < 6; i++)
        exec_launch(e, step[i], &b, sizeof b, i, 1);
}

// Launches of a step of six ops, by the steps that have a kernel.
static int launches(struct exec *e, const char *kernels)
{
    struct error error;
    served = kernels;
    host.value = 0;
    exec_run(e, emit_step, NULL);
    const bool good = exec_sync(e, &error);
    served = "";
    return good ? host.value : -1;
}

static void parts(void)
{
    struct exec *e = open_exec(true);
    ok(launches(e, "") == 6, "a step without kernels is its ops", NULL);
    ok(launches(e, ",sum_inject_norm_mix,sum_inject,") == 1, "a step that has a kernel is one launch", NULL);
    ok(launches(e, ",sum_inject_norm,sum_inject,linear_mix,") == 3, "else its longest parts that have one are", NULL);
    ok(launches(e, ",inject_norm,") == 5, "wherever they begin", NULL);
    exec_close(e);
}

int main(void)
{
    parts();
    replays();
    short_program();
    without_block();
    failures();
    return done();
}
