#!/usr/bin/env bash
# claims_selftest.sh BUILD CC: a variant that claims and then declines every call fails the run, claim by claim.
# Nothing succeeds because nothing ran. Likewise a law that no case is asked, and variants that are forced in models.
set -euo pipefail

assay=$1/assay
cc=$2
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/p.c" <<'C'
#include <assay/plugin.h>
static assay_status never(const assay_call *call, assay_error *error) {
  (void)call;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found a call, allowed none");
}
static assay_status space(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return never(call, error);
}
static assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  (void)env;
  return never(call, error);
}
static const assay_variant row = {.struct_size = sizeof(assay_variant), .op = "gate_attention", .name = "never",
    .why = "claims and declines", .device = "simt", .arch = "any", .claims = "f32,bf16|same|nhd|decode",
    .supports = never, .workspace = space, .launch = launch};
static const assay_plugin_table table = {ASSAY_ABI, sizeof(assay_plugin_table), "never", &row, 1};
const assay_plugin_table *assay_plugin(const assay_host *host) { (void)host; return &table; }
C
"$cc" -shared -fPIC -I "$root/include" -x c "$work/p.c" -o "$work/p.so"
status=0
"$assay" run "$root/conformance/suites/gate_attention.yaml" --power off --plugin "$work/p.so" --variant gate_attention=never \
  --jsonl "$work/run.jsonl" >"$work/text" || status=$?
unclaimed=$(grep -c '"unclaimed":' "$work/run.jsonl" || true)
if [ "$status" -ne 1 ] || [ "$(grep -c '^{"unclaimed"' "$work/run.jsonl")" -ne 2 ]; then
  printf 'exit %s, wanted 1; %s lines name a claim\n' "$status" "$unclaimed"
  tail -n 5 "$work/text"
  exit 1
fi
echo 'a variant that declines every call fails its 2 claims: exit 1'

# A whole suite of gate_attention without contiguous keys: of its laws, that one alone is said to be missing.
printf '%s\n' 'op: gate_attention' 'check:' \
  '  - {name: few, cases: 12, dtype: [f32, bf16], mode: [decode, mixed], D: 64, H: 2, H_kv: 1, batch: 2, kv_len: {uniform: [1, 20]}}' >"$work/gate_attention.yaml"
status=0
"$assay" run "$work/gate_attention.yaml" --power off --jsonl "$work/laws.jsonl" >"$work/text" || status=$?
if [ "$status" -ne 1 ] || [ "$(grep -o '^{"unclaimed":"gate_attention on simt: law [a-z_]*' "$work/laws.jsonl")" != '{"unclaimed":"gate_attention on simt: law contiguous' ] ||
  ! grep -q '^FAIL gate_attention on simt: law contiguous: no case that passed was asked it$' "$work/text" ||
  ! grep -q '^    One in 2 of the cases to which it applies is asked' "$work/text"; then
  printf 'exit %s, wanted 1, and the law contiguous that no case was asked; said of laws:\n' "$status"
  grep ': law ' "$work/text" || tail -n 3 "$work/text"
  exit 1
fi
# One row: nothing can stand alone in a smaller call, and no row lies apart from another.
printf '%s\n' 'op: rms_norm' 'check:' '  - {name: one, cases: 40, dtype: [f32, bf16], N: 1, C: [8, 24]}' >"$work/rms_norm.yaml"
status=0
"$assay" run "$work/rms_norm.yaml" --power off --jsonl "$work/laws.jsonl" >"$work/text" || status=$?
for law in alone far; do
  if [ "$status" -ne 1 ] || ! grep -q "^FAIL rms_norm on simt: law $law: no case that passed was asked it\$" "$work/text"; then
    printf 'exit %s, wanted 1, and the law %s that no case was asked; said of laws:\n' "$status" "$law"
    grep ': law ' "$work/text" || tail -n 3 "$work/text"
    exit 1
  fi
done
echo 'a law that no case is asked fails the run: exit 1'

# A thinned run does not ask the variants of `night`, and asks the others. Any other run asks all. A name that no variant
# has would leave out nothing.
night() { # night NAME OPTION...: the variants of bias_residual that a run asks, where the item leaves NAME to the night
  printf '%s\n' 'op: bias_residual' 'check:' "  - {name: few, night: [$1], N: 2, C: 8}" >"$work/bias_residual.yaml"
  shift
  "$assay" run "$work/bias_residual.yaml" --power off --filter few --jsonl "$work/night.jsonl" "$@" >"$work/text" 2>&1 || return $?
  grep -o '"variant":"[a-z_]*"' "$work/night.jsonl" | sort -u | tr '\n' ' '
}
mapfile -t all < <("$assay" list variants | awk '$1 == "bias_residual" && / simt / { print $2 }' | sort -u)
every=$(printf '"variant":"%s" ' "${all[@]}")
others=$(printf '"variant":"%s" ' "${all[@]:1}")
status=0
night no_such --thin >/dev/null || status=$?
grep -q "/few: night: found 'no_such', allowed the variants of bias_residual" "$work/text" || status=1
if [ "${#all[@]}" -lt 2 ] || [ "$(night "${all[0]}")" != "$every" ] || [ "$(night "${all[0]}" --thin)" != "$others" ] || [ "$status" -ne 2 ]; then
  printf 'of %s without %s: whole %s, thinned %s; an unknown name: status %s\n' "$every" "${all[0]}" "$(night "${all[0]}")" \
    "$(night "${all[0]}" --thin)" "$status"
  exit 1
fi
echo 'a thinned run leaves the variants of the night: the others run'

# forced STATUS LINES VARIANT...: the models with variants forced; LINES of them are said to be taken by no case.
forced() {
  local wanted=$1 lines=$2 status=0
  shift 2
  "$assay" run "$root/conformance/suites/models.yaml" --filter small_decode_f32 "${@/#/--variant=}" >"$work/text" || status=$?
  if [ "$status" -ne "$wanted" ] || [ "$(grep -c '^FAIL .* is forced, but no case that passed took it' "$work/text")" -ne "$lines" ]; then
    printf 'models with %s forced: exit %s, wanted %s with %s variants that nothing took\n' "$*" "$status" "$wanted" "$lines"
    tail -n 5 "$work/text"
    exit 1
  fi
}
forced 0 0 gate_attention=decode_rows,prefill_as_decode
forced 1 1 gate_attention=decode_rows
forced 1 2 gemm=tiles mmha=stream,row_and_head
echo 'variants that are forced in models and that no case takes fail the run: exit 1'
