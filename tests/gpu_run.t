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
    for f in draft-x-8/contracts embedded/contracts tests/store_test tests/matrix tests/cuda_ops_test lua; do
        program "build/cuda/$f" 'echo "ok 1 - one"; echo "ok 2 - two"; echo 1..2'
    done
    program build/cuda/draft-x-8/draft-x-8 'echo 3 4 5'
    program build/cuda/tests/planted 'exit 0'
    : >build/cuda/draft-x-8/draft-x-8.pack
    # shellcheck disable=SC2016 # Its arguments: --tool NAME --error-exitcode 9 PROGRAM ...
    program sanitizer 'case $5 in *planted) echo "ERROR SUMMARY: 1 error"; exit 9 ;; esac; shift 4; "$@"; echo "ERROR SUMMARY: 0 errors"'
}

count=0 failures=0
check() { # name, expected code, expected line, options of run
    name=$1 code=$2 line=$3
    shift 3
    text=$(LUA=build/cuda/lua SANITIZER=./sanitizer tests/gpu/run "$@" 2>&1)
    got=$?
    count=$((count + 1))
    if [ $got = "$code" ] && echo "$text" | grep -q -- "$line"; then
        echo "ok $count - $name"
    else
        failures=$((failures + 1))
        echo "not ok $count - $name"
        echo "# exit code $got"
        echo "$text" | tail -20 | sed "s/^/# /"
    fi
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
check "a program that hangs, and one that comes after the limit" 1 "kernels matrix .*: did not end in time" --sections kernels --limit 1 --jobs 1
good
rm build/cuda/draft-x-8/contracts
check "a section of which nothing is here" 1 "^not ok .* contracts .*nothing of it is here" --sections contracts,reference
good
program sanitizer 'echo "ERROR SUMMARY: 0 errors"'
check "red: a planted error that is not found" 1 "red-racecheck .*: the planted error was not found" --sections sanitizer
program sanitizer 'echo "RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"; exit 9'
check "an error that a sanitizer finds" 1 "memcheck-ops-rows .*: exit code 9" --sections sanitizer
program sanitizer 'echo "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)"'
check "a warning of a sanitizer" 1 "racecheck-ops-rows .*: not clean" --sections sanitizer
check "a section that does not exist" 2 "expected some of" --sections speed
check "a bundle that is not there" 2 "no such file" --bundle nothing
check "a limit that is no number" 2 "expected a number" --limit soon
echo "1..$count"
[ $failures = 0 ]
