#!/usr/bin/env bash
# same_draws.sh BUILD CASES OP...: asks whether `assay fuzz OP... --cases CASES` draws the same cases with one worker and
# with four. The fuzzer learns from results, and tells them to its plan a window late (docs/fuzzing.md): CASES beyond the
# window of 4,096 cases say that no result arrives earlier or later. --selftest plants other cases, and too few.
set -uo pipefail
export LC_ALL=C

if [ "${1-}" = --selftest ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  failed=0
  plant() { # NAME STATUS WORDS CASES_OF_ONE CASES_OF_FOUR: an assay that draws these cases by --workers
    # shellcheck disable=SC2016 # the words of the stand-in
    printf '#!/bin/bash\nwhile [ $# -gt 0 ]; do case $1 in --workers) w=$2 ;; --jsonl) j=$2 ;; esac; shift; done\n[ "$w" = 1 ] && c="%s" || c="%s"\nfor i in $c; do echo "{\\"case\\":\\"$i\\",\\"ms\\":$w}"; done >$j\n' "$4" "$5" >"$work/assay"
    chmod +x "$work/assay"
    local said status=0
    said=$("$0" "$work" 3 op 2>&1) || status=$?
    if [ "$status" -eq "$2" ] && grep -q -- "$3" <<<"$said"; then return; fi
    printf 'same_draws_selftest: %s: status %s, said: %s\n' "$1" "$status" "$said"
    failed=1
  }
  plant right 0 '3 cases' 'a b c' 'a b c'
  plant 'other order' 0 '3 cases' 'a b c' 'c a b'
  plant 'another case' 1 'with four workers: d' 'a b c' 'a b d'
  plant 'too few' 1 'found 2 cases' 'a b' 'a b'
  plant nothing 1 'found 0 cases' '' ''
  [ "$failed" -eq 0 ] && echo 'same_draws_selftest: every planted fault was found'
  exit "$failed"
fi

build=$(cd "$1" && pwd) cases=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf 'same_draws: %s\n' "$*"; exit 1; }
for workers in 1 4; do
  "$build/assay" fuzz "$@" --device simt --seed 5 --cases "$cases" --workers "$workers" --jsonl "$work/$workers.jsonl" </dev/null >"$work/said" 2>&1 ||
    say "$workers workers: status $?: $(tail -n 3 "$work/said")"
  sed -n 's/.*"case":"\([^"]*\)".*/\1/p' "$work/$workers.jsonl" | sort >"$work/$workers"
  found=$(wc -l <"$work/$workers")
  [ "$found" -ge "$cases" ] || say "$workers workers: found $found cases, allowed: at least $cases"
done
cmp -s "$work/1" "$work/4" || say "with one worker: $(comm -23 "$work/1" "$work/4" | head -n 1); with four workers: $(comm -13 "$work/1" "$work/4" | head -n 1)"
echo "same_draws: $found cases are those of one worker and of four"
