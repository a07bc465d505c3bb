#!/usr/bin/env bash
# drawn_mutants.sh BUILD OUT.tsv [I/N [SECONDS]]: asks of every N-th mutant, from the I-th on, whether `assay fuzz` finds it
# within SECONDS (60) on one worker, by drawn cases alone. OUT gets a line per mutant: its name, the operator, found or
# not, the check, the cases until then, and the seconds with the shrinking. Status 1 if a mutant was not found and
# conformance/lists/not-drawn.tsv gives no reason, or if a reason names no mutant or one that was found.
set -uo pipefail
export LC_ALL=C

build=$(cd "$1" && pwd) out=$2 part=${3:-1/1} seconds=${4:-60}
root=$(cd "$(dirname "$0")/.." && pwd)
manifest=$build/conformance/mutants/simt.tsv reasons=$root/conformance/lists/not-drawn.tsv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 asked=0 found=0
cd "$work" || exit 2

say() { printf 'drawn_mutants: %s\n' "$*"; failed=1; }
reason() { awk -F'\t' -v id="$1" '$1 == id { print $2 }' "$reasons"; }
while IFS=$'\t' read -r id why; do
  case $id in '#'* | '') continue ;; esac
  grep -q "^$id"$'\t' "$manifest" || say "$reasons names $id, which is no mutant"
  [ -n "$why" ] || say "$reasons gives no reason for $id"
done <"$reasons"

printf '# mutant\toperator\tresult\tcheck\tcases\tseconds\n' >"$out"
awk -F'\t' -v OFS='\t' -v i="${part%/*}" -v n="${part#*/}" '$9 != "pass" && $13 == "-" && ++count % n == i % n { print $1, $2, $3, $4 }' "$manifest" >"$work/asked"
while IFS=$'\t' read -r id plugin op variants; do
  asked=$((asked + 1))
  [ -e "$plugin" ] || { say "$id: $plugin was not built"; continue; }
  rm -rf past; mkdir past
  grep -L "^op: $op\$" "$root"/fixtures/regressions/*.yaml | head -n 1 | xargs cp -t past # a past failure of another operator: none runs
  start=$(date +%s.%N)
  timeout $((seconds * 4)) "$build/assay" fuzz "$op" --device simt --workers 1 --maxfail 1 --seed 1 --budget "${seconds}s" \
    --regressions past --plugin "$plugin" \
    --variant "$op=$(sed "s/,/@$id,/g; s/\$/@$id/" <<<"$variants")" --jsonl "$work/rows.jsonl" </dev/null >"$work/said" 2>&1
  status=$?
  took=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  bad=$(grep -m 1 -E '"verdict":"(FAIL|CRASH|HANG|STATE)"' "$work"/rows.jsonl* 2>/dev/null)
  check=$(sed -n 's/.*"check":"\([^"]*\)".*/\1/p' <<<"$bad")
  cases=$(grep -h -c '"verdict":' "$work"/rows.jsonl* 2>/dev/null | head -n 1)
  rm -f "$work"/rows.jsonl*
  if [ -n "$bad" ]; then
    found=$((found + 1)) result=found
    [ -z "$(reason "$id")" ] || say "$id was found, and $reasons says why it is not"
  else
    result=missed
    [ "$status" -eq 0 ] || [ "$status" -eq 1 ] || { result="status_$status"; tail -n 2 "$work/said"; }
    [ -n "$(reason "$id")" ] || say "$id of $op: not found in $seconds s (status $status), and without a reason"
  fi
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$id" "$op" "$result" "${check:--}" "${cases:-0}" "$took" >>"$out"
done <"$work/asked"
[ "$asked" -gt 0 ] || say "no mutant was asked"
printf 'drawn_mutants: %d of %d found by drawn cases within %s s each\n' "$found" "$asked" "$seconds"
exit "$failed"
