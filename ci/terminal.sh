#!/usr/bin/env bash
# terminal.sh BUILD: colours and progress of a run, which a terminal shows and a pipe does not. --color, NO_COLOR and TERM
# decide before that. Needs `script` of util-linux and /dev/pts for the terminal; status 77 without them.
set -uo pipefail

assay=$(cd "$1" && pwd)/assay
command -v script >/dev/null || { echo 'terminal: skipped, script of util-linux is not installed'; exit 77; }
script -qec true /dev/null >/dev/null 2>&1 </dev/null || { echo 'terminal: skipped, script cannot make a terminal here'; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")/.." || exit 2
unset NO_COLOR
export TERM=xterm
failed=0 checked=0
green=$'\033\\[32m[0-9,]+ PASS\033\\[0m, '
progress='[0-9]+ of [0-9]+ cases, 0 failed, [0-9.]+ cases/s'

# on WHERE ARGUMENT...: what `assay run reglu` says on a terminal, or into a pipe.
on() {
  local where=$1
  shift
  local command=("$assay" run conformance/suites/reglu.yaml --section check --device simt --power off "$@")
  if [ "$where" = terminal ]; then script -qec "$(printf '%q ' "${command[@]}")" /dev/null; else "${command[@]}" | cat; fi >"$work/said" 2>&1
}
# says yes|no PATTERN WHAT: whether the run said it.
says() {
  local found=no
  grep -qE -- "$2" "$work/said" && found=yes
  checked=$((checked + 1))
  [ "$found" = "$1" ] || { printf 'FAIL %s: found %s, wanted %s\n' "$3" "$found" "$1"; failed=$((failed + 1)); }
}

on terminal
says yes "$green" 'a terminal has colours'
says yes "$progress" 'a terminal has progress'
on pipe
says no $'\033' 'a pipe has neither'
says no "$progress" 'a pipe has no progress'
says yes '^[1-9][0-9,]* PASS, 0 FAIL' 'a pipe has the sum'
on pipe --color always
says yes "$green" '--color always in a pipe'
says no "$progress" '--color always adds no progress to a pipe'
on terminal --color never
says no "$green" '--color never on a terminal'
says yes "$progress" '--color never leaves progress'
NO_COLOR=1 on terminal
says no "$green" 'NO_COLOR'
NO_COLOR='' on terminal
says yes "$green" 'NO_COLOR that is empty'
NO_COLOR=1 on terminal --color always
says yes "$green" '--color always in spite of NO_COLOR'
TERM=dumb on terminal
says no "$green" 'TERM=dumb'

printf 'terminal: %d checked, %d failed\n' "$checked" "$failed"
[ "$failed" -eq 0 ]
