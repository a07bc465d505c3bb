#!/usr/bin/env bash
# sources.sh NINJA BUILD LIST ROOT BUILT: checks what each mutant of LIST was compiled from. The compiler has noted it in
# the log that ninja keeps in BUILD. Each must have read its operator's .cu, and of every file that its entry changes
# the copy below BUILT/ID and not the original below ROOT. Returns 1 otherwise.
set -euo pipefail

ninja=$1 build=$(realpath "$2") list=$3 root=$(realpath "$4") built=$(realpath "$5")
"$ninja" -C "$build" -t deps | awk -v list="$list" -v root="$root" -v built="$built" -v build="$build" \
  -v ids="$("$(dirname "$0")/manifest.sh" --ids simt "$list")" '
  function bad(text) { printf "mutant %s: %s\n", id, text; failed = 1 }
  # reads FILE: that file of the mutant being checked.
  function reads(file) { return (id SUBSEP file) in read }
  BEGIN {
    mutants = split(ids, names, "\n")
    for (i = 1; i <= mutants; ++i) wanted[names[i]] = 1
    while ((getline line < list) > 0) {
      if (line ~ /^[#+-]/) continue
      words = split(line, word, " ")
      if (word[1] == "mutant") id = word[2]
      else if (word[1] == "op" && !(id in stem)) stem[id] = word[2]
      else if (word[1] == "kernel") stem[id] = word[2]
      else if (word[1] == "file") changes[id] = changes[id] " " word[2]
    }
    id = ""
  }
  /^[^ ].*: #deps / {
    id = ""
    if (match($0, /mutant_[a-z0-9_]+\.dir\//)) id = substr($0, RSTART + 7, RLENGTH - 12)
    if (id != "") compiled[id] = 1
    next
  }
  id != "" && NF == 1 { read[id, $1 ~ /^\// ? $1 : build "/" $1] = 1 }
  END {
    if (mutants == 0) { printf "sources.sh: %s names no mutant\n", list; exit 1 }
    for (i = 1; i <= mutants; ++i) {
      id = names[i]
      if (!(id in compiled)) { bad("not compiled in " build); continue }
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
