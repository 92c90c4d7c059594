#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tests/gpu/run over programs that are scripts: what is good passes, and every way to fail is seen. Needs no GPU.

set -u
here=$PWD
root=$here/build/tests/gpu_run
rm -rf "$root"
mkdir -p "$root/tests/gpu" "$root/tests/fixtures/reference/a" "$root/build/tests" "$root/build/cuda/tests" "$root/build/cuda/embedded"
cp tests/gpu/run "$root/tests/gpu/"
: >"$root/tests/fixtures/reference/a/bf16.json"
cd "$root" || exit 1

program() { # path, text
    mkdir -p "$(dirname "$1")"
    printf '#!/bin/sh\n%s\n' "$2" >"$1"
    chmod +x "$1"
}

# Everything as it should be.
good() {
    rm -rf build/cuda
    for f in draft-x-8/contracts reference-a/reference-a embedded/contracts tests/store_test tests/matrix tests/cuda_ops_test lua; do
        program "build/cuda/$f" 'echo "ok 1 - one"; echo "ok 2 - two"; echo 1..2'
    done
    program build/cuda/draft-x-8/draft-x-8 'echo 3 4 5'
    program build/cuda/tests/planted 'exit 0'
    # shellcheck disable=SC2016 # The packer's arguments: plan, pack.
    program build/cuda/packer 'cp "$1" "$2"'
    : >build/cuda/draft-x-8/draft-x-8.pack
    # Its options are pairs; the tools that count barriers must be told how many there are.
    # shellcheck disable=SC2016
    program sanitizer 'case "$*" in *planted*) echo "ERROR SUMMARY: 1 error"; exit 9 ;; esac
        case $2-$3 in synccheck---num-cuda-barriers | racecheck---num-cuda-barriers | *check---error-exitcode) ;; *) exit 8 ;; esac
        case $2-$3 in synccheck---error-exitcode | racecheck---error-exitcode) exit 9 ;; esac
        while [ "${1#--}" != "$1" ]; do shift 2; done
        "$@"; echo "ERROR SUMMARY: 0 errors"'
}

count=0 failures=0
tell() { # 0: the check `name` holds for what run printed, `text`, and its exit code, `got`
    count=$((count + 1))
    if [ "$1" = 0 ]; then
        echo "ok $count - $name"
    else
        failures=$((failures + 1))
        echo "not ok $count - $name"
        echo "# exit code $got"
        echo "$text" | tail -20 | sed "s/^/# /"
    fi
}

check() { # name, expected code, expected line, options of run
    name=$1 code=$2 line=$3
    shift 3
    text=$(LUA=build/cuda/lua SANITIZER=./sanitizer tests/gpu/run "$@" 2>&1)
    got=$?
    [ $got = "$code" ] && echo "$text" | grep -q -- "$line"
    tell $?
}

good
check "all is well" 0 "^# 0 of .* tasks failed"
check "a section alone" 0 "^# keys: 2 tasks, 4 checks, 0 failures" --sections keys
program build/cuda/tests/matrix 'echo "ok 1 - one"; echo "not ok 2 - two"; echo 1..2; exit 1'
check "a check that fails" 1 "^not ok .* kernels matrix .*: checks failed" --sections kernels
program build/cuda/tests/matrix 'echo "ok 1 - one"; echo 1..2'
check "a check that was not made" 1 "kernels matrix .*: 1 of 2 checks were made" --sections kernels
program build/cuda/tests/matrix 'exit 0'
check "a program that does nothing" 1 "kernels matrix .*: 0 of its checks were made" --sections kernels
program build/cuda/tests/matrix 'echo "ok 1 - one"; echo 1..1; exit 3'
check "an exit code" 1 "kernels matrix .*: exit code 3" --sections kernels
program build/cuda/tests/matrix 'exec sleep 100'
check "a program that hangs, and one that comes after the limit" 1 "kernels matrix .*: did not end in time" --sections kernels --limit 3 --jobs 1
good
rm build/cuda/draft-x-8/contracts
check "a section of which nothing is here" 1 "^not ok .* contracts .*nothing of it is here" --sections contracts,reference
rm build/cuda/reference-a/reference-a
check "is one failure, not one a task" 1 "^# 2 of 4 tasks failed" --sections contracts,reference,embedded
good
program sanitizer 'echo "ERROR SUMMARY: 0 errors"'
check "red: a planted error that is not found" 1 "red-racecheck .*: the planted error was not found" --sections sanitizer
program sanitizer 'echo "RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"; exit 9'
check "an error that a sanitizer finds" 1 "memcheck-ops-rows .*: exit code 9" --sections sanitizer
program sanitizer 'echo "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)"'
check "a warning of a sanitizer" 1 "racecheck-ops-rows .*: not clean" --sections sanitizer
good
# shellcheck disable=SC2016 # The program's own.
program build/cuda/tests/matrix '[ -e build/taken ] || { : >build/taken; echo "Bail out! cudaMalloc: out of memory"; exit 1; }; echo "ok 1 - one"; echo 1..1'
rm -f build/taken
check "memory that others had: once more" 0 "^ok .* kernels matrix (1 checks" --sections kernels
name="and that is said"
echo "$text" | grep -q "kernels matrix: the card's memory was short; again later"
tell $?
program build/cuda/tests/matrix 'echo "Bail out! cudaMalloc: out of memory"; exit 1'
# shellcheck disable=SC2016
program build/cuda/tests/matrix 'echo >>build/taken; [ "$(wc -l <build/taken)" -gt 2 ] || { echo "Bail out! cudaMalloc: out of memory"; exit 1; }; echo "ok 1 - one"; echo 1..1'
rm -f build/taken
check "memory that is missing when fewer run: once more, alone" 0 "^ok .* kernels matrix (1 checks" --sections kernels --jobs 8
# shellcheck disable=SC2016
program sanitizer 'case "$*" in *planted*) echo "ERROR SUMMARY: 1 error"; exit 9 ;; *matrix\ 3*) echo >>build/short; [ "$(wc -l <build/short)" -gt 1 ] || { echo "out of memory"; exit 9; } ;; esac
    echo "ok 1 - one"; echo 1..1; echo "ERROR SUMMARY: 0 errors"'
