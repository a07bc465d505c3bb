#!/usr/bin/env bash
# contracts.sh BUILD CXX: a contract is believed up to a bound, is read once, says what a run was judged by, and is the
# same in a dump and in `assay judge`. The plug-in of contracts.cu has the variants.
set -uo pipefail

assay=$(cd "$1" && pwd)/assay cxx=$2
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
bad() { printf 'FAIL %s\n' "$*"; failed=1; }
cd "$root" || exit 2
so=$work/contracts.so
"$cxx" -std=c++20 -O1 -w -shared -fPIC -fvisibility=hidden -ffp-contract=off -Iinclude -I. -Igpu -include gpu/simt/cuda.h \
  '-DASSAY_AS_PLUGIN="contracts"' -x c++ ci/contracts.cu -o "$so" || exit 1
# A suite of its operator's name: planted errors are judged.
printf 'op: rms_norm\ncheck:\n  - {name: few, cases: 24, dtype: f32, N: {uniform: [1, 6]}, C: {uniform: [8, 80]}, tier: calibrated, values: normal, eps: 1e-3}\n' >"$work/rms_norm.yaml"
printf 'op: bias_gelu_new\ncheck:\n  - {name: few, cases: 24, dtype: f32, N: {uniform: [1, 6]}, C: {uniform: [8, 80]}, tier: calibrated, values: normal}\n' >"$work/bias_gelu_new.yaml"
printf 'op: rms_norm\ncheck:\n  - {name: small, cases: 8, dtype: f32, N: 4, C: 40, tier: calibrated, magnitude: small}\n' >"$work/small.yaml"

# Needles: most products are far smaller than some biases.
printf 'op: gemm\ncheck:\n  - {name: starts, cases: 12, dtype: f32, M: 4, N: 40, K: 256, bias: true, tier: calibrated, values: needles, beta: {one_of: [0, 0.7]}}\n' >"$work/starts.yaml"

# try VARIANT SUITE ARGUMENTS...: status and text of a run.
try() {
  local variant=$1 suite=$2
  shift 2
  status=0
  timeout 120 "$assay" run "$work/$suite.yaml" --plugin "$so" --variant "$(sed -n 's/^op: //p' "$work/$suite.yaml")=$variant" "$@" >"$work/out" 2>"$work/err" || status=$?
}
# expect VARIANT SUITE STATUS TEXT
expect() {
  try "$1" "$2"
  [ "$status" -eq "$3" ] && grep -q -- "$4" "$work/out" "$work/err" || bad "$1, $2: status $status, wanted $3 and '$4': $(tail -n 2 "$work/out") $(head -n 1 "$work/err")"
}

expect honest rms_norm 0 '^contract rms_norm/honest: exp_ulp 2, run_to_run, renumbering, permutation, lanes 1, alone; showed at most 0\.[0-9]* of an element'
[ "$(grep -c '^contract' "$work/out")" -eq 1 ] || bad 'one line per variant'
expect wild rms_norm 2 'contracts.so: variant rms_norm/wild: contract: exp_ulp: found 1e+09, allowed a number from 0 to 65536'
# The largest exp_ulp that is believed hides no planted error (power_test has runs in which one is hidden).
expect wide bias_gelu_new 0 '^power bias_gelu_new: 7 spoils in 24 cases, 7 seen in every effective case'
expect widens rms_norm 1 '^FAIL rms_norm/widens .*element'
expect asks rms_norm 0 '24 PASS'
expect flushes small 0 '8 PASS'
expect flushes2 small 1 '^FAIL rms_norm/flushes2'
expect starts starts 0 '^contract gemm/starts: run_to_run, .*, start bias; showed at most 0\.[0-9]* of an element'
expect starts2 starts 1 '^FAIL gemm/starts2 .*element'
# Another contract when the object is loaded again.
COUNT=$work/count expect returns rms_norm 1 'gives another table each time it is loaded'
[ "$(wc -c <"$work/count")" -gt 1 ] || bad 'returns: it was entered once'
# Without a name, a plug-in beside other variants: the one that is not believed is refused all the same.
status=0
"$assay" run "$work/rms_norm.yaml" --plugin "$so" >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 2 ] && grep -q 'rms_norm/wild: contract: exp_ulp' "$work/err" || bad "all variants: status $status"
status=0
"$assay" fuzz rms_norm --cases 5 --plugin "$so" --variant rms_norm=wild >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 2 ] && grep -q 'exp_ulp' "$work/err" || bad "fuzz: status $status: $(head -n 1 "$work/err")"

