#!/usr/bin/env bash
# make.sh LIST ROOT OUT [ID...]: writes the files that each mutant of LIST, or each of these, changes below OUT/ID/gpu:
# copies of those in ROOT/gpu with the replacements of LIST done. The head of gate_attention.def says how replacements are
# written. Every original must occur exactly once. A file that would not change is left alone, so that nothing is
# compiled again for it. Copies that LIST no longer asks for are removed.
set -euo pipefail

list=$1 root=$2 out=$3
shift 3

# The mutants, and their copies, one path below OUT per line.
if [ $# -eq 0 ]; then mapfile -t mutants < <(awk '$1 == "mutant" { print $2 }' "$list"); else mutants=("$@"); fi
wanted=$(awk -v ids="${mutants[*]}" '
  BEGIN { split(ids, name, " "); for (i in name) asked[name[i]] = 1 }
  $1 == "mutant" { id = $2; on = id in asked; found[id] = 1 }
  on && $1 == "file" && !((id, $2) in seen) { seen[id, $2] = 1; print id "/" $2 }
  END {
    for (id in asked) if (!(id in found)) { printf "mutant %s: no such mutant in the list\n", id > "/dev/stderr"; bad = 1 }
    exit bad
  }' "$list")
mkdir -p "$out"
if [ -n "$wanted" ]; then (cd "$out" && printf "%s\n" "$wanted" | sed "s,/[^/]*$,," | sort -u | xargs mkdir -p); fi
for id in "${mutants[@]}"; do [ ! -d "$out/$id/gpu" ] || (cd "$out" && find "$id/gpu" -type f); done | sort | comm -23 - <(sort <<<"$wanted") |
  (cd "$out" && xargs -r rm -f)

awk -v ids="${mutants[*]}" -v root="$root" -v out="$out" '
  # Comments and the amount of blanks do not count.
  function trimmed(text) {
    gsub(/\/\*([^*]|\*[^\/])*\*\//, " ", text)
    gsub(/[ \t]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    return text
  }
  function bad(words) { printf "mutant %s: %s\n", id, words > "/dev/stderr"; failed = 1 }
  # original(FILE): reads ROOT/FILE once. lines[FILE]: how many lines it has, -1 without it.
  function original(file, line, n, state) {
    if (file in lines) return
    while ((state = (getline line <(root "/" file))) > 0) { text[file, ++n] = line; bare[file, n] = trimmed(line) }
    close(root "/" file)
    lines[file] = state < 0 ? -1 : n + 0
  }
  # Begins a copy of FILE, or goes on with the copy that this mutant has.
  function copy(file, i) {
    if (file in count) return
    original(file)
    count[file] = lines[file]
    if (lines[file] < 0) bad("no file " file)
    for (i = 1; i <= lines[file]; ++i) { now[file, i] = text[file, i]; plain[file, i] = bare[file, i] }
  }
  # Ends a hunk: does its replacement in the copy of `file`.
  function replace(i, j, same, found, at, n) {
    if (file == "") return
    for (i = 1; i + olds - 1 <= count[file]; ++i) {
      same = olds > 0
      for (j = 1; j <= olds && same; ++j) same = plain[file, i + j - 1] == old[j]
      if (same) { at = i; ++found }
    }
    if (found != 1) {
      bad("the original text occurs " found + 0 " times in " file ", once is allowed:")
      for (j = 1; j <= olds; ++j) printf "  %s\n", old[j] > "/dev/stderr"
    } else {
      for (i = 1; i <= count[file]; ++i) {
        if (i == at) { for (j = 1; j <= news; ++j) next_text[++n] = new[j]; i += olds - 1 } else next_text[++n] = now[file, i]
      }
      for (i = 1; i <= n; ++i) if (now[file, i] != next_text[i] || i > count[file]) { now[file, i] = next_text[i]; plain[file, i] = trimmed(next_text[i]) }
      count[file] = n + 0
    }
    file = ""; olds = news = 0
  }
  # Ends a mutant: writes the copies that are not there yet as they should be.
  function written(name, path, line, n, same, i) {
    replace()
    for (name in count) {
      path = out "/" id "/" name
      n = 0; same = 1
      while ((getline line <path) > 0) if (line != now[name, ++n]) { same = 0; break }
      close(path)
      if (same && n == count[name] && n > 0) continue
      printf "" >path
      for (i = 1; i <= count[name]; ++i) print now[name, i] >path
      close(path)
    }
    split("", count); split("", now); split("", plain)
  }
  BEGIN { split(ids, word, " "); for (i in word) asked[word[i]] = 1 }
  $1 == "mutant" { if (on) written(); id = $2; on = id in asked; next }
  !on { next }
  $1 == "file" { replace(); file = $2; copy(file); next }
  /^-/ { old[++olds] = trimmed(substr($0, 2)) }
  /^\+/ { new[++news] = substr($0, 2) }
  END { if (on) written(); exit failed }
' "$list"