rm -f build/taken build/short
program build/cuda/tests/matrix '[ -e build/taken ] || { : >build/taken; echo "out of memory"; exit 1; }; echo "ok 1 - one"; echo 1..1'
SANITIZER_TOOLS=memcheck
export SANITIZER_TOOLS
check "memory that is short in two sections, few tasks at a time" 0 "^# 0 of .* tasks failed" --sections kernels,sanitizer --jobs 2
unset SANITIZER_TOOLS
program build/cuda/tests/matrix 'echo "Bail out! cudaMalloc: out of memory"; exit 1'
check "memory that is missing when fewer run is a failure" 1 "^not ok .* kernels matrix .*: exit code 1" --sections kernels
good
SANITIZER_TOOLS=synccheck,memcheck
export SANITIZER_TOOLS
check "some tools of the sanitizer" 0 "^# 0 of .* tasks failed" --sections sanitizer
name="and no other"
echo "$text" | grep -q "synccheck-matrix-99" && ! echo "$text" | grep -q -e racecheck -e initcheck
tell $?
SANITIZER_TOOLS=racecheck
export SANITIZER_TOOLS
# shellcheck disable=SC2016
program sanitizer 'case "$*" in --help) echo "  --check-bulk-copy arg (=yes)"; exit ;; *planted*) echo "ERROR SUMMARY: 1 error"; exit 9 ;; esac
    case "$*" in *" --check-bulk-copy no "*) ;; *) exit 8 ;; esac
    echo "$*" >>build/asked; while [ "${1#--}" != "$1" ]; do shift 2; done
    "$@"; echo "ERROR SUMMARY: 0 errors"'
rm -f build/asked
check "racecheck, which looks at no copies where it can be told so" 0 "^# 0 of .* tasks failed" --sections sanitizer
name="and at the first launches of what takes long"
grep -q -e "--launch-count 2 --kernel-name kernel_substring=attention_roles .*cuda_ops_test attention" build/asked && ! grep -q -e "cuda_ops_test draws" -e draft-x-8 build/asked
tell $?
unset SANITIZER_TOOLS
good
check "a section that does not exist" 2 "expected some of" --sections speed
check "a bundle that is not there" 2 "no such file" --bundle nothing
mkdir -p old
for s in keys kernels; do echo stale >old/$s.log; done
echo kept >old/notes
check "a folder of an earlier run" 0 "^# 0 of 2 tasks failed" --sections keys --out old
name="holds the logs of this one, and what is not ours"
grep -q "^ok 1" old/keys.log && [ ! -e old/kernels.log ] && [ -s old/summary.txt ] && [ "$(cat old/notes)" = kept ]
tell $?
check "a limit that is no number" 2 "expected a number" --limit soon

# What cannot be run is one line and exit code 2, and leaves the tree alone.
refused() { # name, text, options of run
    name=$1 line=$2
    shift 2
    text=$(cd "$from" && LUA=build/cuda/lua SANITIZER=./sanitizer "$root/tests/gpu/run" "$@" 2>&1)
    got=$?
    [ $got = 2 ] && [ "$(echo "$text" | wc -l)" = 1 ] && echo "$text" | grep -qF -- "$line"
    tell $?
}

from=$root
for s in "" "," "keys," ",keys" "keys,,kernels" "keys kernels" "*"; do
    refused "sections '$s'" "--sections" --sections "$s"
