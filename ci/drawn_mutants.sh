#!/usr/bin/env bash
# drawn_mutants.sh BUILD OUT.tsv [I/N [SECONDS]]: asks of every N-th mutant, from the I-th on, whether `assay fuzz` finds it
# within SECONDS (60) of a processor on one worker, by drawn cases alone. On a crowded host a campaign that ends too early
# is begun again with a longer budget. OUT gets a line per mutant: its name, the operator, found or not, the check, the
# cases until then, and the processor's seconds with the shrinking. Status 1 if a mutant was not found and
# conformance/lists/not-drawn.tsv ($NOT_DRAWN) gives no reason, or if a reason names no mutant or one that was found.
# --selftest: plants mutants that are found, missed and found late.
set -uo pipefail
export LC_ALL=C

if [ "${1-}" = --selftest ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/conformance/mutants"
  failed=0
  # An assay that finds mutant `early` at once, `late` with a budget of 3 s and more, and `never` not at all. It works for
  # a quarter of its budget.
  cat >"$work/assay" <<'PLANTED'
#!/bin/bash
while [ $# -gt 0 ]; do
  case $1 in --budget) budget=${2%s} ;; --jsonl) rows=$2 ;; --variant) variant=$2 ;; esac
  shift
done
end=$((budget * 250000 + ${EPOCHREALTIME/./}))
case $variant in *@early) end=0 ;; *@late) [ "$budget" -lt 3 ] || end=0 ;; esac
while [ "${EPOCHREALTIME/./}" -lt "$end" ]; do :; done
[ "$end" -ne 0 ] || echo '{"case":"op","verdict":"FAIL","check":"exact"}' >"$rows"
[ "$end" -ne 0 ]
PLANTED
  chmod +x "$work/assay"
  plant() { # plant NAME STATUS MUTANT REASONS WORDS
    local said status=0
    printf '%s\t%s\top\tv\te\t-\t-\t-\tfail\t-\t-\t-\t-\n' "$3" "$work/assay" >"$work/conformance/mutants/simt.tsv"
    printf '%b' "$4" >"$work/reasons"
    said=$(NOT_DRAWN=$work/reasons "$0" "$work" "$work/out" 1/1 1 2>&1) || status=$?
    [ "$status" -eq "$2" ] && grep -q -- "$5" <<<"$said" && return
    printf 'drawn_mutants_selftest: %s: status %s, said: %s\n' "$1" "$status" "$said"
    failed=1
  }
  plant found 0 early '' '1 of 1 found'
  plant 'found late on a crowded host' 0 late '' '1 of 1 found'
  plant missed 1 never '' 'never of op: not found in 1 s'
  plant 'missed with a reason' 0 never 'never\tits reason\n' '0 of 1 found'
  plant 'found with a reason' 1 early 'early\tits reason\n' 'early was found, and'
  plant 'a reason of no mutant' 1 early 'other\tits reason\n' 'other, which is no mutant'
  plant 'an empty reason' 1 never 'never\t\n' 'gives no reason for never'
  [ "$failed" -eq 0 ] && echo 'drawn_mutants_selftest: every planted fault was found'
  exit "$failed"
fi

build=$(cd "$1" && pwd) out=$2 part=${3:-1/1} seconds=${4:-60}
root=$(cd "$(dirname "$0")/.." && pwd)
manifest=$build/conformance/mutants/simt.tsv reasons=${NOT_DRAWN:-$root/conformance/lists/not-drawn.tsv}
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
  budget=$seconds
  while :; do
    rm -f "$work"/rows.jsonl*
    TIMEFORMAT='%U %S'
    { time timeout $((budget * 4)) "$build/assay" fuzz "$op" --device simt --workers 1 --maxfail 1 --seed 1 --budget "${budget}s" \
      --regressions past --plugin "$plugin" \
      --variant "$op=$(sed "s/,/@$id,/g; s/\$/@$id/" <<<"$variants")" --jsonl "$work/rows.jsonl" </dev/null >"$work/said" 2>&1; } 2>"$work/took"
    status=$?
    took=$(awk 'END { printf "%.1f", $1 + $2 }' "$work/took")
    bad=$(grep -m 1 -E '"verdict":"(FAIL|CRASH|HANG|STATE)"' "$work"/rows.jsonl* 2>/dev/null)
    # The same cases come again, and more of them.
    again=$(awk -v took="$took" -v budget="$budget" -v seconds="$seconds" \
      'BEGIN { if (took < 0.9 * seconds && budget < 16 * seconds) print int(1 + budget * (took > seconds / 8 ? seconds / took : 8)) }')
    [ -z "$bad" ] && [ -n "$again" ] || break
    budget=$again
  done
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
