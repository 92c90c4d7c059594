// SPDX-License-Identifier: Apache-2.0
//
// Weights on the CPU: where the pack has them. See weights.h.

#include "runtime/model.h"
#include "runtime/weights.h"

bool weights_place(struct weights *weights, const struct pack *pack, struct error *error)
{
    if (!weights_constants(weights, error) ||
        !mirror_open(&weights->rows, (model.table_count + 1) * (int64_t)sizeof(struct row_source), "the table list",
                     error))
        return false;
    weights->resident = pack->weights;
    struct row_source *rows = weights->rows.host;
    for (int i = 0; i < model.table_count; i++)
        rows[i] = pack_rows(pack, &model.entries[model.tables[i]]);
    return true;
}

bool weights_synthetic(struct weights *weights, struct pack *pack, const struct pack_shape *shape, struct error *error)
{
    return pack_synthetic(pack, model.entries, model.entry_count, shape, error) && weights_place(weights, pack, error);
}

void weights_release(struct weights *weights)
{
    mirror_close(&weights->rows);
    mirror_close(&weights->constants);
    weights->resident = NULL;
}
