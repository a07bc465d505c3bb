#!/usr/bin/env bash
# drawn_variants.sh BUILD LEAST CASES [OP...]: asks whether `assay fuzz OP --cases CASES` judges every variant on simt at
# least LEAST times. Without OP, all operators with more than one variant are asked. --selftest: plants a variant that is
# judged too seldom, one that is missing, and a run that fails.
set -uo pipefail
export LC_ALL=C

if [ "${1-}" = --selftest ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  failed=0
  plant() { # NAME STATUS LISTED PRINTED WORDS: an assay that lists the variants LISTED and prints those of PRINTED
    printf '#!/bin/sh\n[ "$1" = list ] && printf "%%b" "%s" && exit 0\nprintf "%%b" "%s"\nexit %s\n' "$3" "$4" "$2" >"$work/assay"
    chmod +x "$work/assay"
    local said status=0
    said=$("$0" "$work" 5 100 op 2>&1) || status=$?
    if [ -z "$5" ] && [ "$status" -eq 0 ]; then return; fi
    if [ -n "$5" ] && [ "$status" -eq 1 ] && grep -q -- "$5" <<<"$said"; then return; fi
    printf 'drawn_variants_selftest: %s: status %s, said: %s\n' "$1" "$status" "$said"
    failed=1
  }
  both='operator variant on\nop a simt any x\nop b simt any x\n'
  plant right 0 "$both" '    variant a: 9 of 9 judged\n    variant b: 5 of 90 judged\n' ''
  plant seldom 0 "$both" '    variant a: 9 of 9 judged\n    variant b: 4 of 90 judged\n' 'op/b: judged 4 times'
  plant never 0 "$both" '    variant a: 9 of 9 judged\n    variant b: 0 of 90 judged: NEVER JUDGED\n' 'op/b: judged 0 times'
  plant missing 0 "$both" '    variant a: 9 of 9 judged\n' 'op: 1 of 2 variants'
  plant fails 1 "$both" '    variant a: 9 of 9 judged\n    variant b: 5 of 90 judged\n' 'op: status 1'
  plant nothing 0 'operator variant on\n' '' 'op: 0 of 0 variants'
  [ "$failed" -eq 0 ] && echo 'drawn_variants_selftest: every planted fault was found'
  exit "$failed"
fi

build=$(cd "$1" && pwd) least=$2 cases=$3
shift 3
failed=0 asked=0
say() { printf 'drawn_variants: %s\n' "$*"; failed=1; }
listed=$("$build/assay" list variants | awk '$3 == "simt" { print $1 }')
[ $# -gt 0 ] || mapfile -t every < <(sort <<<"$listed" | uniq -d)
for op in "${@:-${every[@]}}"; do
  said=$("$build/assay" fuzz "$op" --device simt --seed 1 --cases "$cases" 2>&1 </dev/null)
  status=$?
  [ "$status" -eq 0 ] || say "$op: status $status: $(tail -n 1 <<<"$said")"
  wanted=$(grep -cx "$op" <<<"$listed") found=0
  while read -r _ name count _; do
    found=$((found + 1)) asked=$((asked + 1))
    [ "$count" -ge "$least" ] || say "$op/${name%:}: judged $count times by $cases cases, wanted $least"
  done < <(grep -E '^ *variant .*judged' <<<"$said")
  if [ "$found" -eq 0 ] || [ "$found" -ne "$wanted" ]; then say "$op: $found of $wanted variants in the words of the run"; fi
done
printf 'drawn_variants: %d variants, each to be judged %d times by %d cases\n' "$asked" "$least" "$cases"
exit "$failed"
