// SPDX-License-Identifier: Apache-2.0
//
// conv, gdn and gated_norm in one step: the bits of the three ops, of outputs, states, history and saved rows.

#ifndef CUDA_OPS_DELTANET_CUH
#define CUDA_OPS_DELTANET_CUH

#include "tests/cuda_ops_steps.cuh"

extern "C" cudaError_t cuda_conv_gdn_norm(cudaStream_t, const void *const *, int);

enum { DELTA_LANES = 8 };

// A DeltaNet layer's three ops and its lanes, of which `holes` (a bit each) are null.
struct delta {
    struct conv_args conv;
    struct gdn_args gdn;
    struct gated_norm_args norm;
    struct pass *pass;
    struct lane *lane[DELTA_LANES];
    int64_t run_bytes;
};

static struct delta delta_begin(int nk, int nv, int dk, int dv, int lanes, unsigned holes)
{
    const int32_t channels = 2 * nk * dk + nv * dv, most = lanes * MAX_WINDOW;
    const int64_t history = 4 * (int64_t)channels * (3 + MAX_WINDOW);
    struct delta d = {};
    rig_reset();
    d.run_bytes = history + 4 * ((int64_t)nv * dk * dv + MAX_WINDOW * (nk * dk + nv * dv + 2 * nv));
    d.pass = take_pass(most);
    struct lane_set set = {};
    set.count = lanes;
    for (int l = 0; l < lanes; l++) {
        if (holes >> l & 1)
            continue;
        d.lane[l] = set.lane[l] = take_lane(d.run_bytes, 8);
        for (int64_t i = 0; i < d.run_bytes / 4; i++)
            ((float *)d.lane[l]->run)[i] = rig_float(0.5f);
    }
    float *u = take_floats((int64_t)most * channels, 1), *c = take<float>((int64_t)most * channels);
    float *y = take<float>((int64_t)most * nv * dv);
    d.conv = {d.pass, set, channels, 4, 1, ACT_SILU, channels, channels, 0, 0, u, take_floats(channels * 4, 1),
              NULL,   c};
    d.gdn = {d.pass,
             set,
             nk,
             nv,
             dk,
             dv,
             channels,
             nv,
             nv,
             nv * dv,
             0,
             history,
             c,
             take_floats((int64_t)most * nv, 1),
             take_floats((int64_t)most * nv, 1),
             take_floats(nv, 1),
             take_floats(nv, 1),
             take<float>((int64_t)most * (2 * nk * dk + 2 * nv)),
             y};
    d.norm = {d.pass,
              nv,
              dv,
              nv * dv,
              nv * dv,
              nv * dv,
              ACT_SIGMOID,
              0,
              1e-6f,
              y,
              take_floats((int64_t)most * nv * dv, 2),
              take_floats(dv, 1),
              take<float>((int64_t)most * nv * dv)};
    return d;
}

// A window of 1 .. most rows a lane, but none of some; 0 .. most pending rows.
static void delta_pass(struct delta *d, int most)
{
    pass_clear(d->pass);
    for (int l = 0; l < d->gdn.lanes.count; l++) {
        if (!d->lane[l])
            continue;
        d->lane[l]->fold = rig_below(most + 1);
        if (d->pass->rows == 0 || rig_below(5))
            pass_add(d->pass, l, 50, 1 + rig_below(most));
    }
    d->conv.direct = d->gdn.direct = 0;
}

enum fault { FAULT_NONE, FAULT_OUTPUT, FAULT_STATE };

// Whether the step, launched for `capacity` rows, leaves what the three ops leave, in memory that both find alike.
static bool delta_same_of(const struct delta *d, enum fault fault, int capacity)
{
    const int64_t y_bytes = 4 * (int64_t)d->pass->rows * d->gdn.nv * d->gdn.dv;
    uint8_t *y = (uint8_t *)malloc((size_t)y_bytes + 1), *run[DELTA_LANES] = {};
    bool equal = true;
    push_all();
    gpu(cuda_conv, &d->conv, capacity);
    gpu(cuda_gdn, &d->gdn, capacity);
    gpu(cuda_gated_norm, &d->norm, capacity);
    memcpy(y, pull((uint8_t *)d->norm.y, y_bytes), (size_t)y_bytes);
    for (int l = 0; l < DELTA_LANES; l++)
        if (d->lane[l]) {
            run[l] = (uint8_t *)malloc((size_t)d->run_bytes);
            memcpy(run[l], pull(d->lane[l]->run, d->run_bytes), (size_t)d->run_bytes);
        }
    push_all();
    const struct conv_args conv = translated(d->conv);
    struct gdn_args gdn = translated(d->gdn);
    struct gated_norm_args norm = translated(d->norm);
    norm.eps = fault == FAULT_OUTPUT ? 1.0f : norm.eps;
    gdn.a_log = fault == FAULT_STATE ? gdn.dt_bias : gdn.a_log;
    const void *args[] = {&conv, &gdn, &norm};
    rig_check(cuda_conv_gdn_norm(0, args, capacity), "conv_gdn_norm");
    rig_check(cudaDeviceSynchronize(), "step");
    if (fault != FAULT_STATE)
        equal = same(pull((uint8_t *)d->norm.y, y_bytes), y, y_bytes);
    for (int l = 0; l < DELTA_LANES; l++)
        if (d->lane[l]) {
            equal = same(pull(d->lane[l]->run, d->run_bytes), run[l], d->run_bytes) && equal;
            free(run[l]);
        }
    free(y);
    return equal;
}

