// SPDX-License-Identifier: Apache-2.0
//
// What a reply must look like: response_format, guided_* and structured_outputs, and calls that tool_choice asks for.
// Grammars are compiled by the worker that reads the request and kept, so that a schema that comes again costs nothing.

#ifndef SERVER_STRUCTURED_H
#define SERVER_STRUCTURED_H

#include "runtime/grammar/grammar.h"
#include "runtime/server/openai.h"

struct structured;

bool structured_open(struct structured **out, struct error *error);
void structured_close(struct structured *structured); // NULL is allowed
// Bytes of the tree of tokens and of the grammars that are kept.
int64_t structured_bytes(struct structured *structured);

// Reads what the request says of its reply's form into job->grammar (NULL: nothing). tools: that the reply may call
// instead of giving a JSON value, or NULL. false: an error was sent.
bool structured_ask(struct exchange *x, const json_t *root, const json_t *tools, struct job *job);

// Whether what the request says of its reply's form has the right types, where a call is asked for and the form does not count;
// false: an error was sent.
bool structured_check(struct exchange *x, const json_t *root);

// The grammar of a call of one of the tools, of `name` alone where it is not NULL; several calls where parallel.
// Where the schemas cannot be compiled, a call of a tool that is not strict has the tool's name and its parameters' names, with
// any values. job->grammar stays NULL where replies cannot be held to a form: the caller then asks for the call by its
// beginning. false: an error was sent.
bool structured_calls(struct exchange *x, const json_t *tools, const char *name, bool parallel, struct job *job);

#endif
