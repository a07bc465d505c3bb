#!/usr/bin/env bash
# fuzz.sh ASSAY FOLDER SECONDS: draws cases for kernels of others: functions of FlashInfer through the tvm-ffi door,
# without Python, and torch's attention through the Python door. Each row of fuzz.tsv has a process of its own, all at
# the same time. FOLDER gets NAME.txt, what the row said, and summary.jsonl: counts by tier and verdict, and three
# failures of each check. Draws under way after SECONDS are finished, for 30 s at most. Needs a GPU.
#   FLASHINFER_MODULES  folder of the modules that bench/standing/flashinfer_modules.py builds
#   ASSAY_FFI_RUNTIME   libtvm_ffi.so
#   FUZZ_ONLY           a pattern: only rows whose door or name matches
#   FUZZ_SEED           the first row's seed (1); the others follow
#   FUZZ_THREADS        cases under way at once in a row's process of the tvm-ffi door (4)
#   FUZZ_WORKERS        cases under way at once in a row of the Python door (4); needs torch and the wheel assay-kernels
# Status 1 if a row's module is missing, was not loaded, or judged no case. Failures of kernels are results.
set -uo pipefail
[ "$#" -eq 3 ] || { sed -n 2,13p "$0" >&2; exit 2; }
assay=$1 out=$2 seconds=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/bench/standing
mkdir -p "$out"
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
begin=$SECONDS seed=${FUZZ_SEED:-1} missing=0 silent=0
names=()
rm -f "$out/summary.jsonl"

# summary NAME RUN: the counts of a run and its first failures, as JSON lines.
summary() {
  awk -v of="$1" '
    # The value of a key of one flat JSON object, as it is written there.
    function field(key,    at, rest) {
      at = index($0, "\"" key "\":")
      if (at == 0) return "\"\""
      rest = substr($0, at + length(key) + 3)
      if (rest ~ /^"/) match(rest, /^"([^"\\]|\\.)*"/)
      else match(rest, /^[^,}]*/)
      return substr(rest, 1, RLENGTH)
    }
    /^[{]"assay":/ { sub(/^[{]/, "{\"of\":\"" of "\","); print; next }
    !/"case":/ { next }
    {
      verdict = field("verdict")
      # A callable declines by an exception; it sees values in the call alone. Law batch asks other requests of it.
      if (field("check") ~ /launch|batch/ && field("message") ~ /Unsupported|allowed what|Increase the workspace buffer size|No available kernel|no kernel found|not correctly aligned/) verdict = "\"UNSUPPORTED\""
      ++count["\"tier\":" field("tier") ",\"verdict\":" verdict]
      if (verdict !~ /FAIL|CRASH|HANG|WEAK|STATE|HOST/) next
      check = field("check")
      ++failed[verdict ",\"check\":" check]
      if (failed[verdict ",\"check\":" check] <= 3)
        printf "{\"of\":\"%s\",\"verdict\":%s,\"check\":%s,\"message\":%s,\"case\":%s}\n", of, verdict, check, field("message"), field("case")
    }
    END {
      for (key in count) printf "{\"of\":\"%s\",%s,\"count\":%d}\n", of, key, count[key]
      for (key in failed) printf "{\"of\":\"%s\",\"failures\":%s,\"all\":%d}\n", of, key, failed[key]
    }' "$2"
}

while IFS=$'\t' read -r name door library bind op variant keys; do
  [[ "$door $name" =~ ${FUZZ_ONLY:-.} ]] || continue
  seed=$((seed + 1))
  where=()
  for key in $keys; do where+=(--where "$key"); done
  common=(--variant "$op=$variant" "${where[@]}" --budget "${seconds}s" --seed "$seed" --regressions "$root/fixtures/regressions" --jsonl "$raw/$name.jsonl")
  if [ "$door" = ffi ]; then
    file=$root/conformance/binds/flashinfer-0.6/$bind.yaml
    for needed in "${FLASHINFER_MODULES:-}/$library" "$file"; do
      [ -e "$needed" ] || { printf '%s: NOT DRAWN: no %s\n' "$name" "$needed"; missing=$((missing + 1)); continue 2; }
    done
    run=("$assay" fuzz "$op" --device cuda --ffi "$FLASHINFER_MODULES/$library" --bind "$file" --workers 1 --threads "${FUZZ_THREADS:-4}")
  else
    python3 -c 'import assay, torch' 2>/dev/null || { printf '%s: NOT DRAWN: no torch or no assay-kernels\n' "$name"; missing=$((missing + 1)); continue; }
    run=(python3 -W ignore -m assay fuzz "$op" --callable "$here/$library" --workers "${FUZZ_WORKERS:-4}")
  fi
  names+=("$name")
  { # SIGINT ends a run that does not end by itself; its results up to then stay in the .partial file.
    timeout -k 20 -s INT "$((seconds + 30))" "${run[@]}" "${common[@]}" >"$out/$name.txt" 2>&1
    echo "status $?" >>"$out/$name.txt"
  } &
done < <(grep -v '^#' "$here/fuzz.tsv")
wait
for name in "${names[@]}"; do
  run=$raw/$name.jsonl
  [ -e "$run" ] || run=$run.partial
  count=$(grep -cE '"verdict": ?"(PASS|FAIL|CRASH|HANG|WEAK)"' "$run" 2>/dev/null)
  [ "${count:-0}" -gt 0 ] || { printf '%s: NOT JUDGED: %s\n' "$name" "$(tail -n 2 "$out/$name.txt" | head -n 1)"; silent=$((silent + 1)); continue; }
  printf '%s: %s\n' "$name" "$(grep ' PASS, ' "$out/$name.txt" | tail -n 1)"
  summary "$name" "$run" >>"$out/summary.jsonl"
done
printf '%d rows drew, %d did not, in %d s\n' "$((${#names[@]} - silent))" "$((missing + silent))" "$((SECONDS - begin))"
[ "$((missing + silent))" -eq 0 ]
