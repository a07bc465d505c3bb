#!/usr/bin/env bash
# operators.sh BUILD [--update]: docs/operators.md is what the program says of its operators, and each of them is confirmed
# by something. --update writes the file.
set -euo pipefail

cd "$(dirname "$0")/.."
assay=$1/assay
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$assay" list ops --markdown >"$said"
if [ "${2:-}" = --update ]; then
  cp "$said" docs/operators.md
  chmod 644 docs/operators.md
fi
bad=0
if ! diff -u docs/operators.md "$said"; then
  echo "operators.sh: docs/operators.md is not what the contracts say; ci/operators.sh BUILD --update writes it"
  bad=1
fi
for op in $(sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' include/assay/ops.def); do
  grep -qx "## $op" "$said" || { echo "operators.sh: $op: not among the operators listed"; bad=1; }
  if sed -n "/^## $op\$/,/^## /p" "$said" | grep -q 'Confirmed by: nothing\.'; then
    echo "operators.sh: $op: confirmed_by is NULL: what confirms its reference without sharing code with it?"
    bad=1
  fi
  # The text form names it as well, with what its suite has.
  "$assay" list ops | awk -v op="$op" '$1 == op { on = 1; next } /^[a-z]/ { on = 0 } on && $1 == "suite" { found = $0 ~ /check/ && $0 ~ /refuse/ } END { exit !found }' ||
    { echo "operators.sh: $op: its suite lacks check or refuse"; bad=1; }
done
exit $bad
