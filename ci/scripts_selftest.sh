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
expect 'evidence: too much' 1 '65536 are allowed' ci/evidence.sh "$work/big.jsonl" "$work/out3.jsonl"
printf '{"case":"u","op":"o","variant":"v","verdict":"UNSUPPORTED","message":"why"}\n' >"$work/declined.jsonl"
expect 'evidence: a decline is counted' 0 '"verdict":"UNSUPPORTED","count":1}' bash -c "ci/evidence.sh '$work/declined.jsonl' '$work/out4.jsonl' && cat '$work/out4.jsonl'"
expect 'evidence: a decline is not kept' 0 '^0$' bash -c "grep -c '\"case\"' '$work/out4.jsonl' || true"
expect 'evidence: nothing half done' 0 '^0$' bash -c "ls '$work' | grep -c out3 || true"

# ---- the folder of evidence, with each violation in turn ----
evidence_tree() { # evidence_tree COMMAND: a small tree in which all holds, the command, the check
  rm -rf "$work/kept" && mkdir -p "$work/kept/bench/evidence" "$work/kept/docs"
  cp "$work/out.jsonl" "$work/kept/bench/evidence/2026-01-02-h200-one.jsonl"
  sed 's/"count":2/"count":3/' "$work/out.jsonl" >"$work/kept/bench/evidence/2026-01-03-simt-b-two.jsonl"
  printf 'Measured (`2026-01-02-h200-one.jsonl`), and drawn (`2026-01-03-simt-{b,b}-t*.jsonl`).\n' >"$work/kept/docs/page.md"
  mkdir -p "$work/kept/docs/log"
  printf '# Entry\n\n## Question\n\n## Change\n\n## Result\n\n| a |\n| --- |\n\n## Decision\n' >"$work/kept/docs/log/2026-01-02-entry.md"
  printf '[Entry](2026-01-02-entry.md)\n' >"$work/kept/docs/log/README.md"
  ci/evidence.sh --index "$work/kept"
  (cd "$work/kept" && eval "$1") && ci/evidence.sh --check "$work/kept"
}
one=bench/evidence/2026-01-02-h200-one.jsonl
expect 'kept: whole' 0 '^evidence: 2 files, each listed, cited and at most 65536 bytes$' evidence_tree true
expect 'kept: counts are listed' 0 '	2 PASS, 1 FAIL, 7 lines	[0-9a-f]{64}	2026-01-02-h200-one.jsonl$' cat "$work/kept/bench/evidence/INDEX.tsv"
expect 'kept: another sha256' 1 "^evidence: $one: INDEX.tsv has another sha256$" evidence_tree "echo '{}' >>$one"
expect 'kept: another run' 1 "^evidence: $one: INDEX.tsv says something else" evidence_tree "sed -i 's/^assay run/something/' bench/evidence/INDEX.tsv"
expect 'kept: not listed' 1 "^evidence: $one: is not listed" evidence_tree "sed -i '/h200-one/d' bench/evidence/INDEX.tsv"
expect 'kept: no list' 1 "^evidence: $one: is not listed" evidence_tree 'rm bench/evidence/INDEX.tsv'
expect 'kept: too large' 1 "^evidence: $one: 65537 bytes, 65536 are allowed" evidence_tree "head -c 65537 /dev/zero >$one; ci=$root/ci/evidence.sh; \$ci --index ."
expect 'kept: not cited' 1 "^evidence: $one: no file of the tree cites it" evidence_tree "sed -i 's/h200-one/h200-1/' docs/page.md"
expect 'kept: a citation that leads nowhere' 1 '^evidence: docs/page.md: cites 2026-01-02-h200-1.jsonl, which is not in' evidence_tree "sed -i 's/h200-one/h200-1/' docs/page.md"
expect 'kept: one of several that leads nowhere' 1 '^evidence: docs/page.md: cites 2026-01-03-simt-c-t\*.jsonl' evidence_tree "sed -i 's/{b,b}/{b,c}/' docs/page.md"
expect 'kept: listed, and gone' 1 '^evidence: bench/evidence/INDEX.tsv: lists 2026-01-02-h200-one.jsonl, which does not exist' evidence_tree "rm $one"
entry=docs/log/2026-01-02-entry.md
expect 'log: a section is missing' 1 "^evidence: $entry: has the sections 'Question Change Result'" evidence_tree "sed -i '/^## Decision/d' $entry"
expect 'log: another order' 1 "^evidence: $entry: has the sections 'Change Question Result" evidence_tree "sed -i 's/## Change/## x/; s/## Question/## Change/; s/## x/## Question/' $entry"
expect 'log: no table' 1 "^evidence: $entry: has no table" evidence_tree "sed -i '/^|/d' $entry"
expect 'log: not listed' 1 "^evidence: $entry: is not listed in docs/log/README.md" evidence_tree ': >docs/log/README.md'

