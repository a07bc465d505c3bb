#!/usr/bin/env bash
# cli_help.sh BUILD: checks that every command explains itself. --help and help COMMAND agree and name every option.
# Lines are wrapped, each command has a manual page, and completion loads in a shell and completes. Ends by planting
# faults into the same checks, which must then fail.
set -uo pipefail

assay=$(cd "$1" && pwd)/assay
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checked=0 failed=0
bad() {
  printf 'FAIL %s\n' "$*"
  failed=$((failed + 1))
}

"$assay" --man "$work/man1" || bad 'no manual pages'
"$assay" --completion bash >"$work/assay.bash" || bad 'no completion for bash'
"$assay" --completion zsh >"$work/_assay" || bad 'no completion for zsh'
# shellcheck source=/dev/null
bash -n "$work/assay.bash" && . "$work/assay.bash"
commands=$(_assay_commands)
for page in "$work"/man1/assay-*-*.1; do
  page=$(basename "$page" .1)
  page=${page#assay-}
  two+=("${page/-/ }")
done

# A command's options, as the refusal of an unknown one lists them.
options() { "$assay" "$@" --no-such-option 2>&1 | sed 's/.*allowed: //' | tr -s ', ' '\n' | grep -E '^-' | sort -u; }

# check_help FILE OPTION...: the help in FILE begins with a usage line, is wrapped, and names every option.
check_help() {
  local file=$1 option
  shift
  grep -q '^Usage: assay ' < <(head -n 1 "$file") || { echo 'no usage line'; return 1; }
  awk 'length > 80 { bad = 1 } END { exit bad }' "$file" || { echo 'a line of more than 80 columns'; return 1; }
  for option in "$@"; do
    grep -qE -- "(^| )$option([= ,]|\$)" "$file" || { echo "does not name $option"; return 1; }
  done
}
# check_page FILE OPTION...: the same for a manual page. Where mandoc is present it finds no error; pages have no date,
# so that two builds give the same bytes.
check_page() {
  local file=$1 option
  shift
  [ -s "$file" ] || { echo "$(basename "$file") is missing"; return 1; }
  for option in "$@"; do
    grep -qF -- "${option//-/\\-}" "$file" || { echo "$(basename "$file") does not name $option"; return 1; }
  done
  ! command -v mandoc >/dev/null || ! mandoc -Tlint -W warning "$file" 2>&1 | grep -v 'missing date'
}

while IFS= read -r command; do
  read -ra words <<<"$command"
  checked=$((checked + 1))
  "$assay" "${words[@]}" --help >"$work/help" 2>"$work/err" || bad "$command --help: exit status $?"
  [ ! -s "$work/err" ] || bad "$command --help: says on standard error: $(head -n 1 "$work/err")"
  "$assay" help "${words[@]}" | cmp -s - "$work/help" || bad "help $command is not $command --help"
  mapfile -t known < <(case $command in version | help) ;; *) options "${words[@]}" ;; esac)
  said=$(check_help "$work/help" "${known[@]}" --help) || bad "$command --help: $said"
  said=$(check_page "$work/man1/assay-${command// /-}.1" "${known[@]}" --help) || bad "$command: $said"
  grep -qF "assay-${command// /-}" <(sed 's/\\-/-/g' "$work/man1/assay.1") || bad "$command: assay.1 does not name it"
  grep -qE "^  $command( |\$)" < <("$assay" --help) || bad "$command: assay --help does not list it"
done < <(tr ' ' '\n' <<<"$commands"; printf '%s\n' "${two[@]}")
[ "$checked" -ge 21 ] || bad "$checked commands, 21 are known"
cmp -s <("$assay" help) <("$assay" --help) || bad 'assay help is not assay --help'
[ "$("$assay" --version)" = "$("$assay" version)" ] || bad 'assay --version is not assay version'
said=$(check_page "$work/man1/assay.1" --help --version) || bad "$said"
grep -q "did you mean 'run'" <("$assay" rum 2>&1) || bad 'rum: no suggestion'

# completes LINE WORD...: among what the shell offers for LINE is every WORD.
completes() {
  local line=$1 word
  shift
  COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
  _assay
  for word in "$@"; do
    [[ " ${COMPREPLY[*]} " == *" $word "* ]] || { echo "offers '${COMPREPLY[*]}', not $word"; return 1; }
  done
}
cd "$(dirname "$0")/.." || exit 2
while IFS='|' read -r line wanted; do
  read -ra words <<<"$wanted"
  said=$(completes "$line" "${words[@]}") || bad "completion of '$line': $said"
done <<'END'
assay |run list fuzz help
assay ru|run
assay --|--help --version
assay run --fi|--filter
assay run rms_norm --jsonl x --de|--device --deadline
assay run --device |simt cuda
assay run --device=s|simt
assay run rms_n|rms_norm
assay fuzz rop|rope rope_append
assay list |ops cases variants
assay list ops rms_|rms_norm
assay bench onl|online
assay bench online az|azure_conv azure_code
assay bench scenario --mo|--model
assay run --variant rms_norm=bl|block_rows
assay run conformance/suites/rms|conformance/suites/rms_norm.yaml
assay truth |onnx tensors llama2c hf
assay help tru|truth
END
if command -v zsh >/dev/null; then zsh -n "$work/_assay" || bad 'zsh does not read its completion'; fi

# check_op FILE: texts of one operator are wrapped. Titles, shapes, claims and commands stay in one line. A letter may
# have several bytes.
check_op() {
  local long
  long=$(grep -vE '^[a-z0-9_]+: |^ +(input|output|claims)[ ,]|^  further: ' "$1" | LC_ALL=C tr -d '\200-\277' | awk 'length > 80' | head -n 1)
  [ -z "$long" ] || { echo "a line of more than 80 columns: $long"; return 1; }
}
for op in rms_norm gate_attention softmax_attention; do
  "$assay" list ops "$op" >"$work/op" || bad "list ops $op: exit status $?"
  said=$(check_op "$work/op") || bad "list ops $op: $said"
done

# The checks themselves: faults are planted into a copy of what the program says.
planted() { # planted WHAT CHECK...: the check must fail
  local what=$1
  shift
  ! "$@" >/dev/null || bad "not seen: $what"
}
"$assay" run --help >"$work/help"
sed 's/--filter/--fitler/' "$work/help" >"$work/wrong"
planted 'help without an option' check_help "$work/wrong" --filter
sed '1d' "$work/help" >"$work/wrong"
planted 'help without a usage line' check_help "$work/wrong" --filter
{ cat "$work/help"; printf '%081d\n' 0; } >"$work/wrong"
planted 'a long line' check_help "$work/wrong" --filter
{ cat "$work/op"; printf '  planted errors: %080d\n' 0; } >"$work/wrong"
planted 'a long line of an operator' check_op "$work/wrong"
sed 's/filter/fitler/' "$work/man1/assay-run.1" >"$work/wrong"
planted 'a page without an option' check_page "$work/wrong" --filter
planted 'a page that is missing' check_page "$work/nowhere.1" --filter
planted 'a completion that offers something else' completes 'assay ru' list

printf 'cli_help: %d commands, %d failed\n' "$checked" "$failed"
[ "$failed" -eq 0 ]
