#!/usr/bin/env bash
# operators.sh BUILD [--update]: docs/operators.md and the pages of docs/operators are what the program says of its
# operators, and each of them is confirmed by something. --update writes the files.
set -euo pipefail

cd "$(dirname "$0")/.."
assay=$1/assay
work=$(mktemp -d)
said=$work/said
trap 'rm -rf "$work"' EXIT
"$assay" list ops --markdown >"$said"

# The list, with links to the pages; a page per operator.
mkdir -p "$work/pages/operators"
awk -v pages="$work/pages" '
  /^## / { page = pages "/operators/" $2 ".md"; print "# " $2 >page; next }
  page == "" { print >(pages "/operators.md"); next }
  { print >page }' "$said"
for page in "$work/pages/operators.md" "$work"/pages/operators/*.md; do
  # No page ends with an empty line.
  [ ! -f "$page" ] || printf '%s\n' "$(cat "$page")" >"$page.whole"
  [ ! -f "$page" ] || mv "$page.whole" "$page"
done
if [ "${2:-}" = --update ]; then
  rm -rf docs/operators
  cp -r "$work/pages/operators.md" "$work/pages/operators" docs/
  chmod -R u=rwX,go=rX docs/operators docs/operators.md
fi
bad=0
if ! diff -u docs/operators.md "$work/pages/operators.md" || ! diff -ur docs/operators "$work/pages/operators"; then
  echo "operators.sh: docs/operators.md is not what the contracts say; ci/operators.sh BUILD --update writes it"
  bad=1
fi
for op in $(sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' include/assay/ops.def); do
  grep -qx "## $op" "$said" || { echo "operators.sh: $op: not among the operators listed"; bad=1; }
  if grep -q 'Confirmed by: nothing\.' < <(sed -n "/^## $op\$/,/^## /p" "$said"); then
    echo "operators.sh: $op: confirmed_by is NULL: what confirms its reference without sharing code with it?"
    bad=1
  fi
  # The confirmation is a test that exists and knows the operator.
  tests=$(sed -n "/^## $op\$/,/^## /p" "$said" | sed -n '/Confirmed by: /,/^$/p' | grep -oE '\(ref_[a-z0-9_]*_test\)' | tr -d '()' || true)
  [ -n "$tests" ] || { echo "operators.sh: $op: confirmed_by names no test, allowed: (ref_NAME_test) of conformance/selftest"; bad=1; }
  for test in $tests; do
    file=conformance/selftest/$test.c
    if [ ! -f "$file" ]; then
      echo "operators.sh: $op: confirmed_by names $test, and $file does not exist"
      bad=1
    elif ! grep -qE "assay_op_$op\b|\"$op\"" "$file"; then
      echo "operators.sh: $op: confirmed_by names $test, which does not know the operator"
      bad=1
    fi
  done
  # The text form names it as well, with what its suite has.
  "$assay" list ops | awk -v op="$op" '$1 == op { on = 1; next } /^[a-z]/ { on = 0 } on && $1 == "suite" { found = $0 ~ /check/ && $0 ~ /refuse/ } END { exit !found }' ||
    { echo "operators.sh: $op: its suite lacks check or refuse"; bad=1; }
done
exit $bad
