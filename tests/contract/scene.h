// SPDX-License-Identifier: Apache-2.0
//
// Scenes of streams: they come, share rounds, and go; each must have the ids and the logit bits that it has alone.

#ifndef SCENE_H
#define SCENE_H

#include "runtime/engine_state.h"

enum { SCENE_REPLY = 20, SCENE_PARTS = 64 };

// How a stream draws.
enum way { WAY_GREEDY, WAY_SAMPLED, WAY_PENALISED, WAYS };

struct scene_prompt {
    const int32_t *ids;
    int count;
};

// What a stream gives: ids, a hash of the logits of each, and of its log-probabilities where they are kept.
struct scene_reply {
    int count;
    int32_t id[SCENE_REPLY];
    uint64_t logits[SCENE_REPLY], logprobs[SCENE_REPLY];
};

struct scene_part {
    int prompt, drafts, arrives; // index; most drafts a round; the round before which it comes
    enum way way;
    struct stream *stream;
    struct scene_reply reply;
};

// Options of a stream: the seed follows from the prompt, so that the same prompt drawn the same way has the same reply.
struct stream_options scene_options(int prompt, enum way way, int drafts);

// Reads the prompt of a part and takes its first token.
bool scene_begin(struct engine *engine, struct scene_part *part, const struct scene_prompt *prompt,
                 struct error *error);

// Takes what a part's stream has made, with the logits that drew it.
void scene_take(struct scene_part *part);

// The reply of a prompt alone, without drafts.
bool scene_alone(struct engine *engine, const struct scene_prompt *prompts, int prompt, enum way way,
                 struct scene_reply *reply, struct error *error);

// Plays parts until all replies are long enough. Returns how many differ from right[prompt * WAYS + way] or failed; detail: what
// the last one was, at least 256 bytes.
int scene_play(struct engine *engine, struct scene_part *parts, int count, const struct scene_prompt *prompts,
               const struct scene_reply *right, char *detail);

#endif