// The same, launched for as many rows as lanes may have.
static bool delta_same(const struct delta *d, enum fault fault)
{
    return delta_same_of(d, fault, d->gdn.lanes.count * MAX_WINDOW);
}

// A pass that updates states, which is launched for a row a lane: 0 .. most pending rows, at most a row a lane; or with `one` a lane that
// has the rows of all.
static bool delta_rows_same(struct delta *d, int most, bool one, enum fault fault)
{
    const int lanes = d->gdn.lanes.count;
    pass_clear(d->pass);
    d->conv.direct = d->gdn.direct = 1;
    for (int l = 0; l < lanes; l++) {
        if (!d->lane[l])
            continue;
        d->lane[l]->fold = rig_below(most + 1);
        if (d->pass->rows == 0 || (!one && rig_below(5)))
            pass_add(d->pass, l, 50, one ? lanes : 1);
    }
    return delta_same_of(d, fault, lanes);
}

static void test_deltanet_refusals(void)
{
    struct delta d = delta_begin(2, 4, 32, 32, 2, 0);
    const void *args[] = {&d.conv, &d.gdn, &d.norm};
    const int prompt = 2 * MAX_WINDOW + 1;
    ok(cuda_conv_gdn_norm(0, args, prompt) == cudaErrorNotSupported, "deltanet: a prompt's rows are declined");
    d.conv.direct = d.gdn.direct = 1;
    ok(cuda_conv_gdn_norm(0, args, 3) == cudaErrorNotSupported, "deltanet: also few of them, whose states are kept");
    d.conv.direct = d.gdn.direct = 0;
    d.conv.dilation = 3;
    ok(cuda_conv_gdn_norm(0, args, 2) == cudaErrorNotSupported, "deltanet: so is another convolution");
    d.conv.dilation = 1;
    d.norm.x = d.norm.z;
    ok(cuda_conv_gdn_norm(0, args, 2) == cudaErrorNotSupported, "deltanet: and the norm of something else");
    d = delta_begin(2, 4, 32, 24, 2, 0);
    ok(cuda_conv_gdn_norm(0, args, 2) == cudaErrorNotSupported, "deltanet: and heads of 24");
    d = delta_begin(1, 2, 100, 32, 2, 0);
    ok(cuda_conv_gdn_norm(0, args, 2) == cudaErrorNotSupported, "deltanet: and keys of 100");
    d = delta_begin(1, 3, 32, 32, 2, 0);
    ok(cuda_conv_gdn_norm(0, args, 2) == cudaErrorNotSupported, "deltanet: and an odd number of value heads");
    d = delta_begin(1, 10, 32, 32, 2, 0);
    ok(cuda_conv_gdn_norm(0, args, 2) == cudaErrorNotSupported, "deltanet: and ten value heads a key head");
}

static void test_deltanet(void)
{
    // Key heads, value heads, dk, dv, lanes, null lanes.
    static const int shapes[][6] = {
        {16, 48, 128, 128, 1, 0},
        {16, 32, 128, 128, 2, 0},
        {2, 6, 128, 128, 8, 0x12},
        {2, 6, 32, 16, 8, 0x81},
        {1, 4, 64, 32, 5, 0},
        {1, 2, 64, 128, 3, 2},
        {2, 2, 32, 64, 4, 8},
#if !defined(CUDA_EMULATION) // which takes long, and has fewer blocks at once
        {16, 48, 128, 128, 8, 0x20}
#endif
    };
    int device = 0, major = 0;
    test_deltanet_refusals();
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (major < 9) {
        struct delta d = delta_begin(2, 4, 32, 32, 2, 0);
        const void *args[] = {&d.conv, &d.gdn, &d.norm};
        ok(cuda_conv_gdn_norm(0, args, 2) == cudaErrorNotSupported, "deltanet: declined where there are no clusters");
        return;
    }
    for (const int *s : shapes) {
        struct delta d = delta_begin(s[0], s[1], s[2], s[3], s[4], (unsigned)s[5]);
        bool equal = true;
        for (int most = 1; most <= MAX_WINDOW; most = most == 1 ? 3 : most == 3 ? 8 : most + 8) {
            delta_pass(&d, most);
            equal = delta_same(&d, FAULT_NONE) && equal;
        }
        ok(equal, "deltanet %d/%d x %d x %d, %d lanes, windows: the bits of its ops", s[0], s[1], s[2], s[3], s[4]);
        bool rows = true;
        for (int activation = ACT_SILU; activation <= ACT_SIGMOID; activation++) {
            d.norm.activation = activation;
            rows = delta_rows_same(&d, 0, false, FAULT_NONE) && rows;
            rows = delta_rows_same(&d, 2, false, FAULT_NONE) && rows;
            rows = delta_rows_same(&d, MAX_WINDOW - 1, true, FAULT_NONE) && rows;
        }
        ok(rows, "deltanet %d/%d x %d x %d, %d lanes, a row a lane: the bits of its ops", s[0], s[1], s[2], s[3], s[4]);
        if (s[0] < 16) {
            delta_pass(&d, 3);
            for (int l = 0; l < s[4]; l++) // else a window would leave states as they are
                if (d.lane[l])
                    d.lane[l]->fold = 3;
            ok(!delta_same(&d, FAULT_OUTPUT), "deltanet: another epsilon is found");
            ok(!delta_same(&d, FAULT_STATE), "deltanet: another decay is found in the state");
            ok(!delta_rows_same(&d, 0, false, FAULT_OUTPUT), "deltanet: in a row a lane too");
            ok(!delta_rows_same(&d, 0, false, FAULT_STATE), "deltanet: and another decay");
        }
    }
}

#endif
