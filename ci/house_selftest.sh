#!/usr/bin/env bash
# house_selftest.sh: a check that cannot fail is a defect. Plants one violation of every rule in a copy of
# the sources and expects ci/house.sh to name the rule and the file. A clean copy must pass that rule.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# A small house with the real scripts and headers; every rule holds in it.
fresh() {
  rm -rf "$work/house"
  mkdir -p "$work/house" && cd "$work/house" || exit 2
  mkdir -p core ref/lib gpu/lib gpu/simt bench fuzz conformance/judge conformance/report conformance/text conformance/suites docs/kernels ci
  cp -r "$root/include" "$root/.clang-format" .
  cp "$root"/ci/*.sh ci/
  printf '# house\n\nRun `ci/conform.sh`, then `ci/test.sh`.\n' >README.md
  local op
  for op in $(sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' include/assay/ops.def); do
    printf '#include "assay/op.h"\n#include "core/rng.h"\n' | tee "ref/$op.c" >"gpu/$op.cu"
    printf 'check: []\n' >"conformance/suites/$op.yaml"
    printf '# %s\n' "$op" >"docs/kernels/$op.md"
  done
  for op in $(sed -n 's/^ASSAY_STRATEGY(\([a-z0-9_]*\), *\([a-z0-9_]*\)).*/\1_\2/p' include/assay/strategies.def); do
    printf '#include "assay/op.h"\n' >"gpu/$op.cu"
  done
  printf 'int core_of_it;\n' >core/registry.c
  printf 'int engine;\n' >conformance/judge/judge.c
  printf 'int entry;\n' >conformance/main.c
  cp "$root/core/rng.h" core/rng.h
  mkdir -p conformance/mutants
  cp "$root/conformance/mutants/make.sh" conformance/mutants/
  printf 'mutant kept\nfile gpu/gate_attention.cu\n-#include "core/rng.h"\n+#include "core/other.h"\n' >conformance/mutants/kept.def
  cp "$root/conformance/CMakeLists.txt" conformance/
}

# A house of citations alone: the real scripts and headers cite more files than a small house has.
cited() {
  rm -rf "$work/house"
  mkdir -p "$work/house/core" "$work/house/ref" "$work/house/docs" "$work/house/ci" && cd "$work/house" || exit 2
  cp "$root/ci/house.sh" ci/
  printf '#!/bin/sh\n# Runs ci/house.sh.\n' >ci/test.sh
  printf '/* registry.c: FILE.cu; docs/rules.md, "Kept"; docs/definitions.md, section 2.1; registry.c, core/registry.c, ref/*.c. */\n' >core/registry.c
  printf '#include "lost.h"\nconst char *source = "docs/definitions.md, section 1"; // <stem>.c\n' >ref/gate_attention.c
  printf '# Rules\n\n## Kept\n\nSee [definitions.md](definitions.md), `core/registry.c`.\n' >docs/rules.md
  printf '# Definitions\n\n## 1. One\n\n## 2. Two\n\n### 2.1 `two`\n' >docs/definitions.md
}

# plant RULE FILE COMMAND: after the command, the rule names the file; before it, the rule held.
plant() {
  local rule=$1 file=$2 command=$3 out
  if [ "$rule" = citations ]; then cited; else fresh; fi
  out=$(ci/house.sh "$rule" 2>&1) || { printf 'FAIL %-9s does not hold in the clean copy: %s\n' "$rule" "$out"; failed=$((failed + 1)); return; }
  eval "$command"
  if out=$(ci/house.sh "$rule" 2>&1); then
    printf 'FAIL %-9s does not see: %s\n' "$rule" "$command"
    failed=$((failed + 1))
  elif ! grep -q "^house: $rule: $file" <<<"$out"; then
    printf 'FAIL %-9s does not name %s: %s\n' "$rule" "$file" "$out"
    failed=$((failed + 1))
  else
    printf 'ok   %-9s %s\n' "$rule" "$file"
    passed=$((passed + 1))
  fi
}

