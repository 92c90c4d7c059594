#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A short reply under valgrind, on the instruction sets that it understands: no error and no leak. Red control: a program that
# leaks must be seen, so that a valgrind which sees nothing does not pass.

binary=${BINARY:-build/flashnext/flashnext}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
valgrind=(valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,indirect,possible)
command -v valgrind >/dev/null || { echo "1..0 # SKIP valgrind is not installed"; exit 0; }

echo 1..3
printf '#include <stdlib.h>\nint main(void) { void *volatile p = malloc(9); p = NULL; return p != NULL; }\n' >"$scratch/leak.c"
${CC:-gcc} -g -o "$scratch/leak" "$scratch/leak.c" && "${valgrind[@]}" "$scratch/leak" 2>"$scratch/err"
if [ $? = 9 ]; then echo "ok 1 - a leak is seen"; else echo "not ok 1 - a leak is seen"; fi
number=1
for isa in portable avx2; do
    number=$((number + 1))
    if [ $isa = avx2 ] && ! grep -qw avx2 /proc/cpuinfo; then echo "ok $number # SKIP no AVX2 here"; continue; fi
    "${valgrind[@]}" "$binary" run --isa $isa --temperature 0 -n 4 --context 256 -p "How do I list files?" >"$scratch/out" 2>"$scratch/err" </dev/null
    code=$?
    if [ $code = 0 ] && [ -s "$scratch/out" ]; then echo "ok $number - run, $isa"; else
        echo "not ok $number - run, $isa (exit code $code)"
        sed 's/^/# /' "$scratch/err" | head -20
    fi
done
