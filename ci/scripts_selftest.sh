#!/usr/bin/env bash
# scripts_selftest.sh: the scripts of this folder on made-up input, where they shall pass and where they shall not.
set -uo pipefail

cd "$(dirname "$0")/.." || exit 2
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# expect NAME STATUS PATTERN COMMAND...: the status, and a line that matches.
expect() {
  local name=$1 wanted=$2 pattern=$3 status=0
  shift 3
  "$@" >"$work/said" 2>&1 || status=$?
  if [ "$status" -eq "$wanted" ] && grep -qE -e "$pattern" "$work/said"; then
    passed=$((passed + 1))
  else
    printf 'FAIL %s: status %d, wanted %d and /%s/:\n' "$name" "$status" "$wanted" "$pattern"
    sed 's/^/  /' "$work/said"
    failed=$((failed + 1))
  fi
}
tool() { # tool NAME TEXT: a program of that name, first in PATH of `with`
  mkdir -p "$work/bin"
  printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
with() { PATH="$work/bin:$PATH" "$@"; }

# ---- what is missing ----
tool cmake 'echo "cmake version 3.18.4"'
tool id 'echo 1000'
expect 'not root' 2 'sudo sh -c "apt-get update && apt-get install -y --no-install-recommends cmake"' with bash -c '. ci/lib.sh; need_packages'
expect 'one line to run' 0 '^1$' bash -c "PATH='$work/bin':\$PATH bash -c '. ci/lib.sh; need_packages' 2>&1 | grep -c apt-get"
rm -rf "${work:?}/bin"
expect 'versions' 0 'yes' bash -c '. ci/lib.sh; at_least 3.25 3.25 && at_least 3.31.6 3.25 && at_least 4.0 3.25 && ! at_least 3.9 3.25 && echo yes'
expect 'a failing step' 7 'words of the step' bash -c '. ci/lib.sh; step selftest sh -c "echo words of the step; exit 7"'
expect 'a quiet step' 0 '^selftest +[0-9]+ s$' bash -c '. ci/lib.sh; step selftest echo words'

# ---- evidence ----
{
  printf '{"assay":"0.1.0","device":"cuda","seed":1,"cases":3}\n'
  printf '{"case":"a","op":"o","variant":"v","device":"cuda","tier":"exact","verdict":"PASS","check":""}\n'
  printf '{"case":"b","op":"o","variant":"v","device":"cuda","tier":"exact","verdict":"PASS","check":""}\n'
  printf '{"case":"c","op":"o","variant":"v","device":"cuda","tier":"exact","verdict":"FAIL","check":"exact","message":"a \\"quoted\\" } word"}\n'
  printf '{"unclaimed":"o/v on cuda: bf16","variant":"v","verdict":"FAIL"}\n'
} >"$work/run.jsonl"
expect 'evidence' 0 '^evidence:' ci/evidence.sh "$work/run.jsonl" "$work/out.jsonl" seconds=2.0 'note=a "b" c'
expect 'evidence: header' 0 '"seconds":2.0,"note":"a \\"b\\" c"}$' head -n 1 "$work/out.jsonl"
expect 'evidence: counts' 0 '"tier":"exact","verdict":"PASS","count":2}' cat "$work/out.jsonl"
expect 'evidence: total' 0 '^\{"total":3,"unclaimed":1,.*"verified_per_second":1.0\}' cat "$work/out.jsonl"
expect 'evidence: failures are kept whole' 0 'quoted\\" } word"}$' cat "$work/out.jsonl"
expect 'evidence: claims' 0 '^\{"unclaimed":"o/v' cat "$work/out.jsonl"
expect 'evidence: no run' 2 'missing or empty' ci/evidence.sh "$work/none.jsonl" "$work/out2.jsonl"
awk 'BEGIN { for (i = 0; i < 20000; ++i) printf "{\"case\":\"%d\",\"op\":\"o\",\"variant\":\"v\",\"verdict\":\"FAIL\",\"check\":\"exact\"}\n", i }' >"$work/big.jsonl"
expect 'evidence: too much' 1 '1000000 are allowed' ci/evidence.sh "$work/big.jsonl" "$work/out3.jsonl"
expect 'evidence: nothing half done' 0 '^0$' bash -c "ls '$work' | grep -c out3 || true"

# ---- a mutant's sources ----
mkdir -p "$work/tree/gpu/lib"
printf 'one(); /* a */\n  two();\nthree();\nthree();\n' >"$work/tree/gpu/o.cu"
mutant() { printf 'mutant m\nop o\nfile gpu/o.cu\n%s\n' "$1" >"$work/list"; rm -rf "$work/made"; conformance/mutants/make.sh "$work/list" "${2:-m}" "$work/tree" "$work/made" && cat "$work/made/gpu/o.cu"; }
expect 'mutant: replaced' 0 '^  new\(\);$' mutant "$(printf -- '-one();\n-two();\n+  new();')"
expect 'mutant: twice' 1 'occurs 2 times' mutant "$(printf -- '-three();\n+x')"
expect 'mutant: not there' 1 'occurs 0 times' mutant "$(printf -- '-four();\n+x')"
expect 'mutant: no such entry' 1 'no such mutant' mutant "$(printf -- '-two();\n+x')" other

# ---- what a mutant is compiled from: its copy, here with and without the tree's folder in front of it ----
printf 'int shared = 1;\n' >"$work/tree/gpu/lib/s.cuh"
printf '#include "gpu/lib/s.cuh"\n' >"$work/tree/gpu/o.cu"
printf 'mutant m\nop o\nfile gpu/lib/s.cuh\n-int shared = 1;\n+int shared = 2;\n' >"$work/list"
changed_lib() { conformance/mutants/make.sh "$work/list" m "$work/tree" "$work/built/m" && cat "$work/built/m/gpu/lib/s.cuh"; }
expect 'mutant: a file of lib' 0 '^int shared = 2;$' changed_lib
printf '#include "%s"\n' "$work/built/m/gpu/o.cu" >"$work/built/m/m.cpp"
compiled_from() { printf -- '%s\n' "$*" >"$work/built/m/flags"; conformance/mutants/sources.sh "${CXX:-c++}" "$work/list" "$work/tree" "$work/built"; }
expect 'mutant: its copy' 0 '^1 mutants: each read from its copy' compiled_from "-I$work/built/m"
expect 'mutant: the original' 1 'reads the original: .*gpu/lib/s.cuh' compiled_from "-I$work/tree -I$work/built/m"
expect 'mutant: without the file it changes' 1 'does not read its copy of gpu/lib/s.cuh' compiled_from "-I$work/tree -I$work/built/m"

# ---- the catalogue of mistakes ----
ci/catalogue.sh --rows | while read -r row; do printf 'row %s\nwhat w\nlink https://x\nnone n\n\n' "$row"; done >"$work/reasons"
printf 'mutant m\nop o\nids SP1 L2\n' >"$work/list"
catalogue() { sed -e '/^row SP1$/,/^none/s/^none.*/mutants m/' -e '/^row L2$/,/^none/s/^none.*/mutants m/' -e "$1" "$work/reasons" >"$work/catalogue"; ci/catalogue.sh "$work/catalogue" "$work/list"; }
expect 'catalogue: whole' 0 '^catalogue: 124 rows, 2 with mutants, 122 with a reason; 1 mutants' catalogue ''
expect 'catalogue: a row is missing' 1 'MK4: missing' catalogue '/^row MK4$/,/^$/d'
expect 'catalogue: neither mutant nor reason' 1 'MK4: has no mutant and no reason' catalogue '/^row MK4$/,/^$/s/^none.*//'
expect 'catalogue: no link' 1 'MK4: has no link' catalogue '/^row MK4$/,/^$/s/^link.*//'
expect 'catalogue: a mutant that there is not' 1 'SP1: names mutant other, which there is not' catalogue '/^row SP1$/,/^$/s/^mutants m/mutants other/'
expect 'catalogue: a mutant that says nothing of it' 1 'SP2: names mutant m, which does not name it' catalogue '/^row SP2$/,/^$/s/^none.*/mutants m/'
expect 'catalogue: a row that does not name its mutant' 1 'mutant m: names L2, whose row does not name it' catalogue '/^row L2$/,/^$/s/^mutants m/none n/'
printf '    {NO_CLONE, "x"},\n' >"$work/plants"
expect 'catalogue: planted by a test' 0 '^catalogue: 124 rows, 3 with mutants' catalogue "/^row BL6$/,/^none/s|^none.*|planted $work/plants NO_CLONE|"
expect 'catalogue: planted by no test' 1 'BL6: .* plants no CLONE' catalogue "/^row BL6$/,/^none/s|^none.*|planted $work/plants CLONE|"
expect 'catalogue: removed in turn' 0 '^catalogue: 124 rows, 3 with mutants' catalogue "/^row BL6$/,/^none/s|^none.*|removed $work/plants {NO_CLONE,|"
expect 'catalogue: nothing to remove' 1 'BL6: .* has no CLONES' catalogue "/^row BL6$/,/^none/s|^none.*|removed $work/plants CLONES|"
printf 'cuda_only x\nfile gpu/sampler_threshold.cu\n-no such line;\n+another;\n' >>"$work/list"
expect 'catalogue: a mutant of the GPU alone whose original is gone' 1 'mutant m: the original text occurs 0 times' catalogue ''
expect 'catalogue: an unknown row' 1 'ZZ1: no such row is known' catalogue 's/^row MK4$/row ZZ1/'

# ---- docs/operators.md ----
mkdir -p "$work/said_by"
printf '#!/bin/sh\n[ "$3" = --markdown ] && sed "s/one key/two keys/" docs/operators.md\n' >"$work/said_by/assay"
chmod +x "$work/said_by/assay"
expect 'operators.md is stale' 1 'is not what the contracts say' ci/operators.sh "$work/said_by"
printf '#!/bin/sh\n[ "$3" = --markdown ] && sed "s/Confirmed by: .*/Confirmed by: nothing./" docs/operators.md\n' >"$work/said_by/assay"
expect 'an operator that nothing confirms' 1 'gate_attention: confirmed_by is NULL' ci/operators.sh "$work/said_by"
printf '#!/bin/sh\n[ "$3" = --markdown ] && sed "/^## gate_attention/d" docs/operators.md\n' >"$work/said_by/assay"
expect 'an operator that is not listed' 1 'gate_attention: not among' ci/operators.sh "$work/said_by"

# ---- a README's commands ----
printf '#!/bin/sh\n[ "$2" != wrong ]\n' >"$work/said_by/assay"
page() { printf '```sh\nci/test.sh\nbuild/cpu/assay list %s  # why\n%s\n```\nnot/this\n' "$1" "$2" >"$work/page"; ci/readme_test.sh "$work/said_by" "$work/page"; }
expect 'readme: whole' 0 '^readme: 1 commands run here, 1 by other tests, 0 failed$' page ops ''
expect 'readme: a command that fails' 1 'list wrong: status 1' page wrong ''
expect 'readme: a command that no test runs' 1 'ci/nothing.sh: no test runs it' page ops 'ci/nothing.sh'

# ---- kernels under compute-sanitizer, of which there is a copy that only says what it is told ----
mkdir -p "$work/few"
touch "$work/few/rope.yaml" "$work/few/reglu.yaml"
# The fifth word before the program's name is the tool's; the last one of the program is the file of results.
tool compute-sanitizer 'tool=$2; for last; do :; done; printf "{\"case\":1}\n" >"$last"; echo "========= $tool says so"; eval "$FOUND"'
clean='echo "========= ERROR SUMMARY: 0 errors"'
sanitize() { rm -rf "$work/san"; FOUND=$1 ASSAY_SUITES="$work/few" with ci/gpu_sanitize.sh assay "$work/san" memcheck synccheck; }
expect 'sanitize: clean' 0 '^memcheck: 10 edge cases in 10 parts, 0 found, 0 parts not clean$' sanitize "$clean"
expect 'sanitize: an error' 1 '^synccheck: 10 edge cases in 10 parts, 3 found, 1 parts not clean$' sanitize "case \$tool\$last in synccheck*rope.8*) echo '========= ERROR SUMMARY: 3 errors'; exit 86 ;; *) $clean ;; esac"
expect 'sanitize: a hazard' 1 '^memcheck: .* 20 found, 10 parts not clean$' sanitize 'echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"'
expect 'sanitize: a part that dies' 1 'status 139, no summary' sanitize 'exit 139'
expect 'sanitize: a run that fails' 1 'status 1, 0$' sanitize "$clean; exit 1"
expect 'sanitize: nothing ran' 1 '^memcheck: 0 edge cases' sanitize "rm \"\$last\"; $clean; exit 3"
unsupported='printf "{\"case\":1,\"verdict\":\"UNSUPPORTED\"}\n" >"$last"'
expect 'sanitize: a part of which nothing is for this device' 0 '^memcheck: 9 edge cases in 10 parts, 0 found, 0 parts not clean$' sanitize "case \$last in *rope.8*) $unsupported; $clean; exit 3 ;; *) $clean ;; esac"
expect 'sanitize: nothing is for this device' 1 '^memcheck: 0 edge cases' sanitize "$unsupported; $clean; exit 3"
expect 'sanitize: finer parts' 0 '^memcheck: 20 edge cases in 20 parts, 0 found' env ASSAY_FINER=2 bash -c "$(declare -f with sanitize); work=$work; sanitize '$clean'"
expect 'sanitize: no such fineness' 2 "ASSAY_FINER: found '0', allowed" env ASSAY_FINER=0 bash -c "$(declare -f with sanitize); work=$work; sanitize '$clean'"
unset CUDA_VISIBLE_DEVICES
tool nvidia-smi 'printf "0\n1\n"'
expect 'sanitize: two GPUs' 1 '^memcheck: 10 edge cases in 10 parts, 0 found, 5 parts not clean$' sanitize "case \$CUDA_VISIBLE_DEVICES in 1) $clean ;; 0) exit 9 ;; esac"
expect 'sanitize: two GPUs, the other' 1 '^memcheck: 10 edge cases in 10 parts, 0 found, 5 parts not clean$' sanitize "case \$CUDA_VISIBLE_DEVICES in 0) $clean ;; 1) exit 9 ;; esac"
rm "$work/bin/nvidia-smi"
expect 'sanitize: a part without an end' 1 'status 124, no summary' env FOUND='sleep 100' ASSAY_SECONDS=2 bash -c "$(declare -f with); work=$work; rm -rf $work/san; ASSAY_SUITES=$work/few with timeout 30 ci/gpu_sanitize.sh assay $work/san memcheck"
expect 'sanitize: no time' 1 'status late' env ASSAY_SECONDS=0 bash -c "$(declare -f with); work=$work; rm -rf $work/san; ASSAY_SUITES=$work/few with ci/gpu_sanitize.sh assay $work/san memcheck"

# ---- Hopper, where there is none ----
if ! command -v nvidia-smi >/dev/null; then
  expect 'hopper: no GPU' 77 'hopper.sh: no ' ci/hopper.sh
fi
tool nvcc 'exit 1'
tool nvidia-smi 'echo "NVIDIA A100, 8.0"'
expect 'hopper: another GPU' 77 'no GPU of compute capability 9.0 here; found: NVIDIA A100' with ci/hopper.sh

cd "$root" || exit 2
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
