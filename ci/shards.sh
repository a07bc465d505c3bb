#!/usr/bin/env bash
# shards.sh BUILD: a run in one piece and its shards together: the same lines about planted errors, byte for byte, the
# same exit status; a suite that is too weak is found by all together, and by no shard alone; nothing is summed up of files
# that are no whole run.
set -uo pipefail

assay=$1/assay
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$(cd "$(dirname "$0")/.." && pwd)
failed=0
bad() { printf 'FAIL %s\n' "$*"; failed=1; }
power() { grep -E '^power |^  [a-z_]+ +seen in |^WEAK suite ' "$1"; }

# together NAME SUITE STATUS [OPTIONS...]: one piece and shards of 1, 3 and 7 end with STATUS and say the same.
together() {
  local name=$1 suite=$2 wanted=$3 status n i
  shift 3
  "$assay" run "$suite" --jsonl "$work/$name.jsonl" "$@" >"$work/$name.txt"
  status=$?
  [ "$status" -eq "$wanted" ] || bad "$name in one piece: exit status $status, not $wanted: $(tail -n 1 "$work/$name.txt")"
  power "$work/$name.txt" >"$work/$name.power" || bad "$name: no line about planted errors"
  for n in 1 3 7; do
    for i in $(seq "$n"); do
      "$assay" run "$suite" --shard "$i/$n" --jsonl "$work/$name.$n.$i.jsonl" "$@" >"$work/shard.txt" || bad "$name: shard $i/$n: $(tail -n 1 "$work/shard.txt")"
      ! grep -q '^WEAK suite' "$work/shard.txt" || bad "$name: shard $i/$n judges by itself"
    done
    "$assay" report "$work/$name.$n".*.jsonl -o "$work/page.html" >"$work/joined.txt"
    status=$?
    [ "$status" -eq "$wanted" ] || bad "$name in $n shards: exit status $status, not $wanted: $(tail -n 1 "$work/joined.txt")"
    cmp -s "$work/$name.power" <(power "$work/joined.txt") || bad "$name in $n shards: $(diff "$work/$name.power" <(power "$work/joined.txt") | head -n 3)"
    if grep -q '^WEAK suite' "$work/$name.txt"; then
      grep -q 'class="verdict bad"' "$work/page.html" || bad "$name in $n shards: the page says PASS"
      grep -q 'at least 20 are needed' "$work/page.html" || bad "$name in $n shards: the page does not name what is weak"
    fi
  done
  "$assay" report "$work/$name.jsonl" -o "$work/page.html" >"$work/joined.txt"
  status=$?
  [ "$status" -eq "$wanted" ] || bad "$name: report of one piece: exit status $status, not $wanted"
  cmp -s "$work/$name.power" <(power "$work/joined.txt") || bad "$name: report of one piece: $(head -n 3 "$work/joined.txt")"
}

together strong "$root/conformance/suites/gate_reduce.yaml" 0
together merged "$root/conformance/suites/merge_states.yaml" 0
together sampled "$root/conformance/suites/gate_reduce.yaml" 0 --power sample
# One case a combination: some planted errors change the result in too few of them.
printf 'op: gate_reduce\ncheck:\n  - {name: few, dtype: [f32, f16, bf16], out_dtype: [same, f32, f16, bf16], splits: [1, 2], N: 3, H: 2, D: 64}\n' >"$work/gate_reduce.yaml"
together weak "$work/gate_reduce.yaml" 1
grep -q 'WEAK suite gate_reduce: power: .* changed the result in [0-9]* cases, at least 20 are needed' "$work/weak.power" || bad "weak: says $(cat "$work/weak.power")"

