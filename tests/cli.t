#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The command line of a built binary: help, ranges, files, and the contracts that it can show by itself (chunks, threads, drafts,
# repeats). BINARY names another build than that of the embedded model.

binary=${BINARY:-build/flashnext/flashnext}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
out=$scratch/out err=$scratch/err
tests=0 failures=0

ok() { # STATUS NAME
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then echo "ok $tests - $2"; else
        failures=$((failures + 1))
        echo "not ok $tests - $2"
        sed 's/^/#   out: /' "$out" | head -5
        sed 's/^/#   err: /' "$err" | head -5
    fi
}

run() { "$binary" "$@" >"$out" 2>"$err" </dev/null; }

# bad TEXT ARGUMENTS...: exit code 2, nothing on stdout, one line on stderr that holds TEXT.
bad() {
    local text=$1 code shown
    shift
    shown=${*//[^[:print:]]/?}
    run "$@"
    code=$?
    [ $code = 2 ] && [ ! -s "$out" ] && [ "$(wc -l <"$err")" = 1 ] && grep -qF -- "$text" "$err"
    ok $? "refused: ${shown:0:200}"
}

if [ ! -x "$binary" ]; then
    echo "not ok 1 - $binary is built"
    echo "1..1"
    exit 1
fi

# ---- help and flags ---------------------------------------------------------------------------------------------------

for command in run serve eval tokenize detokenize info plan check bench; do
    run $command --help
    [ $? = 0 ] && grep -q -- "--help" "$out" && grep -q "$command" "$out"
    ok $? "$command --help"
done
run --version && [ "$(wc -l <"$out")" = 1 ]
ok $? "--version is one line"
run --help && grep -q "detokenize" "$out"
ok $? "--help lists the commands"
run
[ $? = 2 ]
ok $? "no command: exit code 2"
bad "unknown command" sing
bad "unknown flag" eval --loud
bad "unknown flag" tokenize --threads 2
bad "unexpected argument" run hello
bad "a value is missing" run -p
bad "takes no value" info --json=yes
bad "expected a whole number from 0 to 65535" serve --port 70000
bad "expected a whole number from 1 to" serve --parallel some
bad "make LANES=N builds more" serve --parallel 8
bad 'found "0"' plan --lanes 0
! grep -q builds "$err"
ok $? "a value that is too small is not told to build more"
bad "lower --context or --prompt-cache-gib" serve --prompt-cache-gib 10000
# A pool that does not fit is answered with what does.
bad "--pool-pages 2147483647 takes" serve --port 0 --pool-pages 2147483647
grep -q "[0-9] fit beside 1 stream of" "$err" && ! grep -q -- --context "$err"
ok $? "with the most that fits"
bad "--pool-pages 2000000000 takes" serve --port 0 --parallel 2 --pool-pages 2000000000
bad "--pool-pages: one stream needs at least" serve --port 0 --pool-pages 1
bad "--pool-pages: 2147483647 take" run -p x -n 4 --quiet --pool-pages 2147483647
grep -q "left for them: [1-9][0-9]* fit" "$err" && ! grep -q -- --context "$err"
ok $? "with the most that fits"
bad "--pool-pages: one stream needs at least" run -p x -n 4 --pool-pages 1
bad "--pool-pages: at most" plan --pool-pages 2147483647 --prompt-cache-gib 1
least=$("$binary" plan --json | lua5.4 -e 'print(math.tointeger(require("cjson").decode(io.read("a")).run_pages_a_lane) + 2)')
bad "--pool-pages $least: $least pages are needed and 0 are free; $((2 * least)) or more" bench --quiet --pool-pages "$least" --prompt 16 --decode 8 --repeat 1 --lanes 2
# A pool that is too small is called so, and not the context.
yes 1 | head -n 600 >"$scratch/600"
yes tar | head -n 600 >"$scratch/tars"
bad "use --pool-pages" eval --quiet --pool-pages "$least" --tokens-file "$scratch/600" --greedy 4
more=$(sed -n 's/.*use --pool-pages \([0-9]*\).*/\1/p' "$err")
run eval --quiet --pool-pages "${more:-0}" --tokens-file "$scratch/600" --greedy 4 && [ "$(wc -w <"$out")" = 4 ]
ok $? "with as many as it says it fits"
bad "use --pool-pages $more " eval --quiet --pool-pages $((more - 1)) --tokens-file "$scratch/600" --greedy 4
bad "use --pool-pages" run --quiet --raw -n 4 --pool-pages "$least" -f "$scratch/tars"
bad "use --pool-pages" bench --quiet --pool-pages "$least" --prompt 512 --decode 8 --repeat 1
bad "the pool has no room for both" bench --quiet --pool-pages 30 --prompt 16 --decode 64 --repeat 1 --beside 600
"$binary" serve --port 0 --pool-pages "$least" --prompt-cache-gib 0 --name one --alias two --alias one --alias two >"$out" 2>"$err" &
served=$!
for _ in $(seq 300); do grep -q listening "$out" && break || sleep 0.1; done
longest=$(sed -n "s/^--pool-pages $least: the longest request has \([0-9]*\) positions.*/\1/p" "$err")
exec 3<>"/dev/tcp/127.0.0.1/$(sed -n 's/^listening on .*:\([0-9]*\)$/\1/p' "$out")" && printf 'GET /v1/models HTTP/1.0\r\n\r\n' >&3
models=$(timeout 20 cat <&3)
exec 3>&-
kill $served && wait $served
[ -n "$longest" ]
ok $? "serve says what its longest request is, where that is no whole context"
grep -q "\"max_model_len\":$longest," <<<"$models"
ok $? "and that is the context that clients see"
[ "$(grep -o '"id":"[a-z]*"' <<<"$models" | tr -d '\n')" = '"id":"one""id":"two"' ]
ok $? "each name of the model is listed once"
# serve_says FLAGS...: what serve has to say at its start.
serve_says() {
    "$binary" serve --port 0 "$@" >"$out" 2>"$err" &
    served=$!
    for _ in $(seq 300); do grep -q listening "$out" && break || sleep 0.1; done
    kill $served && wait $served
}
serve_says --pool-pages "$least" && [ "$(grep -c '^the prompt cache keeps states of up to 128 positions: longer prompts' "$err")" = 1 ]
ok $? "serve says once which prompts' states it can never keep"
serve_says --parallel 1 --context 512 --pool-pages $((least + 6)) --prompt-cache-gib 0.01 && ! grep -q '^the prompt cache' "$err"
ok $? "and nothing where it can keep those of all"
serve_says --pool-pages "$least" --prompt-cache-gib 0 && ! grep -q '^the prompt cache' "$err"
ok $? "nor where there is no prompt cache"
run serve --help && grep -q -- "--pool-pages.*cache's come on top" "$out"
ok $? "the help of --pool-pages says what comes on top"
for flag in --name --alias; do
    for name in $'a\nb' $'a\tb' $'a\x7f' $'\xff' "$(printf 'a%.0s' {1..300})"; do
        bad "$flag: a name of 1 to 200 bytes" serve --port 0 --host 192.0.2.1 $flag "$name"
    done
done
bad "1 lane with" plan --pool-pages 1
for way in "serve --host" "serve --api-key-file" "serve --prompt-cache-disk" "run --pack" "run -f" "eval --tokens-file" "eval --tokens 1 --out" "check --rows" "check --record" "bench --before"; do
    # shellcheck disable=SC2086
    bad "${way##* }: expected a text, found none" $way ""
done
for name in --alias --name; do bad "$name: expected a text" serve --port 0 --host 192.0.2.1 $name ""; done
for list in 1,2, ,1 1,,2 "1, ,2"; do bad "beside the comma" eval --quiet --tokens "$list"; done
echo "a: b" >"$scratch/keys"
chmod 644 "$scratch/keys"
bad "chmod 600" serve --port 0 --prompt-cache-gib 0 --api-key-file "$scratch/keys"
chmod 600 "$scratch/keys"
mkfifo -m 600 "$scratch/fifo"
for file in "$scratch" "$scratch/fifo" /dev/zero; do bad "it is no file; one that SIGHUP can read again" serve --port 0 --api-key-file "$file"; done
printf '# %s\na: b\n' "$(printf 'x%.0s' {1..1018})at: all" >"$scratch/keys" # its end would be a key of its own
bad "line 1: at most 1022 bytes of text" serve --port 0 --api-key-file "$scratch/keys"
printf 'a: b\0c\n' >"$scratch/keys"
bad "line 1: at most 1022 bytes of text" serve --port 0 --api-key-file "$scratch/keys"
bad "cannot listen" serve --port 0 --prompt-cache-gib 0 --host 192.0.2.1
bad "$scratch/none" serve --port 0 --pack "$scratch/none"
bad "cannot be made" serve --port 0 --prompt-cache-disk /proc/none
(exec env "$binary" serve --port 0 --prompt-cache-gib 0 >&- 2>"$err") &
opening=$!
for _ in $(seq 300); do grep -q "can reach\|memory:" "$err" && break || sleep 0.1; done
kill $opening && wait $opening
ok $? "a server without standard output serves, and ends well"
(exec env "$binary" serve --port 0 --pack "$scratch/fifo" <&- >&- 2>&-) & # opens its socket first, and waits
opening=$!
for _ in $(seq 200); do ls -l /proc/$opening/fd 2>/dev/null | grep -q socket: && break; sleep 0.05; done
[ "$(readlink /proc/$opening/fd/0 /proc/$opening/fd/1 /proc/$opening/fd/2 | uniq -c | tr -d ' ')" = 3/dev/null ]
ok $? "nothing that is opened takes the place of a standard stream that is closed"
kill -9 $opening && wait $opening 2>/dev/null
for signal in TERM INT; do # while it waits for its weights; SigBlk has the bits of those that it takes itself
    (exec env --default-signal=INT "$binary" serve --port 0 --pack "$scratch/fifo" >"$out" 2>"$err") & # a job of a shell ignores it
    opening=$!
    for _ in $(seq 200); do
        [ $((0x$(sed -n 's/^SigBlk:[^0-9a-f]*//p' /proc/$opening/status 2>/dev/null || echo 0) & 0x4000)) != 0 ] && break
        sleep 0.05
    done
    kill -$signal $opening
    for _ in $(seq 100); do kill -0 $opening 2>/dev/null || break; sleep 0.05; done
    kill -9 $opening 2>/dev/null
    wait $opening
    [ $? = $((128 + $(kill -l $signal))) ]
    ok $? "SIG$signal ends a server that is still opening"
done
bad "expected one of" eval --isa sse9 --tokens 1
bad "expected one of" eval --isa "portable|avx2" --tokens 1
for value in nan inf -1 1e999 0.5x "" "1 " 0x1 101; do bad "--temperature" run -p x --temperature "$value"; done
for value in 1.01 -0.1 nan; do bad "--top-p" run -p x --top-p "$value"; done
for value in -1 1.5 99999999999999999999 ten "" " 1"; do bad "--top-k" run -p x --top-k "$value"; done
for value in -1 18446744073709551616 1.0 x; do bad "--seed" run -p x --seed "$value"; done
for value in -1 513 2x; do bad "--threads" eval --tokens 1 --threads $value; done
for value in 0 -3 1e3; do bad "--last" eval --tokens 1 --out "$scratch/x" --last $value; done
bad "-n" run -p x -n -4
# The most that help says is taken, and one more is not.
most() { run "$1" --help && sed -n "s/^  $2 [A-Z] .*(.* to \([0-9]*\))$/\1/p" "$out"; }
for way in "plan --context" "plan --lanes" "eval --chunk" "eval --solo-chunk" "eval --last" "plan --page"; do
    number=$(most "${way% *}" "${way#* }") more=""
    case $way in eval*)
        yes 1 | head -n "${number:-1}" >"$scratch/many"
        more="--quiet --tokens-file $scratch/many --out $scratch/x"
        ;;
    esac
    # shellcheck disable=SC2086
    run $way "${number:-0}" $more
    ok $? "$way ${number:-of no number} is taken, as help says"
    # shellcheck disable=SC2086
    bad "to $number, found" $way $((number + 1)) $more
