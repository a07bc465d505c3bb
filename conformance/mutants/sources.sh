#!/usr/bin/env bash
# sources.sh LIST ROOT BUILT: checks what each mutant of LIST was compiled from. The compiler has noted it in
# BUILT/objects/ID.o.d. Each must have read its operator's .cu, and of every file that its entry changes the copy below
# BUILT/ID and not the original below ROOT. Returns 1 otherwise.
set -euo pipefail

list=$1 root=$(realpath "$2") built=$(realpath "$3")
awk -v list="$list" -v root="$root" -v built="$built" -v ids="$("$(dirname "$0")/manifest.sh" --ids simt "$list")" '
  # Returns a path from the root; the compiler ran in BUILT.
  function whole(path) {
    if (path !~ /^\//) path = built "/" path
    gsub(/\/\.\//, "/", path)
    while (sub(/\/[^\/]+\/\.\.\//, "/", path)) {}
    return path
  }
  function bad(text) { printf "mutant %s: %s\n", id, text; failed = 1 }
  # reads FILE: that file of the mutant being checked.
  function reads(file) { return (id SUBSEP file) in read }
  BEGIN {
    mutants = split(ids, names, "\n")
    while ((getline line < list) > 0) {
      if (line ~ /^[#+-]/) continue
      words = split(line, word, " ")
      if (word[1] == "mutant") id = word[2]
      else if (word[1] == "op" && !(id in stem)) stem[id] = word[2]
      else if (word[1] == "kernel") stem[id] = word[2]
      else if (word[1] == "file") changes[id] = changes[id] " " word[2]
    }
    if (mutants == 0) { printf "sources.sh: %s names no mutant\n", list; exit 1 }
    for (i = 1; i <= mutants; ++i) {
      id = names[i]
      noted = built "/objects/" id ".o.d"
      count = 0
      while ((getline line < noted) > 0) {
        words = split(line, word, " ")
        for (j = 1; j <= words; ++j) { read[id, whole(word[j])] = 1; ++count }
      }
      close(noted)
      if (count == 0) { bad("not compiled in " built); continue }
      file = "gpu/" stem[id] ".cu"
      if (!reads(root "/" file) && !reads(built "/" id "/" file)) bad("does not read " file)
      count = split(changes[id], changed, " ")
      for (j = 1; j <= count; ++j) {
        if (!reads(built "/" id "/" changed[j])) bad("does not read its copy of " changed[j])
        if (reads(root "/" changed[j])) bad("reads the original: " root "/" changed[j])
      }
    }
    if (failed) exit 1
    printf "%d mutants: each read its copies of the files that it changes, and not their originals\n", mutants
  }'
