#!/usr/bin/env bash
# alternate.sh A B ROUNDS WHAT... [OPTIONS]: two programs timed in turn on the same cases, A B A B …, one WHAT (a table's
# file, or what else assay bench takes; tables: each of bench/tables) after the other, so that what the card does in between
# (clocks, heat) is in both; then assay compare of all. Exit status: that of compare. ASSAY_ALTERNATE: a folder to keep
# a.jsonl and b.jsonl in, and what has been said.
#   bench/alternate.sh before/assay build/hopper/assay 3 tables --device cuda --budget 0.2s
set -euo pipefail
[ "$#" -ge 4 ] || { sed -n 2,7p "$0" >&2; exit 2; }
a=$1 b=$2 rounds=$3
shift 3
root=$(cd "$(dirname "$0")/.." && pwd)
what=()
while [ "$#" -gt 0 ] && [ "${1#--}" = "$1" ]; do
  if [ "$1" = tables ]; then what+=("$root"/bench/tables/*.yaml); else what+=("$1"); fi
  shift
done
[ "${#what[@]}" -gt 0 ] || { echo "alternate.sh: WHAT: found none before the options, allowed: tables, or files of them" >&2; exit 2; }
case $rounds in '' | *[!0-9]* | 0) echo "alternate.sh: ROUNDS: found '$rounds', allowed: 1 and above" >&2; exit 2 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${ASSAY_ALTERNATE:-$work}
mkdir -p "$out"
: >"$out/a.jsonl"
: >"$out/b.jsonl"
# one PROGRAM IT INTO OPTIONS...: a run, whole or not at all.
one() {
  local program=$1 it=$2 into=$3
  shift 3
  "$program" bench "$it" "$@" --jsonl "$work/one.jsonl" >"$out/said" || { tail -n 5 "$out/said"; exit 1; }
  cat "$work/one.jsonl" >>"$out/$into.jsonl"
}
for each in "${what[@]}"; do
  for ((round = 1; round <= rounds; ++round)); do
    one "$a" "$each" a "$@"
    one "$b" "$each" b "$@"
  done
done
status=0
"$b" compare "$out/a.jsonl" "$out/b.jsonl" || status=$?
exit "$status"