done

number=$(most tokenize --draft-vocab)
printf x | "$binary" tokenize --draft-vocab "${number:-0}" >"$out" 2>"$err" && [ "$(wc -l <"$out")" = "$number" ]
ok $? "tokenize --draft-vocab ${number:-of no number} is taken, as help says"
bad "from 16 to $number, found" tokenize --draft-vocab $((number + 1))
bad "from 16 to $number, found" tokenize --draft-vocab 15
for command in serve bench; do # flags of a server's pace
    number=$(most $command --busy-chunk)
    for flag in --solo-chunk --busy-chunk; do
        bad "from 0 to ${number:-no number}, found \"$((number + 1))\"; make CHUNK=N builds more" $command $flag $((number + 1))
        bad "$flag: expected a whole number" $command $flag -1
    done
done
run plan --lanes 2 --lanes 1 --json && grep -q '"lanes": *1\b' "$out"
ok $? "of a flag that is given again the last value counts"
run plan --lanes 9 --lanes none --lanes=1 --kv-cache fp4 --kv-cache bf16 --prompt-cache-gib -1 --prompt-cache-gib 0 --json && grep -q '"lanes": *1\b' "$out"
ok $? "and the values before it are not looked at"
bad 'found "9"' plan --lanes 1 --lanes 9