plant rooms ref/gate_attention.c 'rm ref/gate_attention.c'
plant rooms gpu/gate_attention.cu 'rm gpu/gate_attention.cu'
plant rooms conformance/suites/softmax_attention.yaml ': >conformance/suites/softmax_attention.yaml'
plant rooms docs/kernels/softmax_attention.md 'rm docs/kernels/softmax_attention.md'
plant rooms ref/no_such_room.c 'echo "ASSAY_OP(no_such_room)" >>include/assay/ops.def'
plant rooms gpu/gate_attention_no_such.cu 'echo "ASSAY_STRATEGY(gate_attention, no_such)" >>include/assay/strategies.def'
plant strangers ref/stranger.c 'echo "int x;" >ref/stranger.c'
plant strangers gpu/stranger.cu 'echo "int x;" >gpu/stranger.cu'
plant strangers conformance/suites/stranger.yaml 'echo "check: []" >conformance/suites/stranger.yaml'
plant strangers report.html ': >report.html'
plant strangers docs/kernels/stranger.md 'echo "# s" >docs/kernels/stranger.md'
plant includes ref/gate_attention.c 'echo "#include \"gpu/lib/paged.cuh\"" >>ref/gate_attention.c'
plant includes ref/gate_attention.c 'echo "#include \"../gpu/lib/paged.cuh\"" >>ref/gate_attention.c'
plant includes gpu/gate_attention.cu 'echo "#include \"ref/lib/paged.h\"" >>gpu/gate_attention.cu'
plant includes conformance/judge/judge.c 'echo "#include \"ref/lib/paged.h\"" >>conformance/judge/judge.c'
plant includes conformance/judge/judge.c 'echo "#include <gpu/lib/paged.h>" >>conformance/judge/judge.c'
plant includes core/registry.c 'echo "#include \"conformance/judge/judge.h\"" >>core/registry.c'
plant includes gpu/gate_attention.cu 'echo "#include \"gpu/device/device_cuda.h\"" >>gpu/gate_attention.cu'
plant includes include/assay/op.h 'echo "#include \"core/rng.h\"" >>include/assay/op.h'
plant length core/registry.c 'yes "int x;" | head -n 800 >core/registry.c'
plant headers include/assay/variant.h 'sed -i "/include \"op.h\"/d" include/assay/variant.h'
plant headers include/assay/tensor.h 'echo "static inline int class_of(int class) { return class; }" >>include/assay/tensor.h'
plant marks core/registry.c 'echo "/* TODO: later */" >>core/registry.c'
plant marks docs/kernels/gate_attention.md 'echo "FIXME" >>docs/kernels/gate_attention.md'
plant flags ref/CMakeLists.txt 'echo "add_compile_options(-ffast-math)" >ref/CMakeLists.txt'
plant flags gpu/CMakeLists.txt 'echo "add_compile_options(--use_fast_math)" >gpu/CMakeLists.txt'
plant asm gpu/gate_attention.cu 'echo "void f() { asm volatile(\"bar.sync 0;\"); }" >>gpu/gate_attention.cu'
plant contracts gpu/gate_attention.cu 'printf "constexpr assay_contract contract = {\n    ASSAY_F32, ASSAY_F32, ASSAY_NONE};\n" >>gpu/gate_attention.cu'
plant contracts gpu/gate_attention.cu 'printf "constexpr assay_contract a = {.lanes = 1}, b = {/* k */ ASSAY_F32};\n" >>gpu/gate_attention.cu'
plant contracts gpu/gate_attention.cu 'printf "constexpr assay_contract of(double ulp) {\n  return {ASSAY_F32, ASSAY_F32, ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, ulp};\n}\n" >>gpu/gate_attention.cu'
plant contracts conformance/judge/judge.c 'echo "static const assay_variant v = {.op = \"x\", .contract = {ASSAY_F32}};" >>conformance/judge/judge.c'
plant contracts conformance/judge/judge.c 'echo "static void f(void) { use((assay_contract){ASSAY_F32}); }" >>conformance/judge/judge.c'
plant contracts gpu/gate_attention.cu 'echo "assay_variant v[] = {{1, 2, {ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, 0.0, 1}}};" >>gpu/gate_attention.cu'
plant contracts docs/adding.md 'printf "constexpr assay_contract contract = {ASSAY_NONE};\n" >docs/adding.md'
plant quiet core/registry.c 'printf "#include <stdlib.h>\nvoid f(void) { exit(1); }\n" >>core/registry.c'
plant floors conformance/text/low.c 'echo "#include \"conformance/judge/judge.h\"" >conformance/text/low.c'
plant floors conformance/report/high.c 'echo "#include \"conformance/judge/judge_internal.h\"" >conformance/report/high.c'
plant floors conformance/judge/judge.c:2 'echo "#include \"../text/text.h\"" >>conformance/judge/judge.c'
plant floors conformance/judge/judge.c 'echo "#include \"text/text.h\"" >>conformance/judge/judge.c'
plant floors conformance/judge/judge.c 'echo "#include \"conformance/builtin.h\"" >>conformance/judge/judge.c'
plant floors bench/times.c 'echo "#include \"conformance/judge/judge_internal.h\"" >bench/times.c'
plant floors fuzz/target.c 'echo "#include \"conformance/cli/cli.h\"" >fuzz/target.c'
plant floors conformance/CMakeLists.txt ': >conformance/CMakeLists.txt'
plant includes bench/times.c 'echo "#include \"ref/lib/paged.h\"" >bench/times.c'
plant includes fuzz/target.c 'echo "#include \"gpu/lib/paged.h\"" >fuzz/target.c'
plant mutants conformance/mutants/lost.def 'printf "mutant a\nfile gpu/gate_attention.cu\n-no such text\n+x\n" >conformance/mutants/lost.def'
plant mutants conformance/mutants 'rm conformance/mutants/kept.def'
plant pipes ci/test.sh 'printf "%s | %s\n" "ls docs" "grep -vq x" >>ci/test.sh'
plant quiet conformance/judge/judge.c 'printf "#include <stdio.h>\nvoid f(void) { printf(\"x\"); }\n" >>conformance/judge/judge.c'
plant commands README.md 'echo "and \`ci/lost.sh\`" >>README.md'
plant commands CONTRIBUTING.md 'echo "and \`ci/lost.sh\`" >CONTRIBUTING.md'
plant commands README.md 'chmod -x ci/test.sh'
plant commands README.md 'echo "[lost](docs/lost.md)" >>README.md'
plant commands README.md 'echo "# house" >README.md'
plant citations core/registry.c 'echo "/* See lost.md. */" >>core/registry.c'
plant citations core/registry.c 'echo "/* See rules.md: pages are named from the root. */" >>core/registry.c'
plant citations core/registry.c 'printf "/* Sums;\n * see core/lost.h. */\n" >>core/registry.c'
plant citations core/registry.c 'echo "int x; // see ../shared/spec.md" >>core/registry.c'
plant citations ref/gate_attention.c 'echo "const char *source = \"docs/lost.md, section 2\";" >>ref/gate_attention.c'
plant citations ref/gate_attention.c 'echo "const char *source = \"docs/definitions.md, section 9.9\";" >>ref/gate_attention.c'
plant citations ref/gate_attention.c 'echo "/* operator definitions, section 2. */" >>ref/gate_attention.c'
plant citations ref/gate_attention.c 'echo "/* See docs/rules.md, \"Lost\". */" >>ref/gate_attention.c'
plant citations ci/test.sh 'echo "# See ci/lost.sh." >>ci/test.sh'
plant citations docs/rules.md 'echo "Limits are in \`kappa_of_none.h\`." >>docs/rules.md'
if command -v clang-format >/dev/null && grep -q 'version 14\.' < <(clang-format --version); then
  plant format core/registry.c 'echo "int   x  ;" >>core/registry.c'
fi

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
