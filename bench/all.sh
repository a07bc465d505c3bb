#!/usr/bin/env bash
# all.sh ASSAY FOLDER: everything there is to time on the GPU, into one folder: kernel tables with the peers, gate density,
# the scenarios of both models, traces, and the page of it all.
#   bench/all.sh build/hopper/assay build/hopper/bench
# ASSAY_BENCH_BUDGET (0.2s) bounds the sampling of a figure, ASSAY_BENCH_SECONDS (10) a trace's arrivals; ASSAY_BENCH_STEPS: a
# choice of tables density scenario online; ASSAY_PEERS=NAME,...: only these peers. A table has a file of its own, and what
# was timed before something fails is kept.
set -uo pipefail
[ "$#" -eq 2 ] || { sed -n 2,7p "$0" >&2; exit 2; }
assay=$1 out=$2
budget=${ASSAY_BENCH_BUDGET:-0.2s}
steps=${ASSAY_BENCH_STEPS:-tables density scenario online}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
failed=()
pages=()
# run NAME COMMAND...: its output to the screen and a file; its JSONL, if there is one, to the page.
run() {
  local name=$1
  shift
  "$@" --device cuda --jsonl "$out/$name.jsonl" 2>&1 | tee "$out/$name.txt" || failed+=("$name")
  [ ! -s "$out/$name.jsonl" ] || pages+=("$out/$name.jsonl")
}
for step in $steps; do
  case $step in
    tables)
      for table in "$root"/bench/tables/*.yaml; do
        op=$(basename "$table" .yaml) peers=()
        [ "$op" != softmax_attention ] && [ "$op" != gate_attention ] || peers=(--peers)
        run "table_$op" "$assay" bench "$table" --budget "$budget" "${peers[@]}"
      done
      ;;
    density) run density "$assay" bench density --budget "$budget" ;;
    scenario) run scenario "$assay" bench scenario --peers ;;
    online) run online "$assay" bench online azure_conv mooncake --model asynct --model qwen3 --seconds "${ASSAY_BENCH_SECONDS:-10}" ;;
    *) printf 'all.sh: step %s is unknown, allowed: tables density scenario online\n' "$step" >&2; exit 2 ;;
  esac
done
[ "${#pages[@]}" -eq 0 ] || "$assay" report "${pages[@]}" -o "$out/page.html" || failed+=("page")
[ "${#failed[@]}" -eq 0 ] || { printf 'all.sh: FAILED: %s\n' "${failed[*]}"; exit 1; }
