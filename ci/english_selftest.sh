#!/usr/bin/env bash
# english_selftest.sh: a check that cannot fail is a defect. Plants a violation of every rule of ci/english.sh in a small
# tree and expects its rule, file and line. Good English and code must pass. The counts of ci/english.tsv must hold both
# ways.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

ok() { printf 'ok   %s\n' "$1"; passed=$((passed + 1)); }
bad() { printf 'FAIL %s\n' "$1"; failed=$((failed + 1)); }
english() { "$root/ci/english.sh" --root "$work/tree" "$@" 2>&1; }

# A small tree in which every rule holds.
fresh() {
  rm -rf "$work/tree"
  mkdir -p "$work/tree/core" "$work/tree/docs" "$work/tree/ci"
  cat >"$work/tree/core/good.c" <<'C'
/* Returns the sum of a row. The caller owns `row`; see (a), e.g. the case above. */
static double sum(const double *row, int n); // A comment may hold "// marks".
const char *text = "/* Of what nobody said, one a line */"; const char *url = "// What";
const char quote = '"'; /* Copies: one warp per row; two bytes per key; no block is present. */
/* y[i] = a * x[i] + b + c - d + e / f * g + h - (i + j) * k + l - m + n - o + p - q + r - s + t - u + v - w + x - y + z. */
/* The items of a list are counted alone: a first item of seven whole words; another item that also has seven words or so;
 * and a third one, which takes a few words more than the others do. */
/* good.c: sums of rows: one per row. */
/* Of course this word begins no rule here? */
C
  cat >"$work/tree/docs/good.md" <<'MD'
# What is judged

One warp per row. Is anything wrong? What does it mean?

```sh
# What nobody reads behind the fence, one a line, but for this
```

| name | holds |
| --- | --- |
| `behind` | a code word is no prose |

<!-- What is hidden is there -->
MD
  : >"$work/tree/ci/english.tsv"
}

# plant RULE FILE TEXT: appends the text; the rule names the file and its last line.
plant() {
  local rule=$1 file=$2 text=$3 out
  fresh
  printf '%s\n' "$text" >>"$work/tree/$file"
  out=$(english "$file")
  if grep -q "^english: $rule: $file:$(wc -l <"$work/tree/$file"): " <<<"$out"; then ok "$rule $file: ${text:0:60}"
  else bad "$rule does not see in $file: $text: $out"; fi
  if english >"$work/out"; then bad "$rule: the counts do not see: $text"
  elif grep -q "^english: $rule: ${file%%/*}: found 1, allowed 0" "$work/out"; then ok "$rule is counted in ${file%%/*}"
  else bad "$rule is not counted: $(cat "$work/out")"; fi
}

fresh
out=$(english core docs) && ok "good English passes" || bad "good English is refused: $out"
out=$(english) && ok "counts of the good tree" || bad "counts of the good tree: $out"

words="one word and then another word and then another word and then another word and then another word and then another word and the end"
plant opener core/good.c '/* What the row adds up to. */'
plant opener core/good.c 'int x; /* of the first row */'
plant opener core/good.c '// Adds a row. So the sum is known.'
plant opener docs/good.md 'Behind it stands a rule.'
plant opener docs/good.md '| a cell | Who calls it |'
plant long core/good.c "/* Has $words. */"
plant long docs/good.md "This has $words."
plant long docs/good.md "| cell | this has $words |"
plant chain core/good.c '/* Adds a row; adds another; adds a third. */'
plant chain docs/good.md 'The row has a sum: a number: five.'
plant behind core/good.c '/* Writes the keys behind the last row. */'
plant behind docs/good.md 'Zeros are behind it.'
plant there core/good.c '/* Reads the scale where it is there. */'
plant there docs/good.md 'Rows that are there, are read.'
plant nobody core/good.c '// Bytes that nobody reads.'
plant nobody docs/good.md 'The lock is free for whoever comes.'
plant butfor core/good.c '/* Copies all but for the last row. */'
plant butfor docs/good.md 'All rows but for one are read.'
plant per core/good.c '/* One warp a row. */'
plant per core/good.c '/* Prints names, one a line. */'
plant per docs/good.md 'It takes two bytes a key.'
plant per docs/good.md 'The rows take a warp each.'
plant width docs/good.md "$(printf 'x%.0s' $(seq 121))"
plant table docs/good.md "| $(printf 'x%.0s' $(seq 121)) |"

# Every rule is planted above.
for rule in $("$root/ci/english.sh" --list); do
  grep -q "^plant $rule " "$0" && ok "$rule is planted" || bad "$rule is not planted"
done

# Wide characters are one column each.
fresh
printf '%s\n' "$(printf 'σ%.0s' $(seq 120))" >>"$work/tree/docs/good.md"
english docs >"$work/out" && ok "120 wide characters fit" || bad "120 wide characters: $(cat "$work/out")"

# The counts hold both ways: one more fails, one fewer asks for the lower count, an update lowers and never raises.
fresh
printf '/* What it is. */\n' >>"$work/tree/core/good.c"
printf 'core\topener\t1\n' >"$work/tree/ci/english.tsv"
english >"$work/out" && ok "the allowed count passes" || bad "the allowed count: $(cat "$work/out")"
printf '/* What it is. */\n' >>"$work/tree/core/good.c"
english >"$work/out" && bad "one more than allowed passes" || ok "one more than allowed fails"
english --update >"$work/out" && bad "an update raises a count" || ok "an update does not raise a count"
grep -q "^core	opener	1$" "$work/tree/ci/english.tsv" && ok "the count stays" || bad "the count was changed"
printf 'core\topener\t3\n' >"$work/tree/ci/english.tsv"
if english >"$work/out"; then bad "a count that is too high passes"
elif grep -q 'found 2, allowed 3: lower the count' "$work/out"; then ok "a count that is too high is named"
else bad "a count that is too high: $(cat "$work/out")"; fi
english --update >"$work/out" && english >"$work/out" && grep -q "^core	opener	2$" "$work/tree/ci/english.tsv" && ok "an update lowers the count" ||
  bad "an update does not lower: $(cat "$work/out")"
rm "$work/tree/ci/english.tsv"
english >"$work/out" && bad "a missing file of counts passes" || ok "a missing file of counts fails"
english no/such/place >"$work/out" && bad "a path that does not exist passes" || ok "a path that does not exist is refused"

mkdir "$work/bin" && printf '#!/bin/sh\nexit 3\n' >"$work/bin/awk" && chmod +x "$work/bin/awk"
PATH="$work/bin:$PATH" english core >"$work/out" && bad "an awk that fails passes" || ok "an awk that fails is seen"

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
