#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Each fuzz target for a few seconds with a fixed seed: safetensors headers, tokenizer.json, config.json, the pack file,
# files of kept prompt states, bodies of requests, and grammars with replies under them.
# FUZZ_SECONDS sets how long; the heads of tests/fuzz/* say what each holds and how to reproduce a finding.

seconds=${FUZZ_SECONDS:-5}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number=0

report() { # STATUS NAME
    number=$((number + 1))
    if [ "$1" = 0 ]; then echo "ok $number - $2"; else echo "not ok $number - $2"; fi
    tail -n "$([ "$1" = 0 ] && echo 1 || echo 20)" "$scratch/log" | sed 's/^/# /'
}

echo 1..7
for target in safetensors tokenizer_json config_json; do
    lua5.4 tests/fuzz/$target.lua "$seconds" 1 >"$scratch/log" 2>&1
    report $? "$target"
done
mkdir -p build/tests/fuzz "$scratch/found"
clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/pack.c runtime/pack.c -o build/tests/fuzz/pack_target -lxxhash -lpthread \
    >"$scratch/log" 2>&1 &&
    build/tests/fuzz/pack_target -max_total_time="$seconds" -seed=1 -max_len=4096 -artifact_prefix="$scratch/found/" "$scratch/found" \
        tests/fuzz/corpus/pack >"$scratch/log" 2>&1
report $? pack
clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I. tests/fuzz/cache_file.c runtime/cache/file.c -o build/tests/fuzz/cache_file \
    -lxxhash >"$scratch/log" 2>&1 &&
    build/tests/fuzz/cache_file -max_total_time="$seconds" -seed=1 -max_len=700 -artifact_prefix="$scratch/found/" "$scratch/found" \
        >"$scratch/log" 2>&1
report $? cache_file
clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I. tests/fuzz/server_body.c runtime/server/input.c runtime/json_exact.c -o build/tests/fuzz/server_body \
    -ljansson -lm >"$scratch/log" 2>&1 &&
    build/tests/fuzz/server_body -max_total_time="$seconds" -seed=1 -max_len=2000 -artifact_prefix="$scratch/found/" "$scratch/found" \
        tests/fuzz/corpus/server_body >"$scratch/log" 2>&1
report $? server_body
clang -g -O1 -std=gnu11 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/grammar.c runtime/grammar/*.c runtime/reply/{schema,json_stream,json_text}.c \
    runtime/json_exact.c -o build/tests/fuzz/grammar -ljansson -lxxhash >"$scratch/log" 2>&1 &&
    build/tests/fuzz/grammar -max_total_time="$seconds" -seed=1 -max_len=600 -timeout=10 -artifact_prefix="$scratch/found/" "$scratch/found" \
        tests/fuzz/corpus/grammar >"$scratch/log" 2>&1
report $? grammar
