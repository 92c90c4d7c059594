// SPDX-License-Identifier: Apache-2.0
//
// What a client offers as tools and chooses of them, checked in the shape of its own dialect before it is translated, so that an error names what
// the client wrote.

#ifndef SERVER_TOOLS_H
#define SERVER_TOOLS_H

#include "runtime/reply/reply.h"
#include <jansson.h>
#include <stdbool.h>

enum tools_shape { TOOLS_CHAT, TOOLS_RESPONSES, TOOLS_MESSAGES };

// Whether `tools` is an array of tools: of a type that there is, each with a name of its own, a text as description and an
// object's schema where they are given. Whether the model can call any does not matter, but where it writes its calls in XML
// (dialect), parameters need names that can be a marker's. false: error names the field and says what is expected.
bool tools_check(const json_t *tools, enum tools_shape shape, enum reply_dialect dialect, struct error *error);

// Whether `choice` is one in the dialect's shape; false: error says what is possible and what was found.
bool tools_choice_check(const json_t *choice, enum tools_shape shape, struct error *error);

// Whether a tool of this name is among `tools`, which passed tools_check in the shape of OpenAI's chat; false: error lists them.
bool tools_choice_offered(const json_t *tools, const char *name, struct error *error);

#endif