# ---- eval -------------------------------------------------------------------------------------------------------------

eval_() { run eval --quiet "$@"; }
vocabulary=$("$binary" info --json | lua5.4 -e 'print(math.tointeger(require("cjson").decode(io.read("a")).vocabulary))')
ids=""
for i in $(seq 1 60); do ids+=$(((i * 7919) % vocabulary)),; done
ids=${ids%,}

bad "expected an id from 0 to $((vocabulary - 1)), found \"$vocabulary\"" eval --tokens "1,$vocabulary"
bad "expected an id" eval --tokens "1,-2"
bad "expected an id" eval --tokens "1,99999999999999999999"
bad "expected an id" eval --tokens "1,2x"
bad "at least one id" eval --tokens " "
bad "give --tokens" eval
bad "give --tokens" eval --tokens 1 --tokens-file "$scratch/none"
bad "$scratch/none" eval --tokens-file "$scratch/none"
bad "directory" eval --tokens-file "$scratch"
bad "at most 3" eval --tokens 1,2,3 --last 4 --out "$scratch/x"
bad "needs --out" eval --tokens 1,2,3 --last 2
bad "--chunk" eval --tokens 1,2,3 --chunk 99999
bad "$scratch/no/x" eval --tokens 1,2,3 --out "$scratch/no/x"
bad "$scratch/none" eval --tokens 1 --pack "$scratch/none"

eval_ --tokens "$ids" --last 5 --out "$scratch/whole" && [ "$(stat -c %s "$scratch/whole")" = $((5 * vocabulary * 4)) ]
ok $? "--last 5 writes five rows"
eval_ --tokens "$ids" --last 2 --out "$scratch/two" && cmp -s <(tail -c $((2 * vocabulary * 4)) "$scratch/whole") "$scratch/two"
ok $? "--last 2 writes the last two of them"
tr ',' '\n' <<<"$ids" >"$scratch/ids"
eval_ --tokens-file "$scratch/ids" --last 5 --out "$scratch/file" && cmp -s "$scratch/whole" "$scratch/file"
ok $? "ids of a file give the same rows"
for way in "--chunk 1" "--chunk 7" "--threads 1" "--threads 2 --chunk 13" "--page 4" "--page-order shuffled" "--eager" "--no-drafts"; do
    # shellcheck disable=SC2086
    eval_ --tokens "$ids" --last 5 --out "$scratch/way" $way && cmp -s "$scratch/whole" "$scratch/way"
    ok $? "the same bits with $way"
done
GRAPHS=off eval_ --tokens "$ids" --last 5 --out "$scratch/way" && cmp -s "$scratch/whole" "$scratch/way"
ok $? "the same bits with GRAPHS=off"
eval_ --tokens "${ids%,*},0" --last 5 --out "$scratch/other" && ! cmp -s "$scratch/whole" "$scratch/other"
ok $? "other ids give other bits"
[ -z "$(find "$scratch" -name '*.part')" ]
ok $? "no partial file is left"
echo kept >"$scratch/kept"
run eval --quiet --tokens "$ids" --context 32 --out "$scratch/kept"
[ $? = 2 ] && [ "$(cat "$scratch/kept")" = kept ]
ok $? "a refused request leaves an old file alone"

