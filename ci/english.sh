#!/usr/bin/env bash
# english.sh: the rules of English that a script can see, over the comments of C, C++ and CUDA sources
# and the prose of .md files. bash and awk.
#
#   ci/english.sh [--root DIR]            compares the count per area and rule with ci/english.tsv
#   ci/english.sh [--root DIR] PATH...    lists every violation of those files or folders; status 1 if one is found
#   ci/english.sh [--root DIR] --count    prints the count per area and rule
#   ci/english.sh [--root DIR] --update   lowers the counts of ci/english.tsv to the present ones; never raises one
#   ci/english.sh --list                  names the rules
#
# A violation is one line: `english: RULE: FILE:LINE: text`. ci/english.tsv holds the allowed counts. More than allowed
# fails; fewer fails as well, until the file says the lower count. ci/english_selftest.sh plants a violation of each rule.
#
# The rules:
#   opener   a comment or sentence begins with What, Of, So, Behind or Who (a question may)
#   long     a sentence has more than 25 words. Code, an identifier or a formula is one word. The items of a list that
#            follows a colon and is split by semicolons are counted alone.
#   chain    a sentence has two semicolons without a colon before them, or two colons. A colon that ends a label of one
#            or two words (the name of a file, a word of a glossary) does not count.
#   behind   "behind" stands for after or except
#   there    "is there" or "are there" ends a clause, for present
#   nobody   nobody, whoever, everybody
#   butfor   "but for", for except
#   per      "one warp a row", "one a line", "a warp each", for per
#   width    a line of an .md file has more than 120 columns
#   table    a row of a table of an .md file has more than 120 columns
set -uo pipefail
export LC_ALL=C

rules="opener long chain behind there nobody butfor per width table"
root=$(cd "$(dirname "$0")/.." && pwd)
mode=check
paths=()
while [ $# -gt 0 ]; do
  case $1 in
    --list) printf '%s\n' "$rules" | tr ' ' '\n'; exit 0 ;;
    --root) [ $# -ge 2 ] || { echo "english: --root takes a folder" >&2; exit 2; }; root=$2; shift 2 ;;
    --count | --update) mode=${1#--}; shift ;;
    -*) printf 'english: unknown option %s\n' "$1" >&2; exit 2 ;;
    *) paths+=("$1"); mode=paths; shift ;;
  esac
done
cd "$root" || exit 2
[ "$mode" != paths ] || for path in "${paths[@]}"; do
  [ -e "$path" ] || { printf 'english: %s: no such file below %s\n' "$path" "$root" >&2; exit 2; }
done
budget=ci/english.tsv

# files [PATH...]: the files that are read, without builds, hidden folders, data from outside, and what is kept as it was.
files() {
  find "${@:-.}" \( -path './build*' -o -path './out' -o -path './shared' -o -path '*/.[!.]*' \) -prune -o -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.md' -o -name '*.def' \) -print |
    sed 's,^\./,,' | grep -vE '^(fixtures/|bench/evidence/|bench/LOG|docs/log/archive|conformance/mutants/.*\.def$)' | sort
}

