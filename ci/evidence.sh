#!/usr/bin/env bash
# evidence.sh: results of a run as a summary small enough to keep, and the list of the summaries that are kept.
#   ci/evidence.sh RUN.jsonl OUT.jsonl [KEY=VALUE...]   writes the summary of RUN to OUT
#   ci/evidence.sh --index [ROOT]                       writes bench/evidence/INDEX.tsv from the files beside it
#   ci/evidence.sh --check [ROOT]                       checks the folder; status 1 names each violation
#
# The summary has one header object: the pairs given, and what this machine says of itself. It has one object for each
# (op, variant, tier, verdict) with its count, and one with the total. Every line of RUN that is neither PASS nor
# REFUSED nor UNSUPPORTED follows in full. Refuses to write more than 64 KB, the limit of every file of bench/evidence.
# --check asks that every file is listed with its sha256, is cited by a file outside the folder, and has at most 64 KB.
# It asks that every file that is cited exists. It also asks that every entry of docs/log has its four sections and is
# listed in docs/log/README.md. Needs a shell, awk, grep, find and sha256sum.
set -euo pipefail

limit=65536
here=$(cd "$(dirname "$0")/.." && pwd)

# A name of evidence begins with the date and the device: 2026-11-25-h100-contiguous-tables.jsonl. A citation may hold
# `*` and one `{a,b}` for several files.
name_pattern='20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]-(h100|h200|simt)-[A-Za-z0-9*{},-]+\.(jsonl|html|tsv)'

