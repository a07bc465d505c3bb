#!/usr/bin/env bash
# selftest.sh ASSAY PLUGINS DELAYS: what assay bench and assay compare say and end with: figures for a kernel that is right,
# none for one that is wrong, and a line for everything that can be wrong on the command line.
set -euo pipefail
assay=$1
plugins=$2
delays=$3
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect NAME STATUS PATTERN COMMAND...: ends with the status and says a line that matches.
expect() {
  local name=$1 wanted=$2 pattern=$3 status=0
  shift 3
  "$@" >"$work/said" 2>&1 </dev/null || status=$?
  if [ "$status" -ne "$wanted" ] || ! grep -qE -- "$pattern" "$work/said"; then
    printf 'FAIL %s: exit %s, wanted %s; wanted: %s\n' "$name" "$status" "$wanted" "$pattern"
    head -n 5 "$work/said"
    failed=$((failed + 1))
  fi
}
# never NAME PATTERN FILE
never() {
  ! grep -qE -- "$2" "$3" || { printf 'FAIL %s: found %s\n' "$1" "$2"; failed=$((failed + 1)); }
}

cat >"$work/small.yaml" <<'Y'
op: rms_norm
bench:
  - {name: small, dtype: bf16, N: [1, 5], C: 64}
Y
bench=("$assay" bench "$work/small.yaml" --budget 0.05s)

expect right 0 '[1-9] timed, 0 without a figure' "${bench[@]}" --jsonl "$work/right.jsonl"
expect 'right, row' 0 '"mode":"host","median_us":[0-9.]+' grep -m1 '"bench":"case"' "$work/right.jsonl"
expect control 0 'control_rms_norm .*host' "${bench[@]}" --plugin "$plugins/control_rms_norm.so"
expect wrong 1 '^FAIL rms_norm/.*@rms_inner_rounding on simt: .*: no figure' \
  "${bench[@]}" --plugin "$plugins/rms_inner_rounding.so" --jsonl "$work/wrong.jsonl" \
  --variant rms_norm=warp_rows@rms_inner_rounding
cp "$work/said" "$work/wrong.txt"
never 'wrong, on the screen' ' host ' "$work/wrong.txt"
expect 'wrong, how to see it again' 0 "^  assay replay '[^']*' --plugin [^ ]*rms_inner_rounding\.so'?\$" cat "$work/wrong.txt"
never 'wrong, in the file' 'median_us' "$work/wrong.jsonl"
expect 'wrong, in the file' 0 '"verdict":"FAIL".*"found":"by the judge"' grep '"bench":"case"' "$work/wrong.jsonl"
expect reference 0 'rms_norm/definition .*host' "${bench[@]}" --device ref
# Rows shared out over threads, against the same call as a whole, bit for bit.
printf 'op: gate_attention\nbench:\n  - {name: rows, mode: mixed, dtype: bf16, D: 64, H: 4, H_kv: 2, density: 0.3, cluster: 8, batch: 3, kv_len: 70, new: {uniform: [1, 9]}}\n' >"$work/rows.yaml"
expect 'reference in parts' 0 'gate_attention/definition .*host' "$assay" bench "$work/rows.yaml" --device ref --budget 0.05s
# What a case costs is asked before its values are made: memory that held something else must not tell.
printf 'op: gate_attention\nbench:\n  - {name: small, mode: decode, dtype: bf16, D: 64, H: 4, H_kv: 2, batch: 3, kv_len: 70}\n' >"$work/paged.yaml"
expect 'memory that held something' 0 'gate_attention/decode_rows .*host' env MALLOC_PERTURB_=170 "$assay" bench "$work/paged.yaml" --device simt --variant gate_attention=decode_rows --budget 0.05s
# Of each case the first variant that takes it. Those that decline are named only where none takes it.
chosen=("$assay" bench "$work/paged.yaml" --device simt --chosen --budget 0.05s)
expect 'chosen' 0 '^1 timed, 0 without a figure because they are wrong, 0 unsupported' "${chosen[@]}"
expect 'chosen, after one that declines' 0 'gate_attention/decode_rows .*host' \
  "${chosen[@]}" --variant gate_attention=wgmma,decode_rows --jsonl "$work/chosen.jsonl"
