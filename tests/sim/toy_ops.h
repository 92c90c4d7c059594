// SPDX-License-Identifier: Apache-2.0
//
// The hashed ops of the toy, and what lies in a lane's run.

#ifndef TOY_OPS_H
#define TOY_OPS_H

#include "graphs/exec.h"
#include "runtime/model.h"

enum { TOY_TRUNK = KERNEL_COUNT, TOY_LOGITS, TOY_FILL };

// As recurrent states are: the state before the pending window, the inputs of its rows, and the ring of saved streams.
struct toy_state {
    uint64_t state, window[MAX_WINDOW], streams[MAX_WINDOW];
};

struct toy_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t direct, decode; // decode: the rows' class
    uint64_t *values;       // [rows]
    float *logits;          // [rows][vocabulary], or NULL
    int32_t *failed;
};

void toy_run(int op, const struct toy_args *args);

#endif
