#!/usr/bin/env bash
# evidence.sh: a run's results as a summary small enough to keep.
#   ci/evidence.sh RUN.jsonl OUT.jsonl [KEY=VALUE...]
# OUT has one header object (the pairs given, and what this machine says of itself), one object for each
# (op, variant, tier, verdict) with its count, one with the total, and every line of RUN that is no PASS and
# no expected refusal, whole. Refuses to write more than 1 MB. Needs a shell and awk.
set -euo pipefail

[ $# -ge 2 ] || { echo "evidence.sh: RUN.jsonl OUT.jsonl [KEY=VALUE...]" >&2; exit 2; }
run=$1 out=$2
shift 2
[ -s "$run" ] || { echo "evidence.sh: $run: missing or empty" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)

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
    else if (verdict == "UNSUPPORTED" && !((group, field($0, "message")) in reason)) {
      reason[group, field($0, "message")] = 1
      if (reasons < 200) example[++reasons] = $0
    }
    next
  }
  # What the runner itself says of the run: its own first or last object.
  /^[{]/ { about[++abouts] = $0 }
  END {
    for (i = 1; i <= abouts; ++i) print about[i]
    for (i = 1; i <= kinds; ++i) printf "{%s,\"count\":%d}\n", order[i], groups[order[i]]
    printf "{\"total\":%d,\"unclaimed\":%d", cases, unclaimed
    for (v in total) printf ",\"%s\":%d", v, total[v]
    if (seconds > 0) printf ",\"verified_per_second\":%.1f", (total["PASS"] + total["REFUSED"]) / seconds
    printf "}\n"
    for (i = 1; i <= keep; ++i) print kept[i]
    # One line for each reason why a variant refused what it does not claim.
    for (i = 1; i <= reasons; ++i) print example[i]
  }' "$run" >"$made"

size=$(wc -c <"$made")
if [ "$size" -gt 1000000 ]; then
  echo "evidence.sh: the summary of $run has $size bytes, 1000000 are allowed: too many lines are no PASS" >&2
  exit 1
fi
mkdir -p "$(dirname "$out")"
mv "$made" "$out"
trap - EXIT
chmod 644 "$out"
echo "evidence: $out ($size bytes)"
