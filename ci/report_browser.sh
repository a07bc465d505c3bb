#!/usr/bin/env bash
# report_browser.sh BUILD: looks at the page of `assay report` in a real browser. Its sections are present, the text of
# a case's name or message stays text, nothing is fetched, the console is silent. It can be searched, sorted and
# filtered, and read in the dark, on paper and on a phone. Status 77 where there is no chromium.
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
load() { # load NAME [OPTIONS...]
  local page=$1
  shift
  "$browser" "$@" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --enable-logging=stderr --v=0 \
    --virtual-time-budget=3000 --dump-dom "file://$work/$page.html" >"$work/$page.dom" 2>"$work/$page.log" || { echo "FAIL the browser ended with status $?"; failed=1; }
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

# ---- light, dark, paper: colours and breaks as the browser computes them -------------------------------------
#
# measured NAME PAGE SED [OPTIONS...]: the page with a script that measures it. Words need a contrast of 4.5 to their
# background, marks of plots and legends 3. Nothing may be cut off at the right.
measured() {
  local name=$1 page=$2 change=$3
  shift 3
  sed "$change" "$work/$page.html" >"$work/$name.html"
  cat >>"$work/$name.html" <<'E2'
<script>
dispatchEvent(new Event('beforeprint'));
document.querySelectorAll('details').forEach(d => { document.body.dataset.folds = d.open ? 'open' : 'closed'; });
const rgb = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m; };
const light = c => { const f = c.slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
const contrast = (a, b) => { const x = light(a), y = light(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
const least = { words: [99, ''], marks: [99, ''] };
const look = (kind, e, colour) => { const c = rgb(colour); if (!c) return; const k = contrast(c, behind(e.closest('svg') || e.parentElement));
  if (k < least[kind][0]) least[kind] = [k, e.tagName + '.' + (e.getAttribute('class') || '')]; };
document.querySelectorAll('body *').forEach(e => {
  const s = getComputedStyle(e), own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!e.getClientRects().length || e.tagName === 'SCRIPT' || e.tagName === 'TITLE') return;
  if (e.namespaceURI.endsWith('svg')) {
    if (e.tagName === 'text') look('words', e, s.fill);
    else if (e.matches('.dot,.bar')) look('marks', e, s.fill);
    else if (e.matches('.mark,.wisk,.box,.limit')) look('marks', e, s.stroke);
  } else if (e.matches('.legend i')) look('marks', e, s.backgroundColor);
  else if (own) { const c = rgb(s.color); const k = contrast(c, behind(e)); if (k < least.words[0]) least.words = [k, e.tagName + '.' + e.className]; }
});
const style = (q, key) => { const e = document.querySelector(q); return e ? getComputedStyle(e)[key] : 'none'; };
const cut = [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > innerWidth + 1);
Object.assign(document.body.dataset, { ground: style('body', 'backgroundColor').replace(/ /g, ''), fg: style('body', 'color').replace(/ /g, ''),
  words: least.words[0].toFixed(2), wordsAt: least.words[1], marks: least.marks[0].toFixed(2), marksAt: least.marks[1], cut: cut.length, cutAt: cut.map(e => e.textContent.slice(0, 40) + ' ' + e.scrollWidth).join('; '),
  legible: least.words[0] >= 4.5 && least.marks[0] >= 3, nav: style('nav', 'display'), heading: style('h3', 'breakAfter'),
  legend: style('.legend', 'breakAfter'), lead: style('tr.lead', 'breakAfter'), table: style('.wide', 'breakInside'), plot: style('svg.plot', 'breakInside') });
</script>
E2
  load "$name" "$@"
  silent "$name"
  grep -oE '<body [^>]*>' "$work/$name.dom" | head -n 1 >"$work/$name.body"
}
says() { grep -qE -- "data-$2=\"$3\"" "$work/$1.body" || { echo "FAIL $1: $2 is not $3: $(cat "$work/$1.body")"; failed=1; }; }
differ() { ! cmp -s <(grep -oE "data-$3=\"[^\"]*\"" "$work/$1.body") <(grep -oE "data-$3=\"[^\"]*\"" "$work/$2.body") || { echo "FAIL $1 and $2: the same $3"; failed=1; }; }
dark=--blink-settings=preferredColorScheme=0
light=--blink-settings=preferredColorScheme=1
paper='s/@media print/@media all/; s/@media screen and/@media print and/' # as if the window, as wide as a sheet, were one
for page in run evil; do
  measured "$page.light" $page '' $light
  measured "$page.dark" $page '' $dark
  measured "$page.paper" $page "$paper" $dark --window-size=720,1000
  says $page.light ground 'rgb\(255,255,255\)'
  says $page.paper ground 'rgb\(255,255,255\)'
  says $page.dark ground 'rgb\([0-4]?[0-9],[0-4]?[0-9],[0-4]?[0-9]\)'
  for look in light dark paper; do says $page.$look legible true; done
  differ $page.light $page.dark ground
  differ $page.light $page.dark fg
  says $page.light nav flex
  says $page.paper nav none
  says $page.paper cut 0
  says $page.paper table avoid
done
says run.paper heading avoid
says run.paper legend avoid
says run.paper lead avoid
says run.paper plot avoid
says run.light heading auto
says run.paper folds open
# On paper indeed: the printed page has sheets, and is no picture of the screen.
"$browser" $dark --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --no-pdf-header-footer \
  --print-to-pdf="$work/run.pdf" "file://$work/run.html" >"$work/run.log" 2>&1 || { echo 'FAIL the page cannot be printed'; failed=1; }
[ "$(head -c 5 "$work/run.pdf")" = '%PDF-' ] || { echo 'FAIL the printed page is no PDF'; failed=1; }

# ---- search, filter, sort, links, a narrow window --------------------------------------------------------------
cat >"$work/many.jsonl" <<'E2'
{"assay":"1","device":"simt","device_name":"d","driver":"","toolkit":"","commit":"c","seed":1,"cases":5,"whole":false,"plugins":{"op/fast":"./it's.so"}}
{"case":"op name=a kv_len=3","op":"op","variant":"fast","device":"simt","suite":"s","name":"a","section":"check","tier":"calibrated","verdict":"FAIL","check":"element","message":"out: got 1","ratio_element":2,"seed":1}
{"case":"op name=b kv_len=3","op":"op","variant":"fast","device":"simt","suite":"s","name":"b","section":"check","tier":"calibrated","verdict":"FAIL","check":"element","message":"out: got 2","ratio_element":20,"seed":1}
{"case":"op name=c kv_len=3","op":"op","variant":"slow","device":"simt","suite":"s","name":"c","section":"check","tier":"calibrated","verdict":"CRASH","check":"signal","message":"SIGSEGV","seed":1}
{"case":"op name=d kv_len=3","op":"op","variant":"slow","device":"simt","suite":"s","name":"d","section":"check","tier":"calibrated","verdict":"PASS","ratio_element":0.5,"seed":1}
{"case":"op name=e kv_len=3","op":"op","variant":"third","device":"simt","suite":"s","name":"e","section":"check","tier":"calibrated","verdict":"PASS","ratio_element":0.25,"seed":1}
{"end":5,"unclaimed":0,"seconds":1}
E2
"$assay" report "$work/many.jsonl" -o "$work/many.html" >"$work/text" && { echo 'FAIL failing cases gave exit 0'; failed=1; }
# used NAME SED: the page with a script that uses it as a reader does.
used() {
  sed "$2" "$work/many.html" >"$work/$1.html"
  cat >>"$work/$1.html" <<'E2'
<script>
const data = document.body.dataset, q = document.getElementById('find-text'), v = document.getElementById('find-verdict');
const type = (text, verdict) => { q.value = text; v.value = verdict; q.dispatchEvent(new Event('input')); v.dispatchEvent(new Event('change')); };
const shown = id => [...document.querySelectorAll('#' + id + '-table tbody')].filter(b => !b.hidden).map(b => b.rows[0].cells[id === 'variants' ? 1 : 0].textContent).join(',');
const head = (id, name) => [...document.querySelectorAll('#' + id + '-table th')].find(h => h.textContent === name);
try {
  data.bar = !document.getElementById('find').hidden;
  type('', ''); data.all = shown('variants') + '/' + shown('failures');
  type('sigsegv', ''); data.text = shown('variants') + '/' + shown('failures');
  type('', 'CRASH'); data.verdict = shown('variants') + '/' + shown('failures');
  type('nothing like it', ''); data.none = shown('variants') + '/' + shown('failures');
  data.count = document.getElementById('find-count').textContent;
  location.hash = '#f1'; dispatchEvent(new Event('hashchange')); data.reached = shown('failures');
  head('variants', 'worst ratio').click(); data.down = shown('variants');
  head('variants', 'worst ratio').click(); data.up = shown('variants');
  head('variants', 'variant').click(); data.word = shown('variants');
  data.sorted = head('variants', 'variant').getAttribute('aria-sort');
  data.pairs = [...document.querySelectorAll('#failures-table tbody')].every(b => b.rows.length === 2);
  data.links = [...document.querySelectorAll('a[href^="#"]')].every(a => document.getElementById(a.getAttribute('href').slice(1)));
  data.tofailure = document.querySelector('#variants-table a[href="#f0"]') !== null;
  data.tovariant = document.querySelector('#failures-table a[href^="#v"]') !== null;
  data.cut = [...document.querySelectorAll('.stack')].filter(t => t.parentElement.scrollWidth > t.parentElement.clientWidth + 1).length;
  data.label = getComputedStyle(document.querySelector('#variants-table tbody td:nth-child(2)'), '::before').content;
} catch (e) { data.error = e.message; }
</script>
E2
  load "$1" "${@:3}"
  silent "$1"
  grep -oE '<body [^>]*>' "$work/$1.dom" | head -n 1 | sed 's/&quot;/!/g' >"$work/$1.body"
}
used use '' --window-size=1280,900
says use bar true
says use all 'fast,slow,third/FAIL,CRASH'
says use text '/CRASH'
says use verdict 'slow/CRASH'
says use none '/'
says use count '0 of [0-9]+ rows'
says use reached 'FAIL,CRASH'
says use down 'fast,slow,third'
says use up 'third,slow,fast'
says use word 'fast,slow,third'
says use sorted ascending
says use pairs true
says use links true
says use tofailure true
says use tovariant true
says use label none
has use 'assay replay .op name=a kv_len=3. --plugin .\./it.\\..s\.so.<'
has use 'and 1 more like it</summary>'
used phone '' --window-size=390,900
says phone cut 0
says phone label '!variant!'

# The check itself: words that are as dark as their background, and a sheet that is too narrow.
planted() { # planted NAME KEY VALUE: what was found of a page that was spoiled
  if (says "$1" "$2" "$3"; [ "$failed" -eq 0 ]) >/dev/null; then echo "FAIL $1 went unnoticed"; failed=1; fi
}
measured planted_grey run 's/--dim:#9aa5af/--dim:#2a2f34/' $dark
planted planted_grey legible true
measured planted_mark run 's/--s0:#6ea8f0/--s0:#1c2530/' $dark
planted planted_mark legible true
measured planted_narrow run "$paper; s/svg.plot{min-width:0}/svg.plot{min-width:900px}/" --window-size=720,1000
planted planted_narrow cut 0

# The check itself: a page without its filter, without its order, without its rules for a phone.
used planted_filter 's/b.hidden=!ok/b.title=ok/'
planted planted_filter text '/CRASH'
used planted_sort 's/return up?d:-d/return 0/'
planted planted_sort up 'third,slow,fast'
used planted_phone 's/max-width:640px/max-width:10px/g' --window-size=390,900
planted planted_phone label '!variant!'

# The check itself: a page that logs is noticed, and so is one without its sections.
printf '<!DOCTYPE html><title>t</title><script>console.error("planted")</script>' >"$work/planted.html"
load planted
if (silent planted; [ "$failed" -eq 0 ]) >/dev/null; then echo 'FAIL an error on the console went unnoticed'; failed=1; fi
if (has planted 'id="verdict"'; [ "$failed" -eq 0 ]) >/dev/null; then echo 'FAIL an empty page went unnoticed'; failed=1; fi

[ "$failed" -eq 0 ] && echo 'report: the page holds in a browser'
exit "$failed"
