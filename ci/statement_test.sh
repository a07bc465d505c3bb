#!/usr/bin/env bash
# statement_test.sh ASSAY PLUGINS: a statement is made and verified, and every change of it is refused. Changes that
# forget the digest are tried, and changes with a new digest. Lists that are wrong are refused too. Status 1 otherwise.
set -uo pipefail
export LC_ALL=C

assay=$1 plugins=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
# expect NAME STATUS PATTERN COMMAND...
expect() {
  local name=$1 wanted=$2 pattern=$3
  shift 3
  "$@" >said 2>&1
  local status=$?
  if [ "$status" -ne "$wanted" ] || ! grep -qE -e "$pattern" said; then
    printf 'statement_test: %s: status %s, expected %s and /%s/\n' "$name" "$status" "$wanted" "$pattern"
    tail -n 5 said
    failed=1
  fi
}
# reseal FILE: gives a changed statement the digest of its bytes.
reseal() {
  sed -i '/^"digest": /,$d' "$1"
  printf '"digest": "%s"\n}\n' "$(sha256sum <"$1" | cut -d' ' -f1)" >>"$1"
}
# changed NAME PATTERN SED: the statement is changed by the program SED; with and without a new digest it is refused.
changed() {
  sed -E "$3" good.json >changed.json
  if cmp -s good.json changed.json; then echo "statement_test: $1: nothing was changed"; failed=1; fi
  expect "$1: as it is" 1 'digest: found' "$assay" verify changed.json --list small.txt
  reseal changed.json
  expect "$1: with a new digest" 1 "$2" "$assay" verify changed.json --list small.txt
}

"$assay" list cases rms_norm gate_attention | sed 's/^[^:]*: //' | grep -v section=bench |
  awk '/^rms_norm/ && n++ % 9 == 0 && n < 100 || /^gate_attention.*types_decode_exact/ && m++ < 3' >small.txt
plugin=$plugins/gate_last_key.so

expect 'the list' 0 'PASS, 0 FAIL' "$assay" run --list small.txt --variant rms_norm=block_rows --filter rms_norm
expect 'a statement' 0 '^statement good.json: the variants conform' "$assay" statement --list small.txt --variant rms_norm=block_rows -o good.json
expect 'verified' 0 '^verified: small, [0-9]+ results' "$assay" verify good.json --list small.txt
expect 'as JSON' 0 '"conforms": true' cat good.json
changed 'a verdict' 'counts: found' '0,/"verdict": "PASS"/s//"verdict": "UNSUPPORTED"/'
changed 'a case is left out' 'results: found' '/^"results"/{n;d}'
changed 'a case is another' 'results: found' '0,/"case": "rms_norm suite=rms_norm section=check name=types/s//&_not/'
changed 'a variant is added' 'results: ' 's/^\{"op": "rms_norm"/{"op": "rms_norm", "variant": "other"},\n&/'
changed 'the list is another' 'sha256 of the list' 's/("role": "list".*"sha256": ")./\1x/'
changed 'the number of cases' 'list_cases' 's/^"list_cases": [0-9]+/"list_cases": 1/'
changed 'the program is left out' 'files: program' 's/"role": "program"/"role": "other"/'
changed 'counts' 'counts: found' 's/"FAIL": 0/"FAIL": 1/'
changed 'what it says' 'conforms: found' 's/^"conforms": true/"conforms": false/'
changed 'a PASS beyond its limit' 'ratio above 1' '0,/"verdict": "PASS", "check": "", "ratio": [0-9.e-]+/s//"verdict": "PASS", "check": "", "ratio": 1.5/'
changed 'a PASS below nothing' 'ratio above 1, or none' '0,/"verdict": "PASS", "check": "", "ratio": [0-9.e-]+/s//"verdict": "PASS", "check": "", "ratio": -1/'
changed 'a PASS with a check' 'check of a PASS' '0,/"check": ""/s//"check": "element"/'
changed 'a hash cut short' 'sha256: found' 's/("role": "program".*"sha256": ")[0-9a-f]{8}/\1/'
changed 'a key of its own' "key: found ' waived '" 's/^"version"/"waived": true,\n&/'
changed 'a count of its own' "counts: key: found ' GOOD '" 's/"counts": \{/&"GOOD": 9, /'
head -n -1 small.txt >fewer.txt
expect 'a list that was changed' 1 'sha256 of the list' "$assay" verify good.json --list fewer.txt

expect 'a wrong kernel' 1 'the variants do not conform' "$assay" statement --list small.txt --plugin "$plugin" \
  --variant gate_attention=decode_rows@gate_last_key -o bad.json
expect 'a wrong kernel: verified' 1 '^the variants do not conform' "$assay" verify bad.json --list small.txt --plugin "$plugin"
expect 'a wrong kernel: its hash' 1 '^verified: .* 1 of the given files' "$assay" verify bad.json --list small.txt --plugin "$plugin"
cp "$plugin" other.so
printf 'x' >>other.so
expect 'another plug-in' 1 'plugin other.so: found sha256' "$assay" verify bad.json --list small.txt --plugin other.so
sed 's/"verdict": "FAIL", "check": "[a-z_]*", "ratio": [^}]*/"verdict": "PASS", "check": "", "ratio": 0/' bad.json >changed.json
reseal changed.json
expect 'a wrong kernel made good' 1 'counts: found' "$assay" verify changed.json --list small.txt

expect 'no JSON' 2 'expected a value' "$assay" verify "$assay" --list small.txt
printf '{"a": 1}' >other.json
expect 'no statement' 2 'no statement' "$assay" verify other.json --list small.txt
expect 'no file' 2 'cannot be|no such' "$assay" verify none.json
expect 'no name' 2 'needs -o FILE' "$assay" statement --list small.txt
expect 'no list' 2 '^assay: --list: ' "$assay" run --list none
expect 'suites and a list' 2 'found suites beside it' "$assay" run rms_norm --list small.txt
cat small.txt small.txt >twice.txt
expect 'a case twice' 2 'found a case twice' "$assay" run --list twice.txt
sed '1s/$/ variant=vectors/' small.txt >named.txt
expect 'a case of a variant' 2 'named.txt:1: variant: found' "$assay" run --list named.txt
sed '2s/dtype=/type=/' small.txt >key.txt
expect 'a key that is wrong' 2 'key.txt:2: ' "$assay" run --list key.txt
printf '# nothing\n' >empty.txt
expect 'an empty list' 2 'found no descriptor' "$assay" run --list empty.txt
[ "$failed" -eq 0 ] && printf 'statement_test: all as expected\n'
exit "$failed"