eval_ --tokens "$ids" --greedy 24 && cp "$out" "$scratch/greedy" && [ "$(wc -l <"$out")" = 1 ] && [ "$(wc -w <"$out")" = 24 ]
ok $? "--greedy 24 prints 24 ids on one line"
eval_ --tokens "$ids" --greedy 24 --no-drafts && cmp -s "$out" "$scratch/greedy"
ok $? "and the same ones without drafts"
eval_ --tokens "$ids,$(cut -d' ' -f1-8 --output-delimiter=, "$scratch/greedy")" --greedy 16 && cmp -s "$out" <(cut -d' ' -f9- "$scratch/greedy")
ok $? "and the same ones when their start is part of the prompt"
bad "context" eval --tokens "$ids" --context 32
bad "context" eval --tokens "$ids" --context 64 --greedy 6
eval_ --tokens "$ids" --context 64 --greedy 5 && [ "$(cat "$out")" = "$(cut -d' ' -f1-5 "$scratch/greedy")" ]
ok $? "and the last id of a reply needs no position"
GRAPHS=no bad "expected on or off, found \"no\"" eval --tokens 1
GRAPHS="" bad "expected on or off, found \"\"" run -p x
for command in info plan tokenize detokenize check bench serve; do
    GRAPHS=of bad "expected on or off, found \"of\"" $command
done
GRAPHS=off run info
ok $? "GRAPHS=off is taken by a command that has no graphs"
GRAPHS=no run eval --help
ok $? "GRAPHS is not looked at for --help"

# ---- tokenize, detokenize -----------------------------------------------------------------------------------------------

text=$'What does ls do?\n  naïve café, 日本語 <|im_end|>\t'
printf '%s' "$text" | "$binary" tokenize >"$scratch/tokens" && "$binary" detokenize <"$scratch/tokens" >"$scratch/text" && cmp -s "$scratch/text" <(printf '%s' "$text")
ok $? "text to ids and back"
printf '%s' "$text" | "$binary" tokenize --plain >"$scratch/plain" && [ "$(wc -w <"$scratch/plain")" -gt "$(wc -w <"$scratch/tokens")" ] &&
    "$binary" detokenize <"$scratch/plain" | cmp -s - <(printf '%s' "$text")
ok $? "--plain takes special tokens for text"
printf 'the the list' | "$binary" tokenize --draft-vocab 20 >"$out" 2>"$err" && [ "$(wc -l <"$out")" = 20 ] && [ "$(sort -u "$out" | wc -l)" = 20 ] &&
    [ "$(head -1 "$out")" = "$(printf ' the' | "$binary" tokenize)" -o "$(head -1 "$out")" = "$(printf 'the' | "$binary" tokenize)" ]
ok $? "a draft vocabulary has the text's commonest tokens first, each once"
printf '"a\\u0000b"\n\n"x <|im_end|>"\n""\n' | "$binary" tokenize --jsonl >"$scratch/lines" && [ "$(wc -l <"$scratch/lines")" = 3 ] &&
    "$binary" detokenize --jsonl <"$scratch/lines" >"$scratch/strings" && cmp -s "$scratch/strings" <(printf '"a\\u0000b"\n"x <|im_end|>"\n""\n')
ok $? "--jsonl both ways, NUL and empty strings included"
refused_input() { # TEXT INPUT ARGUMENTS...
    local text=$1 input=$2
    shift 2
    printf '%b' "$input" | "$binary" "$@" >"$out" 2>"$err"
    [ "${PIPESTATUS[1]}" = 2 ] && grep -qF -- "$text" "$err" && [ "$(wc -l <"$err")" = 1 ]
    ok $? "refused: $* of $input"
}
refused_input "line 2" '"a"\n{"b": 1}\n' tokenize --jsonl
refused_input "line 1" '"a\n' tokenize --jsonl
refused_input "line 1" '[1, 1.5]\n' detokenize --jsonl
refused_input "line 1" "[$vocabulary]\n" detokenize --jsonl
refused_input "line 1" '"a"\n' detokenize --jsonl
refused_input "expected an id" "1 $vocabulary\n" detokenize

# ---- info, plan ---------------------------------------------------------------------------------------------------------

run info && grep -q "programs:" "$out"
ok $? "info"
json() { lua5.4 -e 'local j = require("cjson").decode(io.read("a")); '"$1"; }
run info --json && json 'local n = 0; for _, e in ipairs(j.encodings) do n = n + e.bytes end; assert(n > 0.9 * (j.weight_bytes + j.table_bytes)); assert(#j.programs > 2)' <"$out"
ok $? "info --json: the encodings account for the weights"
run plan && grep -q "total" "$out"
ok $? "plan"
run plan --json --context 1024 && cp "$out" "$scratch/plan" && json 'assert(j.total_bytes == j.weight_bytes + j.arena_bytes + j.kv_bytes + j.run_bytes + j.scratch_bytes + j.tables_bytes + j.kept_bytes + j.draw_bytes + j.process_bytes)' <"$out"
ok $? "plan --json: the total is the sum of its parts"
run plan --json --context 1024 --lanes 2 && json 'local k = require("cjson").decode(io.open("'"$scratch"'/plan"):read("a")); assert(j.kv_bytes == 2 * k.kv_bytes and j.run_bytes == 2 * k.run_bytes and j.weight_bytes == k.weight_bytes)' <"$out"
ok $? "plan: two lanes take twice the cache and the states"
context=512
"$binary" plan --json --context $context >"$scratch/plan"
ids_long=$(for i in $(seq 1 480); do printf '%d,' $(((i * 31) % vocabulary)); done)
"$binary" eval --quiet --context $context --tokens "${ids_long%,}" --greedy 4 >/dev/null &
eval_pid=$!
resident=0
while kill -0 $eval_pid 2>/dev/null; do
    now=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' /proc/$eval_pid/status 2>/dev/null)
    [ "${now:-0}" -gt $resident ] && resident=$now
