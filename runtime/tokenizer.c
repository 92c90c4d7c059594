// SPDX-License-Identifier: Apache-2.0
//
// Encoding: added tokens are cut out of the text as given, the rest is normalised, normalised added tokens are cut out, the
// pre-tokenizer patterns split what remains into words, and each word is merged by itself. Every step sees only the piece that
// the step before made, so a pattern never looks beyond its piece.

#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/tokenizer.h"
#include "runtime/tokenizer_bpe.h"
#include "runtime/tokenizer_text.h"
#include <limits.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT  ((size_t)1 << 28) // keeps every position in an int32_t after repair and normalisation
#define MAX_SPLIT 16
#define JIT_STACK ((size_t)1 << 20)

// Added tokens of one kind, in the order of their bytes.
struct added_set {
    struct added_entry {
        const struct tokenizer_added *token;
        char *normal; // owned; NULL where the text is its own normal form
        const char *text;
        size_t bytes;
    } * entries;
    size_t count;
    bool first[256]; // the first bytes of all entries
};

struct tokenizer {
    const struct tokenizer_tables *tables;
    struct added_set given, normalized;
    uint8_t *special; // one bit an id
    pcre2_code *split[MAX_SPLIT];
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct scratch repaired, codes, normal;
    struct bpe_scratch bpe;
};

// One call of tokenizer_encode.
struct job {
    struct tokenizer *tokenizer;
    bool parse_special, no_added;
    int32_t *ids;
    size_t count, room;
    struct error *error;
};

static bool no_memory(struct error *error)
{
    return error_set(error, "tokenizer: out of memory");
}

static int compare_entries(const void *a, const void *b)
{
    const struct added_entry *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (order == 0)
        order = (x->bytes > y->bytes) - (x->bytes < y->bytes);
    return order ? order : (x->token > y->token) - (x->token < y->token); // of equal texts the one added first
}

// Collects the added tokens whose normalized flag is as said.
static bool open_set(struct tokenizer *t, struct added_set *set, bool normalized)
{
    const struct tokenizer_tables *tables = t->tables;
    set->entries = calloc((size_t)tables->added_count + 1, sizeof *set->entries);
    if (!set->entries)
        return false;
    for (uint32_t i = 0; i < tables->added_count; i++) {
        const struct tokenizer_added *token = &tables->added[i];
        if (((token->flags & TOKENIZER_NORMALIZED) != 0) != normalized)
            continue;
        struct added_entry entry = {token, NULL, token->text, token->bytes};
        if (normalized && tables->nfc) {
            if (!text_nfc(token->text, token->bytes, &t->codes, &t->normal, &entry.text, &entry.bytes))
                return false;
            if (entry.text != token->text) {
                entry.normal = malloc(entry.bytes);
                if (!entry.normal)
                    return false;
                memcpy(entry.normal, entry.text, entry.bytes);
                entry.text = entry.normal;
            }
        }
        set->first[(uint8_t)entry.text[0]] = true;
        set->entries[set->count++] = entry;
    }
    qsort(set->entries, set->count, sizeof *set->entries, compare_entries);
    return true;
}

static void close_set(struct added_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        free(set->entries[i].normal);
    free(set->entries);
}

