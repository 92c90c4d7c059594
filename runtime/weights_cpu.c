// SPDX-License-Identifier: Apache-2.0
//
// Weights on the CPU: where the pack has them. See weights.h.

#include "runtime/model.h"
#include "runtime/weights.h"

bool weights_place(const struct pack *pack, const uint8_t **weights, struct row_source *rows, struct error *error)
{
    (void)error;
    *weights = pack->weights;
    for (int i = 0; i < model.table_count; i++)
        rows[i] = pack_rows(pack, &model.entries[model.tables[i]]);
    return true;
}

void weights_release(const uint8_t **weights, struct row_source *rows)
{
    (void)rows;
    *weights = NULL;
}
