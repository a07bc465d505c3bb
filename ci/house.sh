#!/usr/bin/env bash
# house.sh: the rules of the house (docs/adding.md). One line per violation: `house: RULE: FILE: what`.
# Status 1 when there is one. `ci/house.sh [--root DIR] [RULE...]`; `--list` names the rules.
# ci/house_selftest.sh plants a violation of every rule and sees it found.
set -uo pipefail

rules="rooms strangers includes floors length headers marks flags asm contracts quiet commands citations pipes mutants format"
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
# Names of files that are not here, for the rule citations: of other projects, of what a build writes, of examples.
others='llama2.c karpathy/llama2.c criterion.h tests/test-backend-ops.cpp simt.tsv cuda.tsv coverage.tsv outside.cu lib.cpp my_kernels.cu assay/simt/cuda.h'
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
is_op() { grep -qx -- "$1" < <(ops); }
strategies() { [ ! -e include/assay/strategies.def ] || sed -n 's/^ASSAY_STRATEGY(\([a-z0-9_]*\), *\([a-z0-9_]*\)).*/\1_\2/p' include/assay/strategies.def; }
is_strategy() { grep -qx -- "$1" < <(strategies); }

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

# in_root: the files in the root, without hidden ones. In a checkout, those that are part of it.
in_root() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files | grep -v -e / -e '^\.'
  else
    find . -maxdepth 1 -type f ! -name '.*' | sed 's,^\./,,'
  fi
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
  # The root has these files and folders alone. Outputs of the program land there by accident.
  while IFS= read -r path; do
    case $path in
      CHANGELOG.md | CITATION.cff | CMakeLists.txt | CMakePresets.json | CONTRIBUTING.md | Containerfile | LICENSE | NOTICE | README.md | SECURITY.md) ;;
      *) say strangers "$path" "a file that the root does not have; what a program wrote?" ;;
    esac
  done < <(in_root)
}

# Checks which folder may include which. A quoted name without a folder is the including folder's own.
rule_includes() {
  # Tests of the private parts include them.
  sources | grep -E '^(include|core|ref|gpu|conformance|bench|fuzz)/' | grep -v '^conformance/selftest/' | search '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' |
    awk -F: '
      BEGIN {
        allowed["include"] = "assay"
        allowed["core"] = "assay core"
        allowed["ref"] = "assay core ref lib"
        allowed["gpu"] = "assay core gpu lib simt"
        allowed["conformance"] = allowed["bench"] = allowed["fuzz"] = "assay core and conformance"
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
        if (area == "bench" && $1 ~ /\.cu$/ && folder == "gpu") next # kernels that a benchmark brings itself
        if (!quoted && folder !~ /^(assay|core|ref|gpu|conformance)$/) next
        foreign = folder ~ /^(ref|gpu|lib|simt)$/
        if (area ~ /^(conformance|bench|fuzz)$/ ? foreign : index(" " allowed[area] " ", " " folder " ") == 0)
          printf "%s:%s:%s (%s/ takes: %s)\n", $1, $2, name, area, allowed[area]
      }' >"$scratch"
  hits includes "may not include" <"$scratch"
  # Kernels and what they share do not know the device that launches them.
  sources | grep '^gpu/' | grep -v '^gpu/device/' | search '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]([^">]*/)?device/device_' >"$scratch" || true
  hits includes "gpu/device is for the device alone, may not include" <"$scratch"
}