# refused SAYS FILES...: exit status 1, the reason, and no sum.
refused() {
  local says=$1
  shift
  "$assay" report "$@" -o "$work/page.html" >"$work/refused.txt" && bad "taken: $says"
  grep -qE -- "$says" "$work/refused.txt" || bad "$says: says $(head -n 3 "$work/refused.txt")"
  grep -q '^planted errors are not judged: these files are no whole run$' "$work/refused.txt" || bad "$says: not said that nothing is judged"
  ! power "$work/refused.txt" >"$work/summed" || bad "$says: summed up nevertheless: $(head -n 1 "$work/summed")"
}
s=$work/strong.3
refused '^campaign: shard 2/3 is missing \(seed 1 on simt\)$' "$s.1.jsonl" "$s.3.jsonl"
sed 's/"seconds":/&1/' "$s.2.jsonl" >"$work/again.jsonl"
refused 'again.jsonl: a shard given twice$' "$s".[123].jsonl "$work/again.jsonl"
"$assay" report "$s".[123].jsonl "$s.2.jsonl" -o "$work/page.html" >"$work/joined.txt" || bad 'the same file twice'
grep -q 'strong.3.2.jsonl: the same run as in .*strong.3.2.jsonl: counts once$' "$work/joined.txt" || bad 'the same file twice: not said'
cmp -s "$work/strong.power" <(power "$work/joined.txt") || bad "the same file twice: $(head -n 2 "$work/joined.txt")"
# As many files as the system passes.
mkdir "$work/many"
for i in $(seq 70); do cp "$s.2.jsonl" "$work/many/$i.jsonl"; done
"$assay" report "$s".[13].jsonl "$work"/many/*.jsonl -o "$work/page.html" >"$work/joined.txt" || bad "70 files: $(tail -n 1 "$work/joined.txt")"
[ "$(grep -c 'counts once$' "$work/joined.txt")" -eq 69 ] || bad '70 files: not each of them is named'
cmp -s "$work/strong.power" <(power "$work/joined.txt") || bad "70 files: $(head -n 2 "$work/joined.txt")"
refused 'sampled.3.2.jsonl: ran with --power sample, .*strong.3.1.jsonl with --power all$' "$s.1.jsonl" "$work/sampled.3.2.jsonl" "$s.3.jsonl"
refused 'merged.3.2.jsonl: shard of other suites or variants than .*strong.3.1.jsonl$' "$s.1.jsonl" "$work/merged.3.2.jsonl" "$s.3.jsonl"
sed 's/"commit":"/&x/' "$s.2.jsonl" >"$work/commit.jsonl"
refused 'commit.jsonl: of another commit$' "$s.1.jsonl" "$work/commit.jsonl" "$s.3.jsonl"
"$assay" run "$root/conformance/suites/gate_reduce.yaml" --seed 2 --shard 2/3 --jsonl "$work/seed.jsonl" >"$work/shard.txt" || bad 'seed 2'
refused '^campaign: shard 2/3 is missing \(seed 1 on simt\)$' "$s.1.jsonl" "$work/seed.jsonl" "$s.3.jsonl"
grep -v '^{"power"' "$s.2.jsonl" >"$work/sums.jsonl"
refused 'sums.jsonl: planted error .* \(no line of it\)$' "$s.1.jsonl" "$work/sums.jsonl" "$s.3.jsonl"
sed -E 's/,"spoils_(seen|unseen|void|weak)":\[[^]]*\]//g' "$s.2.jsonl" >"$work/counts.jsonl"
refused 'counts.jsonl: planted errors: its cases name 0 of 0 kinds' "$s.1.jsonl" "$work/counts.jsonl" "$s.3.jsonl"
grep -v '^{"power"' "$work/counts.jsonl" >"$work/both.jsonl"
refused 'both.jsonl: planted errors: its cases name 0 of 0 kinds, its sums are of 0 kinds, its end says [1-9]' "$s.1.jsonl" "$work/both.jsonl" "$s.3.jsonl"
# The same run cannot be continued with another way to try planted errors.
head -n 20 "$s.2.jsonl" >"$work/on.jsonl.partial"
"$assay" run "$root/conformance/suites/gate_reduce.yaml" --shard 2/3 --power off --resume "$work/on.jsonl" >"$work/refused.txt" 2>&1
[ $? -eq 2 ] || bad 'continued with another --power'
grep -q "power is 'all', this run's is 'off'" "$work/refused.txt" || bad "another --power: says $(cat "$work/refused.txt")"
"$assay" run "$root/conformance/suites/gate_reduce.yaml" --shard 2/3 --resume "$work/on.jsonl" >"$work/refused.txt" 2>&1 || bad "not continued: $(cat "$work/refused.txt")"
"$assay" report "$s.1.jsonl" "$work/on.jsonl" "$s.3.jsonl" -o "$work/page.html" >"$work/joined.txt" || bad 'a continued shard among others'
cmp -s "$work/strong.power" <(power "$work/joined.txt") || bad "a continued shard: $(head -n 2 "$work/joined.txt")"

[ "$failed" -eq 0 ] && echo 'shards together are one run'
exit "$failed"
