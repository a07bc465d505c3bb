#!/usr/bin/env bash
# laws.sh BUILD: every law of the table (`assay list laws`) has a row in docs/judging.md. The row says in how many cases
# the law is asked. No row there is about a law that the table lacks. Status 1 when they differ.
# laws.sh BUILD --selftest plants a missing row, a wrong share and an unknown law.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:?laws.sh BUILD [--selftest]}
page=${ASSAY_LAWS_PAGE:-$root/docs/judging.md}

if [ "${2:-}" = --selftest ]; then
  scratch=$(mktemp)
  trap 'rm -f "$scratch"' EXIT
  for edit in '/^| `far`/d' '/^| `pages`/s/one case of four/one case of five/' 's/^| `graph`/| `graf`/'; do
    sed "$edit" "$page" >"$scratch"
    if ASSAY_LAWS_PAGE=$scratch "$0" "$build" >/dev/null; then
      printf 'laws: selftest: does not see: %s\n' "$edit" >&2
      exit 1
    fi
  done
  echo 'laws: selftest: 3 passed'
  exit 0
fi

"$build/assay" list laws | awk -v page="$page" '
  BEGIN { split("one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen", word, " ") }
  NR == 1 { next }
  { share[$1] = $2; count++ }
  END {
    while ((getline line < page) > 0) {
      if (line !~ /^\| `[a-z_]+`/ ) continue
      name = line
      sub(/^\| `/, "", name)
      sub(/`.*/, "", name)
      if (line !~ /^\| `[a-z_]+` \| one case of [a-z]+/) continue
      said = line
      sub(/^[^|]*\|[^|]*\| one case of /, "", said)
      sub(/[^a-z].*/, "", said)
      if (!(name in share)) { printf "laws: %s: a row about %s, which `assay list laws` does not have\n", page, name; bad++; continue }
      if (said != word[share[name]]) { printf "laws: %s: %s: one case of %s, but the table says one in %d\n", page, name, said, share[name]; bad++ }
      seen[name] = 1
    }
    for (name in share) if (!(name in seen)) { printf "laws: %s: no row says in how many cases %s is asked\n", page, name; bad++ }
    if (count == 0) { print "laws: the table is empty"; bad++ }
    exit bad > 0
  }' || exit 1
echo "laws: the table and docs/judging.md agree"