never 'chosen, what declined' UNSUPPORTED "$work/said"
# Decode of ragged lengths is shared out evenly, as in a forward pass.
printf 'op: gate_attention\nbench:\n  - {name: ragged, mode: decode, dtype: bf16, D: 64, H: 2, H_kv: 1, batch: 4, kv_len: {uniform: [1, 1600]}}\n' >"$work/ragged.yaml"
expect 'chosen, ragged' 0 'gate_attention/stream_k .*host' \
  "$assay" bench "$work/ragged.yaml" --device simt --chosen --variant gate_attention=stream,stream_k --seed 1 --budget 0.05s
expect 'chosen, one line' 0 '^1$' grep -c '"bench":"case"' "$work/chosen.jsonl"
expect 'chosen, nobody' 3 '^0 timed, .* 1 unsupported' "${chosen[@]}" --variant gate_attention=wgmma,wgmma_f16
# A file that was cut short: its last case is timed again, and a head of another run is refused.
resumed=("$assay" bench "$work/small.yaml" --device simt --budget 0.05s --variant rms_norm=warp_rows)
expect 'all of it' 0 '^2 timed' "${resumed[@]}" --jsonl "$work/all.jsonl"
{ grep -v '"bench":"end"' "$work/all.jsonl"; printf '{"bench":"case","cut'; } >"$work/r.jsonl.partial"
sed -i -E 's/"median_us":[^,]*,"low_us":[^,]*,"high_us":[^,]*/"median_us":12345,"low_us":12345,"high_us":12345/' "$work/r.jsonl.partial"
expect 'resumed' 0 '^2 timed, 0 without a figure' "${resumed[@]}" --resume "$work/r.jsonl"
expect 'resumed, one case kept' 0 '^1$' grep -c 12345 "$work/r.jsonl"
expect 'resumed, both cases' 0 '^2$' grep -c '"bench":"case"' "$work/r.jsonl"
expect 'resumed, whole' 0 '2 rows in both' "$assay" compare "$work/r.jsonl" "$work/r.jsonl"
expect 'resumed, complete' 0 'has 2 of the cases already' "${resumed[@]}" --resume "$work/r.jsonl"
expect 'resumed, nothing there' 0 '^2 timed' "${resumed[@]}" --resume "$work/new.jsonl"
expect 'resumed, other seed' 2 "r.jsonl: seed: found '1', allowed '2'" "${resumed[@]}" --resume "$work/r.jsonl" --seed 2
expect 'resumed, other budget' 2 "budget_s: found '0.05', allowed '0.06'" "${resumed[@]:0:5}" --budget 0.06s --resume "$work/r.jsonl"
sed 's/"commit":"[^"]*"/"commit":"other"/' "$work/r.jsonl" >"$work/o.jsonl.partial"
expect 'resumed, other program' 2 "commit: found 'other', allowed" "${resumed[@]}" --resume "$work/o.jsonl"
expect 'resumed, and a file' 2 'names the JSONL itself' "${resumed[@]}" --resume "$work/r.jsonl" --jsonl "$work/x.jsonl"
expect nothing 3 '0 timed' "${bench[@]}" --filter nobody
expect operator 3 '0 timed' "$assay" bench rms_norm --filter nobody

# Figures set by hand: the same, and 6 % slower.
sed -E 's/"median_us":[^,]*,"low_us":[^,]*,"high_us":[^,]*/"median_us":10,"low_us":9.95,"high_us":10.05/; s/"halves":[^,]*/"halves":1/' \
  "$work/right.jsonl" >"$work/a.jsonl"
sed -E 's/"median_us":10,"low_us":9.95,"high_us":10.05/"median_us":10.6,"low_us":10.55,"high_us":10.65/' \
  "$work/a.jsonl" >"$work/b.jsonl"
expect same 0 '([0-9]+) rows in both: \1 SAME, 0 FASTER, 0 SLOWER, 0 AMBIGUOUS' "$assay" compare "$work/a.jsonl" "$work/a.jsonl"
expect slower 1 '([0-9]+) rows in both: 0 SAME, 0 FASTER, \1 SLOWER, 0 AMBIGUOUS' "$assay" compare "$work/a.jsonl" "$work/b.jsonl"
expect faster 0 '([0-9]+) rows in both: 0 SAME, \1 FASTER' "$assay" compare "$work/b.jsonl" "$work/a.jsonl"