# Folders of conformance/ lie one above the other, in the order of conformance/CMakeLists.txt. A folder is included by its
# public header alone, FOLDER/FOLDER.h, and only from later folders; bench/ and fuzz/ stand above all of them.
rule_floors() {
  local floors
  floors=$(sed -n 's/^foreach(floor \(.*\))$/\1/p' conformance/CMakeLists.txt 2>/dev/null)
  [ -n "$floors" ] || { say floors conformance/CMakeLists.txt "has no foreach(floor ...)"; return; }
  sources | grep -E '^(conformance|bench|fuzz)/' | grep -v -e '^conformance/selftest/' -e '^conformance/mutants/' |
    search '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' |
    awk -F: -v floors="$floors" '
      BEGIN { count = split(floors, name, " "); for (i = 1; i <= count; i++) rank[name[i]] = i }
      {
        depth = split($1, from, "/")
        mine = from[1] != "conformance" || depth < 3 || !(from[2] in rank) ? count + 1 : rank[from[2]]
        included = $0
        sub(/^[^"]*"/, "", included)
        sub(/".*/, "", included)
        parts = split(included, to, "/")
        if (included ~ /^\.\./) { printf "%s:%s:%s (name it from the root of the sources)\n", $1, $2, included; next }
        if (to[1] != "conformance") {
          if (from[1] == "conformance" && (to[1] in rank)) printf "%s:%s:%s (write conformance/%s/%s.h)\n", $1, $2, included, to[1], to[1]
          next
        }
        if (parts == 2) { if (from[1] == "conformance" && depth > 2) printf "%s:%s:%s (the top includes folders, not the other way round)\n", $1, $2, included; next }
        if (to[2] == "cli" || !(to[2] in rank)) { printf "%s:%s:%s (no folder that others include)\n", $1, $2, included; next }
        if (rank[to[2]] == mine) { printf "%s:%s:%s (its own folder: write \"%s\")\n", $1, $2, included, to[3]; next }
        if (rank[to[2]] > mine) { printf "%s:%s:%s (%s is a later folder than %s)\n", $1, $2, included, to[2], from[2]; next }
        if (to[3] != to[2] ".h") printf "%s:%s:%s (private to %s; its public header is %s.h)\n", $1, $2, included, to[2], to[2]
      }' >"$scratch"
  hits floors "may not include" <"$scratch"
}

rule_length() {
  local path lines
  while IFS= read -r path; do
    case $path in fixtures/* | conformance/lists/*) continue ;; esac # data
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

# A contract names its fields: a row filled by position changes its meaning with every field that is added.
rule_contracts() {
  # One file after the other as a whole, comments blanked. After each place where a contract can begin, a brace
  # follows. It must precede a field's name, nothing, or the braces of the first element.
  { sources | grep -v '^fixtures/'; files '*.md' | grep '^docs/'; } | xargs -r -d '\n' awk '
    function line_of(at,    lines) { return split(substr(text, 1, at), lines, "\n") }
    function look(at,    next_part, shown) { # at: of the brace
      next_part = substr(text, at + 1, 200)
      sub(/^[ \t\n{]+/, "", next_part)
      if (next_part ~ /^(\.[a-z]|}|0[ \t\n]*})/) return
      shown = next_part
      gsub(/[ \t\n]+/, " ", shown)
      if (!(line_of(at) in said)) printf "%s:%d:{%s\n", file, line_of(at), substr(shown, 1, 80)
      said[line_of(at)] = 1
    }
    # The end of the braces that open at `at`.
    function closing(at,    depth, c) {
      for (depth = 0; at <= length(text); ++at) {
        c = substr(text, at, 1)
        if (c == "{") ++depth
        if (c == "}" && --depth == 0) break
      }
      return at
    }
    # Each match of `pattern` in [from, to), which ends with a brace.
    function look_in(from, to, pattern,    part) {
      while (from < to && match(part = substr(text, from, to - from), pattern)) {
        look(from + RSTART + RLENGTH - 2)
        from += RSTART + RLENGTH - 1
      }
    }
    function file_done(    at, rest, end) {
      if (text == "") return
      while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//)) {
        rest = substr(text, RSTART, RLENGTH)
        gsub(/[^\n]/, " ", rest)
        text = substr(text, 1, RSTART - 1) rest substr(text, RSTART + RLENGTH)
      }
      split("", said)
      for (at = 1; match(substr(text, at), /assay_contract[^A-Za-z0-9_]/);) {
        at += RSTART + 13 # after the word
        rest = substr(text, at, 400)
        if (substr(text, 1, at - 1) ~ /struct[ \t\n]+assay_contract$/) continue
        if (match(rest, /^[ \t\n]*\)?[ \t\n]*\{/)) look(at + RLENGTH - 1) # (assay_contract){ and assay_contract{
        else if (match(rest, /^[ \t\n]+[a-z_0-9]+\([^(){};]*\)[ \t\n]*\{/)) # a function that returns one
          look_in(at, closing(at + RLENGTH - 1), "return[ \t\n]*{")
        else if (match(rest, /^[ \t\n]+[a-z_0-9]+[^;()]*\{/)) # a definition, or several
          look_in(at, at + index(substr(text, at), ";"), "[a-z_0-9\\]][ \t\n]*=?[ \t\n]*{")
      }
      look_in(1, length(text) + 1, "[.]contract[ \t\n]*=[ \t\n]*{")
      # Five types and a number, wherever they are: the first six fields.
      for (at = 1; match(substr(text, at), /\{[ \t\n]*(ASSAY_[A-Z0-9]+,[ \t\n]*)(ASSAY_[A-Z0-9]+,[ \t\n]*)(ASSAY_[A-Z0-9]+,[ \t\n]*)(ASSAY_[A-Z0-9]+,[ \t\n]*)(ASSAY_[A-Z0-9]+,[ \t\n]*)[0-9]/); at += RSTART) look(at + RSTART - 1)
    }
    FNR == 1 { file_done(); text = ""; file = FILENAME }
    { sub(/(^|[ \t])\/\/.*/, ""); text = text $0 "\n" }
    END { file_done() }' >"$scratch"
  hits contracts "a contract filled by position, name its fields" <"$scratch"
}