done
for n in 0 -1 010 1.5 99999999999999999999 86401; do refused "a limit of $n" "expected a number from 1 to 86400" --limit "$n"; done
for n in 0 257 99999999999999999999; do refused "$n jobs" "expected a number from 1 to 256" --jobs "$n"; done
SANITIZER_SECONDS=1e3 refused "seconds of the sanitizers that are no number" "SANITIZER_SECONDS"
SANITIZER_TOOLS=memcheck,leaks refused "a tool that the sanitizer does not have" "SANITIZER_TOOLS: expected some of memcheck, racecheck, initcheck, synccheck, found 'leaks'"
: >file
refused "logs in a file" "cannot be made" --out file/logs
rm old/keys.log
mkdir old/keys.log
refused "logs where a folder has the name of one" "keys.log" --out old --sections keys
rmdir old/keys.log
refused "sections that the CPU's target has not" "--sections kernels: expected some of reference,contracts,keys,embedded, which is what the cpu target has" \
    --target cpu --sections keys,kernels
refused "the sanitizer on a CPU" "--sections sanitizer: expected some of" --target cpu --sections sanitizer
program build/packer 'exit 0' # what make run has built
program build/flashnext/flashnext 'exit 0'
refused "a CPU's build with a model alone" "nothing is built in build for reference,contracts,keys,embedded" --target cpu --out new/logs
rm -r build/packer build/flashnext
program build/cuda/tests/planted 'echo "no CUDA-capable device is detected" >&2; exit 2'
refused "no GPU" "no GPU can be used here: no CUDA-capable device" --sections keys
rm build/cuda/tests/planted
refused "a build without the program that looks for one" "tests/planted is missing"
rm -rf build/cuda
refused "nothing is built" "nothing is built in build/cuda" --out new/logs
name="what was refused made no folder"
[ ! -e new ]
tell $?

# A bundle of these files, seen from another folder.
pack() { # name; more: one file more; owner
    { find build/cuda build/test-gpu -type f; [ -z "${more:-}" ] || echo "$more"; } |
        tar -cf - --no-recursion --owner="${owner:-0}" --group="${owner:-0}" -T - | xz -T1 -0 >"$1"
}
good
mkdir -p build/test-gpu build/cuda/embedded/gen other
program build/test-gpu/lua5.4 'echo "ok 1 - one"; echo 1..1'
echo weights >build/cuda/embedded/gen/pack.plan
pack bundle.xz
echo foreign >stranger
more=stranger pack foreign.xz
ln -s /etc/passwd build/cuda/link
more=build/cuda/link pack link.xz
rm build/cuda/link
more=build/cuda pack folder.xz
echo blank >"build/cuda/a b"
pack blank.xz
rm "build/cuda/a b"
owner="some body:1000" pack owner.xz
mv build/cuda/tests build/other
pack none.xz
mv build/other build/cuda/tests
rm build/test-gpu/lua5.4
pack bare.xz
head -c $(($(wc -c <bundle.xz) / 2)) bundle.xz >broken.xz
rm -rf build/cuda build/test-gpu stranger
from=$root/other
refused "a bundle that was cut" "damaged, or no bundle" --bundle ../broken.xz
refused "a bundle that is none" "damaged, or no bundle" --bundle ../sanitizer
refused "an archive with a file from elsewhere" "since it holds stranger" --bundle ../foreign.xz
refused "an archive with a link" "nothing was unpacked" --bundle ../link.xz
refused "an archive with folders" "since it holds the folder build/cuda/" --bundle ../folder.xz
refused "an archive with a name that has blanks" "since it holds build/cuda/a b;" --bundle ../blank.xz
refused "an archive without programs" "has no build/cuda/tests/planted" --bundle ../none.xz
refused "a folder for a bundle" "a folder; expected the file" --bundle .
refused "a bundle for the CPU's target" "leave --target cpu out" --bundle ../bundle.xz --target cpu
refused "an archive without an interpreter" "no build/test-gpu/lua5.4" --bundle ../bare.xz
count=$((count + 1))
if [ -e build/cuda ] || [ -e stranger ]; then
    failures=$((failures + 1))
    echo "not ok $count - none of them was unpacked"
else
    echo "ok $count - none of them was unpacked"
fi
text=$(cd other && "$root/tests/gpu/run" --sections reference,keys,embedded --bundle ../bundle.xz --out logs 2>&1)
got=$?
count=$((count + 1))
if [ $got = 0 ] && echo "$text" | grep -q "^# 0 of 5 tasks failed" && [ -s other/logs/summary.txt ] && [ -s build/cuda/embedded/embedded.pack ]; then
    echo "ok $count - a bundle and a folder for logs, named from another folder"
else
    failures=$((failures + 1))
    echo "not ok $count - a bundle and a folder for logs, named from another folder"
    echo "$text" | tail -20 | sed "s/^/# /"
fi
text=$(tests/gpu/run --sections keys --bundle owner.xz 2>&1)
got=$?
name="a bundle whose owner's name has a blank"
[ $got = 0 ] && echo "$text" | grep -q "^# 0 of 2 tasks failed"
tell $?
program build/cuda/packer 'echo "one" >&2; echo "two" >&2; exit 2'
rm build/cuda/embedded/embedded.pack
refused "a pack that cannot be made" "embedded.pack: could not be made: one" --sections keys
echo "1..$count"
[ $failures = 0 ]
