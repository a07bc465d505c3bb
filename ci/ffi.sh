#!/usr/bin/env bash
# ffi.sh BUILD CXX: judges functions of the tvm-ffi ABI, right ones and wrong ones (ci/ffi/library.cpp), through
# `assay --ffi --bind`. It also runs the example of docs/doors/ffi.md. The headers and libtvm_ffi.so are those of the
# wheel apache-tvm-ffi: in $ASSAY_TVM_FFI, in build/wheels/tvm_ffi, or where python3 finds them. Status 77 where there
# is no wheel, except that ASSAY_NEED_WHEELS=1 makes that a failure.
set -uo pipefail

build=$(cd "$1" && pwd)
cxx=$2
assay=$build/assay
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=${ASSAY_TVM_FFI:-$root/build/wheels/tvm_ffi}
[ -e "$wheel/lib/libtvm_ffi.so" ] ||
  wheel=$(python3 -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("tvm_ffi").origin))' 2>/dev/null)
if [ ! -e "$wheel/lib/libtvm_ffi.so" ] || [ ! -e "$wheel/include/tvm/ffi/tvm_ffi.h" ]; then
  echo 'apache-tvm-ffi is not installed: the tvm-ffi door is not tested'
  [ "${ASSAY_NEED_WHEELS:-0}" = 1 ] && exit 1
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset ASSAY_FFI_RUNTIME
cd "$work" || exit 1
failed=0
bad() { printf 'FAIL %s\n' "$1"; cat "$work/said" 2>/dev/null; failed=1; }

# The libraries are built side by side.
sed -n '/^```cpp$/,/^```$/p' "$root/docs/doors/ffi.md" | sed '/^```/d' >lib.cpp
"$cxx" -std=c++17 -O0 -fPIC -shared -I "$wheel/include" "$root/ci/ffi/library.cpp" -o library.so &
first=$!
"$cxx" -std=c++17 -O0 -fPIC -shared -I "$wheel/include" "$root/ci/ffi/signatures.cpp" -o signatures.so &
second=$!
TVM_FFI=$wheel bash -ec "$(sed -n '/^```sh$/,/^```$/p' "$root/docs/doors/ffi.md" | grep '^g++' | sed "s,^g++,$cxx,")" || bad 'the example of docs/doors/ffi.md does not compile'
"$cxx" -x c -O0 -fPIC -shared -I "$wheel/include" "$root/ci/ffi/hostile.c" -o hostile.so -lm || bad 'ci/ffi/hostile.c does not compile'
wait "$second" || bad 'ci/ffi/signatures.cpp does not compile'
wait "$first" || { bad 'ci/ffi/library.cpp does not compile'; exit 1; }
runtime=$wheel/lib/libtvm_ffi.so

# bind NAME OPERATOR SYMBOL ARGS [LINES...]: NAME.yaml
bind() {
  local name=$1
  printf 'operator: %s\nvariant: %s\ndevice: simt\nsymbol: %s\nargs: %s\n' "$2" "$name" "$3" "$4" >"$name.yaml"
  shift 4
  printf '%s\n' "$@" >>"$name.yaml"
}
# expect WHAT STATUS TEXT COMMAND...: the command's status, and a line of its output.
expect() {
  local what=$1 wanted=$2 text=$3 status=0
  shift 3
  "$@" >"$work/said" 2>&1 || status=$?
  [ "$status" -eq "$wanted" ] || { bad "$what: status $status, wanted $wanted"; return; }
  grep -qE -e "$text" "$work/said" || bad "$what: says nothing like '$text'"
}
# run OPERATOR NAME OPTIONS...
run() {
  local op=$1 name=$2
  shift 2
  "$assay" run "$op" --ffi ./library.so --bind "$name.yaml" --ffi-runtime "$runtime" --variant "$op=$name" --power off --maxfail 1 "$@"
}