# Prints one line per file of the folder $1: run, GPU, commit, counts, sha256, file. Every field is read from the file.
index() {
  local folder=$1 file
  printf 'run\tgpu\tcommit\tcounts\tsha256\tfile\n'
  for file in "$folder"/*; do
    case $(basename "$file") in README.md | INDEX.tsv | '*') continue ;; esac
    awk -v name="$(basename "$file")" -v sum="$(sha256sum "$file" | cut -d' ' -f1)" '
      # The value of a key of one flat JSON object, without quotes and tabs; escapes are left as they are.
      function field(line, key,    rest, i, c, value) {
        if (!match(line, "\"" key "\": ?")) return ""
        rest = substr(line, RSTART + RLENGTH)
        if (substr(rest, 1, 1) != "\"") { match(rest, /^[^,}\]]*/); return substr(rest, 1, RLENGTH) }
        value = ""
        for (i = 2; i <= length(rest); ++i) {
          c = substr(rest, i, 1)
          if (c == "\"") break
          if (c == "\\") { value = value c; ++i; c = substr(rest, i, 1) }
          value = value (c == "\t" ? " " : c)
        }
        return value
      }
      FNR == 1 {
        run = field($0, "what")
        if (run == "") run = field($0, "command")
        if (run == "") run = "assay " (field($0, "bench") != "" ? "bench" : "run")
        if (length(run) > 90) { run = substr(run, 1, 90); sub(/ [^ ]*$/, "", run); run = run " ..." }
        gpu = field($0, "gpu")
        if (gpu == "") gpu = field($0, "device_name")
        if (gpu == "") gpu = name ~ /-simt-/ ? "none (simt)" : "not said"
        commit = field($0, "commit")
      }
      /^[{]"total":/ { totals = 1 }
      /^[{]"total":/ || (/"count": ?[0-9]+[}]$/ && !totals) {
        for (i = split("PASS FAIL HANG CRASH REFUSED UNSUPPORTED WEAK", word, " "); i > 0; --i) {
          if (/^[{]"total":/) total[word[i]] += field($0, word[i])
          else if (field($0, "verdict") == word[i]) counted[word[i]] += field($0, "count")
        }
      }
      /"summary": ?"mutants"/ { mutants += field($0, "mutants"); killed += field($0, "killed") }
      END {
        counts = ""
        for (i = 1; i <= split("PASS FAIL HANG CRASH REFUSED UNSUPPORTED WEAK", word, " "); ++i) {
          n = totals ? total[word[i]] : counted[word[i]]
          if (n > 0) counts = counts (counts == "" ? "" : ", ") n " " word[i]
        }
        if (mutants > 0) counts = counts (counts == "" ? "" : ", ") killed " of " mutants " mutants killed"
        counts = counts (counts == "" ? "" : ", ") FNR " lines"
        printf "%s\t%s\t%s\t%s\t%s\t%s\n", run, gpu, commit, counts, sum, name
      }' "$file"
  done
}

# Prints FILE: NAME for every name of evidence that a file of the tree $1 cites. The folder itself, builds and the two
# scripts that make names up are left out.
citations() {
  (cd "$1" && find . \( -path './build*' -o -path ./out -o -path ./shared -o -path './.[!.]*' -o -path ./bench/evidence \) -prune -o \
    -type f \( -name '*.md' -o -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.yaml' \
    -o -name '*.yml' -o -name '*.def' -o -name '*.txt' -o -name '*.cmake' -o -name '*.tsv' \) \
    ! -path ./ci/evidence.sh ! -path ./ci/scripts_selftest.sh -print0 | xargs -0 -r grep -HoE -e "$name_pattern" | sed 's,^\./,,' | sort -u) || true
}

# names_of CITATION: the names that a citation stands for, one per line; `{a,b}` taken apart, `*` left.
names_of() {
  local before after word
  case $1 in
    *'{'*'}'*)
      before=${1%%\{*} after=${1#*\}}
      word=${1#*\{}
      printf '%s\n' "${word%%\}*}" | tr ',' '\n' | while IFS= read -r word; do printf '%s\n' "$before$word$after"; done
      ;;
    *) printf '%s\n' "$1" ;;
  esac
}

check() {
  local root=$1 folder=$1/bench/evidence work found=0 file name page cited size line any names=()
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$work'" EXIT
  say() { printf 'evidence: %s: %s\n' "$1" "$2"; found=$((found + 1)); }

  for file in "$folder"/*; do names+=("${file##*/}"); done
  # Which files are cited, and which citations lead nowhere.
  : >"$work/cited"
  citations "$root" >"$work/citations"
  while IFS= read -r line; do
    page=${line%%:*} cited=${line#*:}
    while IFS= read -r name; do
      any=0
      for file in "${names[@]}"; do
        # shellcheck disable=SC2254 # a citation may be a pattern
        case $file in $name) printf '%s\n' "$file" >>"$work/cited"; any=1 ;; esac
      done
      [ "$any" -eq 1 ] || say "$page" "cites $name, which is not in bench/evidence"
    done < <(names_of "$cited")
  done <"$work/citations"

  # Every file: its size, a citation, its line.
  index "$folder" >"$work/index"
  for file in "$folder"/*; do
    name=$(basename "$file")
    case $name in README.md | INDEX.tsv | '*') continue ;; esac
    size=$(wc -c <"$file")
    [ "$size" -le "$limit" ] || say "bench/evidence/$name" "$size bytes, $limit are allowed"
    grep -qxF -- "$name" "$work/cited" || say "bench/evidence/$name" "no file of the tree cites it"
    line=$(awk -F'\t' -v name="$name" '$6 == name' "$folder/INDEX.tsv" 2>/dev/null || true)
    if [ -z "$line" ]; then say "bench/evidence/$name" "is not listed in INDEX.tsv"
    elif [ "$(printf '%s' "$line" | cut -f5)" != "$(awk -F'\t' -v name="$name" '$6 == name { print $5 }' "$work/index")" ]; then
      say "bench/evidence/$name" "INDEX.tsv has another sha256"
    elif ! grep -qxF -- "$line" "$work/index"; then say "bench/evidence/$name" "INDEX.tsv says something else than the file: ci/evidence.sh --index"; fi
  done
  while IFS= read -r name; do
    [ -e "$folder/$name" ] || say bench/evidence/INDEX.tsv "lists $name, which does not exist"
  done < <(awk -F'\t' 'NR > 1 { print $6 }' "$folder/INDEX.tsv" 2>/dev/null || true)

  # Entries of the log.
  for file in "$root"/docs/log/[0-9]*.md; do
    [ -e "$file" ] || continue
    name=${file##*/}
    line=$(sed -n 's/^## //p' "$file" | tr '\n' ' ')
    [ "$line" = "Question Change Result Decision " ] ||
      say "docs/log/$name" "has the sections '${line% }', wanted 'Question Change Result Decision'"
    awk '/^## /{ on = $2 == "Result" } on && /^\|/ { found = 1 } END { exit !found }' "$file" || say "docs/log/$name" "has no table below Result"
    grep -qF "]($name)" "$root/docs/log/README.md" 2>/dev/null || say "docs/log/$name" "is not listed in docs/log/README.md"
  done
  if [ "$found" -gt 0 ]; then
    printf 'evidence: %d violations\n' "$found"
    return 1
  fi
  printf 'evidence: %d files, each listed, cited and at most %d bytes\n' "$(($(wc -l <"$work/index") - 1))" "$limit"
}

case ${1:-} in
  --index)
    listed=$(index "${2:-$here}/bench/evidence")
    printf '%s\n' "$listed" >"${2:-$here}/bench/evidence/INDEX.tsv"
    exit 0
    ;;
  --check)
    check "${2:-$here}"
    exit
    ;;
