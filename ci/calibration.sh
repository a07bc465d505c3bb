#!/usr/bin/env bash
# calibration.sh BUILD last SEED: takes what conform.sh has just run, BUILD/conform.jsonl, if it is a whole run of this
# program; otherwise as the following.
# calibration.sh BUILD SEED...: derives the limits of tier 2 (conformance/trial/kappa.c) anew from clean runs with these
# seeds. It runs the suites of all operators that have limits of their own. From 12 seeds on it also runs drawn cases:
# 120,000 of the attentions; 200,000 of all; in f32 400,000 of the norms and 500,000 of the others. In f32 a row's mean
# is a single draw, and its tail the longest. Each row of the table has a largest RMS of the error over RMS of sigma
# that was seen. It may not be above 85 % of the limit. With at least 12 seeds the limit may not be above 1.5 times of
# it; fewer seeds do not reach the tails. Prints the table with what it saw; status 1 if a row does not hold or was
# never judged.
set -euo pipefail

build=$1
assay=$build/assay
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$assay" list limits | sed '/^ *operator /d' >"$work/limits"
mapfile -t operators < <(awk '$2 != "any" { print $2 }' "$work/limits" | sort -u)
suites=("${operators[@]/#/$root/conformance/suites/}")
if [ "$1" = last ]; then
  shift
  # The same program says the same of itself; a run of parts of the suites is not whole.
  "$assay" run "${suites[0]}.yaml" --power off --shard 1/1000 --jsonl "$work/self" >/dev/null || true
  binary=$(head -n 1 "$work"/self* 2>/dev/null | grep -oE '"binary":"[0-9a-f]+"' || true)
  rm -f "$work"/self*
  first=$(head -n 1 "$build/conform.jsonl" 2>/dev/null || true)
  if [ -n "$binary" ] && [[ $first == *"$binary"* && $first == *'"device":"simt"'* && $first == *'"whole":true'* && $first == *'"every_variant":true'* ]]; then
    ln -s "$(realpath "$build/conform.jsonl")" "$work/last.jsonl"
    echo "from the run of conform.sh"
    set -- last
  fi
fi
for seed in "$@"; do
  [ "$seed" != last ] || continue
  "$assay" run "${suites[@]/%/.yaml}" --power off --seed "$seed" --jsonl "$work/$seed.jsonl" >"$work/text" ||
    { tail -n 5 "$work/text"; exit 1; }
done
if [ $# -ge 12 ]; then # drawn cases reach shapes that no suite has; what fails there is counted like the rest
  "$assay" fuzz gate_attention softmax_attention --cases 120000 --budget 1h --seed 11 --jsonl "$work/fuzz.jsonl" >"$work/text" || true
  mapfile -t all < <(sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' "$root/include/assay/ops.def" | sort)
  for seed in 2026 41; do
    "$assay" fuzz "${all[@]}" --cases 100000 --budget 1h --seed "$seed" --jsonl "$work/all.$seed.jsonl" >"$work/text" || true
  done
  norms=(rms_norm add_rms_norm qk_norm layer_norm add_layer_norm uclip_norm add_uclip_norm post_attn_pre_mlp_uclip)
  mapfile -t others < <(printf '%s\n' "${operators[@]}" | grep -vxF "$(printf '%s\n' "${norms[@]}")")
  f32=(--where dtype=f32 --where tier=calibrated --budget 1h)
  "$assay" fuzz "${norms[@]}" "${f32[@]}" --cases 400000 --seed 31 --jsonl "$work/norms.jsonl" >"$work/text" || true
  "$assay" fuzz "${others[@]}" "${f32[@]}" --cases 500000 --seed 32 --jsonl "$work/others.jsonl" >"$work/text" || true
fi

awk -v seeds=$# '
  FNR == NR { operator[$1] = $2; type[$1] = $3; from[$1] = $4; limit[$1] = $5; rows = FNR; next }
  /^\{"case"/ && match($0, /"rms":\[[0-9.e,+-]*\]/) {
    count = split(substr($0, RSTART + 7, RLENGTH - 8), rms, ",")
    for (i = 1; i <= count; ++i) if (rms[i] + 0 > seen[i - 1] + 0) seen[i - 1] = rms[i]
    ++cases
  }
  END {
    printf "%-20s %-6s %8s %6s %6s\n", "operator", "type", "elements", "limit", "seen"
    for (i = 0; i < rows; ++i) {
      if (operator[i] == "any") continue
      why = ""
      if (!(seen[i] > 0)) why = "never judged"
      else if (!(seen[i] <= 0.85 * limit[i])) why = "above 85 % of the limit"
      else if (seeds >= 12 && !(limit[i] <= 1.5 * seen[i])) why = "limit above 1.5 times what clean runs reach"
      printf "%-20s %-6s %8d %6.2f %6.2f %s\n", operator[i], type[i], from[i], limit[i], seen[i], why
      if (why != "") bad = 1
    }
    printf "%d cases, %d seeds\n", cases, seeds
    exit bad || cases == 0
  }' "$work/limits" "$work"/*.jsonl
