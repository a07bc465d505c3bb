#!/usr/bin/env bash
# speed.sh ASSAY FOLDER: times kernels of others on the shapes of bench/standing/speed, beside this project's kernels in
# the same call. A kernel that is wrong there has no figure. A table in FOLDER has a row per kernel and shape: name,
# shape, its median in microseconds, the least median of ours, and the name of that variant. Needs a GPU that nobody else
# uses. Functions of the tvm-ffi door (kernels.tsv) are timed by `assay bench`. Kernels of the Python door are timed by
# bench/peers, on tensors that stay on the GPU; peers.tsv says which lines of which script are theirs.
#   FLASHINFER_MODULES  folder of the modules that bench/standing/flashinfer_modules.py builds
#   ASSAY_FFI_RUNTIME   libtvm_ffi.so
#   SPEED_BUDGET        how long to sample one figure of ours (0.3s)
#   SPEED_DOORS         which of ffi and python (both)
# Status 1 if a kernel has no figure of its own.
set -uo pipefail
[ "$#" -eq 2 ] || { sed -n 2,13p "$0" >&2; exit 2; }
assay=$1 out=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/bench/standing
mkdir -p "$out"
printf '# kernel\tshape\tus\tours, us\tours\n' >"$out/speed.tsv"
missing=0 index=0

# ours OPERATOR: sets `ours` to the variants of ours that attention is timed by: simple ones take seconds per launch.
ours() {
  case $1 in
    softmax_attention) ours=stream_k,stream_any,stream_k_any,wgmma,packed_wgmma ;;
    mla_attention) ours=wgmma ;;
    *) ours= ;;
  esac
}

# rows KERNEL VARIANT PEER SHAPE FIELDS RUN: prints the rows of a kernel. It is a variant of the run, or else a peer with
# the shape's fields: words KEY=VALUE, or ~TEXT for what its line has in it.
rows() {
  awk -v kernel="$1" -v theirs="$2" -v peer="$3" -v only="$4" -v fields="$5" '
    function field(key,    at, rest) {
      at = index($0, "\"" key "\":")
      if (at == 0) return ""
      rest = substr($0, at + length(key) + 3)
      sub(/^ /, "", rest)
      sub(/^"/, "", rest)
      match(rest, /^[^",}]*/)
      return substr(rest, 1, RLENGTH)
    }
    function has(    word, i, n, pair) {
      n = split(fields, word, " ")
      for (i = 1; i <= n; ++i) {
        if (word[i] ~ /^~/) { if (index($0, substr(word[i], 2) " ") == 0) return 0; continue }
        split(word[i], pair, "=")
        if (field(pair[1]) != pair[2]) return 0
      }
      return 1
    }
    function take(shape, us) { if (!(shape in own) || us < own[shape]) own[shape] = us }
    /"bench":"case"/ && field("median_us") != "" && field("verdict") == "PASS" && field("mode") == "cold" {
      shape = field("name"); us = field("median_us") + 0
      if (only != "" && shape != only) next
      if (!(shape in seen)) { seen[shape] = 1; order[++shapes] = shape }
      if (theirs != "" && field("variant") == theirs) take(shape, us)
      else if (!(shape in best) || us < best[shape]) { best[shape] = us; by[shape] = field("variant") }
    }
    /"bench": ?"peer"/ && peer != "" && field("peer") == peer && field("median_us") != "" && has() { take(only, field("median_us") + 0) }
    END { for (i = 1; i <= shapes; ++i) { s = order[i]; if (s in own) printf "%s\t%s\t%s\t%s\t%s\n", kernel, s, own[s], (s in best) ? best[s] : "", (s in by) ? by[s] : "" } }
  ' "$6"
}

# told KERNEL SHAPE TEXT: the kernel must have a row of the shape by now, or any row where SHAPE is empty.
told() {
  grep -q "^$1	${2:+$2	}" "$out/speed.tsv" || { printf '%s: NO FIGURE%s: %s\n' "$1" "${2:+ of $2}" "$3"; missing=$((missing + 1)); }
}

while IFS=$'\t' read -r name _ door op variant file bind; do
  index=$((index + 1))
  [[ $door = ffi && ${SPEED_DOORS:-ffi,python} == *ffi* ]] || continue
  run=$out/speed_$index.jsonl
  ours "$op"
  "$assay" bench "$here/speed/$op.yaml" --device cuda ${ours:+--variant "$op=$variant,$ours"} --ffi "${FLASHINFER_MODULES:-}/$file" --bind "$root/conformance/binds/flashinfer-0.6/$bind.yaml" \
    --budget "${SPEED_BUDGET:-0.3s}" --jsonl "$run" >"$out/speed_$index.txt" 2>&1
  [ ! -e "$run" ] || rows "$name" "$variant" '' '' '' "$run" >>"$out/speed.tsv"
  told "$name" '' "$(tail -n 1 "$out/speed_$index.txt")"
done < <(grep -v '^#' "$here/kernels.tsv")

# Ours first: peers add their lines to the same file, after it.
declare -A asked=()
while IFS=$'\t' read -r name op shape script peer fields; do
  [[ ${SPEED_DOORS:-ffi,python} == *python* ]] || continue
  run=$out/speed_$op.jsonl
  if [ -z "${asked[$op]:-}" ]; then
    asked[$op]=1
    ours "$op"
    if [ -n "$ours" ]; then which=(--variant "$op=$ours"); else which=(--chosen); fi
    rm -f "$run"
    "$assay" bench "$here/speed/$op.yaml" --device cuda "${which[@]}" --budget "${SPEED_BUDGET:-0.3s}" --jsonl "$run" >"$out/speed_$op.txt" 2>&1
    more=()
    case $script in
      rows.py) more=("$op") ;;
      run.py) more=(--only "$(awk -F'\t' -v op="$op" '$2 == op { print $5 }' "$here/peers.tsv" | sort -u | paste -sd,)") ;;
    esac
    python3 "$root/bench/peers/$script" "$run" "${more[@]}" >>"$out/speed_$op.txt" 2>&1
  fi
  [ ! -e "$run" ] || rows "$name" '' "$peer" "$shape" "$fields" "$run" >>"$out/speed.tsv"
  told "$name" "$shape" "$(grep -s "\"peer\": *\"$peer\"" "$run" | tail -n 1 | cut -c1-200)"
done < <(grep -v '^#' "$here/peers.tsv")
cat "$out/speed.tsv"
[ "$missing" -eq 0 ]
