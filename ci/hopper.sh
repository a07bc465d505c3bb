#!/usr/bin/env bash
# hopper.sh: does everything on a machine with a Hopper GPU. Builds for sm_90a and runs the tests, hopper included. The
# labels nightly, report and sanitize are left out: they say nothing of the GPU. Then runs all suites on the GPU, the
# kill matrix of the GPU, and the edge tier under compute-sanitizer. Writes a summary to build/hopper/evidence/;
# bench/evidence/README.md says how it is kept. A skip is a failure here. Status 77, with the reason, on a machine
# without nvcc or such a GPU.
#   ASSAY_STEPS="tests suites mutants memcheck racecheck initcheck synccheck"   which steps (all)
#   ASSAY_SEED=1                                                                seed of the suites
# Further arguments go to `assay run` of the suites.
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

nvcc=$(find_nvcc) || { echo "hopper.sh: no nvcc here"; exit 77; }
PATH=$(dirname "$nvcc"):$PATH
export CUDACXX=$nvcc
command -v nvidia-smi >/dev/null || { echo "hopper.sh: no NVIDIA driver here (nvidia-smi is missing)"; exit 77; }
gpu=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | awk -F', *' '$2 == "9.0" { print $1; exit }' || true)
[ -n "$gpu" ] || { echo "hopper.sh: no GPU of compute capability 9.0 here; found: $(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>&1 | head -n 3 | tr '\n' ';')"; exit 77; }
need_packages
cd "$root" || exit 2

steps=${ASSAY_STEPS:-tests suites mutants memcheck racecheck initcheck synccheck}
seed=${ASSAY_SEED:-1}
assay=build/hopper/assay
failed=()
notes=()
wants() { case " $steps " in *" $1 "*) return 0 ;; *) return 1 ;; esac }
# note NAME VALUE: goes into the evidence's header.
note() { notes+=("$1=$2"); }

step configure configure hopper || exit 1
step build build hopper || exit 1

if wants suites; then
  start=$(date +%s.%N) status=0
  "$assay" run conformance/suites --device cuda --seed "$seed" --jsonl build/hopper/run.jsonl --junit build/hopper/run.xml "$@" || status=$?
  note seconds "$(date +%s.%N | awk -v start="$start" '{ printf "%.1f", $1 - start }')"
  note seed "$seed"
  note suites_status "$status"
  [ "$status" -eq 0 ] || failed+=("suites (status $status)")
  # Forward passes: small ones, and the production width over 64 given ids at batch 32.
  for part in small production; do
    status=0 only=()
    [ "$part" = small ] || only=(--filter "$part")
    "$assay" run conformance/suites/models.yaml --device cuda --jsonl "build/hopper/models_$part.jsonl" "${only[@]}" || status=$?
    note "models_${part}_status" "$status"
    [ "$status" -eq 0 ] || failed+=("models, $part (status $status)")
  done
  # The CPU of the same machine, for the rate stated beside it.
  status=0
  start=$(date +%s.%N)
  "$assay" run conformance/suites --device simt --seed "$seed" --jsonl build/hopper/run_simt.jsonl >build/log/simt.log 2>&1 || status=$?
  tail -n 1 build/log/simt.log
  note simt_seconds "$(date +%s.%N | awk -v start="$start" '{ printf "%.1f", $1 - start }')"
  note simt_cases "$(grep -c '^{"case"' build/hopper/run_simt.jsonl || true)"
  note simt_status "$status"
  note simt_cores "$(nproc)"
  [ "$status" -eq 0 ] || failed+=("suites on simt (status $status)")
fi

# The edge tier under compute-sanitizer: gpu_sanitize.sh.
tools=()
for tool in memcheck racecheck initcheck synccheck; do wants "$tool" && tools+=("$tool"); done
if [ "${#tools[@]}" -gt 0 ]; then
  rm -rf build/hopper/sanitize
  mkdir -p build/log
  status=0
  ASSAY_SEED=$seed ci/gpu_sanitize.sh "$assay" build/hopper/sanitize "${tools[@]}" >build/log/gpu_sanitize.log 2>&1 || status=$?
  cat build/log/gpu_sanitize.log
  for tool in "${tools[@]}"; do note "$tool" "$(grep "^$tool: " build/log/gpu_sanitize.log || tail -n 1 build/log/gpu_sanitize.log)"; done
  [ "$status" -eq 0 ] || failed+=("${tools[*]}")
fi

# The kill matrix of the GPU: plug-ins are built first.
if wants mutants; then
  status=0
  step mutants_cuda cmake --build build/hopper --target mutants_cuda || status=1
  [ "$status" -ne 0 ] || "$assay" mutants --device cuda --jsonl build/hopper/mutants_cuda.jsonl >build/log/mutants_cuda.log 2>&1 || status=$?
  cat build/log/mutants_cuda.log
  note mutants "$(tail -n 1 build/log/mutants_cuda.log)"
  [ "$status" -eq 0 ] || failed+=("mutants (status $status)")
fi

if wants tests; then
  status=0
  mkdir -p build/log
  # Tests that need a browser or clang say nothing of the GPU, nor does truth.hf, whose data may not be at hand; the kill
  # matrix is a step. A skip of what is left is a failure here. As many tests of the GPU at a time as there are GPUs.
  ci/gpus.sh >build/hopper/gpus.json
  (ctest --preset hopper -LE 'report|sanitize|nightly' -E '^(hopper.mutants|truth.hf)$' 2>&1) >build/log/ctest.log || status=$?
  skipped=$(grep -cE '\*\*\*(Skipped|Not Run)' build/log/ctest.log || true)
  grep -E '\*\*\*' build/log/ctest.log || true
  sed -n '/tests passed/,$p' build/log/ctest.log
  note tests_status "$status"
  note tests "$(sed -n 's/^\([0-9]*% tests passed.*\)/\1/p' build/log/ctest.log)"
  note tests_skipped "$skipped"
  [ "$status" -eq 0 ] || { tail -n 100 build/log/ctest.log; failed+=("tests (status $status)"); }
  [ "$skipped" -eq 0 ] || failed+=("$skipped tests skipped")
fi

if wants suites && [ -s build/hopper/run.jsonl ]; then
  name=$(printf '%s' "$gpu" | tr '[:upper:] ' '[:lower:]-' | sed 's/[^a-z0-9-]//g; s/^nvidia-//')
  ci/evidence.sh build/hopper/run.jsonl "build/hopper/evidence/$(date -u +%Y-%m-%d)-$name-${ASSAY_EVIDENCE:-first-light}.jsonl" "${notes[@]}" || failed+=("evidence")
fi
if [ "${#failed[@]}" -gt 0 ]; then
  printf 'hopper.sh: FAILED on %s: %s\n' "$gpu" "$(printf '%s; ' "${failed[@]}" | sed 's/; $//')"
  exit 1
fi
printf 'hopper.sh: all steps passed on %s: %s\n' "$gpu" "$steps"
