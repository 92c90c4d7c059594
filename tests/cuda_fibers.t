#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The CUDA kernels as threads of the host, which need no GPU: both builds of them compile, and a quick part of each passes. The rest
# by hand: build/cuda-test/matrix_host and build/cuda-test/cuda_ops_host without arguments (kernels/cuda/README.md).
# Red controls: a build in which CUDA's words are missing; barriers that hold nobody up, fences that show nothing, and a card with too little
# shared memory. NVCC= names a toolkit.

set -u
unset MAKEFLAGS MFLAGS MAKELEVEL # of a make that runs this test, whose jobs are not ours
out=build/tests/fibers
count=0 failures=0

tell() { # 0: the check holds; name; log
    count=$((count + 1))
    if [ "$1" = 0 ]; then
        echo "ok $count - $2"
    else
        failures=$((failures + 1))
        echo "not ok $count - $2"
        { grep -A 2 -E "^not ok|^Bail|rror" "$3" | head -12; tail -3 "$3"; } | sed "s/^/#   /" >&2
    fi
}

nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if [ ! -x "$nvcc" ]; then
    echo "1..0 # SKIP no nvcc here: without a CUDA toolkit its headers are missing"
    exit 0
fi
home=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
rm -rf "$out"
mkdir -p "$out"

# ---- builds ---------------------------------------------------------------------------------------------------------------

jobs=$(nproc)
make -s common >"$out/common.log" 2>&1 # objects that both are linked with
make -s -f kernels/cuda/test.mk COMMON=build/common CUDA_HOME="$home" matrix-host >"$out/matrix.log" 2>&1 &
matrix=$!
make -s -j"$jobs" -f kernels/cuda/test_ops.mk COMMON=build/common host >"$out/ops.log" 2>&1
tell $? "the ops compile for the host" "$out/ops.log"
wait $matrix
tell $? "the matrix kernels compile for the host" "$out/matrix.log"
: >"$out/cuda_runtime.h"
make -s -f kernels/cuda/test_ops.mk B="$out" HFLAGS="-std=gnu++17 -fsyntax-only -I. -Ibuild/common -I$out" "$out/host/norm.o" >"$out/red.log" 2>&1
code=$?
[ $code != 0 ] && grep -q error "$out/red.log"
tell $? "red: a build that does not compile is found" "$out/red.log"

# ---- quick parts -----------------------------------------------------------------------------------------------------------