# ---- verdicts
norm=('claims: f32,bf16' 'only: {x: [f32, bf16], round_inner: false}' 'contract: {rescales: false, run_to_run: true, permutation: true, alone: true}')
some=(--section check --filter types)
for symbol in norm norm_plain norm_wrong_eps norm_reads_past norm_raises norm_crashes norm_changes_modes norm_looks_at_strides; do
  bind "$symbol" rms_norm "$symbol" '[y, x, g, eps]' "${norm[@]}"
done
bind norm_returned rms_norm norm_returned '[x, g, eps]' 'returns: y' "${norm[@]}"
bind copied rms_norm norm '[y, {tensor: y, from: x}, g, eps]' "${norm[@]}"
bind one_more rms_norm norm '[y, x, g, eps, 0]' "${norm[@]}"
bind plain_one_more rms_norm norm_plain '[y, x, g, eps, 0]' "${norm[@]}"
bind swapped rms_norm norm '[y, x, g, 1]' "${norm[@]}" 
bind add_norm add_rms_norm add_norm '[{tensor: y, from: x}, res, g, eps]' 'claims: f32' 'only: {x: f32, round_inner: false}' "${norm[2]}"
expect 'a right function' 0 '^[1-9][0-9]* PASS, 0 FAIL' run rms_norm norm "${some[@]}"
expect 'a right function without metadata' 0 '^[1-9][0-9]* PASS, 0 FAIL' run rms_norm norm_plain "${some[@]}"
expect 'strides of axes of one element' 0 '^[1-9][0-9]* PASS, 0 FAIL' run rms_norm norm_looks_at_strides --section edge --filter few_channels
expect 'a returned tensor' 0 '^[1-9][0-9]* PASS, 0 FAIL' run rms_norm norm_returned "${some[@]}"
expect 'a function in place, after a copy' 0 '^[1-9][0-9]* PASS, 0 FAIL' run rms_norm copied "${some[@]}"
expect 'a fused function in place' 0 '^[1-9][0-9]* PASS, 0 FAIL' run add_rms_norm add_norm "${some[@]}"
expect 'a wrong eps' 1 '^FAIL rms_norm/norm_wrong_eps .*: (element|row|request|exact)' run rms_norm norm_wrong_eps "${some[@]}"
expect 'a constant for eps' 3 'eps: found .* the bind file does not pass it' run rms_norm swapped --section check --filter /eps
expect 'a read after the row' 1 '^FAIL rms_norm/norm_reads_past .*: dead_bytes' run rms_norm norm_reads_past "${some[@]}"
expect 'a raised error' 1 'launch: .*: norm_raises: ValueError: no rows of any width today' run rms_norm norm_raises "${some[@]}"
expect 'a crash' 1 '^CRASH rms_norm/norm_crashes .*SIGABRT' run rms_norm norm_crashes "${some[@]}"
expect 'changed modes' 1 '^STATE rms_norm/norm_changes_modes' run rms_norm norm_changes_modes "${some[@]}"
expect 'an arity that metadata contradicts' 2 'library\.so: args: found 5, allowed 4: the library.s metadata of norm' run rms_norm one_more
expect 'an arity without metadata' 1 'launch: .*: norm_plain: TypeError: .*Expected 4 but got 5' run rms_norm plain_one_more "${some[@]}"
expect 'section refuse' 0 '^0 PASS, 0 FAIL.* [1-9][0-9]* REFUSED' run rms_norm norm --section refuse