# A kernel before and after. What short.sh makes of it may not hang on how busy the machine is: the baseline's figures are set by
# hand, 30 times what the first takes and a thirtieth of what the second does.
printf 'op: reglu\nbench:\n  - {name: row, dtype: f32, N: 4, I: 64}\n' >"$work/delay.yaml"
delay=("$work/delay.yaml" --device simt --variant reglu=delay)
expect 'before' 0 'reglu/delay .*host' "$assay" bench "${delay[@]}" --budget 1s --plugin "$delays/delay_300.so" --jsonl "$work/before.jsonl"
baseline() { # US
  sed -E "s/\"median_us\":[^,]*,\"low_us\":[^,]*,\"high_us\":[^,]*/\"median_us\":$1,\"low_us\":$1,\"high_us\":$1/; s/\"halves\":[^,]*/\"halves\":1/" \
    "$work/before.jsonl" >"$work/baseline.jsonl"
}
export ASSAY_BASELINE=$work/baseline.jsonl
baseline 9000
expect 'short tier, no slower' 0 ' 0 SLOWER, ' "$root/bench/short.sh" "$assay" simt "${delay[@]:0:1}" "${delay[@]:3}" --plugin "$delays/delay_300.so"
baseline 30
expect 'short tier, slower' 1 '^host +reglu delay: ' "$root/bench/short.sh" "$assay" simt "${delay[@]:0:1}" "${delay[@]:3}" --plugin "$delays/delay_900.so"
expect 'short tier, says so' 1 'REGRESSION' "$root/bench/short.sh" "$assay" simt "${delay[@]:0:1}" "${delay[@]:3}" --plugin "$delays/delay_900.so"
unset ASSAY_BASELINE
# Rounds of one file become one row.
cat "$work/a.jsonl" "$work/b.jsonl" >"$work/both.jsonl"
expect 'rounds' 0 '([0-9]+) rows in both: 0 SAME, 0 FASTER, 0 SLOWER, \1 AMBIGUOUS' "$assay" compare "$work/a.jsonl" "$work/both.jsonl"
# What two runs of one program differ by is the machine's affair: 1 is right too.
either() { "$@" || [ "$?" -eq 1 ]; }
expect 'alternating' 0 '^[1-9][0-9]* rows in both' either "$root/bench/alternate.sh" "$assay" "$assay" 2 "$work/delay.yaml" --device simt --budget 0.05s
ASSAY_ALTERNATE=$work/kept expect 'alternating, two files' 0 '^[1-9][0-9]* rows in both' either "$root/bench/alternate.sh" "$assay" "$assay" 1 "$work/delay.yaml" "$work/small.yaml" --device simt --budget 0.05s
for op in reglu rms_norm; do
  for side in a b; do
    expect "alternating, kept $op of $side" 0 "\"op\":\"$op\"" grep -m1 "\"op\":\"$op\"" "$work/kept/$side.jsonl"
  done
done
expect 'alternating, a file that is not there' 1 'nowhere.yaml' "$root/bench/alternate.sh" "$assay" "$assay" 1 "$work/nowhere.yaml" --device simt

expect 'alternating nothing' 2 'WHAT: found none' "$root/bench/alternate.sh" "$assay" "$assay" 1 --device simt
expect 'alternating never' 2 "ROUNDS: found '0'" "$root/bench/alternate.sh" "$assay" "$assay" 0 "$work/small.yaml" --device simt

# Scenarios and traces, with models of two layers.
for arch in asynct qwen3; do
  printf 'arch: %s\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 2\nhead_size: 16\nrotated: 16\nintermediate: 96\nvocab: 300\nmax_pos: 256\nblock_size: 8\nseed: 7\n' "$arch" >"$work/$arch.yaml"
