#!/usr/bin/env bash
# check.sh: the matrix of docs/standing.md and the page are what page.py makes of the committed results. Planted mistakes
# in a copy must be found. Status 77: no python3.
set -uo pipefail
command -v python3 >/dev/null || { echo 'standing: skipped: no python3'; exit 77; }
root=$(cd "$(dirname "$0")/../.." && pwd)
python3 "$root/bench/standing/page.py" --check "$root" || exit 1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
failed=0
# planted WHAT TEXT FILE SED: page.py says TEXT of a copy in which SED has changed FILE.
planted() {
  rm -rf "$copy/bench" "$copy/docs"
  mkdir -p "$copy/bench" "$copy/docs"
  cp -r "$root/bench/standing" "$copy/bench/"
  cp "$root/docs/standing.md" "$copy/docs/"
  sed -i "$4" "$copy/$3"
  cmp -s "$copy/$3" "$root/$3" && { printf 'standing: %s: the mistake changes nothing\n' "$1"; failed=1; }
  if python3 "$root/bench/standing/page.py" --check "$copy" >"$copy/said" || ! grep -qE -e "$2" "$copy/said"; then
    printf 'standing: %s: not found\n' "$1"
    cat "$copy/said"
    failed=1
  fi
}
results=bench/standing/results
planted 'a changed count' 'docs/standing.md: differs' docs/standing.md 's/| FAIL | 68 | 8 |/| FAIL | 69 | 8 |/'
planted 'a failure without a finding' 'FlashInfer rmsnorm: 8 failures.*a finding is needed' $results/kernels.tsv '/^FlashInfer rmsnorm/s/\t1\t/\t\t/'
planted 'failures called PASS' 'FlashInfer rmsnorm: 8 failures, verdict PASS' $results/kernels.tsv '/^FlashInfer rmsnorm/s/FAIL/PASS/'
planted 'a finding that is not there' 'finding 99 is not in docs/standing.md' $results/kernels.tsv '/^FlashInfer rmsnorm/s/\t1\t/\t99\t/'
planted 'failures that nobody counts' 'kernels.tsv counts 0 failures' $results/kernels.tsv '/^FlashInfer rmsnorm/s/\t8\t/\t0\t/'
planted 'a kernel without results' 'torch layer_norm: is in one of' $results/kernels.tsv '/^torch layer_norm/d'
planted 'a kernel without cells' 'torch layer_norm: .* has no cell' $results/2026-11-27-h200.csv '/^torch layer_norm/d'
[ "$failed" -eq 0 ] && echo 'standing: 7 planted mistakes found'
exit "$failed"
