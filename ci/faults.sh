#!/usr/bin/env bash
# faults.sh BUILD CC [EVERY]: faults of the host by list. One call fails: the N-th allocation, read, write, fork, mmap or
# open of a command and its children, for N from 1 until the command completes without. EVERY (1): only the first 4 of a
# kind, and then one N of so many. For each N one of two holds: the answer is whole and right with status 0, or the
# status says no, with a reason and no verdict on a kernel.
# FAULTS_COMMANDS and FAULTS_KINDS name some of the commands and kinds.
# faults.sh BUILD CC --selftest: the same checks find planted mistakes: writes that nobody checks, and answers made by
# hand.
set -uo pipefail

build=$1 cc=$2 every=${3:-1}
root=$(cd "$(dirname "$0")/.." && pwd)
assay=$(cd "$build" && pwd)/assay
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ "$(uname -m)" = x86_64 ] || { echo 'faults: only x86_64 is known'; exit 77; }
"$cc" -O1 -o "$work/faults" "$root/ci/faults.c" && "$cc" -O1 -fPIC -shared -o "$work/memory.so" "$root/ci/faults_memory.c" || exit 2
cd "$work" || exit 2
"$work/faults" read 0 /bin/true 2>/dev/null || { echo 'faults: this host allows no ptrace'; exit 77; }

printf 'op: reglu\ncheck:\n  - {name: few, cases: 6, dtype: [f32, bf16], N: {uniform: [1, 4]}, I: {uniform: [1, 20]}}\nrefuse:\n  - {name: broken, break: [null, dtype], argument: [x, y], N: 2, I: 8}\n' >few.yaml
options=(--workers 1 --power off)
"$assay" run few.yaml "${options[@]}" --jsonl right.jsonl >right.txt || exit 2
"$assay" replay "$(sed -n 's/^{"case":"\([^"]*variant=channels[^"]*tier=calibrated[^"]*\)".*/\1/p' right.jsonl | head -n 1)" --dump dumped >/dev/null || exit 2
mkdir right
head -n 8 right.jsonl >begun.jsonl.partial

# The commands. Each writes into `out`, which is empty before it.
run() { "$@" "$assay" run few.yaml "${options[@]}" --jsonl out/a.jsonl --junit out/a.xml --html out/a.html; }
resume() { cp begun.jsonl.partial out/a.jsonl.partial && "$@" "$assay" run few.yaml "${options[@]}" --resume out/a.jsonl; }
judge() { "$@" "$assay" judge dumped --jsonl out/j.jsonl; }
compare() { "$@" "$assay" compare right.jsonl right.jsonl; }
report() { "$@" "$assay" report right.jsonl -o out/page.html; }

# Prints what a file or an answer decided, without times.
decided() { sed -E '/^\{"(end|assay)"/d; s/"(reference_ms|run_ms)":[^,}]*//g' "$1"; }
# A reason of UNSUPPORTED that no memory was left to list is counted as one of the others.
answer() { sed -E '/^ /d; s/ in [0-9.]+ s.*//; s/[0-9.]+ (ms|s)//g' "$1"; }
# Compares two files without their numbers and without facts about the host: times differ, and a fact may be unknown.
same_text() { cmp -s <(without_numbers "$1" 2>/dev/null) <(without_numbers "$2"); }
without_numbers() { tr -d 0-9. <"$1" | sed -E 's/<dd>[^<]*/<dd>/g'; }
# Prints what is missing from the answer of a command that ended with 0.
missing() {
  cmp -s <(answer out.txt) <(answer "right_$1.txt") || echo 'the answer on standard output'
  case $1 in
    run | resume)
      cmp -s <(decided out/a.jsonl 2>/dev/null) <(decided right.jsonl) || echo 'results in the JSONL'
      grep -q '^{"end"' out/a.jsonl 2>/dev/null || echo 'the end of the JSONL'
      ;;
    judge) cmp -s <(decided out/j.jsonl 2>/dev/null) <(decided right/j.jsonl) || echo 'results in the JSONL' ;;
    report) cmp -s out/page.html right/page.html || echo 'a part of the page' ;;
  esac
  [ "$1" = run ] || return 0
  same_text out/a.xml right/a.xml || echo 'a part of the JUnit'
  same_text out/a.html right/a.html || echo 'a part of the page'
}

injected=0 green=0 crashes=0 verdicts=0 silent=0 failed=0
bad() { echo "faults: $*"; failed=$((failed + 1)); }
# of_the_loader KIND N STATUS: the program had not begun; the loader ends so, whatever it loads.
of_the_loader() {
  [ "$3" -ne 127 ] || ! grep -qE 'error while loading|^cannot allocate TLS' err.txt || return 0
  [ "$1" = mmap ] && ! "$work/faults" "$1" "$2" /bin/true 2>/dev/null
}

