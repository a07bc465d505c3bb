#!/usr/bin/env bash
# manifest.sh DEVICE PLUGINS LIST...: the mutants of the LISTs as `assay mutants` reads them for DEVICE (simt, cuda;
# conformance/kill/kill.h): a line each, columns separated by tabs, "-" for none. Their plug-ins are PLUGINS/ID.so.
# manifest.sh --ids DEVICE LIST...: the ids of those that DEVICE shows.
set -euo pipefail

ids_only=0
[ "$1" != --ids ] || { ids_only=1; shift; set -- "$1" - "${@:2}"; }
awk -v device="$1" -v plugins="$2" -v ids_only="$ids_only" '
  function add(list, word) { return list == "" ? word : list "," word }
  function row() {
    if (id == "") return
    absent = device == "simt" ? cuda_only : simt_only
    if (device == "cuda" && expect_cuda != "") expect = expect_cuda
    if (ids_only) {
      if (absent == "") print id
      return
    }
    printf "%s\t%s/%s.so\t%s", id, plugins, id, op
    printf "\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", none(variants), none(suite), none(section), none(seed), none(filters), none(expect), none(ids), none(why) "\t" device "\t" none(absent)
  }
  function none(text) { return text == "" ? "-" : text }
  function rest() { sub(/^[a-z_]+ +/, ""); gsub(/\t/, " "); return $0 }
  /^[#+-]/ { next }
  $1 == "mutant" { row(); id = $2; op = variants = suite = section = seed = filters = expect = expect_cuda = ids = why = simt_only = cuda_only = ""; next }
  $1 == "op" { op = $2 }
  $1 == "variant" { variants = add(variants, $2) }
  $1 == "suite" { suite = $2 }
  $1 == "section" { section = $2 }
  $1 == "seed" { seed = $2 }
  $1 == "filter" { filters = add(filters, rest()) }
  $1 == "expect" { for (i = 2; i <= NF; ++i) expect = add(expect, $i) }
  $1 == "expect_cuda" { for (i = 2; i <= NF; ++i) expect_cuda = add(expect_cuda, $i) }
  $1 == "simt_only" { simt_only = rest() }
  $1 == "cuda_only" { cuda_only = rest() }
  $1 == "ids" { for (i = 2; i <= NF; ++i) ids = add(ids, $i) }
  $1 == "why" { why = rest() }
  END { row() }' "${@:3}"
