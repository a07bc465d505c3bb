#!/usr/bin/env bash
# mustpass.sh BUILD MUTANTS.jsonl...: prints a must-pass list, chosen from the suites. First come the cases that were the
# first to kill a mutant in the matrices given, as `assay mutants --jsonl` writes them. Then comes one case of each
# item that has none yet. docs/conformance.md describes the list. A list that was published never changes: a new choice
# gets a new number.
set -euo pipefail
export LC_ALL=C

build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for device in simt cuda; do
  "$build/assay" list cases "$root/conformance/suites" --device "$device" | sed 's/^[^:]*: //' >"$work/$device"
done
# The descriptor of each kill, without the choices of its run.
cat "$@" | sed -n "s/.*\"replay\":\"assay replay '\([^']*\)'.*/\1/p" |
  sed 's/ variant=[^ ]*//; s/ device=[^ ]*//' >"$work/kills"
awk -v kills="$work/kills" -v simt="$work/simt" -v cuda="$work/cuda" '
  function item(line) { match(line, /suite=[^ ]* section=[^ ]* name=[^ ]*/); return substr(line, RSTART, RLENGTH) }
  function put(line) {
    if (line in put_already) return
    put_already[line] = 1
    covered[item(line)] = 1
    print line (line in on_simt && !(line in on_cuda) ? " device=simt" : "")
  }
  BEGIN {
    while ((getline line < cuda) > 0) on_cuda[line] = 1
    while ((getline line < simt) > 0) { on_simt[line] = 1; order[++count] = line }
    # Cases that kill many mutants come first. A kill of another seed is a case as well.
    while ((getline line < kills) > 0) if (++times[line] == 1) killer[++killers] = line
    for (most = killers; most > 0; --most)
      for (i = 1; i <= killers; ++i)
        if (times[killer[i]] == most) put(killer[i])
    for (i = 1; i <= count; ++i)
      if (!(item(order[i]) in covered) && order[i] in on_cuda && item(order[i]) !~ /section=bench/) put(order[i])
  }' >"$work/list"
cat "$work/list"
