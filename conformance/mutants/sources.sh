#!/usr/bin/env bash
# sources.sh COMPILER LIST ROOT BUILT: what each mutant of LIST is compiled from, as the compiler lists it with the
# mutant's own flags (BUILT/ID/flags): its operator's .cu and every file that its entry changes, from its copy of gpu/,
# and nothing from ROOT/gpu. Status 1 otherwise.
set -euo pipefail

compiler=$1 list=$2 root=$(realpath "$3") built=$(realpath "$4")
mutants=0 bad=0
for id in $("$(dirname "$0")/manifest.sh" --ids simt "$list"); do
  mutants=$((mutants + 1))
  read_files=$("$compiler" -std=c++20 -M "@$built/$id/flags" "$built/$id/$id.cpp" | sed 's/^[^ ]*://; s/\\$//' | xargs realpath)
  if original=$(grep -F "$root/gpu/" <<<"$read_files"); then
    printf 'mutant %s: reads the original: %s\n' "$id" "$original"
    bad=1
  fi
  for file in $(awk -v id="$id" '
    $1 == "mutant" { on = $2 == id; stem = "" }
    on && $1 == "kernel" { stem = $2 }
    on && $1 == "op" { print "gpu/" (stem == "" ? $2 : stem) ".cu" }
    on && $1 == "file" { print $2 }' "$list" | sort -u); do
    grep -qxF "$built/$id/$file" <<<"$read_files" || { printf 'mutant %s: does not read its copy of %s\n' "$id" "$file"; bad=1; }
  done
done
[ "$mutants" -gt 0 ] || { echo "sources.sh: $list names no mutant"; exit 1; }
[ "$bad" -eq 0 ] || exit 1
printf '%d mutants: each read from its copy of gpu/ alone, with the files that it changes\n' "$mutants"