# No exit and no printing below main.c; a report prints to the stream it is given.
rule_quiet() {
  sources | grep -E '^(core|ref|conformance/(text|case|suite|generate|trial|planted|laws|judge|run|report|fuzz|shrink|models|truth|explain|kill)/|conformance/[^/]*$)' | grep -v '^conformance/main\.c$' |
    search '(^|[^A-Za-z0-9_])(exit|abort|printf|puts|putchar|perror)[[:space:]]*\(' | grep -vE '^[^:]*:[0-9]+:[[:space:]]*(\*|/\*|//)' >"$scratch" || true
  hits quiet "no exit, no printing below main.c" <"$scratch"
}

# grep -q ends at its first match. Under pipefail whatever still writes into the pipe then fails, and so does the line.
rule_pipes() {
  files '*.sh' | search '(^|[^|])\|[[:space:]]*grep[[:space:]]+(-[A-Za-z]+[[:space:]]+)*-[A-Za-z]*q' | grep -vE '^[^:]*:[0-9]+:[[:space:]]*#' >"$scratch" || true
  hits pipes "grep -q reads a pipe; allowed a file, <<< or < <(...)" <"$scratch"
}

# Scripts and pages that the documentation names exist; scripts can be run.
rule_commands() {
  local page name target
  for page in README.md CONTRIBUTING.md SECURITY.md docs/*.md docs/*/*.md CHANGELOG.md bench/evidence/README.md; do
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

# Documents, headers, tables, sources and scripts that a comment or a page cites exist, and so do sections of
# docs/definitions.md. A name is looked for below the root and below the citing file's folder; the end of a path will do.
# Comments of C and CUDA (and .md in their strings), comments after # in scripts, CMake, YAML and .def, pages whole.
rule_citations() {
  find . \( -path './build*' -o -path './out' -o -path './shared' -o -path './.git' \) -prune -o -type f -print | sed 's,^\./,,' >"$scratch"
  {
    sources
    files '*.md' '*.sh' '*.cmake' '*.txt' '*.yaml' '*.yml' '*.def'
  } | not_self | grep -vE '^(fixtures/|bench/evidence/|bench/LOG|docs/log/archive)' | LC_ALL=C xargs -r -d '\n' awk -v tree="$scratch" -v known="$others" '
    BEGIN {
      while ((getline path < tree) > 0) {
        present[path]
        file[path]
        rest = path
        while (match(rest, /\//)) { rest = substr(rest, RSTART + 1); present[rest] }
      }
      while ((getline line < "docs/definitions.md") > 0)
        if (line ~ /^##+ [0-9]/) { split(line, word, " "); sub(/\.$/, "", word[2]); section[word[2]] }
      k = split(known, word, " ")
      for (i = 1; i <= k; ++i) foreign[word[i]]
    }
    # titled NAME: NAME is `PAGE, "TITLE"`; has the page that heading?
    function titled(name,    page, title, line, found) {
      page = title = name
      sub(/, ".*/, "", page)
      sub(/^[^"]*"/, "", title)
      sub(/"$/, "", title)
      while ((getline line < page) > 0) {
        if (line !~ /^#+ /) continue
        sub(/^#+ /, "", line)
        if (line == title) found = 1
      }
      close(page)
      return found
    }
    # cited TEXT EXTENSIONS: every name in it must exist.
    function cited(text, ends, string,    rest, name, before) {
      rest = text
      while (match(rest, /[A-Za-z0-9_.\/-]*[A-Za-z0-9_]\.(md|h|cuh|cu|c|cpp|tsv|def|sh)/)) {
        name = substr(rest, RSTART, RLENGTH)
        before = RSTART > 1 ? substr(rest, RSTART - 1, 1) : ""
        rest = substr(rest, RSTART + RLENGTH)
        if (rest ~ /^[A-Za-z0-9_*(]/ || rest ~ /^\.[A-Za-z]/ || before ~ /[*<>:$}{%=@~]/ || name !~ ("\\.(" ends ")$")) continue
        sub(/^(\.\.?\/)+/, "", name)
        if (name ~ /^(build|shared)\// || name ~ /^\//) { if (name !~ /^shared/) continue }
        # A name of capitals alone stands for any: FILE.cu.
        if ((name in foreign) || (name !~ /md$/ && name ~ /(^|\/)[A-Z]+\.[a-z]+$/)) continue
        # Sources name a page by its path from the root; strings may hold links between pages.
        if (string && ("docs/" name) in file) continue
        if (FILENAME !~ /md$/ && name ~ /md$/ ? name in file : name in present) continue
        printf "%s:%d:%s\n", FILENAME, FNR, name
      }
      rest = text
      while (match(rest, /definitions\.md, sections? [0-9.]+/)) {
        name = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        sub(/.* /, "", name)
        sub(/\.$/, "", name)
        if (!(name in section)) printf "%s:%d:docs/definitions.md, section %s\n", FILENAME, FNR, name
      }
      rest = text
      while (match(rest, /docs\/[a-z0-9_\/-]*\.md, "[A-Za-z][^"]*"/)) {
        name = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        if (!titled(name)) printf "%s:%d:%s\n", FILENAME, FNR, name
      }
      rest = text
      if (rest ~ /operator definitions( of this project)?, section/) printf "%s:%d:operator definitions, section N: docs/definitions.md, section N\n", FILENAME, FNR
    }
    FNR == 1 { inside = 0 }
    FILENAME ~ /\.md$/ { cited($0, "md|h|cuh|cu|c|cpp|tsv|def|sh"); next }
    FILENAME !~ /\.(c|h|cpp|cu|cuh)$/ && FILENAME !~ /^include\// {
      if (match($0, /(^|[ \t])#/)) cited(substr($0, RSTART), "md|h|cuh|cu|c|cpp|tsv|def|sh")
      next
    }
    {
      rest = $0
      while (rest != "") {
        if (inside) {
          place = index(rest, "*/")
          cited(place ? substr(rest, 1, place - 1) : rest, "md|h|cuh|cu|c|cpp|tsv|def|sh")
          if (!place) next
          inside = 0
          rest = substr(rest, place + 2)
        } else if (match(rest, /"([^"\\]|\\.)*"|\/\*|\/\//)) {
          word[1] = substr(rest, RSTART, RLENGTH)
          rest = substr(rest, RSTART + RLENGTH)
          if (word[1] == "/*") inside = 1
          else if (word[1] == "//") { cited(rest, "md|h|cuh|cu|c|cpp|tsv|def|sh"); next }
          else cited(word[1], "md", 1)
        } else next
      }
    }' >"$scratch.cited" || say citations ci/house.sh "the scan itself failed"
  hits citations "cites what is not in the tree" <"$scratch.cited"
  rm -f "$scratch.cited"
}

# Every mutant's original text occurs once in the file that it changes. A build says so too, minutes later.
rule_mutants() {
  local list out lists=0
  out=$(mktemp -d)
  while IFS= read -r list; do
    [ "$list" != conformance/mutants/catalogue.def ] || continue
    lists=$((lists + 1))
    conformance/mutants/make.sh "$list" . "$out" 2>"$scratch" || say mutants "$list" "$(head -n 2 "$scratch" | tr '\n' ' ')"
  done < <(find conformance/mutants -name '*.def' 2>/dev/null | sort)
  rm -rf "$out"
  [ "$lists" -gt 0 ] || say mutants conformance/mutants "has no list of mutants"
}

# The repository's .clang-format, as version 14 reads it; other versions lay out differently and are left alone.
rule_format() {
  local tool path
  tool=$(command -v clang-format-14 || command -v clang-format) || return 0
  grep -q 'version 14\.' < <("$tool" --version) || return 0
  # One process for many files takes a sixth of the time. Where it finds something, each file is asked alone.
  sources | grep -v -e '^fixtures/' | xargs -r -d '\n' -n 100 "$tool" --dry-run -Werror >/dev/null 2>&1 && return 0
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
