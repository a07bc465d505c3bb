#!/usr/bin/env bash
# mutant.sh ASSAY PLUGIN LIST ID WORK: a mutant must be killed, by the check it was made for, and the line that
# is printed with it must kill it again. A control (expect pass) must pass everything.
# Says how many cases it took. Status 1 when the mutant survives.
set -uo pipefail

assay=$1 plugin=$2 list=$3 id=$4 work=$5
cd "$(dirname "$0")/.." || exit 2
mkdir -p "$work"
jsonl=$work/$id.jsonl said=$work/$id.txt again=$work/$id.replay.jsonl

# all KEY: the words after KEY in this mutant's entry, one line for each time it stands there.
all() { awk -v id="$id" -v key="$1" '$1 == "mutant" { on = $2 == id; next } on && $1 == key { sub(/^[a-z]+ +/, ""); print }' "$list"; }
op=$(all op) expect=$(all expect)
options=(--device simt --workers 1 --plugin "$plugin" --jsonl "$jsonl")
for name in $(all variant); do options+=(--variant "$op=$name@$id"); done
for text in $(all filter); do options+=(--filter "$text"); done
for section in $(all section); do options+=(--section "$section"); done
if [ -n "$(all seed)" ]; then options+=(--seed "$(all seed)"); fi
suite=$(all suite)

rm -f "$jsonl" "$again"
"$assay" run "conformance/suites/${suite:-$op}.yaml" "${options[@]}" >"$said" 2>&1
status=$?
cases=$(grep -c '^{"case"' "$jsonl" 2>/dev/null)
passes=$(grep -c '"verdict":"PASS"' "$jsonl" 2>/dev/null)

fail() {
  printf 'mutant %s: %s\n' "$id" "$1"
  printf 'ran: assay run conformance/suites/%s.yaml %s\n' "${suite:-$op}" "${options[*]}"
  tail -n 30 "$said"
  exit 1
}

if [ "$expect" = pass ]; then
  [ "$status" -eq 0 ] || fail "an unchanged copy ends with status $status"
  [ "${passes:-0}" -gt 0 ] || fail "an unchanged copy has not one PASS"
  printf 'control %s: %s of %s cases pass\n' "$id" "$passes" "$cases"
  exit 0
fi

[ "$status" -eq 1 ] || fail "ends with status $status in ${cases:-0} cases (${passes:-0} pass); 1 is expected"
# The first verdict that is not good and was decided by an expected check: its place among the cases that the
# variant took, its place among those that are not good (each has a replay line), the check, the item.
read -r tried nth check name < <(awk -v expect=" $expect " '
  /^[{]"case"/ && !/"verdict":"UNSUPPORTED"/ { ++cases }
  /"verdict":"(FAIL|HANG|CRASH|WEAK)"/ {
    ++bad
    if (!match($0, /"check":"[^"]*"/)) next
    check = substr($0, RSTART + 9, RLENGTH - 10)
    name = match($0, /"name":"[^"]*"/) ? substr($0, RSTART + 8, RLENGTH - 9) : "?"
    if (index(expect, " " check " ") > 0) { print cases, bad, check, name; exit }
  }' "$jsonl") || fail "not killed by: $expect; checks that did: $(grep -o '"check":"[^"]*"' "$jsonl" | sort | uniq -c | tr '\n' ' ')"

line=$(sed -n "s/.*assay replay '\([^']*\)'.*/\1/p" "$said" | sed -n "${nth}p")
[ -n "$line" ] || fail "no replay line for case $tried ($name)"
"$assay" replay "$line" --plugin "$plugin" --jsonl "$again" >"$said.replay" 2>&1
status=$?
if [ "$status" -ne 1 ] || ! grep -q "\"check\":\"$check\"" "$again"; then
  cat "$said.replay"
  fail "the replay ends with status $status; 1 and the check $check are expected: assay replay '$line' --plugin $plugin"
fi
printf 'mutant %s: killed by %s in case %s of those it took (%s); replayed\n' "$id" "$check" "$tried" "$name"
