#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The Makefile: a dry run in a tree without objects, and one line for each variable that cannot be.

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
out=$scratch/out err=$scratch/err
tests=0 failures=0
unset MAKEFLAGS MAKELEVEL MODEL NAME CHECKPOINT TARGET B TOKENIZER RECIPE DRAFT_VOCAB LANES WINDOW CHUNK CHIPS FIXED SANITIZE PROMPT

ok() { # STATUS NAME
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then echo "ok $tests - $2"; else
        failures=$((failures + 1))
        echo "not ok $tests - $2"
        tail -3 "$err" | cut -c1-300 | sed 's/^/#   /'
    fi
}

dry() { make -n "B=$scratch/build" "$@" >"$out" 2>"$err"; }

# refused TEXT VARIABLES...: exit code 2 before anything is done, one line that holds TEXT.
refused() {
    local text=$1
    shift
    make -n "B=$scratch/build" "$@" >"$out" 2>"$err"
    [ $? = 2 ] && [ ! -s "$out" ] && [ "$(wc -l <"$err")" = 1 ] && grep -qF -- "$text" "$err"
    ok $? "refused: $*"
}

for goal in all run install test bench lint clean help contracts test-gpu-bundle; do
    dry $goal && [ ! -s "$err" ]
    ok $? "make -n $goal, of nothing that is built"
done
[ ! -e "$scratch/build" ]
ok $? "nothing was made"

for name in "" packer "a b" a/b ../x "x;y" .x -x "it's" 'a$$b' é; do refused "NAME=${name//\$\$/$}: a name of letters, digits, ., _ and - is expected" NAME="$name"; done
refused "NAME=: a name" NAME= CHECKPOINT=models/embedded
refused "MODEL= without NAME: a family such as flashnext, or a NAME beside it" MODEL= CHECKPOINT=models/embedded
refused "MODEL=packer without NAME: a family" MODEL=packer
for name in "a b" a/b "x;y" "it's" -x é; do
    refused "MODEL=$name: a family such as flashnext is expected" MODEL="$name"
    refused "MODEL=$name: a family such as flashnext is expected" MODEL="$name" NAME=x
    refused "RECIPE=$name: the name of encodings such as nvfp4-modelopt is expected" RECIPE="$name"
done
dry MODEL= NAME=x CHECKPOINT=models/embedded && [ ! -s "$err" ]
ok $? "a NAME alone, whose family is the checkpoint's"
for path in CHECKPOINT TOKENIZER DRAFT_VOCAB DESTDIR PREFIX; do refused "$path=/tmp/a b: make cannot have spaces in it" "$path=/tmp/a b"; done
for path in CHECKPOINT TOKENIZER DRAFT_VOCAB DESTDIR PREFIX; do
    for value in "/tmp/a;b" "/tmp/a(1)" "/tmp/it's" "/tmp/\"a" "/tmp/a*" "/tmp/[a]" "/tmp/a&b" "/tmp/\`id\`" -a; do
        refused "$path=$value: the shell reads more than a name in it" "$path=$value"
    done
done
dry CHECKPOINT=/tmp/日本/é~+@,:=^_.-9 && [ ! -s "$err" ]
ok $? "a path of letters of any language"
dry NAME=a.B-c_1 && [ ! -s "$err" ]
ok $? "a name of all that it may have"
refused "TARGET=gpu: cpu or cuda is expected" TARGET=gpu
refused "TARGET=: cpu or cuda" TARGET=
for number in LANES WINDOW CHUNK; do
    for value in "" "1 2" "4;id" "'" x -1; do refused "$number=$value: a number is expected" "$number=$value"; done
done
dry SANITIZE=0 && ! grep -q fsanitize "$out" && dry SANITIZE=off && ! grep -q fsanitize "$out" && dry SANITIZE=1 && grep -q fsanitize "$out"
ok $? "SANITIZE=0 and SANITIZE=off are without sanitizers, SANITIZE=1 with them"
refused "FIXED=3 8: some of 1, 2, 4 and 8" TARGET=cuda FIXED="8 3"
dry TARGET=cuda FIXED="8 1,8" && [ ! -s "$err" ] && [ "$(grep -c 'fixed_[0-9]*\.o$' "$out")" = 2 ]
ok $? "rows of FIXED count once, with spaces or commas between them"
dry TARGET=cuda FIXED= && ! grep -q 'fixed_[0-9]' "$out" && [ ! -s "$err" ]
ok $? "FIXED may be empty"
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    for chips in foo 90a,foo 9 ""; do refused "chips that nvcc knows are expected, such as 90a" TARGET=cuda CHIPS=$chips; done
    dry TARGET=cuda CHIPS=90a,120,90a && [ ! -s "$err" ] && [ "$(grep -c 'fixed_8\.o$' "$out")" = 1 ] &&
        [ "$(grep -m1 'fixed\.cu ' "$out" | grep -o 'gencode arch=compute_[0-9a]*' | tr -d '\n')" = "gencode arch=compute_120gencode arch=compute_90a" ]
    ok $? "CHIPS may have commas, each counts once, and 90a among them has kernels for its shapes"
fi

# The runtime is C for clang too, with its own warnings.
if command -v clang >/dev/null && [ -f build/common/kernel_list.h ]; then
    isas=$([ "$(uname -m)" = x86_64 ] && echo -DHAVE_X86_ISAS)
    clang -std=gnu11 -O0 -fsyntax-only -Wall -Wextra -Wconversion -Wvla -Werror -I. -Ibuild/common $isas runtime/*/*.c \
        $(ls runtime/*.c graphs/*.c | grep -v '_cuda\.c$') 2>"$err"
    ok $? "clang takes the runtime's sources without a warning"
fi

# Of the build that is there.
prompt='What does "ls" do? `echo x` $(echo y) $x '"it's"
if [ -x build/flashnext/flashnext ]; then
    make -s run PROMPT="$prompt" 2>"$err" >"$out" && [ "$(build/flashnext/flashnext run -p "$prompt" 2>/dev/null)" = "$(tail -1 "$out")" ]
    ok $? "make run: a prompt of any characters is the model's"
fi

echo "1..$tests"
exit $((failures > 0))
