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
planted 'a kernel without cells' 'torch layer_norm: .* has no cell' $results/2026-11-29-h200.csv '/^torch layer_norm/d'
# A run is adopted: counts and cells of its kernel alone change, and the page is then another one.
mkdir "$copy/run"
rm -rf "$copy/bench" && mkdir "$copy/bench" && cp -r "$root/bench/standing" "$copy/bench/"
printf '%s\n' 'kernel,project,door,operator,dtype,law,verdict,asked,failed,message,case' \
  'torch layer_norm,PyTorch,python,layer_norm,f32,result,FAIL,3,1,too far,layer_norm …' >"$copy/run/standing.csv"
printf '| torch layer_norm | `layer_norm` | f32 | FAIL | 2 | 1 | 5 | result |\n' >"$copy/run/standing.md"
python3 "$root/bench/standing/adopt.py" "$copy/run" again "$copy" >"$copy/said"
grep -q '^torch layer_norm: 2 pass, 1 fail, verdict PASS, finding none: WANTS' "$copy/said" || { echo 'standing: adopt.py: says nothing of a failure called PASS'; cat "$copy/said"; failed=1; }
[ "$(diff "$root/$results/kernels.tsv" "$copy/$results/kernels.tsv" | grep -c '^>')" -eq 1 ] || { echo 'standing: adopt.py: other rows changed'; failed=1; }
grep -q "^torch layer_norm	layer_norm	f32	PASS	2	1	5		again$" "$copy/$results/kernels.tsv" || { echo 'standing: adopt.py: the row is another one'; failed=1; }
python3 "$root/bench/standing/page.py" --check "$copy" >"$copy/said" && { echo 'standing: adopt.py: the page did not change'; failed=1; }
[ "$failed" -eq 0 ] && echo 'standing: 7 planted mistakes found'
exit "$failed"
