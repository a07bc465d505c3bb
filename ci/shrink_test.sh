#!/usr/bin/env bash
# shrink_test.sh ASSAY PLUGIN VARIANT WORK OTHER LOST: from a failing run to a minimal suite, by the commands that a user
# types. PLUGIN: the mutant whose splits do not see the scores to their left; VARIANT is its name. OTHER: the mutant of a
# plain operator that loses a parameter; LOST is its name.
set -uo pipefail

assay=$1 plugin=$2 variant=$3 work=$4 other=$5 lost=$6
cd "$(dirname "$0")/.." || exit 2
rm -rf "$work"
mkdir -p "$work"
folder=$work/smallest said=$work/said.txt

fail() {
  printf 'shrink: %s\n' "$1"
  tail -n 30 "$said"
  exit 1
}
says() { grep -qE -- "$1" "$said" || fail "does not say: $1"; }

"$assay" run conformance/suites/gate_attention.yaml --variant "gate_attention=$variant" --plugin "$plugin" --section check \
  --filter splits --power off --workers 2 --shrink "$folder" >"$said" 2>&1
[ $? -eq 1 ] || fail "assay run --shrink does not end with 1"
says 'fails when kv_len > 256 and splits >= 2'
says 'explained by: split 1 does not see the scores before it \(keys 255 to 255\)'
says "assay replay '[^']*' --plugin '?$plugin'?\$"
says 'smallest after [0-9]+ cases: out: request 0, row 0 of its 1, head 0, channel '

# The suite fails in the same way; so does the replay line, and it cannot be shrunk further.
count=0
for suite in "$folder"/*.yaml; do
  [ -e "$suite" ] || fail "no suite in $folder"
  check=$(sed -n '1s/.*: //p' "$suite")
  "$assay" run "$suite" --variant "gate_attention=$variant" --plugin "$plugin" --power off --jsonl "$work/again.jsonl" >"$said" 2>&1
  [ $? -eq 1 ] || fail "assay run $suite does not end with 1"
  grep -q "\"check\":\"$check\"" "$work/again.jsonl" || fail "$suite does not fail by $check"
  line=$(sed -n "s/.*assay replay '\([^']*\)'.*/\1/p" "$said" | head -n 1)
  "$assay" shrink "$line" --plugin "$plugin" -o "$work/again.yaml" >"$said" 2>&1
  [ $? -eq 1 ] || fail "assay shrink does not end with 1"
  [ "$(sed -n '/^op/,$p' "$suite")" = "$(sed -n '/^op/,$p' "$work/again.yaml")" ] || fail "$suite was not minimal"
  count=$((count + 1))
done

# A parameter that a kernel does not read has a name.
"$assay" run conformance/suites/rms_norm.yaml --variant "rms_norm=$lost" --plugin "$other" --section check --filter /types \
  --power off --workers 2 --shrink "$work/lost" >"$said" 2>&1
[ $? -eq 1 ] || fail "assay run --shrink of $lost does not end with 1"
says 'explained by: eps lost$'

# Nothing to shrink, and what is no case.
passing='gate_attention variant=decode_rows device=simt section=check tier=calibrated mode=decode dtype=f32 kv_dtype=same values=normal H=1 H_kv=1 D=64 block_size=16 F=3 layout=nhd kv_len=3 seed=1'
"$assay" shrink "$passing" >"$said" 2>&1
[ $? -eq 3 ] || fail "assay shrink of a case that passes does not end with 3"
"$assay" shrink "$passing D=7" >"$said" 2>&1
[ $? -eq 2 ] || fail "assay shrink of no case does not end with 2"
"$assay" shrink "$passing" --shrink-budget 0 >"$said" 2>&1
[ $? -eq 2 ] || fail "--shrink-budget 0 does not end with 2"
"$assay" run conformance/suites/gate_attention.yaml --shrink /proc/none/x >"$said" 2>&1
[ $? -eq 2 ] || fail "--shrink into a folder that cannot be made does not end with 2"
printf 'shrink: %d failures made minimal; they fail again as suites and by their lines\n' "$count"