# ---- a mutant's sources ----
mkdir -p "$work/tree/gpu/lib"
printf 'one(); /* a */\n  two();\nthree();\nthree();\n' >"$work/tree/gpu/o.cu"
mutant() { printf 'mutant m\nop o\nfile gpu/o.cu\n%s\n' "$1" >"$work/list"; rm -rf "$work/made"; conformance/mutants/make.sh "$work/list" "$work/tree" "$work/made" "${2:-m}" && cat "$work/made/m/gpu/o.cu"; }
expect 'mutant: replaced' 0 '^  new\(\);$' mutant "$(printf -- '-one();\n-two();\n+  new();')"
expect 'mutant: twice' 1 'occurs 2 times' mutant "$(printf -- '-three();\n+x')"
expect 'mutant: not there' 1 'occurs 0 times' mutant "$(printf -- '-four();\n+x')"
expect 'mutant: no such entry' 1 'no such mutant' mutant "$(printf -- '-two();\n+x')" other

# ---- what a mutant is compiled from: its copy, here with and without the tree's folder in front of it ----
printf 'int shared = 1;\n' >"$work/tree/gpu/lib/s.cuh"
printf '#include "gpu/lib/s.cuh"\n' >"$work/tree/gpu/o.cu"
printf 'mutant m\nop o\nfile gpu/lib/s.cuh\n-int shared = 1;\n+int shared = 2;\n' >"$work/list"
changed_lib() { conformance/mutants/make.sh "$work/list" "$work/tree" "$work/built" && cat "$work/built/m/gpu/lib/s.cuh"; }
expect 'mutant: a file of lib' 0 '^int shared = 2;$' changed_lib
expect 'mutant: no copy of what stays' 0 '^s.cuh$' bash -c "cd '$work/built/m' && find . -type f -name '*.cu*' | sed 's,.*/,,'"
printf '#include "gpu/o.cu"\n' >"$work/built/m.cpp"
mkdir -p "$work/built/objects"
# compiled_from ID FLAGS
compiled_from() {
  rm -f "$work/built/objects"/*
  # shellcheck disable=SC2086 # a list of words
  "${CXX:-c++}" $2 -MD -MF "$work/built/objects/$1.o.d" -c "$work/built/m.cpp" -o "$work/built/objects/$1.o" || return 9
  conformance/mutants/sources.sh "$work/list" "$work/tree" "$work/built"
}
expect 'mutant: its copy' 0 '^1 mutants: each read its copies' compiled_from m "-I$work/built/m -I$work/tree"
expect 'mutant: the original' 1 'reads the original: .*gpu/lib/s.cuh' compiled_from m "-I$work/tree -I$work/built/m"
expect 'mutant: without the file it changes' 1 'does not read its copy of gpu/lib/s.cuh' compiled_from m "-I$work/tree -I$work/built/m"
expect 'mutant: not compiled' 1 'mutant m: not compiled' compiled_from n "-I$work/built/m -I$work/tree"

# ---- only what the scripts install: commands of a bare Debian ----
if command -v dpkg-query >/dev/null; then
  expect 'bare: folder' 0 '^bare: [0-9]+ commands of [0-9]+ packages$' ci/bare.sh "$work/bare"
  expect 'bare: what is installed' 0 '^4$' env "PATH=$work/bare" bash -c 'command -v awk cmake ninja c++ | wc -l'
  expect 'bare: awk is mawk' 0 '^mawk' env "PATH=$work/bare" awk -W version
  printf '#!/usr/bin/env bash\ngit --version || python3 --version\n' >"$work/planted.sh"
  expect 'bare: a command that nothing installs' 127 'git: command not found' env "PATH=$work/bare" bash "$work/planted.sh"
  printf '#!/usr/bin/env bash\ncmake -S "$1" -B "$1/b" -G "Unix Makefiles"\n' >"$work/planted.sh"
  mkdir -p "$work/empty"
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES NONE)\n' >"$work/empty/CMakeLists.txt"
  expect 'bare: cmake without ninja' 1 'Unix Makefiles' env "PATH=$work/bare" bash "$work/planted.sh" "$work/empty"
fi

# ---- which run the limits are derived from ----
mkdir -p "$work/calibrated"
cat >"$work/calibrated/assay" <<'ASSAY'
#!/bin/sh
[ "$1" = run ] || { printf '   operator type from limit\n0 rms_norm f32 1 3.0\n'; exit; }
for last; do :; done
printf '{"binary":"ab12","device":"simt","whole":false}\n{"case":"c","rms":[1.5]}\n' >"$last"
ASSAY
chmod +x "$work/calibrated/assay"
last_run() { printf '{"binary":"%s","device":"simt","whole":%s,"every_variant":true}\n{"case":"c","rms":[2.9]}\n' "$1" "$2" >"$work/calibrated/conform.jsonl"; ci/calibration.sh "$work/calibrated" last 2; }
expect 'calibration: no last run' 0 ' 3.00   1.50' ci/calibration.sh "$work/calibrated" last 2
expect 'calibration: the last run, above the limit' 1 ' 2.90 above 85 % of the limit' last_run ab12 true
expect 'calibration: the last run was not whole' 0 ' 3.00   1.50' last_run ab12 false
expect 'calibration: the last run was of another program' 0 ' 3.00   1.50' last_run cd34 true

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
{
  cat docs/operators.md
  for page in docs/operators/*.md; do printf '\n#'; cat "$page"; done
} >"$work/operators.md"
printf '#!/bin/sh\n[ "$3" = --markdown ] && sed "s/one key/two keys/" '"$work"'/operators.md\n' >"$work/said_by/assay"
chmod +x "$work/said_by/assay"
expect 'operators.md is stale' 1 'is not what the contracts say' ci/operators.sh "$work/said_by"
printf '#!/bin/sh\n[ "$3" = --markdown ] && sed "s/Confirmed by: .*/Confirmed by: nothing./" '"$work"'/operators.md\n' >"$work/said_by/assay"
expect 'an operator that nothing confirms' 1 'gate_attention: confirmed_by is NULL' ci/operators.sh "$work/said_by"
printf '#!/bin/sh\n[ "$3" = --markdown ] && sed "/^## gate_attention/d" '"$work"'/operators.md\n' >"$work/said_by/assay"
expect 'an operator that is not listed' 1 'gate_attention: not among' ci/operators.sh "$work/said_by"

# ---- a README's commands ----
printf '#!/bin/sh\n[ "$2" != wrong ]\n' >"$work/said_by/assay"
page() { printf '```sh\nci/test.sh\nbuild/cpu/assay list %s  # why\n%s\n```\nnot/this\n' "$1" "$2" >"$work/page"; ci/readme_test.sh "$work/said_by" "$work/page"; }
expect 'readme: whole' 0 '^readme: 1 commands run here, 1 by other tests, 0 failed$' page ops ''
expect 'readme: a command that fails' 1 'list wrong: status 1' page wrong ''
expect 'readme: a command that no test runs' 1 'ci/nothing.sh: no test runs it' page ops 'ci/nothing.sh'

# ---- the first hour's commands ----
hour() { printf 'text\n\n```sh\n%s\n```\n\n%s\n' "$1" "$2" >"$work/page"; ci/first_hour.sh "$work/said_by" "$work/page"; }
expect 'first hour: whole' 0 '^first_hour: 1 blocks run, 0 left out, 0 failed$' hour 'echo a; echo b >&2; exit 3' '> exit 3, prints `a`, prints `b`'
expect 'first hour: the program and the folder' 0 '^first_hour: 1 blocks run' hour 'build/cpu/assay list ops >build/hour/x' '> exit 0'
expect 'first hour: another status' 1 "status 0, wanted 1" hour 'echo a' '> exit 1, prints `a`'
expect 'first hour: a text that is missing' 1 "does not print 'c'" hour 'echo a' '> exit 0, prints `a`, prints `c`'
expect 'first hour: a block without an outcome' 1 "the line below says ''" hour 'echo a' 'text'
expect 'first hour: an outcome that cannot be read' 1 "cannot read ', prints a'" hour 'echo a' '> exit 0, prints a'
expect 'first hour: nothing runs' 1 '^first_hour: 0 blocks run, 1 left out' hour 'echo a' '> not run: why'
expect 'first hour: a tool that is missing' 1 'no no_such_tool here' hour 'echo a' '> needs `no_such_tool`, exit 0'

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

# ---- a Debian package, made by a cpack that packs what it is told, with a runner that says what it is told ----
if command -v dpkg-deb >/dev/null; then
  tool cpack 'while [ "$1" != -B ]; do shift; done; mkdir -p "$2"; dpkg-deb -b "$TREE" "$2/x.deb"'
  tool lintian 'echo "W: assay: $LINTIAN"; [ "$LINTIAN" = nothing ]'
  package() { # package RUNNER COMMAND: in a package in which all holds with that runner, after the command
    rm -rf "$work/packed" && mkdir -p "$work/packed/DEBIAN" "$work/packing"
    printf 'Package: assay\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n' >"$work/packed/DEBIAN/control"
    printf 'Depends: libc6, libyaml-0-2, libboost-context1, libopenblas0\n' >>"$work/packed/DEBIAN/control"
    (cd "$work/packed" && for file in $(sed -n '/^for file in bin.assay/,/; do$/p' "$root/ci/package_test.sh" | tr -d '\\' | sed 's/^for file in//; s/; do$//'); do
      mkdir -p "usr/$(dirname "$file")" && echo "of $file" >"usr/$file"
    done
    printf '#!/bin/sh\nhere=$(dirname "$0")/../share/assay\n%s\n%s\n' "$writes" "$1" >usr/bin/assay
    chmod +x usr/bin/assay
    for file in assay assay-run; do echo "page $file" | gzip -n >"usr/share/man/man1/$file.1.gz"; done
    echo 'for bash' >usr/share/bash-completion/completions/assay
    echo 'for zsh' >usr/share/zsh/vendor-completions/_assay
    eval "$2")
    TREE=$work/packed LINTIAN=${3:-nothing} with ci/package_test.sh "$work/packing"
  }
  # Writes what each of these runners writes, as the real one does.
  writes='case $1 in
    --man) mkdir -p "$2"; for page in assay assay-run; do echo "page $page" >"$2/$page.1"; done ;;
    --completion) echo "for $2"; exit ;;
  esac'
  honest='case $1 in list) ls "$here/suites" ;; run) [ -d "$here/fixtures/traces" ] && echo "3 PASS, 0 FAIL" ;; bench) [ -d "$here/bench/short" ] && exit 3 || exit 2 ;; esac'
  expect 'package: whole' 0 '^package: x.deb: 1 suites, 18 files' package "$honest" true
  expect 'package: a file is missing' 1 '^package: has no usr/share/doc/assay/copyright$' package "$honest" 'rm usr/share/doc/assay/copyright'
  for file in share/man/man1/assay.1.gz share/man/man1/assay-run.1.gz share/bash-completion/completions/assay share/zsh/vendor-completions/_assay; do
    expect "package: without $file" 1 "^package: has no usr/$file\$" package "$honest" "rm usr/$file"
  done
  expect 'package: a man page of a command is missing' 1 '^package: has no man page assay-list.1$' \
    package "case \$1 in --man) echo 'page list' >\"\$2/assay-list.1\" ;; esac; $honest" true
  expect 'package: an old man page' 1 '^package: has an old man page assay-run.1$' package "$honest" 'echo old | gzip >usr/share/man/man1/assay-run.1.gz'
  expect 'package: a man page too many' 1 '^package: has a man page that' package "$honest" 'cp usr/share/man/man1/assay.1.gz usr/share/man/man1/assay-old.1.gz'
  expect 'package: an old completion' 1 '^package: has an old completion for zsh$' package "$honest" 'echo old >usr/share/zsh/vendor-completions/_assay'
  expect 'package: a file elsewhere' 1 '^package: has files outside usr: root/etc/x$' package "$honest" 'mkdir etc; touch etc/x'
  expect 'package: a dependency is missing' 1 '^package: does not depend on libyaml-0-2' package "$honest" "sed -i 's/libyaml-0-2, //' DEBIAN/control"
  expect 'package: suites from elsewhere' 1 '^package: the runner lists other suites' package 'case $1 in list) echo a ;; *) echo "3 PASS, 0 FAIL" ;; esac' true
  expect 'package: fixtures from elsewhere' 1 '^package: traces: passes without the fixtures' package "${honest/\[ -d \"\$here\/fixtures\/traces\" \] &&/}" true
  expect 'package: bench tables from elsewhere' 1 '^package: bench: reads other tables' package "${honest/exit 2/exit 3}" true
  expect 'package: no bench tables' 1 '^package: bench: does not read the tables' package "${honest/exit 3/exit 2}" true
  expect 'package: nothing passes' 1 '^package: reglu: status 0' package "${honest/3 PASS/0 PASS}" true
  expect 'package: a failing run' 1 '^package: reglu: status 1' package "${honest/run)/run) exit 1 ;; x)}" true
  expect 'package: lintian' 1 '^package: lintian finds something' package "$honest" true something
  rm "$work/bin/cpack" "$work/bin/lintian"
fi

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
