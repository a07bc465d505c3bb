#!/usr/bin/env bash
# gpu_sanitize.sh ASSAY OUT TOOL...: runs the edge cases of all suites on the GPU under each TOOL of compute-sanitizer
# (memcheck racecheck initcheck synccheck). Parts run side by side; logs and results go to OUT. Prints a line per tool,
# and what was found. Status 1 if anything was, or if a part did not end well. Where there are several GPUs, parts take
# turns on them. Environment, with defaults:
#   ASSAY_SUITES    the suites' folder
#   ASSAY_PARTS     processes at a time (12)
#   ASSAY_FINER     factor of the number of parts per suite (1), since only whole parts end in time
#   ASSAY_SECONDS   no part begins or goes on after these (100000)
#   ASSAY_SEED      the seed (1)
#   ASSAY_ARGS      more arguments for run
set -uo pipefail

assay=$1 out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
suites=${ASSAY_SUITES:-$here/../conformance/suites}
finer=${ASSAY_FINER:-1}
[[ $finer =~ ^[1-9][0-9]{0,2}$ ]] || { echo "gpu_sanitize.sh: ASSAY_FINER: found '$finer', allowed 1 to 999"; exit 2; }
gpus=$("$here/gpus.sh" | grep -o '"id"' | wc -l)
mkdir -p "$out"
export ASSAY_GPUS=$gpus ASSAY_HERE=$here
export ASSAY_PROGRAM=$assay ASSAY_OUT=$out ASSAY_SEED=${ASSAY_SEED:-1} ASSAY_ARGS=${ASSAY_ARGS:-}
export ASSAY_UNTIL=$(($(date +%s) + ${ASSAY_SECONDS:-100000}))
command -v compute-sanitizer >/dev/null || { echo "gpu_sanitize.sh: compute-sanitizer is not in PATH"; exit 1; }

# shellcheck disable=SC2317 # xargs calls it
# part TOOL SUITE I N: 86 is the tool's own finding, any other status the program's.
part() {
  local tool=$1 suite=$2 name status=0 left=$((ASSAY_UNTIL - $(date +%s)))
  name=$tool.$(basename "$suite" .yaml).$3
  if [ "$left" -le 0 ]; then
    echo late >"$ASSAY_OUT/$name.status"
    return
  fi
  local on=()
  [ "$ASSAY_GPUS" -le 1 ] || on=(env "CTEST_RESOURCE_GROUP_0_GPUS=id:$(($3 % ASSAY_GPUS)),slots:1" "$ASSAY_HERE/on_gpu.sh")
  # shellcheck disable=SC2086 # several words
  "${on[@]}" timeout -k 10 "$left" compute-sanitizer --tool "$tool" --error-exitcode 86 --print-limit 20 \
    "$ASSAY_PROGRAM" run "$suite" --section edge --device cuda \
    --seed "$ASSAY_SEED" --shard "$3/$4" --power off --in-process --deadline 600 $ASSAY_ARGS --jsonl "$ASSAY_OUT/$name.jsonl" >"$ASSAY_OUT/$name.log" 2>&1 || status=$?
  # 3: the part has no case, or none that the device takes.
  if [ "$status" -eq 3 ]; then status=0; fi
  echo "$status" >"$ASSAY_OUT/$name.status"
}
export -f part

for tool in "$@"; do
  for suite in "$suites"/*.yaml; do
    case $(basename "$suite" .yaml) in
      traces | models) parts=0 ;; # nothing but benches; forward passes, which have no edge tier
      softmax_attention | gate_attention | lm_head | gemm | rope | bias_residual) parts=8 ;;
      *) parts=2 ;;
    esac
    parts=$((parts * finer))
    for ((i = 1; i <= parts; ++i)); do printf '%s %s %d %d\n' "$tool" "$suite" "$i" "$parts"; done
  done
done | xargs -P "${ASSAY_PARTS:-12}" -L 1 bash -c 'part "$@"' part

failed=0
for tool in "$@"; do
  cases=0 bad=0 said=0 parts=0
  for status in "$out/$tool".*.status; do
    name=${status%.status} parts=$((parts + 1))
    cases=$((cases + $(grep -h '^{"case"' "$name.jsonl" 2>/dev/null | grep -vc '"verdict":"UNSUPPORTED"')))
    summary=$(grep -oE '(ERROR|RACECHECK) SUMMARY: [0-9]+' "$name.log" 2>/dev/null | grep -oE '[0-9]+$' | tail -n 1)
    said=$((said + ${summary:-0}))
    if [ "$(cat "$status")" != 0 ] || [ "${summary:-none}" != 0 ]; then
      bad=$((bad + 1))
      printf '%s: status %s, %s\n' "$(basename "$name")" "$(cat "$status")" "${summary:-no summary}"
      grep -E '^=========|FAIL|CRASH|HANG|assay:' "$name.log" 2>/dev/null | grep -vE 'Host Frame|Saved host|SUMMARY|COMPUTE-SANITIZER' | head -n 12
    fi
  done
  printf '%s: %d edge cases in %d parts, %d found, %d parts not clean\n' "$tool" "$cases" "$parts" "$said" "$bad"
  [ "$bad" -eq 0 ] && [ "$cases" -gt 0 ] || failed=1
done
exit "$failed"