static bool open_split(struct tokenizer *t, struct error *error)
{
    t->match = pcre2_match_data_create(1, NULL);
    t->context = pcre2_match_context_create(NULL);
    if (!t->match || !t->context || t->tables->split_count > MAX_SPLIT)
        return no_memory(error);
    for (uint32_t i = 0; i < t->tables->split_count; i++) {
        int code;
        size_t offset;
        t->split[i] = pcre2_compile((PCRE2_SPTR)t->tables->split[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                    &code, &offset, NULL);
        if (!t->split[i]) {
            char reason[128] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
            return error_set(error, "tokenizer: pre-tokenizer pattern %u, byte %zu: %s", i, offset, reason);
        }
        // Without JIT the matcher gives the same result, only slower.
        pcre2_jit_compile(t->split[i], PCRE2_JIT_COMPLETE);
    }
    t->stack = pcre2_jit_stack_create(JIT_STACK / 16, JIT_STACK, NULL);
    if (t->stack)
        pcre2_jit_stack_assign(t->context, NULL, t->stack);
    return true;
}

bool tokenizer_open(struct tokenizer **out, const struct tokenizer_tables *tables, struct error *error)
{
    *out = NULL;
    if (tables->vocabulary == 0)
        return error_set(error, "this build has no tokenizer: rebuild with TOKENIZER=path of a tokenizer.json");
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return no_memory(error);
    t->tables = tables;
    t->special = calloc(tables->vocabulary / 8 + 1, 1);
    if (!t->special || !open_set(t, &t->given, false) || !open_set(t, &t->normalized, true)) {
        tokenizer_close(t);
        return no_memory(error);
    }
    if (!open_split(t, error)) {
        tokenizer_close(t);
        return false;
    }
    for (uint32_t i = 0; i < tables->added_count; i++)
        if (tables->added[i].flags & TOKENIZER_SPECIAL)
            t->special[tables->added[i].id / 8] |= (uint8_t)(1u << (tables->added[i].id % 8));
    *out = t;
    return true;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    close_set(&t->given);
    close_set(&t->normalized);
    free(t->special);
    for (size_t i = 0; i < MAX_SPLIT; i++)
        pcre2_code_free(t->split[i]);
    pcre2_match_data_free(t->match);
    pcre2_match_context_free(t->context);
    pcre2_jit_stack_free(t->stack);
    scratch_free(&t->repaired);
    scratch_free(&t->codes);
    scratch_free(&t->normal);
    scratch_free(&t->bpe.symbols);
    scratch_free(&t->bpe.heap);
    free(t);
}

static bool reserve_ids(struct job *job, size_t more)
{
    if (job->room - job->count >= more)
        return true;
    size_t room = job->count + more + job->room / 2;
    int32_t *ids = realloc(job->ids, room * sizeof *ids);
    if (!ids)
        return no_memory(job->error);
    job->ids = ids;
    job->room = room;
    return true;
}

static bool encode_word(struct job *job, const char *word, size_t bytes)
{
    size_t count;
    if (!reserve_ids(job, bytes))
        return false;
    if (!bpe_word(job->tokenizer->tables, &job->tokenizer->bpe, word, bytes, job->ids + job->count, &count))
        return no_memory(job->error);
    job->count += count;
    return true;
}

// Looks for the pattern from `from` on. 1: found at span[0]..span[1]; 0: not found; -1: failed, and the error is set.
static int find_split(struct job *job, uint32_t level, const char *text, size_t bytes, size_t from, size_t span[2])
{
    struct tokenizer *t = job->tokenizer;
    int code = pcre2_match(t->split[level], (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, t->match, t->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT)
        code = pcre2_match(t->split[level], (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, t->match,
                           t->context);
    if (code == PCRE2_ERROR_NOMATCH)
        return 0;
    if (code < 0) {
        char reason[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        error_set(job->error, "tokenizer: the pre-tokenizer pattern gave up on this text: %s", reason);
        return -1;
    }
    const size_t *found = pcre2_get_ovector_pointer(t->match);
    span[0] = found[0];
    span[1] = found[1];
    return 1;
}

// Splits a piece by the patterns from `level` on; what matches and what lies between matches are pieces alike.
static bool encode_split(struct job *job, uint32_t level, const char *text, size_t bytes)
{
    if (level == job->tokenizer->tables->split_count)
        return encode_word(job, text, bytes);
    size_t done = 0, from = 0, span[2];
    while (from < bytes) {
        int found = find_split(job, level, text, bytes, from, span);
        if (found < 0)
            return false;
        if (!found)
            break;
        if (span[0] > done && !encode_split(job, level + 1, text + done, span[0] - done))
            return false;
        if (span[1] > span[0] && !encode_split(job, level + 1, text + span[0], span[1] - span[0]))
            return false;
        done = from = span[1];
        if (span[1] == span[0] && from < bytes) { // an empty match: the next search starts one character on
            size_t length;
            utf8_code(text + from, &length);
            from += length;
        }
    }
    return done == bytes || encode_split(job, level + 1, text + done, bytes - done);
}

// The longest entry that text begins with, or NULL. Narrows the sorted entries byte by byte: an entry that ends here comes
// before those that go on.
static const struct added_entry *longest_entry(const struct added_set *set, const char *text, size_t bytes)
{
    const struct added_entry *best = NULL;
    if (!set->first[(uint8_t)text[0]])
        return NULL;
    size_t low = 0, high = set->count;
    for (size_t depth = 0; low < high; depth++) {
        if (set->entries[low].bytes == depth) {
            best = &set->entries[low++];
            // Two texts may share a normal form; one entry stands for both.
            while (low < high && set->entries[low].bytes == depth)
                low++;
        }
        if (depth == bytes || low == high)
            break;
        uint8_t want = (uint8_t)text[depth];
        size_t a = low, b = high;
        while (a < b) { // the first entry whose byte is at least `want`
            size_t middle = a + (b - a) / 2;
            if ((uint8_t)set->entries[middle].text[depth] < want)
                a = middle + 1;
            else
                b = middle;
        }
        low = a;
        b = high;
        while (a < b) { // the first entry whose byte is above
            size_t middle = a + (b - a) / 2;
            if ((uint8_t)set->entries[middle].text[depth] <= want)
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
    }
    return best;
}

static bool word_beside(const char *text, size_t bytes, size_t start, size_t end)
{
    size_t length;
    if (start > 0 && code_is_word(utf8_code(text + utf8_before(text, start), &length)))
        return true;
    return end < bytes && code_is_word(utf8_code(text + end, &length));
}

static size_t strip_left(const char *text, size_t start, size_t least)
{
    size_t length;
    while (start > least) {
        size_t before = utf8_before(text, start);
        if (!code_is_space(utf8_code(text + before, &length)))
            break;
        start = before;
    }
    return start > least ? start : least;
}

static size_t strip_right(const char *text, size_t bytes, size_t end)
{
    size_t length;
    while (end < bytes && code_is_space(utf8_code(text + end, &length)))
        end += length;
    return end;
}

// Cuts the added tokens of a set out of the text and hands what lies between to `rest`. A token that may not be used here still
// takes its text out of the search, so that no other token is found across its middle.
static bool encode_added(struct job *job, const struct added_set *set, const char *text, size_t bytes,
                         bool (*rest)(struct job *, const char *, size_t))
{
    size_t done = 0, at = 0;
    while (!job->no_added && set->count > 0 && at < bytes) {
        const struct added_entry *entry = longest_entry(set, text + at, bytes - at);
        if (!entry) {
            at++;
            continue;
        }
        size_t start = at, end = at + entry->bytes;
        uint32_t flags = entry->token->flags;
        at = end;
        if ((flags & TOKENIZER_SPECIAL) && !job->parse_special)
            continue;
        if ((flags & TOKENIZER_SINGLE_WORD) && word_beside(text, bytes, start, end))
            continue;
        if (flags & TOKENIZER_LSTRIP)
            start = strip_left(text, start, done);
        if (flags & TOKENIZER_RSTRIP)
            end = strip_right(text, bytes, end);
        if (start > done && !rest(job, text + done, start - done))
            return false;
        if (!reserve_ids(job, 1))
            return false;
        job->ids[job->count++] = entry->token->id;
        done = end;
    }
    return done >= bytes || rest(job, text + done, bytes - done);
}

static bool encode_plain(struct job *job, const char *text, size_t bytes)
{
    return encode_split(job, 0, text, bytes);
}

static bool encode_given(struct job *job, const char *text, size_t bytes)
{
    struct tokenizer *t = job->tokenizer;
    if (t->tables->nfc && !text_nfc(text, bytes, &t->codes, &t->normal, &text, &bytes))
        return no_memory(job->error);
    return encode_added(job, &t->normalized, text, bytes, encode_plain);
}

// Encodes with the job's rules; *ids and *count on success.
static bool encode(struct job *job, const char *text, size_t bytes, int32_t **ids, size_t *count)
{
    struct tokenizer *t = job->tokenizer;
    struct error *error = job->error;
    if (bytes > MAX_TEXT)
        return error_set(error, "tokenizer: a text of %zu bytes is longer than %zu", bytes, MAX_TEXT);
    if (!utf8_valid(text, bytes)) {
        size_t used, repaired = utf8_repair(text, bytes, true, NULL, &used);
        if (!scratch_reserve(&t->repaired, repaired, 1))
            return no_memory(error);
        utf8_repair(text, bytes, true, t->repaired.data, &used);
        text = t->repaired.data;
        bytes = repaired;
    }
    uint64_t limit = UINT64_C(10000000) + UINT64_C(16) * bytes;
    pcre2_set_match_limit(t->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    if (!reserve_ids(job, bytes / 3 + 16) || !encode_added(job, &t->given, text, bytes, encode_given)) {
        free(job->ids);
        return false;
    }
    *ids = job->ids;
    *count = job->count;
    return true;
}

static void rest(struct tokenizer *t)
{
    struct scratch *all[] = {&t->repaired, &t->codes, &t->normal, &t->bpe.symbols, &t->bpe.heap};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        scratch_rest(all[i]);
}

bool tokenizer_encode(struct tokenizer *t, const char *text, size_t bytes, bool parse_special, int32_t **ids,
                      size_t *count, struct error *error)
{
    struct job job = {.tokenizer = t, .parse_special = parse_special, .error = error};
    const bool good = encode(&job, text, bytes, ids, count);
    rest(t);
    return good;
}

bool tokenizer_encode_text(struct tokenizer *t, const char *text, size_t bytes, int32_t **ids, size_t *count,
                           struct error *error)
{
    struct job job = {.tokenizer = t, .no_added = true, .error = error};
    const bool good = encode(&job, text, bytes, ids, count);
    rest(t);
    return good;
}

int32_t tokenizer_special(const struct tokenizer *t, const char *text)
{
    size_t bytes = strlen(text);
    for (uint32_t i = 0; i < t->tables->added_count; i++)
        if (t->tables->added[i].bytes == bytes && memcmp(t->tables->added[i].text, text, bytes) == 0)
            return t->tables->added[i].id;
    return -1;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->tables->vocabulary && (t->special[id / 8] >> (id % 8) & 1) != 0;
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *bytes)
{
    if (id < 0 || (uint32_t)id >= t->tables->vocabulary)
        return NULL;
    uint32_t at = t->tables->offset[id];
    *bytes = t->tables->offset[id + 1] - at;
    return *bytes ? t->tables->bytes + at : NULL;
}

int32_t tokenizer_vocabulary(const struct tokenizer *t)
{
    return (int32_t)t->tables->vocabulary;
}

const int32_t *tokenizer_eos(const struct tokenizer *t, size_t *count)
{
    *count = t->tables->eos_count;
    return t->tables->eos;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->tables->bos;
}
