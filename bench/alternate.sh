#!/usr/bin/env bash
# alternate.sh A B ROUNDS WORDS...: two programs timed in turn on the same cases, A B A B …, so that what the card does in
# between (clocks, heat) is in both; then assay compare of all rounds. Exit status: that of compare.
#   bench/alternate.sh before/assay build/hopper/assay 3 tables --device cuda --budget 0.2s
set -euo pipefail
[ "$#" -ge 4 ] || { sed -n 2,5p "$0" >&2; exit 2; }
a=$1 b=$2 rounds=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for ((round = 1; round <= rounds; ++round)); do
  "$a" bench "$@" --jsonl "$work/one.jsonl" >"$work/said" || { tail -n 5 "$work/said"; exit 1; }
  cat "$work/one.jsonl" >>"$work/a.jsonl"
  "$b" bench "$@" --jsonl "$work/one.jsonl" >"$work/said" || { tail -n 5 "$work/said"; exit 1; }
  cat "$work/one.jsonl" >>"$work/b.jsonl"
done
status=0
"$b" compare "$work/a.jsonl" "$work/b.jsonl" || status=$?
exit "$status"
