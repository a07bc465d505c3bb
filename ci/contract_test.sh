#!/usr/bin/env bash
# contract_test.sh ASSAY PLUGINS: `assay contract` over a right kernel, a kernel that rounds what it does not declare,
# and a kernel that is wrong. Each has its own exit status, and the replay lines do what they say. Status 1 otherwise.
set -uo pipefail

assay=$1 plugins=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# expect NAME STATUS PATTERN ARGUMENT...
expect() {
  local name=$1 wanted=$2 pattern=$3
  shift 3
  "$assay" contract "$@" >"$work/said" 2>&1
  local status=$?
  if [ "$status" -ne "$wanted" ] || ! grep -qE -e "$pattern" "$work/said"; then
    printf 'contract_test: %s: status %s, expected %s and /%s/\n' "$name" "$status" "$wanted" "$pattern"
    cat "$work/said"
    failed=1
  fi
}
few=(--cases 6 --filter decode)

expect 'holds' 0 '^the declared contract holds$' gate_attention "${few[@]}" --variant gate_attention=decode_rows
expect 'the same again' 0 '^contract gate_attention/decode_rows \(simt\): 6 cases' gate_attention "${few[@]}" \
  --variant gate_attention=decode_rows
rounds=(gate_attention "${few[@]}" --plugin "$plugins/rounds_gate_weight.so" --variant gate_attention=decode_rows@rounds_gate_weight)
expect 'p is rounded' 1 '^  p +none +bf16$' "${rounds[@]}"
expect 'p is rounded: the declared one' 1 '^the declared contract does not hold$' "${rounds[@]}"
line=$(grep -m 1 '^  assay replay ' "$work/said")
(cd / && eval "${line/assay/\"$assay\"}") >"$work/replayed" 2>&1
[ $? -eq 1 ] && grep -q '^FAIL' "$work/replayed" || { echo 'contract_test: the replay line does not fail'; failed=1; }
expect 'no rounding' 4 '^no contract explains the results: this is no rounding$' gate_attention "${few[@]}" \
  --plugin "$plugins/gate_last_key.so" --variant gate_attention=decode_rows@gate_last_key
expect 'exact cases have no contract' 3 'no variant took a calibrated case' gate_attention --filter refuse \
  --variant gate_attention=decode_rows
expect 'no suite' 2 'needs at least one suite or operator' --cases 3
expect 'no such variant' 2 "did you mean 'decode_rows'" gate_attention --variant gate_attention=decode_row
expect 'how many cases' 2 'allowed: an integer from 1' gate_attention --cases 0
[ "$failed" -eq 0 ] && printf 'contract_test: all as expected\n'
exit "$failed"