done
models=(--model "$work/asynct.yaml" --model "$work/qwen3.yaml" --device simt)
expect scenarios 0 'asynct.yaml / .*qwen3.yaml: [0-9.]+' "$assay" bench scenario large_batch_short_b128 mixed_prefill_b32 --part 16 "${models[@]}" --jsonl "$work/scenario.jsonl"
expect 'scenario, calls' 0 '"op":"gate_attention","variant"' grep '"bench":"scenario"' "$work/scenario.jsonl"
never 'scenario, without a clock of the device' '"graph' "$work/scenario.jsonl"
expect 'scenario, checked' 0 '"agreed_0":[1-8],"agreed_1":[1-8]' grep '"model":"qwen3"' "$work/scenario.jsonl"
expect 'scenario, invariant' 0 'large_batch_short_b128 +invariant [0-9.]+ ms, usual [0-9.]+ and [0-9.]+ ms: [0-9.]+ x' "$assay" bench scenario large_batch_short_b128 --part 16 --invariant "${models[@]}" --jsonl "$work/invariant.jsonl"
expect 'scenario, invariant, lines' 0 '^2 of 6$' awk '/"bench":"scenario"/ { ++all; kept += /"invariant":true/ } END { print kept " of " all }' "$work/invariant.jsonl"
expect 'trace' 0 'azure_conv x 50: 8 requests' "$assay" bench online azure_conv --part 16 --requests 6 --scales 50 --batch 4 --tokens 64 --length 96 --blocks 17 "${models[@]:2}"
expect 'trace, preempted' 0 ' [1-9][0-9]* preempted' "$assay" bench online azure_conv --part 8 --requests 6 --scales 900 --batch 4 --tokens 64 --length 96 --blocks 13 "${models[@]:2}"
expect 'trace, prefixes' 0 ', [1-9][0-9.]* % of the prompts from the cache' "$assay" bench online mooncake --part 64 --requests 10 --scales 2 --batch 4 --tokens 128 --length 200 --blocks 120 "${models[@]:2}" --jsonl "$work/online.jsonl"
expect 'page' 0 'page of assay bench' "$assay" report "$work/scenario.jsonl" -o "$work/page.html"
expect 'page, scenario' 0 'large_batch_short_b128' cat "$work/page.html"
# A peer of scenarios: a program in python3's place leaves lines, and sees what the model's bits are.
mkdir -p "$work/bin" "$work/tmp"
peer() { # what the peer does, with its folder in $2
  printf '#!/bin/sh\n%s\n' "$1" >"$work/bin/python3"
  chmod +x "$work/bin/python3"
}
beside=(env "PATH=$work/bin:$PATH" "TMPDIR=$work/tmp" "$assay" bench scenario mixed_prefill_b32 --part 16 --model "$work/qwen3.yaml" --device simt --peers --jsonl "$work/peers.jsonl")
line='{"bench":"peer","peer":"step","scenario":"mixed_prefill_b32","model":"qwen3","wall_ms":1.5}'
peer "cp \"\$2\"/* $work/; echo '$line' >\"\$2/peer.jsonl\""
expect 'peer' 0 '^qwen3 +mixed_prefill_b32 ' "${beside[@]}"
expect 'peer, its line' 0 '"peer":"step".*"wall_ms":1.5' grep '"bench":"peer"' "$work/peers.jsonl"
expect 'peer, last line' 0 '"bench":"end"' tail -n 1 "$work/peers.jsonl"
expect 'peer, what it is asked' 0 '^\[\{"name":"mixed_prefill_b32","output":4,"wall_ms":[0-9.]+,"limit_ms":0,"expected":\[\{"arch":"qwen3".*"number":0,"prompt":2,' head -n 1 "$work/scenarios.json"
expect 'peer, prompts' 0 '"prompts":\[\[[0-9]+,[0-9]+\],\[[0-9,]+\]\]\}\]$' tail -n 1 "$work/scenarios.json"
expect 'peer, the model' 0 '^[0-9]' "$assay" generate --model "$work/model.json" --ids 1 --steps 4
mv "$work/said" "$work/of_file"
expect 'peer, the same model' 0 '^[0-9]' "$assay" generate --model "$work/qwen3.yaml" --ids 1 --steps 4
cmp -s "$work/said" "$work/of_file" || { printf 'FAIL the peer gets another model\n'; failed=$((failed + 1)); }
expect 'peer, on the page' 0 'page of assay bench' "$assay" report "$work/peers.jsonl" -o "$work/page.html"
expect 'peer, its wall on the page' 0 '<td class="n">1.50</td>' cat "$work/page.html"
peer "echo '$line' >\"\$2/peer.jsonl\"; exit 1"
expect 'peer that is wrong' 1 'mixed_prefill_b32' "${beside[@]}"
peer ': >"$2/peer.jsonl"'
expect 'peer without a line' 1 'FAIL step: not one line for each of 1 scenarios' "${beside[@]}"
peer "echo '{\"bench\":\"peer\",\"peer\":\"step\",\"missing\":\"fa3\"}' >\"\$2/peer.jsonl\""
expect 'peer that is missing' 0 '"missing":"fa3"' sh -c '"$@" && cat "$0"' "$work/peers.jsonl" "${beside[@]}"
peer 'printf half >"$2/peer.jsonl"'
expect 'peer, half a line' 2 "found 'half', allowed whole lines of a peer" "${beside[@]}"
peer ': nothing'
expect 'peer that leaves nothing' 2 'peer.jsonl' "${beside[@]}"
peer 'exit 127'
expect 'no python3' 0 'peers: missing: python3' "${beside[@]}"
expect 'no python3, in the file' 0 '"missing":"python3"' grep '"bench":"peer"' "$work/peers.jsonl"
expect 'no peer of the gate' 0 'step: asynct: no figure' "${beside[@]:0:9}" --model "$work/asynct.yaml" "${beside[@]:11}"
[ -z "$(ls "$work/tmp")" ] || { printf 'FAIL a folder of a peer is left: %s\n' "$(ls "$work/tmp")"; failed=$((failed + 1)); }
expect 'peers of scenarios alone' 2 'needs --jsonl' "$assay" bench scenario --peers --device simt
expect 'unknown scenario' 2 "found 'nobody', allowed: decode_heavy_b32" "$assay" bench scenario nobody
expect 'unknown trace' 2 "found 'nobody', allowed: azure_conv" "$assay" bench online nobody
expect 'no trace' 2 'needs a trace' "$assay" bench online
expect 'unknown word of scenario' 2 "found option '--blocks'" "$assay" bench scenario --blocks 3
expect 'part of nothing' 2 '--part: found .0., allowed: an integer from 1' "$assay" bench scenario --part 0
expect 'peers alone' 2 'needs --jsonl' "${bench[@]}" --peers