# ratios FILE KEY: the largest in a JSONL.
ratio() { grep -o "\"$2\":[^,}]*" "$1" | cut -d : -f 2 | sort -g | tail -n 1 | awk '{ printf "%.6g", $1 }'; }
# again ARGUMENTS... -- DESCRIPTOR: a dumped call has the same ratios when it is judged again.
again() {
  rm -rf "$work/dump"
  "$assay" replay "$@" --dump "$work/dump" --jsonl "$work/run.jsonl" >"$work/out" 2>&1 || bad "replay: $(tail -n 1 "$work/out")"
  "$assay" judge "$work/dump" --jsonl "$work/judge.jsonl" >"$work/out" 2>&1 || bad "judge: $(cat "$work/out")"
  for key in ratio_element ratio_row ratio_request; do
    [ -n "$(ratio "$work/run.jsonl" $key)" ] && [ "$(ratio "$work/run.jsonl" $key)" = "$(ratio "$work/judge.jsonl" $key)" ] ||
      bad "$key: $(ratio "$work/run.jsonl" $key), judged again $(ratio "$work/judge.jsonl" $key): $*"
  done
}
again "rms_norm variant=flushes device=simt dtype=f32 tier=calibrated values=normal magnitude=small N=4 C=40 seed=3" --plugin "$so"
"$assay" judge "$work/dump" >/dev/null || bad 'a contract that says ftz'
sed -i 's/"ftz": 1/"ftz": 0/' "$work/dump/manifest.json"
"$assay" judge "$work/dump" >/dev/null && bad 'a contract that does not say ftz'
again "gemm variant=starts device=simt dtype=f32 tier=calibrated values=needles M=4 N=40 K=256 bias=true seed=3" --plugin "$so"
"$assay" judge "$work/dump" >/dev/null || bad 'a contract that says start bias'
sed -i 's/"start": "bias"/"start": "zero"/' "$work/dump/manifest.json"
"$assay" judge "$work/dump" >/dev/null && bad 'a contract that says start zero'
sed -i 's/"start": "zero"/"start": "scale"/' "$work/dump/manifest.json"
"$assay" judge "$work/dump" >"$work/out" 2>"$work/err" && bad 'a manifest with start scale'
grep -q "contract: start: found 'scale', allowed zero, bias" "$work/err" || bad "a manifest with start scale: $(cat "$work/err")"
again "gemm variant=skinny device=simt dtype=bf16 tier=calibrated values=normal M=5 N=64 K=512 seed=4"
grep -q '"cut": 16' "$work/dump/manifest.json" || bad 'a contract with cut'
again "softmax_attention variant=mma device=simt dtype=bf16 kv_dtype=same tier=calibrated mode=prefill values=normal H=4 H_kv=2 D=64 block_size=16 kv_len=40,70 lse=true seed=5"
grep -q '"zero_p_v": "' "$work/dump/manifest.json" || bad 'a contract with a name'
again "rope_append variant=rows device=simt tier=calibrated mode=prefill dtype=f32 kv_dtype=e5m2 values=normal H=6 H_kv=3 D=32 R=32 max_pos=40 block_size=16 layout=x style=neox q_out=true dead=largest kv_len=1,15,15 seed=0x7f7d2a4d3e92d735"
grep -q '"requests": \[1, 15, 15\]' "$work/dump/manifest.json" || bad 'requests that no argument tells'
sed -i 's/"exp_ulp": [^,]*/"exp_ulp": 1e9/' "$work/dump/manifest.json"
"$assay" judge "$work/dump" >"$work/out" 2>"$work/err" && bad 'a manifest with exp_ulp 1e9'
grep -q 'contract: exp_ulp: found 1e+09' "$work/err" || bad "a manifest with exp_ulp 1e9: $(cat "$work/err")"

[ "$failed" -eq 0 ] && echo 'contracts are claims'
exit "$failed"
