// SPDX-License-Identifier: Apache-2.0
//
// SHA-256: what a reply's token ids and the keys of clients are known by.

#ifndef SERVER_SHA256_H
#define SERVER_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
};

void sha256_begin(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const void *bytes, size_t count);
void sha256_end(struct sha256 *hash, uint8_t digest[32]);

// The digest as 64 hexadecimal digits and a NUL; the hash can go on.
void sha256_hex(const struct sha256 *hash, char text[65]);

#endif
