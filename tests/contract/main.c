// SPDX-License-Identifier: Apache-2.0
//
// The contract program of one model, on whatever target it is linked for:
//   contracts [all]              the matrix; all: every page size with every order
//   contracts long N ...         equal prompts of N tokens, generated weights
//   contracts pool               half a pool, which the matrix has too
//   contracts keys               red controls of lanes and graph keys: each fault must change a reply
//   contracts replies FILE [KV]  writes greedy replies of the stored prompts, with caches in KV; compare FILE: checks them

#include "tests/contract/contract.h"
#include "tests/tap.h"
#include <stddef.h>
#include <string.h>

void contract_ok(bool good, const char *name, const char *detail)
{
    ok(good, name, detail);
    fflush(stdout);
}

int contract_done(void)
{
    const int code = done();
    fflush(stdout);
    return code;
}

int main(int count, char **words)
{
    if (count > 2 && !strcmp(words[1], "long"))
        contract_long(count - 2, words + 2);
    else if (count > 2 && count < 5 && (!strcmp(words[1], "replies") || !strcmp(words[1], "compare")))
        contract_replies(words[2], words[1][0] == 'c', count == 4 ? words[3] : NULL);
    else if (count == 2 && !strcmp(words[1], "pool"))
        contract_pool();
    else if (count == 2 && !strcmp(words[1], "keys"))
        contract_keys();
    else
        contract_matrix(count == 2 && !strcmp(words[1], "all"));
    return done();
}
