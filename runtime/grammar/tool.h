// SPDX-License-Identifier: Apache-2.0
//
// The inside of tool calls: what is shared by all tools of a grammar, and arguments as XML writes them.

#ifndef GRAMMAR_TOOL_H
#define GRAMMAR_TOOL_H

#include "runtime/grammar/grammar.h"
#include "runtime/grammar/schema.h"
#include <string.h>

struct calls {
    struct form form;
    struct json_form json; // shared by all tools
    const struct grammar_vocabulary *vocabulary;
    const struct grammar_tool *tool; // in hand
    unsigned types; // of the parameter in hand, as its reader sees them (PARAMETER_ of runtime/reply/schema.h)
    int32_t value;  // rule: free text up to the end of a parameter
    struct error *error;
};

// A job over the schema of the tool in hand. calls_job_close must be called, also where opening failed.
bool calls_job_open(struct calls *calls, struct schema_job *job);
void calls_job_close(struct calls *calls, struct schema_job *job);

static inline int32_t calls_text(struct calls *c, const char *plain, int32_t next)
{
    return form_text(&c->form, plain, strlen(plain), next);
}

// The arguments of the tool in hand as parameters in XML, and then next.
int32_t calls_xml(struct calls *calls, int32_t next);

#endif
