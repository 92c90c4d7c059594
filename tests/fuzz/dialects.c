// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: bodies of requests in every dialect of chat, from JSON to the prompt's tokens. The first byte chooses the dialect; the
// rest is the body. After make test:
//     clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu11 -I. -Ibuild/common -Ibuild/flashnext/gen -o build/fuzz_dialects
//         tests/fuzz/dialects.c build/tests/turns/chat_template.c runtime/server/{anthropic,anthropic_request,responses,responses_request}.c
//         runtime/server/{response_store,blocks,openai_chat,chat_request,conversation,openai,answer,input,structured}.c
//         $(ls build/flashnext/gen/*.o | grep -v template.c.o) build/tests/engine.a -lxxhash -lpcre2-8 -lutf8proc -ljansson -lpthread -lm
//     build/fuzz_dialects -max_total_time=60 -detect_leaks=1 CORPUS
// Invariants: no crash and no leak; a body is refused with a message and a status of the client's, or has a prompt; what was accepted
// gives a reply.

#include "runtime/server/structured.h"
#include "tests/dialects_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static handler *const handlers[] = {chat_handle, messages_handle, responses_handle, count_tokens_handle};
    struct error error;
    if (!tokenizer) {
        if (!tokenizer_open(&tokenizer, &tokenizer_tables, &error))
            abort();
        server = (struct server){
            .context = 4096, .options = {.name = "m", .max_tokens = 64}, .style = reply_style_of(&chat_template)};
        server.responses = response_store_open(4, 1 << 20);
        if (!structured_open(&server.structured, &error))
            abort();
    }
    if (size < 1)
        return 0;
    json_t *body = input_parse("the body", (const char *)data + 1, size - 1, &error);
    if (!body)
        return 0;
    if (ask(handlers[data[0] % 4], body, NULL)) {
        if (exchange.job->count < 1)
            abort();
        say("a</think>\n\nb<tool_call>\n<function=list>\n</function>\n</tool_call>", 3, false);
    } else if (sent.status != 200 && (sent.status < 400 || sent.status > 404 || !*text_at(sent.whole, "message"))) {
        abort();
    }
    over();
    forget();
    return 0;
}
