#!/usr/bin/env bash
# gpus.sh: the GPUs of this machine as CTest's resource specification, on stdout: one slot each, so that a test has its GPU
# alone. An id is a place in CUDA_VISIBLE_DEVICES where that is set, else nvidia-smi's number. Without any GPU it names
# one, on which tests skip.
set -euo pipefail

if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  count=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
else
  count=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -cE '^[0-9]+$' || true)
fi
[ "$count" -gt 0 ] || count=1
list=
for ((i = 0; i < count; ++i)); do list+="${list:+, }{\"id\": \"$i\", \"slots\": 1}"; done
printf '{"version": {"major": 1, "minor": 0}, "local": [{"gpus": [%s]}]}\n' "$list"