done
json 'local r = '"$resident"' * 1024; assert(r < 1.1 * j.total_bytes and r > 0.8 * j.total_bytes, r / j.total_bytes)' <"$scratch/plan" 2>"$err"
ok $? "plan: what a run takes is near what the plan said"
bad "--context" plan --context 9999999
bad "--page" plan --page 6

# ---- check --------------------------------------------------------------------------------------------------------------

run check --record "$scratch/rows" && [ -s "$scratch/rows" ]
ok $? "check --record"
run check --rows "$scratch/rows" && [ "$(grep -c ' ok; .* ok$' "$out")" -ge 1 ] && ! grep -q FAILED "$out"
ok $? "check agrees with itself"
cp "$scratch/rows" "$scratch/wrong"
printf '\x00\x00\x80\x42' | dd of="$scratch/wrong" bs=1 seek=400 conv=notrunc status=none # one logit becomes 64
run check --isa portable --rows "$scratch/wrong"
[ $? = 1 ] && grep -q FAILED "$out"
ok $? "check: one wrong logit gives exit code 1"
head -c 1000 "$scratch/rows" >"$scratch/short"
bad "bytes, found 1000" check --rows "$scratch/short"
sed '1s/^PNL/XXX/' "$scratch/rows" >"$scratch/magic"
bad "not a file of reference rows" check --rows "$scratch/magic"
bad "--record" check --rows "$scratch/none"
bad "$scratch/no/x" check --record "$scratch/no/x"

# ---- bench ----------------------------------------------------------------------------------------------------------------

run bench --quiet --repeat 1 --prompt 16 --decode 4 --lanes 2 --weights synthetic --json && json 'assert(j.synthetic and j.decode_tokens_per_second.median > 0 and j.prompt_tokens_per_second.median > 0 and j.ceiling_bytes_per_second.best > 1e8)
    local n = 0; for _, k in ipairs(j.kernels) do n = n + k.launches end; assert(n > 10 and j.kernel_seconds <= j.round_seconds)
    assert(j.host_us_per_round.median > 0 and j.host_us_per_round.median < 1e6 and j.launch_call_us.median >= 0 and j.device_idle_us_per_round.median >= 0)
    local keys, bytes, single = 0, 0, {}
    for _, p in ipairs(j.programs) do
        local warm = not p.program:find("prompt") -- prompts have keys by their lengths, made when they are seen
        keys, bytes, single[p.program .. math.tointeger(p.lanes)] = keys + (warm and p.keys or 0), bytes + (warm and p.bytes or 0), p
        assert(p.launches > 0 and p.replay_seconds > 0 and p.eager_seconds > 0 and p.capture_seconds > 0 and p.instantiate_seconds >= 0, p.program)
    end
    assert(keys == j.warm_set.graphs and bytes == j.warm_set.bytes and j.warm_set.seconds > 0)
    assert(single.plain_round1.keys == 2 and single.plain_round2.keys == 1 and single.round_51 and single.tail1)' <"$out"
