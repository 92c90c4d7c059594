// SPDX-License-Identifier: Apache-2.0
//
// What an engine claims for a context and a number of lanes: the one place where requests become sizes. engine_open claims
// exactly these; `plan` prints them before anything loads.

#ifndef MEMORY_PLAN_H
#define MEMORY_PLAN_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stdint.h>

enum { KV_KINDS = 3 };
extern const char *const kv_kinds[KV_KINDS]; // names of --kv-cache, by enum kv_encoding

struct memory_request {
    int context, lanes, page, threads; // 0: the defaults
    int pool_pages;                    // 0: every lane can hold a whole context
    const char *kv_cache;              // NULL: the target's default
    bool no_rewind;                    // no kept state a lane
    int64_t cache_bytes; // of kept prompt states; 0: none; negative: 16 GiB, and on a CPU no more than the lanes'
};

struct memory_plan {
    int context, lanes, page, kv_encoding;
    int64_t page_bytes;
    int32_t lane_pages;                // of a lane's page table: positions, one drafted window, one to spare
    uint32_t run_pages, pages;         // of a lane's run; of the pool
    uint32_t whole_pages;              // of a pool in which every lane can hold a whole context
    uint32_t cache_pages;              // beside them, for kept prompt states
    int64_t kv_bytes, run_bytes;       // of all lanes, in whole pages
    int64_t tables_bytes, kept_bytes;  // page tables and token ids; a kept state a lane
    int64_t history_bytes, mask_bytes; // of a lane: for penalties and logit bias, and under grammars
    int64_t draw_bytes;                // both of all lanes
    int64_t cache_bytes;               // in whole pages
    int64_t keep_bytes;                // states that a prompt keeps on its way, before they are in those
    int64_t scratch_bytes;             // of the threads
    int64_t total;                     // with weights and arena; without what the process itself takes
};

// Positions that a stream may hold where so many were asked for; 0: none were.
int memory_context(int asked);

// Sizes of a request; false with the option, the limit and what was found when it cannot be met.
bool memory_plan_make(struct memory_plan *plan, const struct memory_request *request, struct error *error);

// What a cache encoding changes in replies, in one line; NULL when it changes nothing.
const char *memory_kv_note(int kv_encoding);

#endif