# A line: name, whether it must fail, the environment (words), the program with its argument. matrix_host: a bf16 shape, one of each way that
# numbers are coded, and experts; in the other order of threads what is cheap.
cat >"$out/list" <<END
bf16|0|A=|matrix_host 2
x with the stages, launched as early as can be|0|EMULATED_LAUNCH=early|matrix_host 95
rows as integers|0|A=|matrix_host 94
a residual before a product, launched as early as can be|0|EMULATED_CARD=fixed EMULATED_LAUNCH=early|matrix_host 92
choices beside experts, launched as early as can be|0|EMULATED_CARD=fixed EMULATED_LAUNCH=early|matrix_host 90
x as halves|0|A=|matrix_host 93
f16|0|A=|matrix_host 5
affine|0|A=|matrix_host 8
nvfp4|0|A=|matrix_host 15
words of nvfp4|0|A=|matrix_host 91
mxfp8|0|A=|matrix_host 18
fp8|0|A=|matrix_host 22
int4|0|A=|matrix_host 24
affine experts|0|A=|matrix_host 100
mxfp8 experts|0|A=|matrix_host 102
kernels for one shape|0|EMULATED_CARD=fixed|matrix_host 97
kernels for one shape, on a card that they are not for|0|A=|matrix_host 97
a prompt's rows between blocks|0|A=|matrix_host 96
rows|0|A=|cuda_ops_host rows
steps|0|A=|cuda_ops_host steps
append|0|A=|cuda_ops_host append
control|0|A=|cuda_ops_host control
select|0|A=|cuda_ops_host select
long rows|0|A=|cuda_ops_host long
long rows, a warp as far as it can|0|FAKE_ORDER=warps|cuda_ops_host long
dense rows of prompts, a warp as far as it can|0|FAKE_ORDER=warps|cuda_ops_host dense
dense rows of prompts, last threads first, on a card with the least room|0|FAKE_ORDER=down FAKE_ROOM=99 FAKE_MAJOR=8|cuda_ops_host dense
prompt rows that choose, a warp as far as it can|0|FAKE_ORDER=warps|cuda_ops_host sparse
select, where scores have little room|0|FAKE_ROOM=6|cuda_ops_host select
select, the same without clusters|0|FAKE_ROOM=6 FAKE_MAJOR=8|cuda_ops_host select
rows, last threads first|0|FAKE_ORDER=down|cuda_ops_host rows
append, last threads first|0|FAKE_ORDER=down|cuda_ops_host append
steps, a block as far as it can|0|FAKE_ORDER=blocks|cuda_ops_host steps
steps, on a card with the least room|0|FAKE_ROOM=99 FAKE_MAJOR=8|cuda_ops_host steps
f32 on a card with the least room|0|EMULATED_SHARED=101376|matrix_host 1
affine of 8 bits, on the same|0|EMULATED_SHARED=101376|matrix_host 13
mxfp8, on the same|0|EMULATED_SHARED=101376|matrix_host 18
mxfp8 experts, on the same|0|EMULATED_SHARED=101376|matrix_host 102
draws, on a card with the least room and without clusters|0|FAKE_ROOM=99 FAKE_MAJOR=8|cuda_ops_host draws
red: a number of no test is found|1|A=|matrix_host 999
red: matrix kernels without barriers are found|1|EMULATED_BARRIERS=lost|matrix_host 8
red: ops without barriers are found|1|FAKE_BARRIERS=lost|cuda_ops_host rows
red: dense rows without barriers are found|1|FAKE_ORDER=warps FAKE_BARRIERS=lost|cuda_ops_host dense
red: attention without barriers is found|1|FAKE_BARRIERS=lost|cuda_ops_host attention
red: prompt rows that choose, without barriers, are found|1|FAKE_ORDER=warps FAKE_BARRIERS=lost|cuda_ops_host sparse
red: choices that are stored without a fence are found|1|EMULATED_CARD=fixed EMULATED_LAUNCH=early EMULATED_FENCES=lost|matrix_host 90
red: tiles that ask for more room than a card has are found|1|EMULATED_SHARED=80000|matrix_host 13
red: draws that ask for more room than a card has are found|1|FAKE_ROOM=90 FAKE_MAJOR=8|cuda_ops_host draws
END

# Runs the line $1 of the list; its log says at the end whether all checks that were planned were made and held.
cat >"$out/one" <<'END'
IFS='|' read -r name red setting program <<LINE
$(sed -n "$1p" "$2/list")
LINE
timeout 120 env $setting build/cuda-test/$program >"$2/$1.log" 2>&1 </dev/null
code=$?
plan=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' "$2/$1.log" | tail -1)
[ $code = 0 ] && [ "${plan:-0}" -gt 0 ] && [ "$(grep -c '^ok ' "$2/$1.log")" = "$plan" ] && good=1 || good=0
printf '# exit code %s, %s checks planned\n# good %s\n' "$code" "${plan:-no}" "$good" >>"$2/$1.log"
END
lines=$(grep -c . "$out/list")
seq "$lines" | xargs -P "$jobs" -I {} sh "$out/one" {} "$out"
line=0
while IFS='|' read -r name red _; do
    line=$((line + 1))
    tail -1 "$out/$line.log" | grep -q "^# good $((1 - red))\$"
    tell $? "$name" "$out/$line.log"
done <"$out/list"
echo "1..$count"
[ $failures = 0 ]
