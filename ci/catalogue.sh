#!/usr/bin/env bash
# catalogue.sh [CATALOGUE LIST...]: compares conformance/mutants/catalogue.def with the lists of mutants. Every
# catalogued mistake has its row. Every row has one of these: mutants, which name it in turn; mistakes planted by a
# test; a line that `ci/sanitize.sh races` removes; a reason why none can be. Leaving rows out thus cannot raise the
# share of mutants that are killed. Status 1 otherwise. ci/catalogue.sh --rows prints the ids.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# How many rows each class has: catalogued bugs, short entries (x), lessons.
classes='SY:8 MK:7 LA:9 EM:7 NU:7 SA:8 SP:8 BL:6 PO:4 OV:3 QU:4 PG:6 GR:5
  SYx:4 MKx:4 LAx:2 SAx:2 SPx:1 PGx:1 POx:1 OVx:2 GRx:1 QUx:1 NUx:3 BLx:4 L:16'
wanted=$(for class in $classes; do for ((i = 1; i <= ${class#*:}; ++i)); do printf '%s%d\n' "${class%:*}" "$i"; done; done)
if [ "${1:-}" = --rows ]; then
  printf '%s\n' "$wanted"
  exit 0
fi
catalogue=${1:-conformance/mutants/catalogue.def}
shift
lists=("$@")
if [ ${#lists[@]} -eq 0 ]; then
  for list in conformance/mutants/*.def; do [ "$list" = conformance/mutants/catalogue.def ] || lists+=("$list"); done
fi

printf '%s\n' "$wanted" | awk '
  function say(text) { print "catalogue: " text; bad = 1 }
  function close_row() {
    if (row == "") return
    if (what == "") say(row ": says nothing of the mistake")
    if (row !~ /^L[0-9]/ && link !~ /^https?:/) say(row ": has no link")
    if (mutants planted removed == "" && reason == "") say(row ": has no mutant and no reason")
    if (mutants planted removed != "" && reason != "") say(row ": has mutants and a reason why there are none")
    row = ""
  }
  FNR == 1 { ++file }
  file == 1 { wanted[$1] = 1; next }
  file == 2 && $1 == "row" {
    close_row()
    row = $2; what = link = mutants = planted = removed = reason = ""
    if (row in seen) say(row ": stands there twice")
    if (!(row in wanted)) say(row ": no such row is known")
    seen[row] = 1
  }
  file == 2 && row == "" { next }
  file == 2 && $1 == "what" { what = $0 }
  file == 2 && $1 == "link" { link = $2 }
  file == 2 && $1 == "none" { reason = $2 }
  file == 2 && $1 == "planted" {
    planted = $2
    if (NF < 3) say(row ": names no planted mistake")
    text = ""
    while ((getline line < $2) > 0) text = text "\n" line
    close($2)
    for (i = 3; i <= NF; ++i) if (index(text, "{" $i ",") == 0) say(row ": " $2 " plants no " $i)
    tests[row] = 1
  }
  file == 2 && $1 == "removed" {
    removed = $2
    text = ""
    while ((getline line < $2) > 0) text = text line
    close($2)
    if (NF != 3 || index(text, $3) == 0) say(row ": " $2 " has no " $3)
    tests[row] = 1
  }
  file == 2 && $1 == "mutants" {
    mutants = $2
    for (i = 2; i <= NF; ++i) named[row " " $i] = 1
  }
  file > 2 && $1 == "mutant" {
    id = $2
    if (id in there) say("mutant " id ": stands there twice")
    there[id] = 1
  }
  file > 2 && $1 == "ids" {
    for (i = 2; i <= NF; ++i) {
      if (!($i in wanted)) say("mutant " id ": names " $i ", which is no row")
      names[$i " " id] = 1
    }
  }
  END {
    close_row()
    for (id in wanted) if (!(id in seen)) say(id ": missing")
    for (pair in named) {
      split(pair, part, " ")
      if (!(part[2] in there)) say(part[1] ": names mutant " part[2] ", which there is not")
      else if (!(pair in names)) say(part[1] ": names mutant " part[2] ", which does not name it")
    }
    for (pair in names) if (!(pair in named)) { split(pair, part, " "); say("mutant " part[2] ": names " part[1] ", whose row does not name it") }
    for (pair in named) { split(pair, part, " "); with[part[1]] = 1 }
    rows = have = count = 0
    for (id in seen) { ++rows; have += (id in with) || (id in tests) }
    for (id in there) ++count
    if (!bad) printf "catalogue: %d rows, %d with mutants, %d with a reason; %d mutants and controls\n", rows, have, rows - have, count
    exit bad
  }' - "$catalogue" "${lists[@]}" || exit 1

# Those that a GPU alone shows are not built here: their originals must be there all the same.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
for list in "${lists[@]}"; do
  simt=$(conformance/mutants/manifest.sh --ids simt "$list") && cuda=$(conformance/mutants/manifest.sh --ids cuda "$list") || exit 1
  mapfile -t alone < <(comm -13 <(sort <<<"$simt") <(sort <<<"$cuda"))
  [ ${#alone[@]} -eq 0 ] || conformance/mutants/make.sh "$list" . "$work" "${alone[@]}" || status=1
done
exit "$status"
