// SPDX-License-Identifier: Apache-2.0
//
// Rows of a pass, moves of rows between passes, draws, and the ends of passes: everything that a round decides without its host.
//
// Invariant: only `accept` and `commit` change what a lane has committed (length, fold, head_length), and only for lanes that
// have rows in their pass; so a lane that sits a pass out keeps its pending rows.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/logprobs.h"
#include "kernels/cpu/penalties.h"
#include "kernels/cpu/row.h"
#include "kernels/cpu/sampler.h"

static int64_t one_item(const void *p)
{
    (void)p;
    return 1;
}

// ---- rows: one item -------------------------------------------------------------------------------------------------------

// First position and number of rows that a lane has in a pass; *ahead: its token is tokens[position + ahead].
static int32_t rows_of(const struct rows_args *a, const struct lane *lane, int32_t *first, int32_t *ahead)
{
    *ahead = a->mode != ROWS_TRUNK && a->mode != ROWS_TAIL;
    switch (a->mode) {
    case ROWS_TRUNK:
        *first = lane->length;
        return lane->rows;
    case ROWS_FILL:
        *first = lane->head_length;
        return lane->rows > 0 ? least(lane->length + lane->rows, lane->limit - 1) - *first : 0;
    case ROWS_TAIL:
        *first = lane->tail_first;
        return lane->tail_rows;
    case ROWS_ABSORB:
        // Older cells have no streams any more; leaving them out costs drafts, never replies.
        *first = lane->head_length > lane->streams_base ? lane->head_length : lane->streams_base;
        return lane->rows > 0 ? lane->length - *first : 0;
    case ROWS_LAST:
        *first = lane->length - 1;
        return lane->rows > 0 && *first >= 0 && !lane->headless;
    default: // as many lanes as in ROWS_LAST: a chain goes on from the same row
        *first = lane->length - 1 + a->step;
        return lane->rows > 0 && lane->length > 0 && !lane->headless;
    }
}

static void rows_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct rows_args *a = p;
    struct pass *pass = a->pass;
    (void)scratch;
    if (begin == end)
        return;
    pass->rows = 0;
    for (int32_t l = 0; l < MAX_LANES; l++) {
        const struct lane *lane = l < a->lanes.count ? a->lanes.lane[l] : NULL;
        int32_t first = 0, ahead = 0, rows = lane ? rows_of(a, lane, &first, &ahead) : 0;
        rows = rows < 0 ? 0 : least(rows, a->capacity - pass->rows);
        pass->lane_first[l] = pass->rows;
        pass->lane_rows[l] = rows;
        for (int32_t i = 0; i < rows; i++) {
            pass->lane[pass->rows + i] = l;
            pass->position[pass->rows + i] = first + i;
            pass->token[pass->rows + i] = lane->tokens[first + i + ahead];
        }
        pass->rows += rows;
    }
}

const struct kernel ISA_SYM(kernel_rows) = {"rows", {{one_item, rows_run}}};

// ---- gather, save_streams: items are rows ---------------------------------------------------------------------------------

static int64_t gather_items(const void *p)
{
    return ((const struct gather_args *)p)->pass->rows;
}

static const float *gather_source(const struct gather_args *a, int32_t l, int32_t position)
{
    const struct lane *lane = a->lanes.lane[l];
    if (a->from && a->from->lane_rows[l] > 0) {
        int32_t index = position - a->from->position[a->from->lane_first[l]];
        if (index >= 0 && index < a->from->lane_rows[l])
            return a->x + (int64_t)(a->from->lane_first[l] + index) * a->width;
    }
    if (a->state < 0 || position < lane->streams_base)
        return NULL;
    return (const float *)(lane->run + a->state) + (int64_t)(position % MAX_WINDOW) * a->width;
}

static void gather_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct gather_args *a = p;
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        const float *from = gather_source(a, a->pass->lane[r], a->pass->position[r]);
        float *to = a->y + r * a->width;
        if (from)
            memcpy(to, from, (size_t)a->width * sizeof *to);
        else
            memset(to, 0, (size_t)a->width * sizeof *to);
    }
}

const struct kernel ISA_SYM(kernel_gather) = {"gather", {{gather_items, gather_run}}};

static float *ring_row(const struct save_streams_args *a, uint8_t *run, int32_t position)
{
    return (float *)(run + a->state) + (int64_t)(position % MAX_WINDOW) * a->width;
}

static int64_t save_streams_items(const void *p)
{
    return ((const struct save_streams_args *)p)->pass->rows;
}

static void save_streams_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct save_streams_args *a = p;
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        const int32_t l = a->pass->lane[r], position = a->pass->position[r];
        struct lane *lane = a->lanes.lane[l];
        const int32_t first = a->pass->lane_first[l], last = first + a->pass->lane_rows[l] - 1;
        for (int32_t i = 0; i < LANE_KEEPS; i++)
            if (lane_keeps(lane, i, a->pass->lane_rows[l]) == r - first + 1)
                memcpy(ring_row(a, lane->keep_run[i], position), a->x + r * a->width, (size_t)a->width * sizeof(float));
        if (last - r >= MAX_WINDOW)
            continue;
        if (r == last) {
            const int32_t known = least(lane->streams_base, a->pass->position[first]);
            lane->streams_base = position - MAX_WINDOW + 1 > known ? position - MAX_WINDOW + 1 : known;
        }
        memcpy(ring_row(a, lane->run, position), a->x + r * a->width, (size_t)a->width * sizeof(float));
    }
}

