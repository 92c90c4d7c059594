// SPDX-License-Identifier: Apache-2.0
//
// The parts of the contract program, which is linked with one model's programs. Each prints TAP lines.

#ifndef CONTRACT_H
#define CONTRACT_H

#include "tests/contract/scene.h"
#include <stdbool.h>

// One check; detail may be NULL or empty.
void contract_ok(bool good, const char *name, const char *detail);

// Ends the list of checks; the exit code.
int contract_done(void);

// Every stream has the ids, logit bits and log-probabilities that it has alone: lanes, drafts, pages, graphs, chunks, caches. whole: every
// page size and order; else one order each.
void contract_matrix(bool whole);

// Streams together are right with graphs, and wrong when a lane is taken for another: in the keys of graphs, in the tables of a group.
void contract_keys(void);
void contract_faults(int context, const struct scene_prompt *prompts, int count, const struct scene_reply *right);

// Prompts that begin at kept states, against the right replies of whole prompts: right[prompt * WAYS + way].
void contract_resumed(int context, const struct scene_prompt *prompts, int count, const struct scene_reply *right);

// Streams of an engine that gets no more of the target's memory once it has opened, against right as above.
void contract_ready(int context, const struct scene_prompt *prompts, int count, const struct scene_reply *right);

// Eight requests over half a pool, each equal to alone.
void contract_pool(void);

// Three equal prompts of each length at once, with generated weights and paging, each equal to alone.
void contract_long(int count, char **lengths);

// Greedy replies to the stored prompts of the embedded model. Writes them to `file`; or, with compare, checks that those in
// the file are these, as far as margins go, and that drafts change nothing. kv_cache: NULL: the target's default.
void contract_replies(const char *file, bool compare, const char *kv_cache);

#endif
