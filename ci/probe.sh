#!/usr/bin/env bash
# probe.sh BUILD [STEPS [JSONL [plant]]]: builds bench/probe_steps.cu with the predictor of BUILD, and asks this GPU.
# STEPS (1,000,000) are those of each instruction and type. Status 77, with the reason, without nvcc or a Hopper GPU.
# ASSAY_PROBE=PROGRAM takes a program that is built, on a machine without nvcc.
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

build=$1
shift
program=${ASSAY_PROBE:-$build/probe_steps}
if [ -z "${ASSAY_PROBE:-}" ]; then
  nvcc=$(find_nvcc) || { echo "probe.sh: no nvcc here: skipped"; exit 77; }
  "$nvcc" -O2 -std=c++20 -gencode=arch=compute_90a,code=sm_90a -I"$root" -I"$root/include" -o "$program" \
    "$root/bench/probe_steps.cu" "$build/ref/libassay_ref.a" "$build/core/libassay_core.a" || exit 1
fi
exec "$program" "${1:-1000000}" "${@:2}"