# The printed line fails alone, and says by which door.
run rms_norm norm_reads_past "${some[@]}" >"$work/said" 2>&1
line=$(grep -m 1 -oE "assay replay .*" "$work/said")
case $line in *"--ffi './library.so' --bind 'norm_reads_past.yaml' --ffi-runtime '"*) ;; *) bad "the replay line has no door: $line" ;; esac
expect 'the replay line' 1 '^FAIL' bash -c "$assay ${line#assay }"
expect 'shrink' 1 'assay replay .* --ffi .* --bind ' bash -c "$assay shrink ${line#assay replay } --shrink-budget 3 -o small.yaml"
grep -q -- '--ffi ./library.so\|--ffi .\./library.so' small.yaml || bad 'the minimal suite does not name the door'
run rms_norm norm_reads_past "${some[@]}" --jsonl run.jsonl --html run.html >/dev/null 2>&1
grep -q 'library.so.* --bind' run.html || bad 'the page names no door'
expect 'fuzz' 0 '[1-9][0-9]* PASS' "$assay" fuzz rms_norm --cases 40 --ffi ./library.so --bind norm.yaml --ffi-runtime "$runtime" --variant rms_norm=norm
expect 'list variants' 0 '^rms_norm +norm +simt' "$assay" list variants --ffi ./library.so --bind norm.yaml --ffi-runtime "$runtime"
expect 'in process' 1 '^FAIL' bash -c "$assay ${line#assay } --in-process"

