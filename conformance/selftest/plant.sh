#!/usr/bin/env bash
# plant.sh LIST ROOT OUT: writes to OUT the files of ROOT that LIST names, with the replacements of LIST done. Tests compile
# these copies in place of the originals, so that production sources hold no mistakes. A list is written like this:
#
#   # a comment
#   file core/kv.c
#   -lines to look for, without regard to blanks at both ends
#   +lines to put in their place
#
# The original must occur exactly once in the file as it is then, and every line of a list must be one of these. Otherwise
# plant.sh says which one is not, writes nothing and ends with status 1.
set -euo pipefail

[ $# -eq 3 ] || { echo "plant.sh LIST ROOT OUT" >&2; exit 2; }
list=$1 root=$2 out=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v list="$list" -v root="$root" -v work="$work" '
  function trimmed(line) {
    gsub(/^[ \t]+|[ \t]+$/, "", line)
    return line
  }
  function fail(message) {
    print "plant.sh: " list ": " message > "/dev/stderr"
    failed = 1
    exit 1
  }
  function load(name,   line, path, got) {
    path = root "/" name
    while ((got = (getline line < path)) > 0) text[name, ++length_of[name]] = line
    if (got < 0) fail("cannot read " path)
    close(path)
  }
  function replace(   n, i, j, same, found, at, tail) {
    if (name == "") return
    if (olds == 0) fail("no line to look for in " name)
    n = length_of[name]
    for (i = 1; i + olds - 1 <= n; ++i) {
      same = 1
      for (j = 1; j <= olds && same; ++j) same = trimmed(text[name, i + j - 1]) == trimmed(old[j])
      if (same) { at = i; ++found }
    }
    if (found != 1) fail("found " found + 0 " times in " name ", allowed once: " old[1])
    for (i = at + olds; i <= n; ++i) tail[++tails] = text[name, i]
    n = at - 1
    for (j = 1; j <= news; ++j) text[name, ++n] = new[j]
    for (i = 1; i <= tails; ++i) text[name, ++n] = tail[i]
    length_of[name] = n
    tails = olds = news = 0
    name = ""
  }
  /^file [^ ]+$/ {
    replace()
    name = $2
    if (!(name in length_of)) { names[++files] = name; load(name) }
    next
  }
  name != "" && /^-/ { if (news > 0) fail("line " FNR ": lines to look for come first"); old[++olds] = substr($0, 2); next }
  name != "" && /^\+/ { new[++news] = substr($0, 2); next }
  /^#/ || /^[ \t]*$/ { next }
  { fail("line " FNR ": found \"" $0 "\", allowed: file NAME, -TEXT, +TEXT, # comment") }
  END {
    if (failed) exit 1
    replace()
    if (failed) exit 1
    for (f = 1; f <= files; ++f) {
      path = work "/" names[f]
      folder = path
      sub(/\/[^\/]*$/, "", folder)
      system("mkdir -p \"" folder "\"")
      for (i = 1; i <= length_of[names[f]]; ++i) print text[names[f], i] > path
      close(path)
    }
  }' "$list"
mkdir -p "$out"
cp -r "$work/." "$out/"