# scan: the violations of the files named on stdin.
scan() {
  xargs -r -d '\n' awk '
    # Rules over one sentence: words[1..n], of lines at[1..n].
    function report(rule, line, text) {
      # Whole characters of UTF-8 at both ends.
      if (length(text) > 160) text = substr(text, 1, 160) " ..."
      sub(/[\300-\377][\200-\277]* \.\.\.$/, " ...", text)
      sub(/[\300-\377][\200-\277]*$/, "", text)
      sub(/^[\200-\277]+/, "", text)
      printf "english: %s: %s:%d: %s\n", rule, file, line, text
    }
    function symbolic(word) {
      if (word ~ /^[Aa]$/ || word ~ /^I$/) return 0
      if (word ~ /[A-Za-z][a-z]*[_=<>{}\[\]^|&+*\\\/0-9(]/ && word !~ /^\(?[A-Za-z][a-z]+\/[a-z]+[).,;:]*$/ && word !~ /^[A-Za-z-]+\(s\)/) return 1
      return word !~ /[A-Za-z][A-Za-z]/
    }
    # Words from..to, a run of symbols, numbers and identifiers as one.
    function length_of(from, to,    i, count, before, now) {
      count = 0
      before = 0
      for (i = from; i <= to; ++i) {
        now = symbolic(words[i])
        if (!now || !before) ++count
        # A comma or a bracket ends a formula.
        before = now && words[i] !~ /[,;:]$/
      }
      return count
    }
    function line_of(text, place,    prefix) {
      prefix = substr(text, 1, place)
      return at[gsub(/ /, " ", prefix)]
    }
    # find RULE PATTERN: every match in the padded lower-case text is reported once, at its line.
    function find(rule, pattern, text, lower,    rest, base) {
      rest = lower
      base = 0
      while (match(rest, pattern)) {
        report(rule, line_of(lower, base + RSTART), substr(text, base + RSTART > 40 ? base + RSTART - 40 : 2, 120))
        base += RSTART + RLENGTH - 2
        rest = substr(lower, base + 1)
      }
    }
    function sentence(first,    i, text, lower, semis, colons, colon_at, start, most, now, word) {
      if (n == 0) return
      text = " "
      for (i = 1; i <= n; ++i) text = text words[i] " "
      lower = tolower(text)
      if (!heading && text !~ /\?[")*]* $/) {
        word = words[1]
        sub(/^[("*]+/, "", word)
        if (word ~ /^(What|Of|So|Behind|Who)[,:]?$/ || (first && !markdown && word ~ /^(what|of|so|behind|who)[,:]?$/)) report("opener", at[1], substr(text, 2))
      }
      semis = colons = colon_at = 0
      for (i = 1; i <= n; ++i) {
        if (words[i] ~ /;$/ && i < n) ++semis
        if (words[i] ~ /[^:]:["*)]*$/ && i < n) {
          if (i > 2) ++colons # an earlier one ends a label: the name of a file, a word of a glossary
          if (!semis && !colon_at) colon_at = i
        }
      }
      if ((semis > 1 && !colon_at) || colons > 1 + (colon_at && semis ? semis : 0)) report("chain", at[1], substr(text, 2))
      most = 0
      start = 1
      for (i = 1; i <= n; ++i) {
        if (i < n && !(semis && colon_at && words[i] ~ /;$/)) continue
        now = length_of(start, i)
        if (now > most) most = now
        start = i + 1
      }
      if (most > 25) report("long", at[1], most " words: " substr(text, 2))
      find("behind", "[^a-z_0-9-]behind[^a-z_0-9-]", text, lower)
      find("there", " (is|are|was|were) there(,|;|:|\\.|\\)| $)", text, lower)
      find("nobody", "[^a-z_0-9](nobody|whoever|everybody)[^a-z_0-9]", text, lower)
      find("butfor", "[^a-z_0-9]but for ", text, lower)
      find("per", per_one, text, lower)
      find("per", per_many, text, lower)
      find("per", " an? [a-z]+ each(,|;|:|\\.|\\)| $)", text, lower)
      n = 0
    }
    # Ends a paragraph: lines[1..count], of numbers where[1..count].
    function flush(    text, i, j, k, parts, pieces, span, newlines, first) {
      if (count == 0) { heading = 0; return }
      text = lines[1]
      for (i = 2; i <= count; ++i) text = text "\n" lines[i]
      while (match(text, /`[^`]*`/)) {
        span = substr(text, RSTART, RLENGTH)
        newlines = gsub(/\n/, "\n", span)
        span = "x_code"
        while (newlines-- > 0) span = span "\n"
        text = substr(text, 1, RSTART - 1) span substr(text, RSTART + RLENGTH)
      }
      if (markdown) {
        gsub(/\]\([^)\n]*\)/, "", text)
        gsub(/!?\[/, "", text)
        gsub(/\]/, "", text)
      }
      n = 0
      first = 1
      k = split(text, parts, "\n")
      for (i = 1; i <= k; ++i) {
        newlines = split(parts[i], pieces, " ")
        for (j = 1; j <= newlines; ++j) {
          words[++n] = pieces[j]
          at[n] = where[i]
          if (pieces[j] ~ /[.!?]["\047)*_]*$/ && pieces[j] !~ /^["(]*(e\.g|i\.e|etc|vs|cf|resp|approx|No|Fig|Eq|al|ca)\.$/) {
            sentence(first)
            first = 0
          }
        }
      }
      sentence(first)
      count = 0
      heading = 0
    }
    function add(text, line) {
      lines[++count] = text
      where[count] = line
    }
    # A line of a comment without its marks.
    function comment(text, line,    cells, k, i) {
      gsub(/\t/, "    ", text)
      if (text ~ /^ *$/) { flush(); return }
      sub(/^ +/, "", text)
      sub(/ +$/, "", text)
      if (text ~ /^([-*+]|[0-9]+[.)]) /) {
        flush()
        sub(/^([-*+]|[0-9]+[.)]) +/, "", text)
      }
      # Columns are cells of a table.
      k = split(text, cells, /   +/)
      for (i = 1; i <= k; ++i) {
        if (i > 1) flush()
        add(cells[i], line)
      }
    }
    function source(    rest, code, place, end) {
      rest = $0
      if (inside) {
        place = index(rest, "*/")
        if (!place) {
          sub(/^[ \t]*\*+( |$)/, "", rest)
          comment(rest, FNR)
          return
        }
        code = substr(rest, 1, place - 1)
        sub(/^[ \t]*\*+( |$)/, "", code)
        if (code !~ /^[ \t]*$/) comment(code, FNR)
        flush()
        inside = 0
        rest = substr(rest, place + 2)
      }
      if (rest !~ /^[ \t]*\/\//) flush()
      while (match(rest, /["\047]|\/\*|\/\//)) {
        place = RSTART
        code = substr(rest, place, 1)
        if (code == "\"" || code == "\047") {
          if (code == "\047" && substr(rest, place - 1, 1) ~ /[0-9A-Fa-f]/ && place > 1 && substr(rest, place + 1, 1) ~ /[0-9A-Fa-f]/) {
            rest = substr(rest, place + 1)
            continue
          }
          rest = substr(rest, place + 1)
          if (match(rest, code == "\"" ? /^([^"\\]|\\.)*"/ : /^([^\047\\]|\\.)*\047/)) rest = substr(rest, RLENGTH + 1)
          else rest = ""
        } else if (substr(rest, place, 2) == "//") {
          if (substr(rest, 1, place - 1) ~ /[^ \t]/) flush()
          rest = substr(rest, place + 2)
          sub(/^[\/!<]+/, "", rest)
          comment(rest, FNR)
          return
        } else {
          flush()
          rest = substr(rest, place + 2)
          end = index(rest, "*/")
          if (!end) {
            inside = 1
            sub(/^[*!<]+/, "", rest)
            if (rest !~ /^[ \t]*$/) comment(rest, FNR)
            return
          }
          comment(substr(rest, 1, end - 1), FNR)
          flush()
          rest = substr(rest, end + 2)
        }
      }
    }
    function page(    text, bytes, cells, k, i) {
      text = $0
      bytes = length(text)
      if (bytes > 120) {
        gsub(/[\200-\277]/, "", text)
        if (length(text) > 120) report(text ~ /^ *\|/ && !fence ? "table" : "width", FNR, length(text) " columns: " substr($0, 1, 100))
        text = $0
      }
      if (text ~ /^ *(```|~~~)/) { flush(); fence = !fence; return }
      if (fence) return
      if (hidden) { if (text ~ /-->/) hidden = 0; return }
      if (text ~ /^ *<!--/) { flush(); if (text !~ /-->/) hidden = 1; return }
      if (text ~ /^ *$/) { flush(); return }
      if (text ~ /^#+ /) {
        flush()
        heading = 1
        sub(/^#+ +/, "", text)
        add(text, FNR)
        flush()
        return
      }
      if (text ~ /^ *\|/) {
        flush()
        if (text ~ /^[ |:-]*$/) return
        # A bar in code is none of the table, nor is an escaped one.
        gsub(/\\\|/, "/", text)
        while (match(text, /`[^`]*`/)) text = substr(text, 1, RSTART - 1) "x_code" substr(text, RSTART + RLENGTH)
        k = split(text, cells, "|")
        for (i = 1; i <= k; ++i) {
          if (cells[i] !~ /[^ ]/) continue
          add(cells[i], FNR)
          flush()
        }
        return
      }
      sub(/^ *> ?/, "", text)
      if (text ~ /^ *([-*+]|[0-9]+[.)]) /) {
        flush()
        sub(/^ *([-*+]|[0-9]+[.)]) +/, "", text)
      }
      sub(/^ +/, "", text)
      add(text, FNR)
    }
    BEGIN {
      unit = "(line|thread|warp|block|row|head|key|token|step|call|case|operator|request|page|file|run|element|core|group|tile|split|lane|query|variant|suite|law|cell|column|layer|sequence|worker|kernel|launch|process|test|gpu|sm|byte|word|mutant|model|section|tensor|channel|id|slot|entry|second|cycle|machine|card|commit)"
      per_one = "[^a-z0-9_]one (an? " unit "|(warp|thread|block|row|head|key|token|step|call|case|reference|file|test|line|request|page|run|element|group|tile|split|lane|kernel|launch|worker|byte|word|name|bit|entry|number|value|tensor|process|law|suite|folder|question|figure|limit|draw|cell|slot|score|sum|count|copy|table|id|message|variant) an? " unit ")[^a-z_0-9]"
      per_many = "[^a-z0-9_.](two|three|four|five|six|eight|sixteen|[0-9]+) (bytes|bits|warps|threads|blocks|rows|heads|keys|tokens|steps|calls|cases|files|tests|lines|requests|pages|runs|elements|groups|tiles|splits|lanes|kernels|launches|workers|words|values|channels|registers|loads|stores|rounds|stages|barriers|queries|columns|scores|sums|cycles|times) an? " unit "[^a-z_0-9]"
    }
    FNR == 1 {
      flush()
      file = FILENAME
      inside = fence = hidden = 0
      markdown = file ~ /\.md$/
    }
    { if (markdown) page(); else source() }
    END { flush() }
  '
}

# counts: AREA<tab>RULE<tab>COUNT of the violations on stdin; the area is the first folder, README and its kin are ".".
counts() {
  awk -v OFS='\t' '{
    split($0, part, ": ")
    area = part[3]
    if (area !~ /\//) area = "."
    sub(/\/.*/, "", area)
    ++count[area OFS part[2]]
  } END { for (key in count) print key, count[key] }' | sort
}

if [ "$mode" = paths ]; then
  found=$(files "${paths[@]}" | scan) || { echo "english: the scan itself failed"; exit 2; }
  [ -n "$found" ] || { echo "english: nothing found"; exit 0; }
  printf '%s\n' "$found"
  printf 'english: %d violations\n' "$(printf '%s\n' "$found" | wc -l)"
  exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
files | scan >"$scratch/found" || { echo "english: the scan itself failed"; exit 2; }
counts <"$scratch/found" >"$scratch/counts"

case $mode in
  count)
    awk -F'\t' -v rules="$rules" '
      { count[$1, $2] = $3; if (!($1 in area)) { area[$1]; order[++areas] = $1 } }
      END {
        k = split(rules, rule, " ")
        printf "%-12s", "area"
        for (j = 1; j <= k; ++j) printf " %7s", rule[j]
        printf " %7s\n", "all"
        for (i = 1; i <= areas; ++i) {
          printf "%-12s", order[i]
          row = 0
          for (j = 1; j <= k; ++j) { now = count[order[i], rule[j]] + 0; printf " %7d", now; row += now; all[j] += now }
          printf " %7d\n", row
          whole += row
        }
        printf "%-12s", "all"
        for (j = 1; j <= k; ++j) printf " %7d", all[j]
        printf " %7d\n", whole
      }' "$scratch/counts"
    exit 0 ;;
  update | check)
    if [ ! -e "$budget" ]; then
      [ "$mode" = update ] || { printf 'english: %s is missing\n' "$budget"; exit 1; }
      cp "$scratch/counts" "$scratch/old"
    else grep -v '^#' "$budget" >"$scratch/old"; fi
    # One line per area and rule of either: AREA RULE ALLOWED FOUND.
    awk -F'\t' -v OFS='\t' 'FILENAME ~ /old$/ { allowed[$1 OFS $2] = $3; all[$1 OFS $2]; next } { found[$1 OFS $2] = $3; all[$1 OFS $2] }
      END { for (key in all) print key, allowed[key] + 0, found[key] + 0 }' "$scratch/old" "$scratch/counts" | sort >"$scratch/both" ;;
esac

status=0
while IFS=$'\t' read -r area rule allowed found; do
  if [ "$found" -gt "$allowed" ]; then
    status=1
    place="$area/"
    [ "$area" != . ] || place="[^/]*:"
    grep "^english: $rule: $place" "$scratch/found" | head -n 20
    printf 'english: %s: %s: found %d, allowed %d (ci/english.tsv)\n' "$rule" "$area" "$found" "$allowed"
  elif [ "$found" -lt "$allowed" ] && [ "$mode" = check ]; then
    status=1
    printf 'english: %s: %s: found %d, allowed %d: lower the count in ci/english.tsv (ci/english.sh --update)\n' "$rule" "$area" "$found" "$allowed"
  fi
done <"$scratch/both"

if [ "$mode" = update ]; then
  {
    printf '# Violations of the rules of English that remain: area, rule, count. ci/english.sh holds it; a count may only fall.\n'
    awk -F'\t' -v OFS='\t' '{ now = $4 < $3 ? $4 : $3; if (now > 0) print $1, $2, now }' "$scratch/both"
  } >"$scratch/new"
  cp "$scratch/new" "$budget"
fi
[ "$status" -ne 0 ] || printf 'english: %s: %d violations, as allowed\n' "$budget" "$(wc -l <"$scratch/found")"
exit "$status"
