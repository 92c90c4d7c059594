// SPDX-License-Identifier: Apache-2.0
//
// GET /: the chat page, which lies in the binary. Its policy allows exactly the script and the style that are in it, and no other
// server; so what a model writes can neither run nor load anything.

#include "runtime/server/routes.h"
#include "runtime/server/sha256.h"

#include <string.h>

// The file's bytes, from the folder that the build runs in.
__asm__(".pushsection .rodata\n"
        ".globl server_page\n"
        "server_page: .incbin \"runtime/server/page.html\"\n"
        ".globl server_page_end\n"
        "server_page_end: .byte 0\n"
        ".popsection\n");
extern const char server_page[], server_page_end[];

// The hash of what stands between two markers, as a policy names it: sha256-BASE64.
static void hash_between(const char *open, const char *close, char out[64])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *from = strstr(server_page, open) + strlen(open), *to = strstr(from, close);
    struct sha256 hash;
    uint8_t digest[33] = {0}; // one byte more, so that it falls into groups of three
    char *at = out + sprintf(out, "sha256-");
    sha256_begin(&hash);
    sha256_add(&hash, from, (size_t)(to - from));
    sha256_end(&hash, digest);
    for (int i = 0; i < 33; i += 3) {
        const unsigned group = (unsigned)digest[i] << 16 | (unsigned)digest[i + 1] << 8 | digest[i + 2];
        for (int k = 0; k < 4; k++)
            *at++ = digits[group >> (18 - 6 * k) & 63];
    }
    at[-1] = '=';
    *at = '\0';
}

void page_handle(struct exchange *x)
{
    char script[64], style[64];
    hash_between("<script>", "</script>", script);
    hash_between("<style>", "</style>", style);
    snprintf(
        x->policy, sizeof x->policy,
        "default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'",
        script, style);
    exchange_text(x, 200, "text/html; charset=utf-8", server_page, (size_t)(server_page_end - server_page));
}
