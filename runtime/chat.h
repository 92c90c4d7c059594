// SPDX-License-Identifier: Apache-2.0
//
// A conversation as the text that the model reads, by the checkpoint's own template, compiled at build time.
// Invariant: a message cannot spell a control token. The segments say which bytes the template wrote; a special token counts only
// where every byte of it is trusted (chat_trusted), anywhere else its text is plain text.

#ifndef CHAT_H
#define CHAT_H

#include "runtime/template.h"

// Bytes [begin, end) of a rendered conversation; trusted: written by the template, else by whoever sent the conversation.
// Segments follow each other without gaps and alternate. Cutting the text at them would change how it is split into
// tokens: the tokenizer takes the whole text, and asks chat_trusted for each special token that it finds.
struct chat_segment {
    size_t begin, end;
    bool trusted;
};

// The template that this binary was built with.
extern const struct chat_template chat_template;

// Whether the checkpoint has a template.
bool chat_present(void);

// Renders messages (an array), tools (an array, or NULL for none), and the template's switches in kwargs (an object such as
// {"enable_thinking": false}, or NULL). *text is malloc'd, NUL-terminated, *bytes long. false: error says why, also in the
// template's own words where it refuses the conversation. The arguments are not changed. Safe from several threads.
bool chat_render(json_t *messages, json_t *tools, json_t *kwargs, bool add_generation_prompt, char **text,
                 size_t *bytes, struct error *error);

// As chat_render, with the provenance of the text: *segments is malloc'd.
bool chat_render_segments(json_t *messages, json_t *tools, json_t *kwargs, bool add_generation_prompt, char **text,
                          size_t *bytes, struct chat_segment **segments, size_t *count, struct error *error);

// As chat_render_segments, by any compiled template, at a given time. segments may be NULL.
bool chat_render_with(const struct chat_template *templ, json_t *messages, json_t *tools, json_t *kwargs,
                      bool add_generation_prompt, time_t now, char **text, size_t *bytes,
                      struct chat_segment **segments, size_t *count, struct error *error);

// Whether all bytes [begin, end) are trusted. An empty range is.
bool chat_trusted(const struct chat_segment *segments, size_t count, size_t begin, size_t end);

#endif
