#!/usr/bin/env bash
# truth.sh BUILD: runs assay truth, judge and generate as people type them. Published results agree, one changed byte is
# a failure, and bad input is refused with the field's name. A dumped case of every operator is judged as it was, to the
# same ratios.
set -euo pipefail

build=$1
root=$(cd "$(dirname "$0")/.." && pwd)
assay=$build/assay
fixtures=$root/fixtures
stories=$fixtures/models/stories260K
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# judge NAME STATUS PATTERN COMMAND...: the command ends with the status, and a line of it matches the pattern.
judge() {
  local name=$1 wanted=$2 pattern=$3 status=0 why=
  shift 3
  "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  [ "$status" -eq "$wanted" ] || why="exit $status, wanted $wanted"
  grep -qE -- "$pattern" "$work/out" "$work/err" || why="$why; no line matches: $pattern"
  [ "$wanted" -ne 2 ] || [ ! -s "$work/out" ] || why="$why; something ran: $(head -n 1 "$work/out")"
  if [ -z "$why" ]; then
    passed=$((passed + 1))
    return 0
  fi
  failed=$((failed + 1))
  printf 'FAIL %s: %s\n  %s\n' "$name" "$why" "$(cat "$work/err" "$work/out" | head -n 3)"
}

# flip FILE OFFSET: the second highest bit of one byte.
flip() {
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059 # an octal escape
  printf "\\$(printf '%03o' $((byte ^ 64)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# ---- truth ----
judge 'ONNX' 0 '^87 passed, 0 failed, 0 not covered$' "$assay" truth onnx "$fixtures/onnx"
judge 'tensors' 0 '^124 passed, 0 failed, 0 not covered$' "$assay" truth tensors "$fixtures/models"
judge 'llama2c' 0 '^11 passed, 0 failed, 0 not covered$' "$assay" truth llama2c "$stories/stories260K.bin" "$stories/golden_greedy_f32.json"
cp -r "$fixtures/onnx" "$work/onnx"
chmod -R u+w "$work/onnx"
flip "$work/onnx/packed.bin" 3074 # Y of the first case
judge 'ONNX, a byte changed' 1 '^FAIL +test_attention_3d: ' "$assay" truth onnx "$work/onnx"
echo '[]' >"$work/onnx/index.json"
judge 'no cases' 2 'index.json: found no case, allowed one or more' "$assay" truth onnx "$work/onnx"
echo '[{}]' >"$work/onnx/index.json"
judge 'a case of nothing' 2 'case without case, op or files' "$assay" truth onnx "$work/onnx"
judge 'no folder' 2 'nowhere/index.json: cannot be read' "$assay" truth onnx "$work/nowhere"
judge 'no tensors' 2 'found no recorded tensors' "$assay" truth tensors "$work/onnx"
judge 'truth of what' 2 "truth: found 'flash', allowed: onnx, tensors, llama2c, hf" "$assay" truth flash
judge 'no model' 2 'onnx: found no config.json here or one folder below' "$assay" truth hf "$work/onnx"
judge 'no folder of a model' 2 'nowhere: cannot be read as a folder' "$assay" truth hf "$work/nowhere"
judge 'one word too many' 2 'truth onnx: needs one folder, found 2' "$assay" truth onnx a b
judge 'no golden ids' 2 'needs a checkpoint and a JSON file' "$assay" truth llama2c "$stories/stories260K.bin"
judge 'device that there is not' 2 "--device: found 'tpu', allowed: ref" "$assay" truth llama2c "$stories/stories260K.bin" "$stories/golden_greedy_f32.json" --device tpu
head -c 1000000 "$stories/stories260K.bin" >"$work/short.bin"
judge 'truncated checkpoint' 2 'short.bin: size: found 1000000 bytes, allowed 1056540' "$assay" truth llama2c "$work/short.bin" "$stories/golden_greedy_f32.json"

# ---- generate ----
generate=("$assay" generate --model "$stories/stories260K.bin" --steps 10)
judge 'greedy ids' 0 '^403,407,261,378,432,383,286,261,376,298$' "${generate[@]}" --ids 1
judge 'in chunks' 0 '^432,383,286,261,376,298,315,421,395,317$' "${generate[@]}" --ids '1, 403 407,261,378' --chunk 2
judge 'mirror' 0 '^403,407,261,378,432,383,286,261,376,298$' "${generate[@]}" --ids 1 --mode mirror
judge 'temperature 0' 0 '^403,407,261,378,432,383,286,261,376,298$' "${generate[@]}" --ids 1 --sampler temperature=0,top_k=5
if grep -q "^rms_gemm .* simt" < <("$assay" list variants); then
  judge 'norms in products' 0 '^403,407,261,378,432,383,286,261,376,298$' "${generate[@]}" --ids 1 --device simt --form gemm_norm=on --form gemm_glu=on
fi
printf '1\n\n1,403\n' >"$work/prompts"
judge 'a batch' 0 '^407,261,378,432,383,286,261,376,298,315$' "${generate[@]}" --prompt-ids-file "$work/prompts"
"${generate[@]}" --ids 1 --sampler temperature=5,seed=3 >"$work/a"
"${generate[@]}" --ids 1 --sampler temperature=5,seed=3 >"$work/b"
"${generate[@]}" --ids 1 --sampler temperature=5,seed=4 >"$work/c"
if cmp -s "$work/a" "$work/b" && ! cmp -s "$work/a" "$work/c"; then passed=$((passed + 1)); else
  failed=$((failed + 1))
  echo 'FAIL seeds: the same seed must give the same ids, another one others'
fi
judge 'id outside' 2 'ids: request 0: found 512 at place 1, allowed 0 to 511' "${generate[@]}" --ids 1,512
judge 'negative id' 2 "--ids: found '-1'" "${generate[@]}" --ids 2,-1
judge 'no ids' 2 '--ids: found no ids' "${generate[@]}" --ids ' '
judge 'two kinds of ids' 2 '--ids, --prompt-ids-file: found both' "${generate[@]}" --ids 1 --prompt-ids-file "$work/prompts"
judge 'top_p 0' 2 "--sampler: top_p: found '0', allowed a number above 0, up to 1" "${generate[@]}" --ids 1 --sampler top_p=0
judge 'top_p above 1' 2 "top_p: found '1.01'" "${generate[@]}" --ids 1 --sampler top_p=1.01
judge 'too many steps' 2 'steps: request 0: found 513' "$assay" generate --model "$stories/stories260K.bin" --ids 1 --steps 513
judge 'negative steps' 2 "--steps: found '-3', allowed: an integer from 1" "$assay" generate --model "$stories/stories260K.bin" --ids 1 --steps -3
judge 'no model' 2 '--model: not given' "$assay" generate --ids 1 --steps 2
judge 'unknown option' 2 "generate: found option '--step' .did you mean '--steps'.., allowed: --" "$assay" generate --step 2
judge 'unknown mode' 2 "--mode: found 'fast', allowed: exact, mirror" "${generate[@]}" --ids 1 --mode fast
printf 'arch: qwen3\nlayers: 1\nhead_size: 12\n' >"$work/m.yaml"
judge 'YAML that is wrong' 2 'm.yaml:1:1: head_size: found 12' "$assay" generate --model "$work/m.yaml" --ids 1 --steps 2

# ---- judge: a dumped case of every operator; then one byte of its result ----
while IFS= read -r op; do
  # Eight of the edge cases with every row judged, spread over them: calibrated ones where there are any.
  "$assay" list cases "$op" --device simt | sed 's/^[^:]*: //' | grep ' section=edge ' | grep -v ' rows=' >"$work/edge" || true
  grep ' tier=calibrated ' "$work/edge" >"$work/calibrated" || cp "$work/edge" "$work/calibrated"
  awk '{ line[NR] = $0 } END { for (i = 0; i < 8 && i < NR; ++i) print line[1 + int(i * NR / 8)] }' "$work/calibrated" | uniq >"$work/only"
  status=0
  "$assay" run "$root/conformance/suites/$op.yaml" --only "$work/only" --device simt --power off --workers 1 --jsonl "$work/run.jsonl" >"$work/out" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    failed=$((failed + 1))
    printf 'FAIL %s: its edge cases end with status %d: %s\n' "$op" "$status" "$(tail -n 1 "$work/out")"
  fi
  line=$(grep '"verdict":"PASS"' "$work/run.jsonl" | head -n 1) || true
  case=$(printf '%s\n' "$line" | sed 's/^{"case":"\([^"]*\)".*/\1/')
  rm -rf "$work/dump"
  "$assay" replay "$case" --dump "$work/dump" >/dev/null
  judge "$op, dumped" 0 ' 0 failed' "$assay" judge "$work/dump"
  # The largest of observed over allowed: what the run had, in three decimals.
  for what in element row request; do
    was=$(printf '%s\n' "$line" | sed 's/.*"ratio_'$what'":\([0-9.e+-]*\).*/\1/')
    is=$(sed -n 's/.*'$what' \([0-9.]*\).*/\1/p' "$work/out" | sort -g | tail -n 1)
    if awk -v a="$was" -v b="${is:-0}" 'BEGIN { exit !(a - b < 6e-4 && b - a < 6e-4) }'; then passed=$((passed + 1)); else
      failed=$((failed + 1))
      printf 'FAIL %s: %s ratio %s in the run, %s of its dump: %s\n' "$op" "$what" "$was" "$is" "$case"
    fi
  done
  rm -f "$work/run.jsonl"
done < <(sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' "$root/include/assay/ops.def")
"$assay" replay 'gate_attention variant=split_keys device=simt mode=decode kv_len=9 new=1 dtype=f32' --dump "$work/one" >/dev/null
judge 'one dump' 0 '^PASS +gate_attention, out: ' "$assay" judge "$work/one"
flip "$work/one/out.got.f32.npy" $(($(wc -c <"$work/one/out.got.f32.npy") - 2))
judge 'one byte of it' 1 '^FAIL +gate_attention, out: out\[0, 7, 127\]: got' "$assay" judge "$work/one"
judge 'dump of a call that is declined' 3 ': nothing is written: the case was not judged' \
  "$assay" replay 'gated_delta_rule variant=chunk device=simt dtype=f32' --dump "$work/declined"
grep -q 'q: found dtype f32, taken here: bf16' "$work/out" || { echo 'FAIL dump of a call that is declined: no reason'; failed=$((failed + 1)); }
[ ! -e "$work/declined" ] || { echo 'FAIL dump of a call that is declined: a folder is left'; failed=$((failed + 1)); }

# A listed case of every operator, dumped without a variant. Inputs and expectation are those of a variant's dump. A
# variant's output that is written into the folder is judged.
while read -r op; do
  line=$("$assay" list cases "$op" | awk '/\/check\// && !seen++')
  rm -rf "$work/listed"
  judge "$op, a listed case" 0 "^an engine writes: .*\.got\..*\.npy" "$assay" dump "$line" "$work/listed"
  [ -s "$work/listed/manifest.json" ] && compgen -G "$work/listed/*.expected.f64.npy" >/dev/null || { echo "FAIL $op: no expectation"; failed=$((failed + 1)); }
done < <(sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' "$root/include/assay/ops.def")
"$assay" dump 'rms_norm dtype=f32 N=3 C=24 values=normal' "$work/listed" >/dev/null
judge 'a dump without results' 2 'y\.got\.f32\.npy: cannot be read' "$assay" judge "$work/listed"
"$assay" replay 'rms_norm variant=block_rows device=simt dtype=f32 N=3 C=24 values=normal' --dump "$work/by_variant" >/dev/null
for file in x.f32 g.f32 y.expected.f64; do
  cmp "$work/listed/$file.npy" "$work/by_variant/$file.npy" || failed=$((failed + 1))
done
cp "$work/by_variant/y.got.f32.npy" "$work/listed/"
judge 'a dump with results' 0 '^PASS +rms_norm, y: ' "$assay" judge "$work/listed"
flip "$work/listed/y.got.f32.npy" $(($(wc -c <"$work/listed/y.got.f32.npy") - 2))
judge 'a dump with a wrong result' 1 '^FAIL +rms_norm, y: ' "$assay" judge "$work/listed"
sed -i 's/"kv_len"/"kv_lens"/' "$work/one/manifest.json"
judge 'manifest that lies' 2 "inputs: found 'kv_lens', allowed for gate_attention: q, k_cache" "$assay" judge "$work/one"
# Several folders: a line names its folder, and the files have a line and a test case for each.
judge 'two folders' 1 "^FAIL +$work/listed: rms_norm, y: " "$assay" judge "$work/by_variant" "$work/listed" --jsonl "$work/judged.jsonl" --junit "$work/judged.xml"
[ "$(grep -c '"verdict":"PASS"' "$work/judged.jsonl")" -eq 1 ] && [ "$(grep -c '"verdict":"FAIL"' "$work/judged.jsonl")" -eq 1 ] && grep -q '^{"end":2,"passed":1,"failed":1' "$work/judged.jsonl" || { echo "FAIL judged.jsonl: $(cat "$work/judged.jsonl")"; failed=$((failed + 1)); }
grep -q '<testsuites name="assay" tests="2" failures="1"' "$work/judged.xml" || { echo 'FAIL judged.xml'; failed=$((failed + 1)); }
# A tolerance on long rows lets planted errors through that our limits see, and a narrow one does not.
rm -rf "$work/long"
"$assay" replay 'softmax_attention variant=split_keys device=simt tier=calibrated mode=decode dtype=f32 kv_dtype=same values=normal H=2 H_kv=1 D=64 block_size=16 layout=nhd kv_len=2048 seed=0x5' --dump "$work/long" >/dev/null
judge 'what a tolerance lets through' 0 '^tolerance .*: [1-9] of [0-9] planted errors pass: last_key_dropped.*; our limits miss 0$' "$assay" judge "$work/long" --tolerance 0.01,0.01
judge 'a tolerance of f32' 0 '^tolerance .*: 0 of [1-9] planted errors pass; our limits miss 0$' "$assay" judge "$work/long" --tolerance 1e-6,1e-6
judge 'a tolerance in the lines' 0 ' 0 failed' "$assay" judge "$work/long" --tolerance 0.01,0.01 --jsonl "$work/long.jsonl"
grep -q '"rtol":0.01,"atol":0.01,"planted":[1-9],"passed":"last_key_dropped' "$work/long.jsonl" || { echo 'FAIL long.jsonl: no planted errors'; failed=$((failed + 1)); }
judge 'no tolerance' 2 'allowed: RTOL,ATOL' "$assay" judge "$work/long" --tolerance 0.01
rm "$work/one/manifest.json"
judge 'no manifest' 2 'manifest.json: cannot be read' "$assay" judge "$work/one"
judge 'no folder given' 2 'judge: needs a folder, found none' "$assay" judge

# The check itself: a wrong expectation must not pass.
before=$failed
judge 'planted' 0 'nothing says this' "$assay" version >/dev/null
if [ "$failed" -eq "$before" ]; then
  echo 'FAIL the check takes anything'
  failed=$((failed + 1))
else
  failed=$before
fi

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
