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
# Of two mutants the first is run again, and compared by tolerance; the second is not.
{ row gate_last_key; row gate_block_offset; } >"$work/m"
more=(--again 2)
expect 'one of two is run again' 0 '^mutants: 2 of 2 killed .*; plain allclose, asked of 1, catches'
expect 'one of two is run again: the other' 0 '^gate_block_offset .* [?]  *[?]  *[?]'
more=()
expect 'both are run again' 0 '^mutants: 2 of 2 killed .*; plain allclose, asked of 2, catches'
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
# Of this item a thinned run does not ask the variant: nothing is left that could kill its mutant.
row gate_last_key 8 /stream_k_rows 6 edge >"$work/m"
expect 'a variant of the night' 0 '^mutants: 1 of 1 killed'
more=(--thin)
expect 'a variant of the night, by day' 1 'no case of its suite is chosen'
more=()
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
expect 'an empty shard' 2 'no mutant has this place'
more=(--filter nowhere)
expect 'a filter of none' 2 "^assay: --filter: found 'nowhere': no mutant has this in its name"
# A file of what a list kills: each mutant in it must die by the list alone. Mutants that it does not name are left out.
{ row gate_last_key; row gate_block_offset; row control_gate; row cublaslt_narrow_bias; } >"$work/m"
# kills NAME...: the file has these names.
kills() { { printf '# what the list kills\n'; printf '%s\n' "$@"; } >"$work/kills"; }
kills gate_last_key
more=(--list "$work/strong" --kills "$work/kills")
expect 'what a list kills' 0 '^list .*: 40 cases kill 1 of the 1 mutants that .*kills names here'
expect 'what a list kills: as an object' 0 '^[{]"mutant":"gate_last_key".*"good":true,"listed":true.*"replay":"assay replay '
expect 'what a list kills: the sum' 0 '^[{]"summary":"kills","cases":40,"kills":1,"of":1[}]'
kills gate_last_key gate_block_offset
more=(--list "$work/weak" --kills "$work/kills")
expect 'a list that no longer kills' 1 'kill 0 of the 2 mutants'
kills gate_last_key
expect 'a list that no longer kills a single one' 1 'kill 0 of the 1 mutants'
more=(--list "$work/other" --kills "$work/kills")
expect 'what a list of another operator kills' 1 'kill 0 of the 1 mutants'
more=(--list "$work/strong" --kills "$work/kills" --shard 2/2)
expect 'no name in the shard' 2 'no mutant has this place'
more=(--kills "$work/kills")
expect 'names and no list' 2 'found no --list'
more=(--list "$work/strong" --kills "$work/kills")
kills gate_last_key no_such
expect 'a name of no mutant' 2 "kills:3: found 'no_such', which the manifest does not have"
kills gate_last_key gate_last_key
expect 'a name twice' 2 "kills:3: found 'gate_last_key', a second time"
kills control_gate
expect 'the name of a control' 2 "found 'control_gate', a control"
kills cublaslt_narrow_bias
expect 'a name that the device does not show' 2 'which this device does not show'
kills
expect 'no name' 2 'kills: names no mutant'
rm "$work/kills"
expect 'no file of names' 2 'kills: cannot be read'
more=()
printf 'id\tplugin\n' >"$work/m"
expect 'columns' 2 'm:1: found 2 columns, allowed 13'
: >"$work/m"
expect 'empty' 2 'names no mutant'
rm "$work/m"
expect 'no manifest' 2 'cannot be read'
[ "$failed" -eq 0 ] && printf 'mutants_selftest: all as expected\n'
exit "$failed"
