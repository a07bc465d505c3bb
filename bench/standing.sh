#!/usr/bin/env bash
# standing.sh ASSAY FOLDER: judges kernels that people use, and writes FOLDER/standing.csv, .md and .html. Needs a GPU.
#   FLASHINFER_MODULES  folder with the modules that bench/standing/flashinfer_modules.py builds; without it those
#                       kernels are NOT JUDGED
#   ASSAY_FFI_RUNTIME   libtvm_ffi.so
#   STANDING_ONLY       a pattern: only kernels whose name matches
#   STANDING_SECONDS    the most that a kernel may take (90)
#   STANDING_DEADLINE   seconds of its own after which a case is a HANG (30)
#   STANDING_WORKERS    cases under way at once, of a kernel (8)
#   STANDING_AT_ONCE    kernels under way at once (1)
# A kernel of torch needs python3 with torch and the wheel assay-kernels, and what the last column of its row names:
# modules of Python, and files in FLASHINFER_MODULES. Where one does not load, the kernel is NOT JUDGED. Status 1 if
# nothing was judged.
set -uo pipefail
[ "$#" -eq 2 ] || { sed -n 2,13p "$0" >&2; exit 2; }
assay=$1 out=$2
root=$(cd "$(dirname "$0")/.." && pwd)
here=$root/bench/standing
mkdir -p "$out"

# judge INDEX NAME DOOR OPERATOR VARIANT FILE BIND: one kernel, its results in FOLDER/INDEX.jsonl.
judge() {
  local results=$out/$1.jsonl common
  common=("$4" --workers "${STANDING_WORKERS:-8}" --deadline "${STANDING_DEADLINE:-30}" --variant "$4=$5" --power off --all --jsonl "$results")
  case $3 in
    ffi)
      timeout -s INT "${STANDING_SECONDS:-90}" "$assay" run "${common[@]}" --device cuda --ffi "$FLASHINFER_MODULES/$6" \
        --bind "$root/conformance/binds/flashinfer-0.6/$7.yaml"
      ;;
    python) timeout -s INT "${STANDING_SECONDS:-90}" python3 -m assay run "${common[@]}" --callable "$here/$6" ;;
    own) timeout -s INT "${STANDING_SECONDS:-90}" "$assay" run "${common[@]}" --device cuda ;;
  esac >"$out/$1.txt" 2>&1
  printf '%s: %s\n' "$2" "$(tail -n 1 "$out/$1.txt")"
}

# needed NAME,...: prints the first module that does not load, and why, or the first file that is not there.
needed() {
  local name why
  for name in ${1//,/ }; do
    case $name in
      -) ;;
      *.so) [ -e "${FLASHINFER_MODULES:-}/$name" ] || { printf 'no %s' "$name"; return; } ;;
      *) why=$(python3 -W ignore -c "import $name" 2>&1 </dev/null) || { printf 'no %s: %s' "$name" "${why##*$'\n'}"; return; } ;;
    esac
  done
}

index=0 judged=0
while IFS=$'\t' read -r name _ door op variant file bind; do
  index=$((index + 1))
  [[ $name =~ ${STANDING_ONLY:-.} ]] || continue
  rm -f "$out/$index.jsonl" "$out/$index.jsonl.partial"
  case $door in
    ffi) [ -e "${FLASHINFER_MODULES:-}/$file" ] || { printf '%s: NOT JUDGED: no %s\n' "$name" "$file"; continue; } ;;
    python)
      missing=$(needed "$bind")
      [ -z "$missing" ] || { printf '%s: NOT JUDGED: %s\n' "$name" "$missing"; continue; }
      ;;
    own) ;;
    *) printf 'standing: door: found %s, allowed ffi, python, own\n' "$door" >&2; exit 2 ;;
  esac
  while [ "$(jobs -rp | wc -l)" -ge "${STANDING_AT_ONCE:-1}" ]; do wait -n || true; done
  judge "$index" "$name" "$door" "$op" "$variant" "$file" "$bind" </dev/null &
  judged=$((judged + 1))
done < <(grep -v '^#' "$here/kernels.tsv")
wait
[ "$judged" -gt 0 ] || { echo 'standing: nothing was judged' >&2; exit 1; }
python3 "$here/table.py" "$here/kernels.tsv" "$out"
