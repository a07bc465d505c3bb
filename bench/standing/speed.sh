#!/usr/bin/env bash
# speed.sh ASSAY FOLDER: times the functions of FlashInfer on the shapes of bench/standing/speed, beside this project's
# kernels in the same call. A kernel that is wrong has no figure. A table in FOLDER has a row per kernel and shape: name,
# shape, its median in microseconds, the least median of ours, and the name of that variant. Needs a GPU that nobody else
# uses.
#   FLASHINFER_MODULES  folder of the modules that bench/standing/flashinfer_modules.py builds
#   ASSAY_FFI_RUNTIME   libtvm_ffi.so
#   SPEED_BUDGET        how long to sample one figure (0.3s)
# Status 1 if a kernel has no figure of its own.
set -uo pipefail
[ "$#" -eq 2 ] || { sed -n 2,10p "$0" >&2; exit 2; }
assay=$1 out=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/bench/standing
mkdir -p "$out"
printf '# kernel\tshape\tus\tours, us\tours\n' >"$out/speed.tsv"
missing=0 index=0
while IFS=$'\t' read -r name _ door op variant file bind; do
  index=$((index + 1))
  [ "$door" = ffi ] || continue
  run=$out/speed_$index.jsonl
  # Simple variants of attention take seconds per launch.
  case $op in
    softmax_attention) ours=stream_k,stream_any,stream_k_any,wgmma,packed_wgmma ;;
    mla_attention) ours=wgmma ;;
    *) ours= ;;
  esac
  "$assay" bench "$here/speed/$op.yaml" --device cuda ${ours:+--variant "$op=$variant,$ours"} --ffi "${FLASHINFER_MODULES:-}/$file" --bind "$root/conformance/binds/flashinfer-0.6/$bind.yaml" \
    --budget "${SPEED_BUDGET:-0.3s}" --jsonl "$run" >"$out/speed_$index.txt" 2>&1
  [ ! -e "$run" ] || awk -v kernel="$name" -v theirs="$variant" '
    function field(key,    at, rest) {
      at = index($0, "\"" key "\":")
      if (at == 0) return ""
      rest = substr($0, at + length(key) + 3)
      sub(/^"/, "", rest)
      match(rest, /^[^",}]*/)
      return substr(rest, 1, RLENGTH)
    }
    /"bench":"case"/ && field("median_us") != "" && field("verdict") == "PASS" && field("mode") == "cold" {
      shape = field("name"); us = field("median_us") + 0
      if (!(shape in seen)) { seen[shape] = 1; order[++shapes] = shape }
      if (field("variant") == theirs) { if (!(shape in own) || us < own[shape]) own[shape] = us }
      else if (!(shape in best) || us < best[shape]) { best[shape] = us; by[shape] = field("variant") }
    }
    END { for (i = 1; i <= shapes; ++i) { s = order[i]; if (s in own) printf "%s\t%s\t%s\t%s\t%s\n", kernel, s, own[s], (s in best) ? best[s] : "", (s in by) ? by[s] : "" } }
  ' "$run" >>"$out/speed.tsv"
  grep -q "^$name	" "$out/speed.tsv" || { printf '%s: NO FIGURE: %s\n' "$name" "$(tail -n 1 "$out/speed_$index.txt")"; missing=$((missing + 1)); }
done < <(grep -v '^#' "$here/kernels.tsv")
cat "$out/speed.tsv"
[ "$missing" -eq 0 ]
