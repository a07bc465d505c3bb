#!/usr/bin/env bash
# trusted_base.sh BUILD CXX: code from outside changes no verdict of others, no file and no exit status. An act of the
# host is no verdict on a kernel. The plug-in of trusted_base.cu does what ODD says, where it is loaded or called.
set -uo pipefail

assay=$(cd "$1" && pwd)/assay cxx=$2
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
bad() { printf 'FAIL %s\n' "$*"; failed=1; }
cd "$root" || exit 2
so=$work/odd.so
"$cxx" -std=c++20 -O1 -w -shared -fPIC -fvisibility=hidden -ffp-contract=off -Iinclude -I. -Igpu -include gpu/simt/cuda.h \
  '-DASSAY_AS_PLUGIN="trusted_base"' -x c++ ci/trusted_base.cu -o "$so" -lpthread || exit 1
printf 'op: reglu\ncheck:\n  - {name: few, cases: 24, dtype: f32, N: {uniform: [1, 6]}, I: {uniform: [8, 80]}}\n' >"$work/few.yaml"
printf 'op: reglu\ncheck:\n  - {name: many, cases: 3000, dtype: f32, N: 3, I: 64}\n' >"$work/many.yaml"
# Runs of some seconds: a script on a loaded host acts late, and must still find the run under way.
printf 'op: reglu\ncheck:\n  - {name: long, cases: 24000, dtype: f32, N: 3, I: 64}\n' >"$work/long.yaml"
printf 'op: rms_norm\ncheck:\n  - {name: slow, cases: 24, dtype: f32, N: 400, C: 1024}\n' >"$work/slow.yaml"

# try ODD ARGUMENTS...: status, text and errors of a run.
try() {
  local odd=$1
  shift
  status=0
  ODD=$odd timeout 60 "$assay" "$@" >"$work/out" 2>"$work/err" || status=$?
}
few=(run "$work/few.yaml" --plugin "$so" --variant reglu=odd --variant reglu=plain --power off --jsonl "$work/r.jsonl")
verdicts() { sed -n "s/.* variant=$1 .*\"verdict\":\"\([A-Z]*\)\".*/\1/p" "$work/r.jsonl" | sort | uniq -c | awk '{ printf "%s%s %s", (NR > 1 ? ", " : ""), $1, $2 }'; }
decided() { sed -E '/^\{"(end|assay)"/d; s/"(reference_ms|run_ms)":[^,}]*//g' "$1"; }

# ---- loading, entering, unloading ------------------------------------------------------------------------
for odd in load_exit load__exit load_abort load_fault load_parent entry_exit entry__exit entry_fault entry_parent unload_exit unload_fault unload_abort; do
  try "$odd" list variants --plugin "$so"
  [ "$status" -eq 2 ] && grep -q "plug-in $so: " "$work/err" || bad "$odd: status $status: $(head -n 1 "$work/err")"
done
# Those that never end, all at once: each takes some seconds of sleep, one of them of a processor.
for odd in load_wait entry_wait unload_wait entry_loop entry_stop; do
  (status=0; ODD=$odd timeout 20 "$assay" list variants --plugin "$so" >/dev/null 2>"$work/err.$odd" || status=$?; echo "$status" >"$work/status.$odd") &
done
wait
for odd in load_wait entry_wait unload_wait entry_loop entry_stop; do
  [ "$(cat "$work/status.$odd")" -eq 2 ] && grep -q "plug-in $so: .*does not end" "$work/err.$odd" || bad "$odd: status $(cat "$work/status.$odd"): $(cat "$work/err.$odd")"
done
for command in "run $work/few.yaml" 'fuzz reglu --cases 3' 'bench swiglu --device simt' 'list ops' "replay x" "shrink x" "report $work/none.jsonl"; do
  # shellcheck disable=SC2086 # a list of words
  try entry_exit $command --plugin "$so"
  [ "$status" -eq 2 ] && grep -q "plug-in $so: " "$work/err" || bad "$command: status $status: $(head -n 1 "$work/err")"
done

