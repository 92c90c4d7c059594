// SPDX-License-Identifier: Apache-2.0
//
// A rendered conversation to token ids. Added tokens come from the template's own bytes only, also those that are not special
// but mark reasoning or calls (<think>, <tool_call>): the text of one that came in with a message stays plain text. Where no
// message spells an added token, the ids are those of the whole text encoded at once.

#ifndef PROMPT_H
#define PROMPT_H

#include "runtime/chat.h"
#include "runtime/tokenizer.h"

// Encodes text, whose bytes are trusted as the segments of chat_render_segments say. `tables` are those that the tokenizer was opened with.
// On success *ids is malloc'd ([*count], never NULL) and the caller's to free.
bool prompt_encode(struct tokenizer *tokenizer, const struct tokenizer_tables *tables, const char *text, size_t bytes,
                   const struct chat_segment *segments, size_t segment_count, int32_t **ids, size_t *count,
                   struct error *error);

#endif