esac

[ $# -ge 2 ] || { echo "evidence.sh: RUN.jsonl OUT.jsonl [KEY=VALUE...]" >&2; exit 2; }
run=$1 out=$2
shift 2
[ -s "$run" ] || { echo "evidence.sh: $run: missing or empty" >&2; exit 2; }

gpu="" driver="" toolkit=""
if command -v nvidia-smi >/dev/null; then
  gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
fi
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ -x "$nvcc" ]; then toolkit=$("$nvcc" --version | sed -n 's/.*release [0-9.]*, V\([0-9.]*\).*/\1/p'); fi
commit=${ASSAY_COMMIT:-$(git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)}

made=$(mktemp "$out.XXXXXX")
trap 'rm -f "$made"' EXIT
# The pairs reach awk through the environment: -v would interpret their backslashes.
EVIDENCE_PAIRS=$(printf '%s\n' "gpu=$gpu" "driver=$driver" "toolkit=$toolkit" "commit=$commit" "date=$(date -u +%Y-%m-%d)" "$@") \
  awk '
  # The raw value of a key of one flat JSON object; strings without their quotes, escapes left as they are.
  function field(line, key,    at, rest, i, c, value) {
    at = index(line, "\"" key "\":")
    if (at == 0) return ""
    rest = substr(line, at + length(key) + 3)
    sub(/^[ \t]*/, "", rest)
    if (substr(rest, 1, 1) != "\"") {
      match(rest, /^[^,}\]]*/)
      return substr(rest, 1, RLENGTH)
    }
    value = ""
    for (i = 2; i <= length(rest); ++i) {
      c = substr(rest, i, 1)
      if (c == "\"") break
      if (c == "\\") { value = value c; ++i; c = substr(rest, i, 1) }
      value = value c
    }
    return value
  }
  function quote(text) {
    gsub(/\\/, "\\\\", text)
    gsub(/"/, "\\\"", text)
    return "\"" text "\""
  }
  BEGIN {
    count = split(ENVIRON["EVIDENCE_PAIRS"], pair, "\n")
    printf "{\"evidence\":1"
    for (i = 1; i <= count; ++i) {
      at = index(pair[i], "=")
      if (at == 0) continue
      value = substr(pair[i], at + 1)
      if (substr(pair[i], 1, at - 1) == "seconds") seconds = value + 0
      printf ",%s:%s", quote(substr(pair[i], 1, at - 1)), (i > 5 && value ~ /^-?[0-9]+(\.[0-9]+)?$/ && length(value) < 16 ? value : quote(value))
    }
    printf "}\n"
  }
  # A claim that nothing confirmed is no case, but no pass either.
  /^[{]"unclaimed"/ { kept[++keep] = $0; ++unclaimed; next }
  /"verdict"/ {
    verdict = field($0, "verdict")
    tier = field($0, "tier")
    if (tier == "") tier = "-"
    group = sprintf("\"op\":\"%s\",\"variant\":\"%s\",\"device\":\"%s\",\"tier\":\"%s\",\"verdict\":\"%s\"", field($0, "op"), field($0, "variant"), field($0, "device"), tier, verdict)
    if (!(group in groups)) { order[++kinds] = group }
    ++groups[group]
    ++total[verdict]
    ++cases
    if (verdict != "PASS" && verdict != "REFUSED" && verdict != "UNSUPPORTED") kept[++keep] = $0
    next
  }
  # Words of the runner itself about the run: its own first or last object.
  /^[{]/ { about[++abouts] = $0 }
  END {
    for (i = 1; i <= abouts; ++i) print about[i]
    for (i = 1; i <= kinds; ++i) printf "{%s,\"count\":%d}\n", order[i], groups[order[i]]
    printf "{\"total\":%d,\"unclaimed\":%d", cases, unclaimed
    for (v in total) printf ",\"%s\":%d", v, total[v]
    if (seconds > 0) printf ",\"verified_per_second\":%.1f", (total["PASS"] + total["REFUSED"]) / seconds
    printf "}\n"
    for (i = 1; i <= keep; ++i) print kept[i]
  }' "$run" >"$made"

size=$(wc -c <"$made")
if [ "$size" -gt "$limit" ]; then
  echo "evidence.sh: the summary of $run has $size bytes, $limit are allowed: too many lines are no PASS" >&2
  exit 1
fi
mkdir -p "$(dirname "$out")"
mv "$made" "$out"
trap - EXIT
chmod 644 "$out"
echo "evidence: $out ($size bytes)"
