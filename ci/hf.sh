#!/usr/bin/env bash
# hf.sh BUILD [DEVICE]: holds the forward passes against what the transformers library recorded (docs/truth.md, "hf"), on
# the reference or on a device. One changed byte is a failure that names its stage. The recorded models are in
# $ASSAY_HF_DATA, or else in or beside the checkout. Status 77 where there are none.
set -euo pipefail

build=$1
device=${2:-ref}
root=$(cd "$(dirname "$0")/.." && pwd)
assay=$build/assay
data=$root/shared/data/hf
[ -d "$data" ] || data=$root/../shared/data/hf
data=${ASSAY_HF_DATA:-$data}
models=(llama3-rope mixtral qwen3-moe gpt-oss qwen3-next deepseek-v3 gemma2)
[ -d "$data" ] || { echo "hf: SKIP: no recorded models in $data"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect STATUS PATTERN COMMAND...: the command ends with the status, and a line of it matches the pattern.
expect() {
  local wanted=$1 pattern=$2 status=0
  shift 2
  "$@" >"$work/out" 2>&1 </dev/null || status=$?
  if [ "$status" -eq "$wanted" ] && grep -qE -- "$pattern" "$work/out"; then return 0; fi
  failed=$((failed + 1))
  printf 'FAIL: %s: status %s, wanted %s and a line with: %s\n' "$*" "$status" "$wanted" "$pattern"
  head -n 5 "$work/out"
}

for model in "${models[@]}"; do
  [ -d "$data/$model" ] || { echo "hf: SKIP: no $model in $data"; continue; }
  expect 0 '^5 passed, 0 failed, 0 not covered$' "$assay" truth hf "$data/$model" --device "$device"
  grep -h '^PASS' "$work/out" | tail -n 1
done
# Latent attention in both forms: over entries, and over keys and values of every head.
if [ -d "$data/deepseek-v3" ]; then
  for form in on off; do
    [ "$form$device" = "off$device" ] && [ "$device" != ref ] && continue # it is the usual one of a device
    expect 0 '^5 passed, 0 failed, 0 not covered$' \
      "$assay" truth hf "$data/deepseek-v3" --device "$device" --form "mla_expand=$form"
    grep -h '^PASS' "$work/out" | tail -n 1
  done
  if [ "$device" != ref ]; then
    expect 0 '^5 passed, 0 failed, 0 not covered$' \
      "$assay" truth hf "$data/deepseek-v3" --device "$device" --dtype bf16 --form mla_expand=on
    grep -h '^PASS' "$work/out" | tail -n 1
  fi
  expect 2 'form' "$assay" truth hf "$data/deepseek-v3" --device "$device" --form mmha=on
fi
if [ "$device" = ref ] && [ -d "$data/llama3-rope" ]; then
  # One byte of a stream, of the logits, of a weight.
  while read -r file stage; do
    rm -rf "$work/model"
    cp -rL "$data/llama3-rope" "$work/model"
    chmod -R u+w "$work/model"
    size=$(wc -c <"$work/model/$file")
    printf '\100' | dd of="$work/model/$file" bs=1 seek=$((size - 1)) conv=notrunc status=none
    expect 1 "^FAIL +llama, prompt of 16: one prefill: $stage: " "$assay" truth hf "$work/model" --device "$device"
  done <<'END'
hidden_2.f64.npy final
logits_2.f64.npy logits
model.safetensors final
END
fi
[ "$failed" -eq 0 ] || exit 1
echo "hf: as recorded, on $device"