# A damaged file: a bloom filter of three words, and bytes of the head and of the sections, one after the other.
hash=$((0x$(readelf -SW "$so" | sed -n 's/.* \.gnu\.hash  *GNU_HASH  *[0-9a-f]* \([0-9a-f]*\) .*/\1/p')))
[ "$hash" -gt 0 ] || bad 'damaged: the plug-in has no .gnu.hash'
for at in $((hash + 8)) 16 24 32 40 56 $((hash)) $((hash + 4)) 512 1024 4096 8192; do
  cp "$so" "$work/damaged.so"
  printf '\003' | dd of="$work/damaged.so" bs=1 seek="$at" conv=notrunc 2>/dev/null
  try none list variants --plugin "$work/damaged.so"
  { [ "$status" -eq 2 ] && grep -q "plug-in $work/damaged.so: \|^assay: $work/damaged.so: " "$work/err"; } || [ "$status" -eq 0 ] ||
    bad "damaged at $at: status $status: $(head -n 2 "$work/err")"
done

# ---- calls -----------------------------------------------------------------------------------------------
expect() { # expect ODD STATUS VERDICTS-OF-ODD
  try "$1" "${few[@]}"
  [ "$status" -eq "$2" ] && [ "$(verdicts odd)" = "$3" ] && [ "$(verdicts plain)" = '24 PASS' ] ||
    bad "$1: status $status, odd: $(verdicts odd), plain: $(verdicts plain): $(head -n 1 "$work/err")"
}
expect none 0 '24 PASS'
for what in exit _exit abort fault kill term latexit; do expect launch_$what 1 '24 CRASH'; done
for what in round traps locale child copy; do expect launch_$what 1 '24 STATE'; done
expect supports_round 1 '24 STATE'
expect supports_exit 1 '24 CRASH'
for what in folder umask mask handlers alarm limit output environment print; do expect launch_$what 0 '24 PASS'; done
for what in folder umask handlers alarm output environment; do expect entry_$what 0 '24 PASS'; done
try launch_parent "${few[@]}"
[ "$status" -eq 1 ] && grep -q '"verdict":"STATE"' "$work/r.jsonl" && [ "$(verdicts plain)" = '24 PASS' ] || bad "launch_parent: status $status: $(tail -n 1 "$work/out")"
if [ -d /proc/self/task ]; then
  try launch_thread "${few[@]}" --filter few --maxfail 3
  [ "$status" -eq 1 ] && grep -q 'outlive' "$work/out" || bad "launch_thread: status $status: $(tail -n 1 "$work/out")"
fi
try load_round "${few[@]}"
[ "$status" -eq 1 ] && [ "$(verdicts odd)" = '24 STATE' ] || bad "load_round: status $status: $(verdicts odd)"
# Loaded beside the variants of another operator, it decides nothing of theirs.
embedding=(run conformance/suites/embedding.yaml --section check --power off)
"$assay" "${embedding[@]}" --jsonl "$work/without.jsonl" >/dev/null || bad 'embedding fails'
try load_round "${embedding[@]}" --plugin "$so" --jsonl "$work/with.jsonl"
[ "$status" -eq 0 ] && cmp -s <(decided "$work/without.jsonl") <(decided "$work/with.jsonl") || bad "beside another operator: status $status: $(tail -n 1 "$work/out")"
# The part of the report that a worker has inherited is written once.
try launch_exit "${few[@]}" --junit "$work/r.xml"
[ "$(grep -c '<testcase' "$work/r.xml")" -eq 48 ] && [ "$(grep -c '</testcase>' "$work/r.xml")" -eq 48 ] && [ "$(grep -c '<?xml' "$work/r.xml")" -eq 1 ] ||
  bad "JUnit of kernels that call exit(): $(grep -c '<testcase' "$work/r.xml") cases"
[ "$(grep -c '^{"case"' "$work/r.jsonl")" -eq 48 ] || bad 'JSONL of kernels that call exit()'
grep -q 'a line of a plug-in' <(ODD=entry_print "$assay" list variants --plugin "$so" 2>/dev/null) && bad 'a plug-in writes to standard output'
replay=$(sed -n 's/^{"case":"\([^"]*variant=odd[^"]*\)".*/\1/p' "$work/r.jsonl" | head -n 1)
try launch_exit replay "$replay" --plugin "$so" --in-process
[ "$status" -eq 1 ] || bad "--in-process: a kernel that calls exit(0): status $status"
try launch_round replay "$replay" --plugin "$so" --in-process
[ "$status" -eq 1 ] && grep -q STATE "$work/out" || bad "--in-process: STATE: status $status"
try launch_round run conformance/suites/models.yaml --plugin "$so" --variant reglu=odd --filter nothing
[ "$status" -ne 0 ] || bad 'a suite of models that ran nothing'

