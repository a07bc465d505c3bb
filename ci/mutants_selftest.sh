#!/usr/bin/env bash
# mutants_selftest.sh ASSAY MANIFEST: tries `assay mutants` where it must fail. It plants a mutant that survives, one
# killed by another check, and a control that is none. A plug-in is missing, or a manifest is wrong. Status 1 otherwise.
set -uo pipefail

assay=$1 manifest=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 more=()

# row ID COLUMN VALUE...: the mutant's line with columns replaced.
row() {
  awk -F'\t' -v OFS='\t' -v id="$1" -v changes="${*:2}" '$1 == id { n = split(changes, c, " "); for (i = 1; i < n; i += 2) $c[i] = c[i + 1]; print }' "$manifest"
}
# expect NAME STATUS PATTERN: what the manifest in $work/m does.
expect() {
  "$assay" mutants "$work/m" "${more[@]}" --jsonl "$work/out.jsonl" >"$work/said" 2>&1
  local status=$?
  if [ "$status" -ne "$2" ] || ! grep -qE -e "$3" "$work/said" "$work/out.jsonl"; then
    printf 'mutants_selftest: %s: status %s, expected %s and /%s/\n' "$1" "$status" "$2" "$3"
    cat "$work/said"
    failed=1
  fi
  rm -f "$work/out.jsonl"
}

row gate_last_key >"$work/m"
expect 'killed' 0 '^mutants: 1 of 1 killed'
expect 'killed: as an object' 0 '^[{]"mutant":"gate_last_key".*"killed":true,"good":true,"check":"exact".*"replay":"assay replay .*"vllm":true'
expect 'killed: its line names the plug-in' 0 '"replay":"assay replay [^"]* --plugin [^" ]*gate_last_key[^" ]*"'
row gate_last_key 9 guard >"$work/m"
expect 'killed by another check' 1 'it was made for: guard'
expect 'killed by another check: its line' 1 "^  assay replay '[^']*' --plugin [^ ]*gate_last_key"
row gate_block_offset 9 permutation >"$work/m"
expect 'dies in case after case' 1 '"check":"crash".*"deaths":6,'
# The unchanged copy as a mutant: nothing kills it.
row control_gate 9 exact 4 decode_rows 6 refuse >"$work/m"
expect 'survives' 1 'SURVIVES'
row gate_last_key 9 pass >"$work/m"
expect 'a control that is wrong' 1 'FALSE ALARM'
more=(--controls 3)
expect 'a part of a control' 1 'gate_last_key .*FALSE ALARM'
row control_copy_blocks >"$work/m"
expect 'a third of a control' 0 ' 1 of 1 controls pass, [1-9][0-9]* cases'
third=$(sed -n 's/.* pass, \([0-9]*\) cases.*/\1/p' "$work/said")
more=()
expect 'all of a control' 0 ' 1 of 1 controls pass, [1-9][0-9]* cases'
all=$(sed -n 's/.* pass, \([0-9]*\) cases.*/\1/p' "$work/said")
[ "$third" -gt 0 ] && [ "$third" -le $((all / 2)) ] || { printf 'mutants_selftest: --controls 3: %s of %s cases\n' "$third" "$all"; failed=1; }
row control_gate 8 no_such_case >"$work/m"
expect 'no case is chosen' 1 'no case of its suite is chosen'
row gate_last_key 2 "$work/none.so" >"$work/m"
expect 'no plug-in' 1 'NOT RUN'
# A must-pass list that kills, and one that kills none: a single mutant may be missed, and two may not.
"$assay" list cases gate_attention | sed 's/^[^:]*: //' | head -n 40 >"$work/strong"
"$assay" list cases gate_attention | sed 's/^[^:]*: //' | grep 'section=refuse' | head -n 9 >"$work/weak"
"$assay" list cases rms_norm | sed 's/^[^:]*: //' | head -n 9 >"$work/other"
{ row gate_last_key; row gate_block_offset; } >"$work/m"
more=(--list "$work/strong")
expect 'a list that kills' 0 '^list .*: 40 cases kill 2 of the 2 mutants'
expect 'a list that kills: as an object' 0 '"listed":true.*'
more=(--list "$work/weak")
expect 'a list that kills none' 1 '^list .*: 9 cases kill 0 of the 2 mutants'
more=(--list "$work/other")
expect 'a list of another operator' 1 'no case of the operators of 2 more'
more=(--list "$work/weak")
row gate_last_key >"$work/m"
expect 'a single mutant is missed' 0 'no case of the list kills it'
more=(--shard 3/3)
expect 'an empty shard' 2 'no mutant has this'
more=()
printf 'id\tplugin\n' >"$work/m"
expect 'columns' 2 'm:1: found 2 columns, allowed 13'
: >"$work/m"
expect 'empty' 2 'names no mutant'
rm "$work/m"
expect 'no manifest' 2 'cannot be read'
[ "$failed" -eq 0 ] && printf 'mutants_selftest: all as expected\n'
exit "$failed"
