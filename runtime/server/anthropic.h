// SPDX-License-Identifier: Apache-2.0
//
// Requests of Anthropic's messages API, in OpenAI's shape.

#ifndef SERVER_ANTHROPIC_H
#define SERVER_ANTHROPIC_H

#include "runtime/server/exchange.h"

// What OpenAI's chat would be asked, as a new object; root stays the caller's. counting: only the prompt matters, so that max_tokens
// may be missing. NULL: an error was sent.
json_t *anthropic_translate(struct exchange *x, const json_t *root, bool counting);

#endif
