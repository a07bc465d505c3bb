#!/usr/bin/env bash
# make.sh LIST ID ROOT OUT: writes the files that a mutant changes below OUT/gpu: copies of those in ROOT/gpu with the
# replacements of LIST done. The head of gate_attention.def says how replacements are written. Every original must occur
# exactly once. The folder OUT/gpu is written whole or not at all.
set -euo pipefail

list=$1 id=$2 root=$3 out=$4
mkdir -p "$out"
work=$(mktemp -d "$out/making.XXXXXX")
trap 'rm -rf "$work"' EXIT
grep -qxE "mutant +$id" "$list" || { echo "mutant $id: $list names no such mutant" >&2; exit 1; }
mkdir "$work/gpu" # a control changes nothing

# One file a hunk: what to look for and what to put there.
awk -v id="$id" -v work="$work" '
  $1 == "mutant" { on = $2 == id; next }
  !on { next }
  $1 == "file" { ++hunk; print $2 > (work "/hunk" hunk ".file"); next }
  /^-/ { print substr($0, 2) > (work "/hunk" hunk ".from") }
  /^\+/ { print substr($0, 2) > (work "/hunk" hunk ".to") }
' "$list"

for file in "$work"/hunk*.file; do
  [ -e "$file" ] || break # a control has no hunks
  hunk=${file%.file}
  read -r name <"$file"
  target=$work/$name
  if [ ! -e "$target" ]; then
    [ -e "$root/$name" ] || { echo "mutant $id: no file $name" >&2; exit 1; }
    mkdir -p "${target%/*}"
    cp "$root/$name" "$target"
  fi
  : >>"$hunk.to"
  awk -v id="$id" -v target="$name" -v from="$hunk.from" -v to="$hunk.to" '
    # Comments and the amount of blanks do not count.
    function trimmed(text) {
      gsub(/\/\*([^*]|\*[^\/])*\*\//, " ", text)
      gsub(/[ \t]+/, " ", text)
      sub(/^ /, "", text)
      sub(/ $/, "", text)
      return text
    }
    BEGIN {
      while ((getline line < from) > 0) old[++olds] = trimmed(line)
      while ((getline line < to) > 0) new[++news] = line
    }
    { text[NR] = $0 }
    END {
      for (i = 1; i + olds - 1 <= NR; ++i) {
        same = olds > 0
        for (j = 1; j <= olds && same; ++j) same = trimmed(text[i + j - 1]) == old[j]
        if (same) { at = i; ++found }
      }
      if (found != 1) {
        printf "mutant %s: the original text occurs %d times in %s, once is allowed:\n", id, found, target > "/dev/stderr"
        for (j = 1; j <= olds; ++j) printf "  %s\n", old[j] > "/dev/stderr"
        exit 1
      }
      for (i = 1; i <= NR; ++i) {
        if (i != at) { print text[i]; continue }
        for (j = 1; j <= news; ++j) print new[j]
        i += olds - 1
      }
    }' "$target" >"$work/new"
  mv "$work/new" "$target"
done

rm -rf "$out/gpu"
mv "$work/gpu" "$out/gpu"
: >"$out/made"