const struct kernel ISA_SYM(kernel_save_streams) = {"save_streams", {{save_streams_items, save_streams_run}}};

// ---- draw: items are rows -------------------------------------------------------------------------------------------------

static int64_t draw_items(const void *p)
{
    return ((const struct draw_args *)p)->pass->rows;
}

static const uint32_t *row_mask(const struct draw_args *a, const struct lane *lane, int64_t row)
{
    return lane->mask && a->ahead == 1 ? lane->mask + row * mask_words(a->vocabulary) : NULL;
}

static void draw_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct draw_args *a = p;
    for (int64_t r = begin; r < end; r++) {
        const int32_t position = a->pass->position[r], l = a->pass->lane[r];
        const int32_t row = (int32_t)r - a->pass->lane_first[l], after = a->pass->lane_rows[l] - 1 - row;
        struct lane *lane = a->lanes.lane[l];
        const bool penalised = lane->penalties && after < MAX_WINDOW && !a->ids;
        const struct sampler s = {.temperature = lane->temperature,
                                  .top_p = lane->top_p,
                                  .min_p = lane->min_p,
                                  .top_k = lane->top_k,
                                  .seed = lane->seed,
                                  .names = a->ids,
                                  .mask = row_mask(a, lane, row)};
        float *logits = (float *)(uintptr_t)(a->logits + r * a->ldl),
              *kept = (float *)(void *)((char *)scratch + SAMPLER_SCRATCH);
        // The row is changed for its own draw and put back.
        const struct penalty_window w = {lane->tokens + lane->length + 1, position + a->ahead - 1 - lane->length};
        if (penalised)
            penalties_apply(lane->penalties, w, logits, kept);
        int32_t token = sampler_draw(logits, a->vocabulary, &s, (int64_t)position + a->ahead, scratch);
        if (penalised)
            penalties_undo(lane->penalties, w, logits, kept);
        if (lane->logprobs && a->store < 0 && row < MAX_WINDOW)
            logprobs_of(logits, a->vocabulary, token, lane->alternatives, &lane->logprobs[row]);
        token = a->ids ? a->ids[token] : token;
        a->drawn[r] = token;
        if (a->store >= 0)
            lane->tokens[position + a->store] = token;
    }
}

const struct kernel ISA_SYM(kernel_draw) = {"draw", {{draw_items, draw_run}}};

// ---- accept, commit: one item ---------------------------------------------------------------------------------------------

static void accept_lane(struct lane *lane, const int32_t *drawn, int32_t rows, int32_t direct, int32_t *result)
{
    const int32_t drafts = least(lane->drafts, rows - 1);
    int32_t accepted = 0, *draft = lane->tokens + lane->length + 1;
    for (; accepted < drafts; accepted++) {
        if (lane->force ? accepted + 1 >= lane->force : draft[accepted] != drawn[accepted])
            break;
        if (drawn[accepted] + 1 == lane->halt)
            break;
        draft[accepted] = drawn[accepted];
    }
    lane->tokens[lane->length + 1 + accepted] = drawn[accepted];
    lane->accepted = accepted;
    lane->length += accepted + 1;
    lane->fold = direct ? 0 : accepted + 1;
    lane->limit = lane->length + 1;
    result[0] = accepted + 1;
    memcpy(result + 1, drawn, ((size_t)accepted + 1) * sizeof *drawn);
}

static void accept_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct accept_args *a = p;
    (void)scratch;
    if (begin == end)
        return;
    for (int32_t l = 0; l < a->lanes.count; l++) {
        int32_t *result = a->result + l * (1 + MAX_WINDOW);
        result[0] = 0;
        if (a->lanes.lane[l] && a->pass->lane_rows[l] > 0)
            accept_lane(a->lanes.lane[l], a->drawn + a->pass->lane_first[l], a->pass->lane_rows[l], a->direct, result);
    }
}

const struct kernel ISA_SYM(kernel_accept) = {"accept", {{one_item, accept_run}}};

static void commit_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct commit_args *a = p;
    (void)scratch;
    if (begin == end)
        return;
    for (int32_t l = 0; l < a->lanes.count; l++) {
        struct lane *lane = a->lanes.lane[l];
        const int32_t rows = lane ? a->pass->lane_rows[l] : 0;
        if (rows == 0)
            continue;
        if (a->head) {
            lane->head_length = a->pass->position[a->pass->lane_first[l]] + rows;
        } else {
            lane->length += rows;
            lane->fold = 0;
        }
    }
}

const struct kernel ISA_SYM(kernel_commit) = {"commit", {{one_item, commit_run}}};
