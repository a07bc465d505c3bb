#!/usr/bin/env bash
# on_gpu.sh COMMAND...: runs COMMAND, which sees only the GPU that CTest gave to this test (RESOURCE_GROUPS gpus:1; gpus.sh
# says which there are). Where CTest gave none, the GPUs are as they are, and one such command runs at a time.
set -euo pipefail

given=${CTEST_RESOURCE_GROUP_0_GPUS:-}
[ -n "$given" ] || exec flock "$(dirname "$0")" "$@"
id=${given#id:}
id=${id%%,*}
[[ $id =~ ^[0-9]+$ ]] || { echo "on_gpu.sh: CTEST_RESOURCE_GROUP_0_GPUS: found '$given', allowed id:NUMBER,slots:1"; exit 2; }
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
  [ "$id" -lt "${#visible[@]}" ] || { echo "on_gpu.sh: no GPU number $id in CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"; exit 2; }
  id=${visible[$id]}
fi
export CUDA_VISIBLE_DEVICES=$id
exec "$@"
