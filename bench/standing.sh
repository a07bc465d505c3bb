#!/usr/bin/env bash
# standing.sh ASSAY FOLDER: judges kernels that people use, and writes FOLDER/standing.csv, .md and .html. Needs a GPU.
#   FLASHINFER_MODULES  folder with the modules that bench/standing/flashinfer_modules.py builds; without it those
#                       kernels are NOT JUDGED
#   ASSAY_FFI_RUNTIME   libtvm_ffi.so
#   STANDING_ONLY       a pattern: only kernels whose name matches
#   STANDING_SECONDS    the most that a kernel may take (90)
#   STANDING_WORKERS    cases under way at once (8)
# A kernel of torch needs python3 with torch and the wheel assay-kernels. Status 1 if nothing was judged.
set -uo pipefail
[ "$#" -eq 2 ] || { sed -n 2,9p "$0" >&2; exit 2; }
assay=$1 out=$2
root=$(cd "$(dirname "$0")/.." && pwd)
here=$root/bench/standing
mkdir -p "$out"
index=0 judged=0
while IFS=$'\t' read -r name _ door op variant file bind; do
  index=$((index + 1))
  [[ $name =~ ${STANDING_ONLY:-.} ]] || continue
  results=$out/$index.jsonl
  rm -f "$results" "$results.partial"
  common=("$op" --workers "${STANDING_WORKERS:-8}" --variant "$op=$variant" --power off --all --jsonl "$results")
  case $door in
    ffi)
      [ -e "${FLASHINFER_MODULES:-}/$file" ] || { printf '%s: NOT JUDGED: no %s\n' "$name" "$file"; continue; }
      timeout -s INT "${STANDING_SECONDS:-90}" "$assay" run "${common[@]}" --device cuda --ffi "$FLASHINFER_MODULES/$file" \
        --bind "$root/conformance/binds/flashinfer-0.6/$bind.yaml" >"$out/$index.txt" 2>&1
      ;;
    python)
      timeout -s INT "${STANDING_SECONDS:-90}" python3 -m assay run "${common[@]}" --callable "$here/$file" >"$out/$index.txt" 2>&1
      ;;
    *) printf 'standing: door: found %s, allowed ffi, python\n' "$door" >&2; exit 2 ;;
  esac
  printf '%s: %s\n' "$name" "$(tail -n 1 "$out/$index.txt")"
  judged=$((judged + 1))
done < <(grep -v '^#' "$here/kernels.tsv")
[ "$judged" -gt 0 ] || { echo 'standing: nothing was judged' >&2; exit 1; }
python3 "$here/table.py" "$here/kernels.tsv" "$out"
