#!/usr/bin/env bash
# engine_survives.sh BUILD [CASES]: what happens to a run is not what happens to its results. It tries a worker
# killed in the middle of a case, and a full disk. After an interruption no case comes twice, none is lost, and no
# worker is left. It also tries shards, and CASES (10000) cases without growth in memory.
set -uo pipefail

assay=$1/assay
cases=${2:-10000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$(cd "$(dirname "$0")/.." && pwd)
suite=$root/conformance/suites/rope_append.yaml
failed=0
bad() { printf 'FAIL %s\n' "$*"; failed=1; }
# Prints what a run decided, without times.
decided() { sed -E '/^\{"(end|assay)"/d; s/"(reference_ms|run_ms)":[^,}]*//g' "$1"; }
verdicts() { tail -n 1 "$1" | sed 's/ in .*//'; }
many() { # many NAME COUNT: a suite of COUNT small cases
  printf 'op: gate_attention\ncheck:\n  - name: %s\n    mode: decode\n    dtype: [f32, bf16]\n    D: 64\n    H: 2\n    H_kv: 1\n    batch: 2\n    kv_len: {uniform: [1, 40]}\n    cases: %d\n' "$1" $(($2 / 2)) >"$work/$1.yaml"
}
wait_lines() { # wait_lines FILE COUNT PID: until the file has so many lines; false: the run ended before
  while kill -0 "$3" 2>/dev/null; do
    [ "$(wc -l 2>/dev/null <"$1" || echo 0)" -ge "$2" ] && return 0
    sleep 0.02
  done
  return 1
}

# ---- SIGKILL of a worker: its case is given once more, and the run goes on --------------------------------
many kill 2000
"$assay" run "$work/kill.yaml" --variant gate_attention=split_keys --workers 2 --power off --jsonl "$work/kill.jsonl" >"$work/kill.txt" 2>&1 &
pid=$!
if wait_lines "$work/kill.jsonl.partial" 200 $pid; then
  kill -KILL "$(pgrep -P $pid | head -n 1)"
  wait $pid
  [ $? -eq 0 ] || bad "a killed worker: exit status is not 0"
  [ "$(grep -c '"verdict":"PASS"' "$work/kill.jsonl")" -eq 2000 ] || bad "a killed worker: $(verdicts "$work/kill.txt")"
else
  bad 'the run to kill a worker of ended early'
fi

one=(--variant gate_attention=split_keys)

# ---- full disk: a clear error, status 1, nothing under the final name -----------------------------------
full() { # full NAME FILE-THAT-MAY-NOT-BE COMMAND...
  local name=$1 file=$2 status=0
  shift 2
  "$@" >"$work/full.txt" 2>"$work/full.err" || status=$?
  [ "$status" -eq 1 ] || bad "$name: exit status $status"
  grep -q 'cannot be written: ' "$work/full.err" || bad "$name: says $(head -n 2 "$work/full.err")"
  [ ! -e "$file" ] || bad "$name: $file is there"
}
full 'file size limit' "$work/limit.jsonl" bash -c "ulimit -f 64; exec '$assay' run '$work/kill.yaml' ${one[*]} --power off --jsonl '$work/limit.jsonl'"
[ -s "$work/limit.jsonl.partial" ] || bad 'file size limit: the partial file is gone'
"$assay" run "$work/kill.yaml" "${one[@]}" --power off --jsonl "$work/whole.jsonl" >"$work/whole.txt"
"$assay" run "$work/kill.yaml" "${one[@]}" --power off --resume "$work/limit.jsonl" >"$work/limit.txt" || bad 'file size limit: cannot be resumed'
cmp -s <(decided "$work/limit.jsonl") <(decided "$work/whole.jsonl") || bad 'file size limit: resumed, and not the same'
full 'page' "$work/page.html" bash -c "ulimit -f 4; exec '$assay' report '$work/whole.jsonl' -o '$work/page.html'"
[ -z "$(find "$work" -name 'page.html*')" ] || bad "page: $(find "$work" -name 'page.html*') is left"
if [ -w /dev/full ]; then
  "$assay" run "$suite" --section refuse >/dev/full 2>"$work/full.err"
  [ $? -eq 1 ] || bad 'standard output on a full disk: exit status is not 1'
  grep -q 'standard output: cannot be written' "$work/full.err" || bad 'standard output on a full disk: not said'
fi
# A real disk of 128 KB, which the run alone sees. A user who is not root is root in a user namespace of its own.
on_small_disk=(unshare -m)
[ "$(id -u)" -eq 0 ] || on_small_disk=(unshare -rm)
mkdir "$work/disk"
if "${on_small_disk[@]}" mount -t tmpfs -o size=128k none "$work/disk" 2>/dev/null; then
  # shellcheck disable=SC2016
  small='mount -t tmpfs -o size=128k none "$1" || exit 9
    "$2" run "$3" --variant gate_attention=split_keys --power off --jsonl "$1/r.jsonl" --junit "$1/r.xml"; status=$?
    ls "$1" >&2; exit $status'
  full 'full disk' "$work/disk/r.jsonl" "${on_small_disk[@]}" bash -c "$small" - "$work/disk" "$assay" "$work/kill.yaml"
  grep -q 'No space left' "$work/full.err" || bad "full disk: says $(cat "$work/full.err")"
  grep -qx 'r.jsonl.partial' "$work/full.err" || bad 'full disk: the partial file is gone'
  ! grep -qE '^r\.(jsonl$|xml)' "$work/full.err" || bad "full disk: a truncated file is there: $(tail -n 3 "$work/full.err")"
else
  echo 'full disk: no tmpfs can be mounted here; only a limit on file sizes and /dev/full were tried'
fi

# ---- interrupted, and continued -------------------------------------------------------------------------
"$assay" run "$work/kill.yaml" "${one[@]}" --jsonl "$work/a.jsonl" --junit "$work/a.xml" >"$work/a.txt"
for signal in INT TERM KILL; do
  rm -f "$work/b.jsonl" "$work/b.xml"
  "$assay" run "$work/kill.yaml" "${one[@]}" --jsonl "$work/b.jsonl" --junit "$work/b.xml" >"$work/b.txt" 2>"$work/b.err" &
  pid=$!
  # A background job of a script ignores SIGINT until the program sets its own handler, which it does.
  wait_lines "$work/b.jsonl.partial" 600 $pid || bad "SIG$signal: the run ended early"
  workers=$(pgrep -P $pid)
  [ -n "$workers" ] || bad "SIG$signal: no workers were there"
  kill -$signal $pid
  wait $pid 2>/dev/null
  status=$?
  [ "$status" -eq $((128 + $(kill -l $signal))) ] || bad "SIG$signal: exit status $status"
  for _ in $(seq 100); do
    orphans=$(for p in $workers; do [ ! -e "/proc/$p/exe" ] || echo "$p"; done)
    [ -n "$orphans" ] || break
    sleep 0.1
  done
  [ -z "$orphans" ] || bad "SIG$signal: workers outlive the run"
  [ ! -e "$work/b.jsonl" ] && [ ! -e "$work/b.xml" ] || bad "SIG$signal: a file is there under its final name"
  [ $signal = KILL ] || grep -q -- "--resume $work/b.jsonl" "$work/b.err" || bad "SIG$signal: how to go on is not said"
  before=$(grep -c '^{"case"' "$work/b.jsonl.partial")
  "$assay" run "$work/kill.yaml" "${one[@]}" --seed 2 --resume "$work/b.jsonl" >/dev/null 2>&1
  [ $? -eq 2 ] || bad "SIG$signal: another run's file was taken"
  "$assay" run "$work/kill.yaml" "${one[@]}" --resume "$work/b.jsonl" --junit "$work/b.xml" >"$work/b.txt" || bad "SIG$signal: resumed, it fails"
  [ "$before" -ge 500 ] || bad "SIG$signal: only $before results outlived it"
  cmp -s <(decided "$work/a.jsonl") <(decided "$work/b.jsonl") || bad "SIG$signal: resumed, and not the same"
  [ "$(verdicts "$work/a.txt")" = "$(verdicts "$work/b.txt")" ] || bad "SIG$signal: other verdicts: $(verdicts "$work/b.txt")"
done

# ---- shards ---------------------------------------------------------------------------------------------
for i in 1 2 3; do
  "$assay" run "$suite" --power off --shard $i/3 --jsonl "$work/s$i.jsonl" >/dev/null || bad "shard $i"
done
"$assay" report "$work"/s[123].jsonl -o "$work/s.html" >"$work/s.txt" || bad "shards together: $(tail -n 2 "$work/s.txt")"
"$assay" report "$work"/s[13].jsonl -o "$work/s.html" >"$work/s.txt" && bad 'a missing shard went unnoticed'
grep -q 'shard 2/3 is missing' "$work/s.txt" || bad "a missing shard: $(head -n 1 "$work/s.txt")"
"$assay" run "$suite" --power off --jsonl "$work/one.jsonl" >/dev/null || bad 'the run in one piece'
cmp -s <(decided "$work/one.jsonl" | sort) <(cat "$work"/s[123].jsonl | grep -v '^{"\(assay\|end\)"' >"$work/s.all"; decided "$work/s.all" | sort) || bad 'shards together are not the whole'
"$assay" compare "$work/a.jsonl" "$work/b.jsonl" >"$work/c.txt" || bad 'compare: a run against itself'
grep -qE ' SAME$' "$work/c.txt" || bad "compare: $(tail -n 1 "$work/c.txt")"

# ---- memory ---------------------------------------------------------------------------------------------
many long "$cases"
"$assay" run "$work/long.yaml" --variant gate_attention=split_keys --workers 2 --jsonl "$work/long.jsonl" >"$work/long.txt" 2>&1 &
pid=$!
rss() { for p in $pid $(pgrep -P $pid); do awk '/^VmRSS/ { print $2 }' "/proc/$p/status" 2>/dev/null; done; }
first='' last='' lines=''
# The run is stopped while its memory is looked at, and its workers come to rest.
at() { # at COUNT: the three sizes then; lines: how many cases were done
  wait_lines "$work/long.jsonl.partial" "$1" $pid || return
  kill -STOP $pid
  sleep 0.2
  lines=$(wc -l <"$work/long.jsonl.partial")
  now=$(rss | sort -n | tr '\n' ' ')
  kill -CONT $pid
}
at $((cases / 5)) && first=$now && before=$lines
at $((cases * 17 / 20)) && last=$now
wait $pid || bad "memory: $(tail -n 1 "$work/long.txt")"
printf 'memory in KB of the three processes after %d cases: %s; after %d of %d: %s\n' "${before:-0}" "$first" "$lines" "$cases" "$last"
[ "$(wc -w <<<"$first $last")" -eq 6 ] || bad 'memory was not measured'
paste <(tr ' ' '\n' <<<"$first") <(tr ' ' '\n' <<<"$last") | while read -r a b; do
  [ -z "${b:-}" ] || [ "$b" -le $((a + a / 20 + 1024)) ] || exit 1
done || bad 'memory grew'

[ "$failed" -eq 0 ] && echo 'the engine survives'
exit "$failed"