# ---- what the host does ----------------------------------------------------------------------------------
start() { # start ARGUMENTS...: a run in a session of its own, pid
  rm -f "$work"/g.*
  setsid "$assay" run "$@" >"$work/out" 2>"$work/err" &
  pid=$!
}
lines() { wc -l 2>/dev/null <"$work/g.jsonl.partial" || echo 0; }
wait_lines() { for _ in $(seq 3000); do [ "$(lines)" -ge "$1" ] && return; sleep 0.01; done; bad "$2: no results after 30 s"; }
for signal in TERM TERM TERM HUP INT; do
  start "$work/long.yaml" --power off --workers 8 --jsonl "$work/g.jsonl" --junit "$work/g.xml"
  wait_lines 40 "SIG$signal"
  kill -s $signal -- -$pid
  wait $pid
  status=$?
  [ "$status" -eq $((128 + $(kill -l $signal))) ] || bad "SIG$signal to the group: status $status"
  ! grep -q '"verdict":"\(CRASH\|HANG\|HOST\)"' "$work/g.jsonl.partial" || bad "SIG$signal to the group: a verdict that no kernel made"
  [ -z "$(find "$work" -name 'g.xml*')" ] || bad "SIG$signal to the group: $(find "$work" -name 'g.xml*') is left"
done
"$assay" run "$work/long.yaml" --power off --resume "$work/g.jsonl" >"$work/out" || bad "resumed: $(tail -n 1 "$work/out")"
# A result that the host or a signal from outside has decided is asked again.
cp "$work/g.jsonl" "$work/whole.jsonl"
for how in '"verdict":"HOST","check":"host","message":"x"' '"verdict":"CRASH","check":"crash","message":"the worker died of SIGTERM (15)"'; do
  sed "50s/\"verdict\":\"PASS\",\"check\":\"[a-z]*\",\"message\":\"[^\"]*\"/$how/" "$work/whole.jsonl" >"$work/g.jsonl"
  cmp -s "$work/whole.jsonl" "$work/g.jsonl" && sed "50s/\"verdict\":\"PASS\"/$how/" "$work/whole.jsonl" >"$work/g.jsonl"
  "$assay" run "$work/long.yaml" --power off --resume "$work/g.jsonl" >"$work/out" || bad "asked again: $(tail -n 1 "$work/out")"
  cmp -s <(decided "$work/whole.jsonl") <(decided "$work/g.jsonl") || bad 'asked again, and not the same'
done
# A file of another program, or of another form, is not gone on with.
for how in 's/"binary":"[0-9a-z]*"/"binary":"0"/' 's/"schema":1/"schema":2/'; do
  sed "1$how" "$work/whole.jsonl" >"$work/g.jsonl"
  "$assay" run "$work/long.yaml" --power off --resume "$work/g.jsonl" >"$work/out" 2>"$work/err"
  status=$?
  [ "$status" -eq 2 ] && grep -q 'g.jsonl: \(binary\|schema\) is ' "$work/err" || bad "resumed over $how: status $status: $(cat "$work/err")"
done
# Stopped for longer than the deadline, alone and as a group.
for whom in '' -; do
  start "$work/many.yaml" --power off --deadline 0.5 --workers 2 --jsonl "$work/g.jsonl"
  wait_lines 40 'stopped'
  kill -STOP -- "$whom$pid"
  sleep 1.6
  kill -CONT -- "$whom$pid"
  wait $pid || bad "stopped and continued: $(tail -n 1 "$work/out")"
done
# Ctrl-Z reaches the run alone, which stops its workers first.
sed 's/cases: 24/cases: 96/' "$work/slow.yaml" >"$work/stopped.yaml" # on a loaded host 24 were over before the stop
start "$work/stopped.yaml" --variant rms_norm=warp_rows --power off --workers 2 --jsonl "$work/g.jsonl"
wait_lines 2 'Ctrl-Z'
kill -TSTP $pid
for _ in $(seq 500); do # a loaded host stops them late
  states=$(for p in $pid $(pgrep -P $pid); do cut -d ' ' -f 3 "/proc/$p/stat" 2>/dev/null; done | sort -u | tr -d '\n')
  [ "$states" = T ] && break
  sleep 0.01