# ---- functions that break the rules, or act upon the process
# hostile SYMBOL STATUS TEXT [LINES...]: of the bind file
hostile() {
  local symbol=$1 wanted=$2 text=$3 args='[y, x, g, eps]'
  shift 3
  [ $# -eq 0 ] || args='[x, g, eps]'
  bind "$symbol" rms_norm "$symbol" "$args" 'claims: f32' 'only: {x: f32, round_inner: false}' "${norm[2]}" "$@"
  expect "$symbol" "$wanted" "$text" "$assay" run rms_norm --section check --ffi ./hostile.so --bind "$symbol.yaml" --ffi-runtime "$runtime" \
    --variant "rms_norm=$symbol" --power off --maxfail 1
}
hostile raises_and_succeeds 1 'launch: .*returned 0, and raised ValueError: .x1b.2Jno'
hostile returns_an_error 1 'launch: .*returned the error RuntimeError: not today'
hostile odd_metadata 2 'hostile\.so: metadata of odd_metadata: found no text .type 1., allowed the text of a JSON object'
hostile prints 0 '^[1-9][0-9]* PASS, 0 FAIL'
grep -qE '^kernel: .x1b.2J99 PASS, 0 FAIL' said && ! grep -qE "^9[89] PASS|$(printf '\033')" said || bad 'what a kernel prints looks like a line of the run'
hostile maps_what_it_reads 1 '^CRASH .*: g: accessed memory past the end; its launcher handles faults'
hostile handles_faults 1 '^STATE .*: it handles the faults of this process'
hostile leaves_a_grandchild 1 '^STATE .*: a child process is left'
hostile lowers_memory 1 '^STATE .*: it lowered a limit'
hostile returned_dense 0 '^[1-9][0-9]* PASS, 0 FAIL' 'returns: y'
hostile returned_integers 1 'y: dtype: found a returned tensor of code 0, 32 bits, 1 lanes, allowed 2, 32, 1: f32' 'returns: y'
hostile returned_elsewhere 1 'y: device: found a returned tensor of kind 2, allowed 1' 'returns: y'
hostile returned_nothing 1 'y: found a returned tensor without memory' 'returns: y'
hostile returned_longer 1 'y: shape: found [0-9]+ returned on axis 0, allowed [0-9]+' 'returns: y'

# ---- adapters: a plan call, page tables, bases, conventions
attention=('claims: f32|same|nhd,hnd|decode' 'only: {q: f32, k_cache: f32}' 'scratch: {buffer: {bytes: 64}}' 'contract: {run_to_run: true, renumbering: true, permutation: true, alone: true}')
planned=('plan: {symbol: plan, args: [{adapter: csr_indptr, place: host}, buffer, B]}')
args='buffer, planned, q, k_cache, v_cache, csr_indptr, csr_indices, last_page_len, out'
bind decode softmax_attention decode "[$args, {tensor: lse, base: 2}, layout_code, window_left, scale_or_usual]" "${attention[@]}" "${planned[@]}"
bind base_e softmax_attention decode "[$args, lse, layout_code, window_left, scale_or_usual]" "${attention[@]}" "${planned[@]}"
bind window softmax_attention decode "[$args, {tensor: lse, base: 2}, layout_code, window, scale_or_usual]" "${attention[@]}" "${planned[@]}"
bind layout softmax_attention decode "[$args, {tensor: lse, base: 2}, 0, window_left, scale_or_usual]" "${attention[@]}" 'ignores: []' "${planned[@]}"
bind last softmax_attention decode "[${args/last_page_len/kv_len}, {tensor: lse, base: 2}, layout_code, window_left, scale_or_usual]" "${attention[@]}" "${planned[@]}"
bind merge merge_states merge '[{tensor: o, slice: 0}, {tensor: lse, slice: 0, base: 2}, {tensor: o, slice: 1}, {tensor: lse, slice: 1, base: 2}, out, {tensor: lse_out, base: 2, spare: true}]' \
  'claims: f32|same' 'only: {o: f32, out: f32, splits: 2}' 'contract: {run_to_run: true, permutation: true, alone: true}'
bind rope rope rope '[q, k, {tensor: q_out, else: q}, {tensor: k_out, else: k}, cos_sin, positions, {param: style, as: bool}]' \
  'claims: f32|neox,interleaved' 'only: {q: f32}' 'contract: {run_to_run: true, permutation: true, alone: true}'
bind other_style rope rope '[q, k, {tensor: q_out, else: q}, {tensor: k_out, else: k}, cos_sin, positions, false]' 'claims: f32|neox,interleaved' 'only: {q: f32, style: [neox, interleaved]}'
bind append kv_append append '[k, v, row_numbers, row_offsets, k_cache, v_cache, row_pages, row_indptr, row_lengths, layout_code]' \
  'claims: f32|same|nhd,hnd|decode,prefill' 'only: {k: f32, k_cache: f32}' 'contract: {run_to_run: true, renumbering: true, permutation: true, alone: true}'
few=(--section check --filter decode)
expect 'decode with a plan' 0 '^[1-9][0-9]* PASS, 0 FAIL' run softmax_attention decode "${few[@]}"
# A bench plans its copies of a call before it launches them. What they hold together is more than is kept of plans that
# were launched.
bind much softmax_attention decode "[$args, {tensor: lse, base: 2}, layout_code, window_left, scale_or_usual]" "${attention[@]/bytes: 64/bytes: 1073741824}" "${planned[@]}"
printf 'op: softmax_attention\nbench:\n  - {name: small, mode: decode, dtype: f32, D: 64, H: 2, H_kv: 1, batch: 2, kv_len: 32}\n' >much_bench.yaml
expect 'a bench whose plans hold much' 0 '^1 timed, 0 without a figure' "$assay" bench much_bench.yaml --ffi ./library.so --bind much.yaml \
  --ffi-runtime "$runtime" --variant softmax_attention=much --budget 0.05s
expect 'an lse of base 2 taken for one of base e' 1 '^FAIL softmax_attention/base_e' run softmax_attention base_e --section check --filter lse
expect 'a refusal that names the broken argument' 0 ', 0 FAIL, .* [1-9][0-9]* REFUSED' run softmax_attention decode --section refuse --filter block_table_too_short
expect 'a window one too long' 1 '^FAIL softmax_attention/window' run softmax_attention window --section check --filter window
expect 'a merge of two states' 0 '^[1-9][0-9]* PASS, 0 FAIL' run merge_states merge --section check
bind merge_any merge_states merge '[{tensor: o, slice: 0}, {tensor: lse, slice: 0, base: 2}, {tensor: o, slice: 1}, {tensor: lse, slice: 1, base: 2}, out, {tensor: lse_out, base: 2, spare: true}]' \
  'claims: f32|same' 'only: {splits: 2}' 'same_types: [o, out]' 'multiples: {D: 24}'
expect "outputs of another type" 1 "out: found [a-z0-9]+, allowed [a-z0-9]+: the bind file wants one type" run merge_states merge_any --section check --all
expect 'a dimension that is no multiple' 1 'D: found N, allowed multiples of N by the bind file' run merge_states merge_any --section check --all
expect 'rope, in place or not' 0 '^[1-9][0-9]* PASS, 0 FAIL' run rope rope --section check --filter types
expect 'rope of one style' 1 '^FAIL rope/other_style' run rope other_style --section check
expect 'an append, each row a request' 0 '^[1-9][0-9]* PASS, 0 FAIL' run kv_append append --section check --filter types

# Parts of the last axis, and tables of an operator that has other names for them.
latent_append() { bind "$1" mla_append latent_append "[c, pe, row_pages, row_offsets, {tensor: cache, columns: [$2]}, {tensor: cache, columns: [$3]}]" 'claims: f32|false' 'only: {c: f32}' 'needs: [cache]'; }
latent_append latent_append '0, 512' '512, 576'
latent_append pe_first '64, 576' '0, 64'
latent_append too_wide '0, 512' '512, 577'
latent() { bind "$1" mla_attention latent "[{tensor: q, columns: [0, 512]}, {tensor: q, columns: [512, 576]}, {tensor: cache, columns: [0, 512]}, {tensor: cache, columns: [512, 576]}, q_indptr, csr_indptr, csr_indices, lengths, out, $2, scale]" 'claims: f32|false' 'only: {q: f32}' 'needs: [cache]'; }
latent latent S
latent pages_of_one 1
expect 'an append of parts of one tensor' 0 '^[1-9][0-9]* PASS, 0 FAIL' run mla_append latent_append --section check
expect 'parts in the wrong order' 1 '^FAIL mla_append/pe_first .*: (unwritten|exact|element)' run mla_append pe_first --section check
expect 'parts beyond the last axis' 3 'cache: found N along its last axis, allowed N and more' run mla_append too_wide --section check
expect 'latent attention over pages' 0 '^[1-9][0-9]* PASS, 0 FAIL' run mla_attention latent --section check
expect 'pages of another size' 1 '^(FAIL|CRASH) mla_attention/pages_of_one .*: ' run mla_attention pages_of_one --section check

# ---- sums of products, to the last bit
product=('claims: f32' 'only: {a: f32, c: f32, alpha: 1, beta: 0}' 'dense: [a]' 'contract: {run_to_run: true, permutation: true, alone: true}')
bind product gemm product '[a, b, c]' "${product[@]}" 'sums: {unit: fma}'
bind other_sums gemm product '[a, b, c]' "${product[@]}" 'sums: {unit: multiply_add}'
expect 'a product with its sums' 0 '^[1-9][0-9]* PASS, 0 FAIL' run gemm product "${some[@]}"
expect 'a product with other sums' 1 'predicted: .*as if the unit were fma' run gemm other_sums "${some[@]}"

# ---- refusals: line, key, found, allowed
# refused TEXT FILE
refused() { expect "a refusal: $1" 2 "$1" "$assay" list variants --ffi ./library.so --bind "$2" --ffi-runtime "$runtime"; }
# change SED TEXT: norm.yaml, changed, is refused.
change() {
  sed -e "$1" norm.yaml >changed.yaml
  refused "$2" changed.yaml
}
change 's/^operator: .*/operator: rms_nrom/' "changed.yaml:1:11: operator: found 'rms_nrom' .nearest: rms_norm., allowed: "
change 's/^device: .*/device: tpu/' "changed.yaml:3:9: device: found 'tpu', allowed simt, cuda"
change 's/^symbol: .*/symbol: no_such/' 'symbol: found no __tvm_ffi_no_such, allowed a function that the library exports'
change 's/y, x, g, eps/y, x, gg, eps/' "changed.yaml:5:14: args: found 'gg'.*allowed: x, g, z, y, eps, round_inner, plus_one, gate, group, N, C, none"
change 's/y, x, g, eps/y, x, eps/' "args: found no 'g', which rms_norm has: allowed in args, or among ignores"
change 's/y, x, g, eps/x, g, eps/' "args: found no 'y', which rms_norm has: allowed in args, or as returns"
change 's/y, x, g, eps/y, x, g, csr_indptr/' 'adapter: found csr_indptr, allowed for operators with block_table, which rms_norm has not'
change 's/y, x, g, eps/y, x, g, planned/' 'args: found planned, allowed with the key plan'
change 's/y, x, g, eps/y, x, {tensor: g, as: bool}, eps/' 'as: found one, allowed with param'
change 's/y, x, g, eps/y, x, {tensor: g, param: eps}, eps/' 'args: found 2 of tensor, param, adapter, float, empty, allowed one'
change 's/y, x, g, eps/y, {tensor: x, columns: [8, 8]}, g, eps/' 'columns: found 2 numbers from 8 to 8, allowed two that rise'
change 's/y, x, g, eps/y, {tensor: x, columns: [0, z]}, g, eps/' "columns: found 'z', allowed 0 to 1048576"
change 's/y, x, g, eps/y, x, g, {param: eps, columns: [0, 8]}/' 'found slice, columns, else, from, base or spare, allowed with tensor'
change 's/y, x, g, eps/y, {tensor: x, base: 2}, g, eps/' 'base: found one for x, allowed for arguments of f32 alone'
change 's/^claims: .*/claims: f32|nhd/' 'claims: found 2 lists, allowed 1 without blanks, with . between them: dtype'
change 's/round_inner: false/round_inner: 2/' "only: round_inner: found '2', allowed up to 24 of true, false"
change 's/only: {x/only: {zz/' "changed.yaml:7:8: only: found 'zz'"
change '$asums: {unit: fma}' 'sums: found with rms_norm, allowed with products of matrices'
change '$amultiples: {C: 0}' "multiples: C: found '0', allowed a number from 1 to 65536"
change '$amultiples: {D: 8}' "multiples: found 'D', allowed a dimension of rms_norm"
change '$asame_types: [x, zz]' "same_types: found 'zz'"
change 's/rescales: false/rescale: false/' "changed.yaml:8:12: contract: found 'rescale', allowed: k, v, .*alone"
sed 's/unit: fma/unit: fmma/' product.yaml >wrong_unit.yaml
refused "wrong_unit.yaml:.*sums: unit: found 'fmma', allowed: wgmma_16" wrong_unit.yaml
change 's/^variant: .*/variants: a/' 'variants: found an unknown key .nearest: variant., allowed are operator, variant'
change 's/rescales: false/rescales: false, rescales: true/' 'changed.yaml:8:29: rescales: found twice, allowed once'
change 's/only: {x: .f32, bf16./only: {x: f32, x: bf16/' 'x: found twice, allowed once'
change 's/y, x, g, eps/y, x, g, 99999999999999999999/' "args: found '99999999999999999999', allowed: "
change 's/y, x, g, eps/y, x, g, 1.0e999/' "args: found '1.0e999', allowed: "
change 's/y, x, g, eps/y, {tensor: x, spare: true}, g, eps/' 'spare: found one for x, allowed for outputs'
change 's/^device: .*/device: []/' 'device: found none, allowed simt, cuda'
change '$areturns: y' "returns: found 'y', which is among args"
change '$aplan: {symbol: norm, args: [planned]}' 'plan: args: found planned, which the plan returns'
sed 's/y, x, g, eps/y, x, {tensor: g, slice: 0, columns: [0, 8]}, eps/' norm.yaml >sliced.yaml
expect 'columns of what has no axis left' 3 'g: found N axes, allowed N and more' "$assay" run rms_norm --section check --filter types \
  --ffi ./library.so --bind sliced.yaml --ffi-runtime "$runtime" --variant rms_norm=norm --power off
expect '--ffi alone' 2 '^assay: --ffi: found without --bind' "$assay" list variants --ffi ./library.so
expect '--bind alone' 2 '^assay: --bind: found without --ffi' "$assay" list variants --bind norm.yaml
expect 'no libtvm_ffi' 2 'ffi: libtvm_ffi.so: found none beside ./library.so' "$assay" list variants --ffi ./library.so --bind norm.yaml
printf '__attribute__((constructor)) static void out(void) { __builtin_trap(); }\n' | "$cxx" -x c++ -shared -fPIC -o trap.so -
expect 'a library that crashes as it loads' 2 'trap.so .norm.yaml.: cannot be loaded: loading it' "$assay" list variants --ffi ./trap.so --bind norm.yaml --ffi-runtime "$runtime"

# ---- the example of the page
sed -n '/^```yaml$/,/^```$/p' "$root/docs/doors/ffi.md" | sed '/^```/d' >good.yaml
sed 's/^symbol: norm$/symbol: norm_side_by_side/' good.yaml >bad.yaml
sed -n '/^```sh$/,/^```$/p' "$root/docs/doors/ffi.md" | sed '/^```/d; /^g++/d' >example.sh
mkdir -p bin && ln -sf "$assay" bin/assay
expect 'the example of docs/doors/ffi.md' 1 "^FAIL rms_norm/mine .*" env PATH="$work/bin:$PATH" TVM_FFI="$wheel" bash -e example.sh
grep -qE '^[1-9][0-9]* PASS, 0 FAIL' said || bad 'the first run of the example does not pass'

# ---- the shipped files: names, arity and types, against functions that do nothing. A case that gets as far as its
# judgement is found to be wrong: what nothing has written, or what it has left unchanged. On a GPU nothing is shown here.
for file in "$root"/conformance/binds/flashinfer-0.6/*.yaml; do
  name=$(basename "$file" .yaml)
  case $name in batch_decode) prefix=decode_ ;; batch_mla) prefix=mla_ ;; batch_prefill_sm90) prefix=sm90_ ;; batch_prefill_0.6.*) prefix=prefill${name##*.}_ ;; *) prefix= ;; esac
  sed -e 's/^device: cuda/device: simt/; s/bytes: [0-9]*/bytes: 64/' -e "s/symbol: /symbol: $prefix/" "$file" >"$name.yaml"
  op=$(sed -n 's/^operator: //p' "$file")
  variant=$(sed -n 's/^variant: //p' "$file")
  expect "${file#"$root"/}" 1 "^FAIL $op/$variant .*: (unwritten|element|exact|row|request)" "$assay" run "$op" --section check --ffi ./signatures.so \
    --bind "$name.yaml" --ffi-runtime "$runtime" --variant "$op=$variant" --power off --maxfail 1
done
sed 's/args: .y, x, g, eps, false./args: [y, x, g, false, eps]/' rms_norm.yaml >turned.yaml
expect 'two arguments in the wrong order' 1 'launch: .*rmsnorm: TypeError' "$assay" run rms_norm --section check --ffi ./signatures.so --bind turned.yaml \
  --ffi-runtime "$runtime" --variant rms_norm=flashinfer --power off --maxfail 1
expect 'bench/standing/fuzz.sh without modules' 1 "^0 rows drew, $(grep -c "$(printf '\tffi\t')" "$root/bench/standing/fuzz.tsv") did not" \
  env -u FLASHINFER_MODULES FUZZ_ONLY=^ffi bash "$root/bench/standing/fuzz.sh" "$assay" "$work/drawn" 1
[ "$failed" -eq 0 ] && echo 'the tvm-ffi door: all as expected'
exit "$failed"