# look COMMAND KIND N STATUS: judges what a run left.
look() {
  local lost status=$4
  injected=$((injected + 1))
  if [ "$status" -eq 0 ]; then
    lost=$(missing "$1")
    [ -z "$lost" ] || { bad "$1, $2 $3: status 0 without ${lost//$'\n'/, }"; green=$((green + 1)); }
  elif [ "$status" -ge 124 ] && of_the_loader "$2" "$3" "$status"; then
    return
  elif [ "$status" -ge 124 ]; then
    bad "$1, $2 $3: status $status: $(grep -v '^faults:' err.txt | head -n 1)"
    crashes=$((crashes + 1))
  elif [ -z "$(grep -v '^faults:' err.txt)" ] && ! grep -q 'HOST\|host' out.txt; then
    bad "$1, $2 $3: status $status without a reason"
    silent=$((silent + 1))
  fi
  lost=$(find out -name '*.jsonl*' -exec grep -ohE '"verdict":"(FAIL|CRASH|HANG|STATE|WEAK)","check":"[^"]*","message":"[^"]*"' {} +)
  if [ -n "$lost" ]; then
    bad "$1, $2 $3: ${lost//$'\n'/, }"
    verdicts=$((verdicts + 1))
  fi
}

# try COMMAND KIND N: one run. Sets `calls`; with N 0 nothing fails.
try() {
  local status
  rm -rf out && mkdir out
  if [ "$2" = malloc ]; then
    "$1" timeout 60 env MALLOC_FAULT_AT="$3" LD_PRELOAD="$work/memory.so" >out.txt 2>err.txt
  else
    "$1" timeout 60 "$work/faults" "$2" "$3" >out.txt 2>err.txt
  fi
  status=$?
  calls=$(sed -n 's/^faults: \([0-9]*\) calls$/\1/p' err.txt | tail -n 1)
  if [ "$3" -gt 0 ]; then
    look "$1" "$2" "$3" "$status"
  elif [ "$status" -ne 0 ]; then
    bad "$1, $2: status $status without any fault"
  fi
}

if [ "$every" = --selftest ]; then
  planted=0
  # found NAME COUNT: the mistake was counted, as often as it was planted.
  found() { planted=$((planted + 1)); [ "$2" -ge 1 ] || { echo "faults: selftest: $1 is not found"; exit 1; }; }
  made() { rm -rf out && mkdir out && run env >out.txt 2>err.txt; }
  made && cp out.txt right_run.txt && cp out/* right && look run none 1 0 && [ "$green" -eq 0 ] || { echo 'faults: selftest: a right answer is wrong'; exit 1; }
  made && sed -i 5d out/a.jsonl && look run none 1 0 && found 'a lost case' "$green"
  green=0; made && sed -i '$d' out/a.jsonl && look run none 1 0 && found 'a lost end' "$green"
  green=0; made && sed -i 's,</testsuites>,,' out/a.xml && look run none 1 0 && found 'a cut JUnit' "$green"
  green=0; made && : >out.txt && look run none 1 0 && found 'no answer' "$green"
  made && look run none 1 139 && found 'a crash' "$crashes"
  made && : >err.txt && look run none 1 1 && found 'no reason' "$silent"
  made && sed -i '3s/"verdict":"PASS"/"verdict":"CRASH"/' out/a.jsonl && mv out/a.jsonl out/a.jsonl.partial && look run none 1 1 && found 'a verdict' "$verdicts"
  printf '#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\nint ferror(FILE *f) { return (void)f, 0; }\nint fflush(FILE *f) { (void)((int (*)(FILE *))dlsym(RTLD_NEXT, "fflush"))(f); return 0; }\nint fclose(FILE *f) { (void)((int (*)(FILE *))dlsym(RTLD_NEXT, "fclose"))(f); return 0; }\n' >unchecked.c
  "$cc" -shared -fPIC -fno-builtin -o unchecked.so unchecked.c -ldl || exit 2
  rm -rf out && mkdir out && report env >/dev/null && cp out/page.html right
  green=0
  for n in 1 2 3 4 5 6; do
    rm -rf out && mkdir out
    report "$work/faults" write "$n" env LD_PRELOAD="$work/unchecked.so" >out.txt 2>err.txt
    status=$?
    cp out.txt right_report.txt # only the page counts
    look report write "$n" "$status"
  done
  found 'an unchecked write' "$green"
  echo "$planted planted mistakes found"
  exit 0
fi

for command in ${FAULTS_COMMANDS:-run resume judge compare report}; do
  rm -rf out && mkdir out
  $command env >"right_$command.txt" 2>/dev/null || { echo "faults: $command: fails without any fault"; exit 2; }
  cp out/* right 2>/dev/null
  for kind in ${FAULTS_KINDS:-malloc read write fork mmap open}; do
    try "$command" "$kind" 0
    before=$injected last=${calls:-0}
    for ((n = 1; n <= last; n += n < 4 ? 1 : every)); do try "$command" "$kind" "$n"; done
    printf '%-8s %-7s %5d calls, %5d faults\n' "$command" "$kind" "$last" $((injected - before))
  done
done
[ "$injected" -gt 100 ] || bad "only $injected faults"
echo "$injected faults injected; green with something missing: $green, crashes: $crashes, verdicts on kernels: $verdicts, without a reason: $silent"
[ "$failed" -eq 0 ]
