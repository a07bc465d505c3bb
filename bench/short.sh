#!/usr/bin/env bash
# short.sh ASSAY [DEVICE [WORDS...]]: the short tier against the baseline of the machine's device, bench/baselines/<device>.jsonl. A row
# is a regression if it is SLOWER, or has lost its figure, in three runs one after the other: the first may have met the
# card in another power state. Without a baseline of this device: the figures alone. Status 77: no device.
set -euo pipefail
assay=$1
device=${2:-cuda}
root=$(cd "$(dirname "$0")/.." && pwd)
words=("${@:3}")
[ "${#words[@]}" -gt 0 ] || words=(short)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

name=host
if [ "$device" = cuda ]; then
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr '[:upper:] ' '[:lower:]-' | sed 's/[^a-z0-9-]//g; s/^nvidia-//')
  [ -n "$name" ] || { echo 'no GPU: skipped'; exit 77; }
fi
baseline=${ASSAY_BASELINE:-$root/bench/baselines/$name.jsonl}
if [ ! -f "$baseline" ]; then
  echo "no baseline for $name: figures alone; to make one: assay bench ${words[*]} --device $device --jsonl $baseline"
  exec "$assay" bench "${words[@]}" --device "$device" --budget 0.3s
fi
for try in 1 2 3; do
  status=0
  "$assay" bench "${words[@]}" --device "$device" --budget 0.3s --jsonl "$work/now.jsonl" --baseline "$baseline" >"$work/said" 2>&1 || status=$?
  cat "$work/said"
  [ "$status" -ne 2 ] && [ "$status" -ne 77 ] || exit "$status"
  grep -E '^(SLOWER|BROKEN)' "$work/said" | sed -E 's/^(SLOWER|BROKEN) .* ([a-z]+ +[a-z_]+ [a-z_0-9@]+: )/\2/' | sort -u >"$work/bad.$try" || true
  [ "$status" -ne 0 ] || exit 0
  [ -s "$work/bad.$try" ] || exit "$status"
done
if [ -n "$(comm -12 "$work/bad.1" "$work/bad.2" | comm -12 - "$work/bad.3")" ]; then
  echo 'REGRESSION, in three runs one after the other:'
  comm -12 "$work/bad.1" "$work/bad.2" | comm -12 - "$work/bad.3"
  exit 1
fi
echo 'slower once, and not again'
