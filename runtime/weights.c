// SPDX-License-Identifier: Apache-2.0
//
// What both targets do with weights the same way. See weights.h.

#include "runtime/weights.h"
#include "runtime/model.h"
#include <string.h>

bool weights_constants(struct weights *weights, struct error *error)
{
    if (!mirror_open(&weights->constants, model.constant_bytes + 64, "the programs' tables", error))
        return false;
    memcpy(weights->constants.host, model.constants, (size_t)model.constant_bytes);
    mirror_push(&weights->constants, 0, model.constant_bytes);
    return true;
}
