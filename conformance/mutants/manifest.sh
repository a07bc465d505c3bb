#!/usr/bin/env bash
# manifest.sh PLUGINS LIST...: the mutants of the LISTs as `assay mutants` reads them (conformance/mutants.h): a line each,
# columns separated by tabs, "-" for none. Their plug-ins are PLUGINS/ID.so.
set -euo pipefail

awk -v plugins="$1" '
  function add(list, word) { return list == "" ? word : list "," word }
  function row() {
    if (id == "") return
    printf "%s\t%s/%s.so\t%s", id, plugins, id, op
    printf "\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", none(variants), none(suite), none(section), none(seed), none(filters), none(expect), none(ids), none(why)
  }
  function none(text) { return text == "" ? "-" : text }
  function rest() { sub(/^[a-z]+ +/, ""); gsub(/\t/, " "); return $0 }
  /^[#+-]/ { next }
  $1 == "mutant" { row(); id = $2; op = variants = suite = section = seed = filters = expect = ids = why = ""; next }
  $1 == "op" { op = $2 }
  $1 == "variant" { variants = add(variants, $2) }
  $1 == "suite" { suite = $2 }
  $1 == "section" { section = $2 }
  $1 == "seed" { seed = $2 }
  $1 == "filter" { filters = add(filters, rest()) }
  $1 == "expect" { for (i = 2; i <= NF; ++i) expect = add(expect, $i) }
  $1 == "ids" { for (i = 2; i <= NF; ++i) ids = add(ids, $i) }
  $1 == "why" { why = rest() }
  END { row() }' "${@:2}"
