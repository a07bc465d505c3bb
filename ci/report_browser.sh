#!/usr/bin/env bash
# report_browser.sh BUILD: the page of `assay report` in a real browser: what it must show is there, what a case's name
# or message says stays text, nothing is fetched, the console is silent. Status 77 where there is no chromium.
set -euo pipefail

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo 'no chromium: skipped'; exit 77; }
assay=$1/assay
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$(cd "$(dirname "$0")/.." && pwd)
failed=0

"$assay" run "$root/conformance/suites/gate_attention.yaml" --filter types --jsonl "$work/run.jsonl" --html "$work/run.html" >"$work/text"
# A run whose every string tries to be markup, and one ratio that is no number.
cat >"$work/evil.jsonl" <<'E2'
{"assay":"<b>v</b>","device":"simt","device_name":"</style><script>console.error('name')</script>","driver":"","toolkit":"","commit":"\" onload=\"x","seed":1,"cases":1,"whole":false}
{"case":"gate_attention name=<script>console.error('descriptor')</script> kv_len=3","op":"<i>op</i>","variant":"</title><script>console.error('variant')</script>","device":"simt","suite":"s","name":"<script>document.title='pwned'</script>","section":"check","tier":"calibrated","verdict":"FAIL","check":"element","message":"<img src=x onerror=console.error('message')>","path":"<u>","ratio_element":null,"ratio_row":2,"ratio_request":0,"laws":["<s>law</s>"],"spoils_seen":["<q>"],"reference_ms":1,"run_ms":1,"seed":1}
{"mutant":"<script>console.error('mutant')</script>","op":"o","variant":["v"],"ids":["SP1"],"killed":true,"good":true,"check":"exact","expected":["exact"],"cases":3,"seconds":0.5,"replay":"assay replay <x>","allclose":{"<em>":true,"ggml":false}}
{"end":1,"unclaimed":0,"seconds":1}
E2
"$assay" report "$work/evil.jsonl" -o "$work/evil.html" >"$work/text" && { echo 'FAIL a failing case gave exit 0'; failed=1; }

# load NAME: the document as the browser sees it after its scripts ran; whatever it logged.
load() {
  "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --enable-logging=stderr --v=0 \
    --virtual-time-budget=3000 --dump-dom "file://$work/$1.html" >"$work/$1.dom" 2>"$work/$1.log" || { echo "FAIL the browser ended with status $?"; failed=1; }
}
has() { grep -qE -- "$2" "$work/$1.dom" || { echo "FAIL $1: not there: $2"; failed=1; }; }
lacks() { ! grep -qE -- "$2" "$work/$1.dom" || { echo "FAIL $1: there: $2"; failed=1; }; }
silent() { ! grep -E 'CONSOLE' "$work/$1.log" || { echo "FAIL $1: the console is not silent"; failed=1; }; }

load run
has run 'id="verdict" class="verdict good">PASS<'
for section in variants ratio worst claims laws reach paths power time; do has run "<h2 id=\"$section\""; done
has run '<svg class="plot"[^>]*aria-label="error ratio by size, gate_attention on simt"'
has run '<rect class="box"'
has run 'assay replay .gate_attention suite=gate_attention'
has run 'renumbering</th>'
lacks run '(src|href)="[^#]'
silent run

load evil
has evil 'class="verdict bad">FAIL<'
has evil '<title>assay report</title>'
has evil '&lt;script&gt;document.title'
has evil '&lt;img src=x onerror'
has evil '∞'
has evil '<h2 id="mutants"'
lacks evil '<script>(console|document\.title)'
lacks evil '<(img|u|s|q|em)>'
silent evil

# The check itself: a page that logs is noticed, and so is one without its sections.
printf '<!DOCTYPE html><title>t</title><script>console.error("planted")</script>' >"$work/planted.html"
load planted
if (silent planted; [ "$failed" -eq 0 ]) >/dev/null; then echo 'FAIL an error on the console went unnoticed'; failed=1; fi
if (has planted 'id="verdict"'; [ "$failed" -eq 0 ]) >/dev/null; then echo 'FAIL an empty page went unnoticed'; failed=1; fi

[ "$failed" -eq 0 ] && echo 'report: the page holds in a browser'
exit "$failed"