done
[ "$states" = T ] || bad "Ctrl-Z: states of the run and its workers: $states"
kill -CONT $pid
wait $pid || bad "Ctrl-Z: $(tail -n 1 "$work/out")"
# A killed run takes its workers along.
ODD=launch_loop setsid "$assay" "${few[@]:0:6}" --power off --workers 2 --deadline 30 >/dev/null 2>&1 &
pid=$!
for _ in $(seq 500); do
  workers=$(pgrep -P $pid) && break
  sleep 0.01
done
[ -n "$workers" ] || bad 'a killed run: it had no workers'
kill -KILL $pid
wait $pid 2>/dev/null
for p in $workers; do
  for _ in $(seq 500); do
    [ -e "/proc/$p/exe" ] || continue 2
    sleep 0.01
  done
  bad 'a killed run: a worker goes on'
  kill -KILL "$p"
done
# A kernel that loops, one that sleeps, one that stops itself: HANG, by the worker's own time.
for odd in launch_loop launch_wait launch_stop; do
  try $odd run "$work/few.yaml" --plugin "$so" --variant reglu=odd --power off --deadline 0.2 --maxfail 2
  [ "$status" -eq 1 ] && grep -q '^HANG.*deadline: no result within 0.2 s' "$work/out" || bad "$odd: status $status: $(head -n 1 "$work/out")"
done
# Sixteen workers share the processors: each has less than its deadline of processor time, and more of the clock's. A
# worker's first case takes twice the mean and more, since its pages are new. With eight times the mean, the clock still
# shows twice the deadline.
took=$( { TIMEFORMAT='%U %S'; time "$assay" run "$work/slow.yaml" --power off --variant rms_norm=warp_rows --workers 1 >/dev/null 2>&1; } 2>&1)
deadline=$(awk -v all="$took" 'BEGIN { split(all, of, " "); each = (of[1] + of[2]) / 24 * 8; printf "%.3f", (each > 0.1 ? each : 0.1) }')
prefix=()
command -v taskset >/dev/null && prefix=(taskset -c "$(taskset -pc $$ | sed 's/.*: *//; s/[-,].*//')")
"${prefix[@]}" "$assay" run "$work/slow.yaml" --power off --variant rms_norm=warp_rows --workers 16 --deadline "$deadline" >"$work/out" 2>&1 ||
  bad "a loaded host, deadline $deadline s: $(tail -n 1 "$work/out")"
# A file that a killed process has left under this process's name.
# shellcheck disable=SC2016 # the inner shell's own number
bash -c 'echo left >"$2/l.xml.$$"; exec "$1" run "$2/few.yaml" --power off --junit "$2/l.xml"' - "$assay" "$work" >/dev/null 2>"$work/err" || bad "a file is left: $(cat "$work/err")"
grep -q '</testsuites>' "$work/l.xml" || bad 'a file is left: no report'
# Little memory, few processes, few descriptors: no verdict on a kernel, and no hang.
for limit in '-v 2000000' '-v 300000' '-v 100000' '-n 5' '-n 7' '-f 16'; do
  status=0
  (eval "ulimit $limit"; timeout 30 "$assay" run conformance/suites/rms_norm.yaml --filter check/types --power off) >"$work/out" 2>"$work/err" || status=$?
  [ "$status" -ne 124 ] || bad "ulimit $limit: it hangs"
  ! grep -qE '^(FAIL|CRASH|HANG)' "$work/out" || bad "ulimit $limit: $(grep -m1 -E '^(FAIL|CRASH|HANG)' "$work/out")"
  [ "$status" -eq 0 ] || grep -qE 'HOST|host|memory|shared libraries' "$work/out" "$work/err" || bad "ulimit $limit: status $status, no reason: $(cat "$work/err")"
done
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
  chmod 755 "$work" && chmod 644 "$work"/*.yaml
  status=0
  (ulimit -u 1; exec setpriv --reuid 65534 --regid 65534 --clear-groups "$assay" run "$work/few.yaml" --power off) >"$work/out" 2>"$work/err" || status=$?
  [ "$status" -eq 0 ] || { [ "$status" -lt 124 ] && grep -qi 'host\|fork\|permission' "$work/err"; } || bad "ulimit -u 1: status $status: $(cat "$work/err")"
fi

[ "$failed" -eq 0 ] && echo 'the base can be trusted'
exit "$failed"