expect 'no words' 2 'needs at least one suite' "$assay" bench
expect 'no such suite' 2 'nobody.yaml' "$assay" bench "$work/nobody.yaml"
expect 'unknown option' 2 'found option .--shrink.' "${bench[@]}" --shrink x
expect 'unknown device' 2 'allowed: cuda, simt' "${bench[@]}" --device gpu
expect 'variants of the reference' 2 'has no variants' "${bench[@]}" --device ref --variant rms_norm=warp_rows
expect 'baseline alone' 2 'needs --jsonl' "${bench[@]}" --baseline "$work/right.jsonl"
expect 'baseline is not there' 2 'nobody.jsonl' "${bench[@]}" --jsonl "$work/x.jsonl" --baseline "$work/nobody.jsonl"
printf '{"schema":3}\n' >"$work/other.jsonl"
expect 'baseline of another kind' 2 'is no JSONL of assay bench' "${bench[@]}" --jsonl "$work/x.jsonl" --baseline "$work/other.jsonl"
expect 'two kinds' 2 'is of assay bench, .* is not' "$assay" compare "$work/a.jsonl" "$work/other.jsonl"
head -n -1 "$work/a.jsonl" >"$work/cut.jsonl"
expect 'cut off' 2 'is not whole' "$assay" compare "$work/a.jsonl" "$work/cut.jsonl"
[ ! -e "$work/x.jsonl" ] || { printf 'FAIL a report was begun\n'; failed=$((failed + 1)); }

[ "$failed" -eq 0 ] || { printf 'bench selftest: %d failed\n' "$failed"; exit 1; }
printf 'bench selftest: all good\n'