ok $? "bench --json"
bench="bench --quiet --repeat 1 --prompt 16 --weights synthetic"
for decode in 1 5; do
    run $bench --decode $decode --lanes 2 --json && json 'local near = j.decode_tokens_per_second.median / 20
        assert(#j.lanes == 2 and j.lanes[1].decode_tokens_per_second > near and j.lanes[2].decode_tokens_per_second > near)' <"$out"
    ok $? "bench --lanes with --decode $decode: rates of rounds that were timed"
done
# Of a table: its depths are 1 and 3, its acceptances 0.5 and 1, its figures those of its rounds.
table='local function check(tables, lanes)
        assert(#tables == #lanes)
        for n, t in ipairs(tables) do
            assert(t.lanes == lanes[n] and t.undrafted_tokens_per_second.least > 0 and #t.rows == 2)
            for r, row in ipairs(t.rows) do
                local p = ({0.5, 1})[r]
                assert(row.acceptance == p and #row.fixed == 2)
                local function cell(c, expected)
                    local tolerance, share = 5 * (p * (1 - p) / c.looked_at) ^ 0.5, 0
                    for _, s in ipairs(c.share_by_drafts) do share = share + s end
                    assert(math.abs(c.accepted / math.max(c.looked_at, 1) - p) <= tolerance or c.looked_at == 0, "acceptance")
                    assert(#c.share_by_drafts == 6 and math.abs(share - 1) < 1e-9 and c.times_undrafted.median > 0, "shares")
                    assert(not expected or math.abs(c.tokens_per_second.median * c.round_seconds.median / t.lanes - expected) < 1e-3, "rate")
                end
                for i, c in ipairs(row.fixed) do
                    local drafts, tokens = 2 * i - 1, 0
                    for d = 0, drafts do tokens = tokens + p ^ d end
                    assert(c.drafts == drafts and c.mean_drafts == drafts and c.share_by_drafts[drafts + 1] == 1, "depth")
                    cell(c, tokens)
                end
                cell(row.chosen)
                assert(row.chosen.rounds >= 72, "the engine goes on looking around")
            end
        end
    end '
run $bench --decode 16 --lanes 2 --accept 0.1 --accept 0.5,1 --drafts 1,3 --json && cp "$out" "$scratch/table" && json "$table"'check(j.drafting, {1, 2})' <"$scratch/table"
ok $? "bench --accept --drafts: a cell for each acceptance and depth, of one lane and of all"
json "$table"'
    local function fails(text, change, undo) change(); local good, why = pcall(check, j.drafting, {1, 2}); assert(not good and why:find(text), why); undo() end
    local row = j.drafting[2].rows[1]
    fails("depth", function() row.fixed[1], row.fixed[2] = row.fixed[2], row.fixed[1] end, function() row.fixed[1], row.fixed[2] = row.fixed[2], row.fixed[1] end)
    fails("acceptance", function() row.fixed[2].accepted = row.fixed[2].looked_at end, function() end)' <"$scratch/table"
ok $? "red: depths that are not those asked for, and luck that was not forced, are seen"
run $bench --decode 4 --accept 0.8 --drafts 2-3,1 && [ "$(grep -cE '^  +0\.8( +[0-9.]+ +[0-9.]+){4} +[0-9.]+ a round: [0-9]' "$out")" = 1 ] && grep -qE "^  accept +2 +3 +1 +the engine's" "$out"
ok $? "bench --accept: a table, its columns in the order that was asked for"
for way in on off; do
    GRAPHS=$way run $bench --decode 4 --json && json 'local way = "'$way'"
        assert((j.graphs.replayed > 0) == (way == "on") and (j.graphs.captured > 0) == (way == "on") and (#j.programs > 0) == (way == "on"))' <"$out"
    ok $? "GRAPHS=$way: graphs are $way"
done
run bench --quiet --repeat 1 --prompt 16 --decode 4 --weights synthetic --gnuplot && grep -q '^[0-9.]* "linear, [0-9]*"$' "$out" && grep -q '^plot ' "$out"
good=$?
if command -v gnuplot >/dev/null; then gnuplot "$out" 2>&1 | grep -q '</svg>' || good=1; fi
ok $good "bench --gnuplot is a chart"
per_op="bench --quiet --repeat 1 --prompt 40 --decode 4 --weights synthetic --no-drafts --per-op"
run $per_op && [ "$(grep -cE '^(a round|a prompt), by group$' "$out")" = 2 ] && grep -qE '^  DeltaNet, Mamba +[0-9]+ ' "$out"
ok $? "bench --per-op: groups of kernels"
run $per_op --json && cp "$out" "$scratch/after" && json 'for _, part in ipairs{{j.round, j.kernels}, {j.prompt_read, j.prompt_kernels}} do
        local n, seconds = 0, 0
        for i, list in ipairs{part[2], part[1].ops, part[1].groups} do
            local launches, sum = 0, 0
            for _, row in ipairs(list) do launches, sum = launches + row.launches, sum + row.seconds end
            if i == 1 then n, seconds = launches, sum end
            assert(launches == n and n > 10 and math.abs(sum / seconds - 1) < 1e-9)
        end
        assert(#part[1].groups > 5 and #part[1].groups < #part[2] and #part[2] <= #part[1].ops)
    end' <"$out"
ok $? "bench --per-op --json: ops and groups have all launches of a round and of a prompt"
run $per_op --lanes 2 --json && json 'local one, all, seconds = 0, 0, 0
    assert(#j.lanes_round.ops == #j.round.ops and #j.lanes_round.groups == #j.round.groups)
    for _, row in ipairs(j.round.ops) do one = one + row.launches end
    for _, row in ipairs(j.lanes_round.ops) do all, seconds = all + row.launches, seconds + row.seconds end
    assert(one == all and seconds > 0)' <"$out" && run $per_op && ! grep -q 'of all lanes' "$out" && run $per_op --lanes 2 && grep -q '^a round of all lanes, bytes those of one: ' "$out"
ok $? "bench --per-op --lanes: a round of all lanes too"
cat >"$scratch/ops.lua" <<'END'
package.path = "gen/?.lua;" .. package.path
local source, missing = io.open("runtime/bench_rows.c"):read("a"), 0
local ops = require "ops"
ops[#ops + 1] = arg[1] and { name = arg[1] }
for _, op in ipairs(ops) do if not source:find('[" ]' .. op.name .. '[" ]') then missing = missing + 1 end end
os.exit(#ops > 20 and missing == 0)
END
lua5.4 "$scratch/ops.lua" && ! lua5.4 "$scratch/ops.lua" "made_up"
ok $? "every op has a group; red: one that is made up has none"
run bench --before "$scratch/after" --after "$scratch/after" && [ "$(grep -cE '^(a round|a prompt of 40 tokens), us: launches one by one ' "$out")" = 2 ] && [ "$(grep -cE '^  as it runs +[0-9.]+ =+$' "$out")" = 2 ] &&
    [ "$(grep -o '=' "$out" | wc -l)" = "$(($(grep -o '#' "$out" | wc -l)))" ]
ok $? "bench --before --after: bars of two runs, equal ones for one run"
run bench --before "$scratch/after" --after "$scratch/after" --gnuplot && [ "$(grep -c '^plot ' "$out")" = 2 ]
good=$?
if command -v gnuplot >/dev/null; then gnuplot "$out" 2>&1 | grep -q '</svg>' || good=1; fi
ok $good "bench --before --after --gnuplot is a chart"
json 'j.prompt_kernels = nil; for _, k in ipairs(j.kernels) do k.op, k.seconds = k.op == "linear" and "older" or k.op, 2 * k.seconds end io.open("'"$scratch"'/older", "w"):write(require("cjson").encode(j))' <"$scratch/after"
run bench --before "$scratch/older" --after "$scratch/after" && ! grep -q "a prompt of" "$out" && [ "$(grep -o '=' "$out" | wc -l)" != "$(grep -o '#' "$out" | wc -l)" ]
ok $? "bench --before: a file without times of a prompt, and with an op that is not known; red: bars differ"
json 'for _, k in ipairs(j.kernels) do k.seconds = (k.op == "draw" or k.op == "accept") and 0 or k.seconds end io.open("'"$scratch"'/none-drawn", "w"):write(require("cjson").encode(j))' <"$scratch/after"
run bench --before "$scratch/none-drawn" --after "$scratch/after" && [ "$(grep -c '^  sampling ' "$out")" = "$(grep -c '^  as it runs ' "$out")" ]
ok $? "bench --before: a group without time is one group"
bad "both files are needed" bench --before "$scratch/after"
bad "both files are needed" bench --after "$scratch/after"
bad "measure nothing" bench --before "$scratch/after" --after "$scratch/after" --json
bad "$scratch/none: cannot be opened" bench --before "$scratch/after" --after "$scratch/none"
head -c 300 "$scratch/after" >"$scratch/cut"
bad "cut: not JSON; expected what bench --json prints" bench --before "$scratch/after" --after "$scratch/cut"
for text in '[]' '{"name": "x", "kernels": {}}' '{"name": "x", "kernels": []}'; do
    echo "$text" >"$scratch/cut"
    bad "no name or no kernels" bench --before "$scratch/cut" --after "$scratch/after"
done
for text in '{"op": 1, "seconds": 1, "launches": 1}' '{"op": "add", "seconds": -1, "launches": 1}' '{"op": "add", "seconds": 1e9, "launches": 1}' '7'; do
    echo '{"name": "x", "kernels": ['"$text"']}' >"$scratch/cut"
    bad "a kernel without op, launches or seconds" bench --before "$scratch/cut" --after "$scratch/after"
done
sed 's/"prompt": 40/"prompt": 41/' "$scratch/after" >"$scratch/other"
bad "prompts of 40 and 41 tokens" bench --before "$scratch/after" --after "$scratch/other"
run bench --quiet --turns 64,100 --turn-tokens 8 --decode 6 --repeat 2 --json && json 'assert(#j.turns == 8 and j.turn_tokens == 8 and j.reply == 6)
    local cached = {cold = 0, resumed = -11, again = 8, warm = 0}
    for _, t in ipairs(j.turns) do
        assert(t.cached_tokens == (t.case == "cold" and 0 or t.history + cached[t.case]) and t.cached_tokens + t.read_tokens == t.history + 8)
        assert(#t.first_token_seconds.all == 2 and t.first_token_seconds.least > 0 and (t.case == "cold" or t.restore_seconds.median > 0))
    end' <"$out"
ok $? "bench --turns --json: what each case finds and reads"
run bench --quiet --turns 64 --turn-tokens 8 --decode 6 --repeat 1 && [ "$(grep -cE '^ +64  (cold|resumed|again|warm) ' "$out")" = 4 ] && grep -q "pass before: 11 tokens" "$out"
ok $? "bench --turns: a line a case"
bad "--turns: expected whole numbers" bench --turns 64,
bad "--turns: expected whole numbers" bench --turns 12345678901234567890
bad "--turns: at most 16" bench --turns "$(seq -s, 100 116)"
bad "the context holds" bench --turns 100 --context 64
bad "--pool-pages $least: --turns 600 takes" bench --turns 600 --turn-tokens 8 --decode 8 --repeat 1 --pool-pages "$least"
pages=$(sed -n 's/.*takes \([0-9]*\) pages/\1/p' "$err")
run bench --quiet --turns 600 --turn-tokens 8 --decode 8 --repeat 1 --pool-pages "${pages:-0}"
ok $? "with as many pages it runs"
run bench --quiet --prompt 1 --decode 4 --repeat 1 && grep -q " 1 token," "$out"
ok $? "bench --prompt 1 has 1 token"
bad "leaves 5 for the prompt" bench --turns 50 --decode 40
bad "--turns: was given before" bench --turns 64 --turns 100
bad "leave --accept out" bench --turns 64 --accept 0.5
bad "--prompt-cache-gib 0 leaves none" bench --turns 100 --prompt-cache-gib 0
bad "of --turns, which is missing" bench --turn-tokens 8
bad "--prompt and --decode" bench --prompt 64 --context 32
bad "--beside, --prompt and --decode need" bench --beside 16 --prompt 8 --decode 4 --context 32
bad "--beside: two lanes are needed, and --lanes 1" bench --beside 16 --lanes 1
bad "--drafts is of --accept" bench --drafts 2
bad "leave one of them out" bench --accept 0.5 --no-drafts
for drafts in 0 3-1 1, 1-2-3 -2 1-16 1,99999999999999999999; do
    bad "whole numbers or ranges like 1-3 from 1 to 5" bench --accept 0.5 --drafts "$drafts"
done
bad "--drafts: this build drafts at most 5 a round, found 7; make WINDOW=8 builds that" bench --accept 0.5 --drafts 1-7
bad "found 15; make WINDOW=16 builds that" bench --accept 0.5 --drafts 2,15,6
run bench --quiet --repeat 1 --prompt 16 --decode 4 --weights synthetic --accept 0.8,0.80,.8 --drafts 1-2,2,1,1-2 &&
    [ "$(grep -cE '^  +0\.8( +[0-9.]+ +[0-9.]+){3} +[0-9.]+ a round: [0-9]' "$out")" = 1 ] && grep -qE "^  accept +1 +2 +the engine's" "$out"
ok $? "of acceptances and depths that are given twice each counts once"
run bench --quiet --turns 64,64 --turn-tokens 8 --decode 4 --repeat 1 && [ "$(grep -cE '^ +64  (cold|resumed|again|warm) ' "$out")" = 4 ]
ok $? "and so do those of --turns"
bad "expected numbers from 0 to 1 separated by commas, found \"0.5,2\"" bench --accept 0.5,2
bad "--accept: expected numbers" bench --accept 0.5,
bad "give one of them" bench --gnuplot --json
bad "more than 2 tokens for 2 lanes" bench --prompt 2 --lanes 2
bad "at least 2 tokens" bench --prompt 1 --accept 1

# ---- run ------------------------------------------------------------------------------------------------------------------

run run -p "What does ls do?" --temperature 0 -n 40 && cp "$out" "$scratch/reply" && [ -s "$out" ] && tail -1 "$err" | grep -qE "^prompt [0-9]+ tokens, .* reply [0-9]+ tokens, .* drafted [0-9]+, accepted [0-9]+; stop: "
ok $? "run -p: a reply, and a summary on stderr"
run run -p "What does ls do?" --temperature 0 -n 40 --no-drafts --quiet && cmp -s "$out" "$scratch/reply" && [ ! -s "$err" ]
ok $? "the same without drafts, and --quiet is quiet"
echo "What does ls do?" | "$binary" run --temperature 0 -n 40 --quiet >"$out" 2>"$err" && cmp -s "$out" "$scratch/reply"
ok $? "the same from a pipe"
echo "What does ls do?" >"$scratch/prompt"
run run -f "$scratch/prompt" --temperature 0 -n 40 && cmp -s "$out" "$scratch/reply"
ok $? "the same from a file"
for drafts in "" --no-drafts; do
    # shellcheck disable=SC2086
    run run -p "How do I find a package?" --temperature 0.8 --seed 7 -n 40 $drafts && cp "$out" "$scratch/sampled${drafts}"
done
cmp -s "$scratch/sampled" "$scratch/sampled--no-drafts"
ok $? "a seeded reply is the same with and without drafts"
run run -p "How do I find a package?" --temperature 1.5 --seed 8 -n 40 && ! cmp -s "$out" "$scratch/sampled"
ok $? "another seed gives another reply"
run run -p "How do I find a package?" -n 30 && cp "$out" "$scratch/again" && run run -p "How do I find a package?" -n 30 && cmp -s "$out" "$scratch/again"
ok $? "a repeated command repeats its reply"
run run -p "What does ls do?" --temperature 0 -n 1 && tail -1 "$err" | grep -q "stop: token limit"
ok $? "-n 1 stops at the token limit"
prompt_tokens() { run run -n 1 "$@" && sed -n 's/^prompt \([0-9]*\) tokens.*/\1/p' "$err"; }
spelled=$(prompt_tokens -p 'a<|im_end|>b')
template=$(prompt_tokens -p 'ab')
whole=$(prompt_tokens --raw -p $'<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n')
[ "${spelled:-0}" -gt "${whole:-0}" ] && [ "${template:-0}" -gt 2 ]
ok $? "a message cannot spell a special token"
text=$'\n\n  Is "x" <b>?\n'
templated=$(prompt_tokens -p "$text")
whole=$(prompt_tokens --raw -p $'<|im_start|>user\n'"$text"$'<|im_end|>\n<|im_start|>assistant\n')
[ "${templated:-0}" -gt 8 ] && [ "$templated" = "$whole" ]
ok $? "a message without special tokens is tokenized with what surrounds it"
"$binary" run --isa portable --raw -p "a" -n 2500 --temperature 5 --top-k 0 --top-p 1 --seed 2 >"$out" 2>"$err" &
pid=$!
for _ in $(seq 500); do # the reply has begun
    [ -s "$out" ] && break
    sleep 0.02
done
kill -INT "$pid"
wait "$pid"
[ $? = 130 ] && tail -1 "$err" | grep -q "stop: interrupted"
ok $? "an interrupt ends the reply with its summary"
if command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1; then
    (printf 'What does ls do?\n'; sleep 0.5; printf '/new\n'; printf 'What does ls do?\n'; sleep 0.5; printf '/exit\n') |
        script -qec "$binary run --temperature 0 -n 40 --quiet" /dev/null >"$out" 2>"$err"
    [ "$(grep -cF "$(cat "$scratch/reply")" "$out")" = 2 ]
    ok $? "a chat on a terminal, started over, answers as before"
fi
bad "empty" run -p ""
bad "UTF-8" run -p $'\xff'
bad "UTF-8" run -p x --system $'\xff'
bad "not both" run -p a -f "$scratch/prompt"
bad "$scratch/none" run -f "$scratch/none"
bad "context" run -p "What does ls do?" --context 8
"$binary" run -p hello -n 4 --quiet >/dev/full 2>"$err"
[ $? = 2 ] && grep -q "cannot be written" "$err"
ok $? "a full device is an error"

echo "1..$tests"
exit $((failures > 0))
