// SPDX-License-Identifier: Apache-2.0
//
// The table of paths; see routes.h. Paths are compared as they were sent; what a * stands for has its escapes (%2F) read.

#include "runtime/server/routes.h"

#include <string.h>

// clang-format off
static const struct route routes[] = {
    // method, path, errors, open, quick, tokens, handler
    {"GET",  "/",                    STYLE_OPENAI, true,  true,  false, page_handle},
    {"POST", "/v1/chat/completions", STYLE_OPENAI, false, false, false, chat_handle},
    {"POST", "/v1/completions",      STYLE_OPENAI, false, false, false, completions_handle},
    {"POST", "/v1/messages",         STYLE_ANTHROPIC, false, false, false, messages_handle},
    {"POST", "/v1/messages/count_tokens", STYLE_ANTHROPIC, false, false, false, count_tokens_handle},
    {"POST", "/v1/responses",        STYLE_OPENAI, false, false, false, responses_handle},
    {"GET",  "/v1/responses/*",      STYLE_OPENAI, false, false, false, response_get_handle},
    {"DELETE", "/v1/responses/*",    STYLE_OPENAI, false, false, false, response_delete_handle},
    {"GET",  "/v1/models",           STYLE_OPENAI, false, true,  false, models_handle},
    {"GET",  "/v1/models/*",         STYLE_OPENAI, false, true,  false, models_handle},
    {"POST", "/tokenize",            STYLE_OPENAI, false, false, true,  tokenize_handle},
    {"POST", "/v1/tokenize",         STYLE_OPENAI, false, false, true,  tokenize_handle},
    {"POST", "/detokenize",          STYLE_OPENAI, false, false, true,  detokenize_handle},
    {"POST", "/v1/detokenize",       STYLE_OPENAI, false, false, true,  detokenize_handle},
    {"GET",  "/health",              STYLE_OPENAI, true,  true,  false, health_handle},
    {"GET",  "/metrics",             STYLE_OPENAI, false, true,  false, metrics_handle},
    {"GET",  "/v1/metrics",          STYLE_OPENAI, false, true,  false, metrics_handle},
    {"GET",  "/memory",              STYLE_OPENAI, false, true,  false, memory_handle},
};
// clang-format on

// The value of a hexadecimal digit, or -1.
static int hex(char c)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return !at ? -1 : at - digits < 16 ? (int)(at - digits) : (int)(at - digits) - 6;
}

// Reads the escapes of a text into out[size]; what is none stays as it is. False: it is too long, or has a NUL.
static bool unescape(const char *text, char *out, size_t size)
{
    size_t count = 0;
    while (*text && count + 1 < size) {
        const int high = *text == '%' ? hex(text[1]) : -1, low = high >= 0 ? hex(text[2]) : -1;
        if (high == 0 && low == 0)
            return false;
        out[count++] = low >= 0 ? (char)(16 * high + low) : *text;
        text += low >= 0 ? 3 : 1;
    }
    out[count] = '\0';
    return !*text;
}

static bool match(const struct route *route, const char *path, char *rest, size_t size)
{
    size_t bytes = strlen(route->path);
    if (route->path[bytes - 1] != '*')
        return !strcmp(route->path, path);
    return !strncmp(route->path, path, bytes - 1) && path[bytes - 1] && unescape(path + bytes - 1, rest, size);
}

const struct route *routes_find(const char *path, const char *method, char *rest, size_t size,
                                char allowed[ROUTES_ALLOWED])
{
    const char *asked = strcmp(method, "HEAD") ? method : "GET";
    size_t count = 0;
    allowed[0] = '\0';
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!match(&routes[i], path, rest, size))
            continue;
        if (!strcmp(routes[i].method, asked))
            return &routes[i];
        count += (size_t)snprintf(allowed + count, ROUTES_ALLOWED - count, "%s%s%s", count ? ", " : "",
                                  routes[i].method, strcmp(routes[i].method, "GET") ? "" : ", HEAD");
    }
    return NULL;
}
