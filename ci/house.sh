#!/usr/bin/env bash
# house.sh: the rules of the house (docs/adding.md). One line per violation: `house: RULE: FILE: what`.
# Status 1 when there is one. `ci/house.sh [--root DIR] [RULE...]`; `--list` names the rules.
# ci/house_selftest.sh plants a violation of every rule and sees it found.
set -uo pipefail

rules="rooms strangers includes length headers marks flags asm quiet commands format"
root=$(cd "$(dirname "$0")/.." && pwd)
wanted=""
while [ $# -gt 0 ]; do
  case $1 in
    --list) printf '%s\n' "$rules" | tr ' ' '\n'; exit 0 ;;
    --root) root=$(cd "$2" && pwd); shift 2 ;;
    *) wanted="$wanted $1"; shift ;;
  esac
done
cd "$root" || exit 2
# Patterns and messages name what is forbidden; these two files are left out where they would find themselves.
self='ci/house.sh ci/house_selftest.sh'
found=0

say() { # say RULE FILE MESSAGE
  printf 'house: %s: %s: %s\n' "$1" "$2" "$3"
  found=$((found + 1))
}
# hits RULE MESSAGE: says every line of `FILE:LINE:TEXT` on stdin.
hits() {
  local line
  while IFS= read -r line; do say "$1" "$(printf '%s' "$line" | cut -d: -f1,2)" "$2: $(printf '%s' "$line" | cut -d: -f3- | cut -c1-120)"; done
}
# files NAME...: those files below here, without builds and hidden folders.
files() {
  local arg=() name
  for name in "$@"; do arg+=(-o -name "$name"); done
  find . \( -path './build*' -o -path './out' -o -path './shared' -o -path './.[!.]*' \) -prune -o -type f \( "${arg[@]:1}" \) -print | sed 's,^\./,,' | sort
}
not_self() { local name; while IFS= read -r name; do case " $self " in *" $name "*) ;; *) printf '%s\n' "$name" ;; esac; done; }
# search PATTERN: extended regular expression in the files named on stdin; FILE:LINE:TEXT.
search() { xargs -r -d '\n' grep -nHE -e "$1" 2>/dev/null; }
ops() { sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' include/assay/ops.def; }
sources() { files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh'; }
is_op() { ops | grep -qx -- "$1"; }
strategies() { [ ! -e include/assay/strategies.def ] || sed -n 's/^ASSAY_STRATEGY(\([a-z0-9_]*\), *\([a-z0-9_]*\)).*/\1_\2/p' include/assay/strategies.def; }
is_strategy() { strategies | grep -qx -- "$1"; }

# Every operator has its room in four places.
rule_rooms() {
  local op place
  [ -n "$(ops)" ] || say rooms include/assay/ops.def "lists no operator"
  for op in $(ops); do
    for place in "ref/$op.c" "gpu/$op.cu" "conformance/suites/$op.yaml" "docs/kernels/$op.md"; do
      [ -s "$place" ] || say rooms "$place" "missing; $op is in include/assay/ops.def"
    done
  done
  for op in $(strategies); do
    [ -s "gpu/$op.cu" ] || say rooms "gpu/$op.cu" "missing; $op is in include/assay/strategies.def"
  done
}

# Nothing stands in a room's place without being an operator. traces and models are suites over operators.
rule_strangers() {
  local path stem
  for path in ref/*.c gpu/*.cu conformance/suites/*.yaml docs/kernels/*.md; do
    [ -e "$path" ] || continue
    stem=$(basename "${path%.*}")
    case $path in conformance/suites/traces.yaml | conformance/suites/models.yaml) continue ;; esac
    [[ $path == gpu/* ]] && is_strategy "$stem" && continue
    is_op "$stem" || say strangers "$path" "no operator '$stem' in include/assay/ops.def"
  done
}

# Who may include whom. A quoted name without a folder is the including folder's own.
rule_includes() {
  # Tests of the private parts include them.
  sources | grep -E '^(include|core|ref|gpu|conformance)/' | grep -v '^conformance/selftest/' | search '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' |
    awk -F: '
      BEGIN {
        allowed["include"] = "assay"
        allowed["core"] = "assay core"
        allowed["ref"] = "assay core ref lib"
        allowed["gpu"] = "assay core gpu lib simt"
        allowed["conformance"] = "assay core and its own"
      }
      {
        area = $1
        sub(/\/.*/, "", area)
        name = $0
        sub(/^[^"<]*["<]/, "", name)
        quoted = $0 ~ /include[[:space:]]*"/
        sub(/[">].*/, "", name)
        while (sub(/^\.\.?\//, "", name)) {}
        if (name !~ /\//) next
        folder = name
        sub(/\/.*/, "", folder)
        if (!quoted && folder !~ /^(assay|core|ref|gpu|conformance)$/) next
        foreign = folder ~ /^(ref|gpu|lib|simt)$/
        if (area == "conformance" ? foreign : index(" " allowed[area] " ", " " folder " ") == 0)
          printf "%s:%s:%s (%s/ takes: %s)\n", $1, $2, name, area, allowed[area]
      }' >"$scratch"
  hits includes "may not include" <"$scratch"
}

rule_length() {
  local path lines
  while IFS= read -r path; do
    case $path in fixtures/*) continue ;; esac
    lines=$(wc -l <"$path")
    [ "$lines" -lt 800 ] || say length "$path" "$lines lines, below 800 are allowed"
  done < <(files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' '*.sh' '*.cmake' '*.md' '*.yaml' '*.txt' '*.def')
}

# Public headers compile alone, as C17 and as C++20.
rule_headers() {
  local header out
  for header in include/assay/*.h; do
    out=$("${CC:-cc}" -std=c17 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -Iinclude -fsyntax-only -x c "$header" 2>&1) ||
      say headers "$header" "does not compile alone as C17: $(printf '%s' "$out" | grep -m1 -E 'error' || printf '%s' "$out" | head -n 1)"
    out=$("${CXX:-c++}" -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -Iinclude -fsyntax-only -x c++ "$header" 2>&1) ||
      say headers "$header" "does not compile alone as C++20: $(printf '%s' "$out" | grep -m1 -E 'error' || printf '%s' "$out" | head -n 1)"
  done
}

rule_marks() {
  files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' '*.sh' '*.cmake' '*.md' '*.yaml' '*.yml' '*.txt' '*.def' '*.json' | not_self |
    search '(^|[^A-Za-z0-9_])(TODO|FIXME|XXX|HACK)([^A-Za-z0-9_]|$)' >"$scratch" || true
  hits marks "open ends belong in issues" <"$scratch"
}

rule_flags() {
  files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' '*.sh' '*.cmake' '*.txt' '*.json' | not_self | grep -v '^fixtures/' |
    search '(-ffast-math|-Ofast|use_fast_math|-funsafe-math|-ffinite-math|-fassociative-math|-freciprocal-math|fp-model[ =]fast|-ffp-contract=fast)' >"$scratch" || true
  hits flags "no fast-math" <"$scratch"
}

# All inline PTX is in gpu/lib/ptx*.cuh, where simt has a second body for it.
rule_asm() {
  sources | grep '^gpu/' | grep -v -e '^gpu/lib/ptx[a-z0-9_]*\.cuh$' -e '^gpu/simt/' |
    search '(^|[^A-Za-z0-9_])(__asm__|__asm|asm)[[:space:]]*(volatile|__volatile__)?[[:space:]]*\(' >"$scratch" || true
  hits asm "inline PTX belongs in gpu/lib/ptx.cuh and its kin" <"$scratch"
}

# No exit and no printing below main.c; a report prints to the stream it is given.
rule_quiet() {
  sources | grep -E '^(core|ref|conformance/[^/]*$)' | grep -v '^conformance/main\.c$' |
    search '(^|[^A-Za-z0-9_])(exit|abort|printf|puts|putchar|perror)[[:space:]]*\(' | grep -vE '^[^:]*:[0-9]+:[[:space:]]*(\*|/\*|//)' >"$scratch" || true
  hits quiet "no exit, no printing below main.c" <"$scratch"
}

# Scripts and pages that the documentation names exist; scripts can be run.
rule_commands() {
  local page name target
  for page in README.md docs/*.md docs/*/*.md CHANGELOG.md; do
    [ -e "$page" ] || continue
    while IFS= read -r name; do
      if [ ! -e "$name" ]; then say commands "$page" "names $name, which does not exist"
      elif [ "${name%.sh}" != "$name" ] && [ "$name" != ci/lib.sh ] && [ ! -x "$name" ]; then say commands "$page" "names $name, which is not executable"; fi
    done < <(grep -oE '(^|[^A-Za-z0-9_/.-])(ci|docs|cmake|conformance|core|ref|gpu|include|fixtures)/[A-Za-z0-9_./-]+\.(sh|md|def|h|cpp|cu|cuh|c|yaml|yml|txt|tsv|cmake)' "$page" | sed 's/^[^a-z]//' | sort -u)
    while IFS= read -r target; do
      case $target in *://* | '#'* | mailto:*) continue ;; esac
      [ -e "$(dirname "$page")/${target%%#*}" ] || say commands "$page" "links to $target, which does not exist"
    done < <(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//' | sort -u)
  done
  [ -s README.md ] || say commands README.md "missing"
  for name in ci/conform.sh ci/test.sh; do
    grep -qF "$name" README.md 2>/dev/null || say commands README.md "does not name $name"
  done
}

# The repository's .clang-format, as version 14 reads it; other versions lay out differently and are left alone.
rule_format() {
  local tool path
  tool=$(command -v clang-format-14 || command -v clang-format) || return 0
  "$tool" --version | grep -q 'version 14\.' || return 0
  while IFS= read -r path; do
    "$tool" --dry-run -Werror "$path" >/dev/null 2>&1 || say format "$path" "not laid out by .clang-format: clang-format -i $path"
  done < <(sources | grep -v -e '^fixtures/')
}

scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
for rule in ${wanted:-$rules}; do
  case " $rules " in *" $rule "*) ;; *) printf 'house: no rule %s; rules: %s\n' "$rule" "$rules" >&2; exit 2 ;; esac
  "rule_$rule"
done
if [ "$found" -gt 0 ]; then
  printf 'house: %d violations\n' "$found"
  exit 1
fi
printf 'house: all rules hold: %s\n' "$(printf '%s' "${wanted:-$rules}" | sed 's/^ //')"
