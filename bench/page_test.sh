#!/usr/bin/env bash
# page_test.sh BUILD: the page of assay bench files in a real browser: its sections are present, names and messages stay
# text, nothing is fetched, the console is silent, and no column or label is cut at 390 or 1280 pixels. Status 77 where
# there is no chromium.
set -euo pipefail
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo 'no chromium: skipped'; exit 77; }
assay=$1/assay
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

cat >"$work/old.jsonl" <<'E2'
{"bench":"run","schema":1,"device":"cuda","device_name":"a card","driver":"1","toolkit":"2","commit":"before","seed":1}
{"bench":"limits","copy_bytes_s":4e12,"fma_f32_flops_s":6e13,"mma_bf16_flops_s":6e14,"gemm_bf16_flops_s":8e14,"cache_bytes":60000000}
{"bench":"case","case":"gate_attention mode=decode dtype=bf16 H=8 H_kv=4 D=128 kv_len=64,64","op":"gate_attention","variant":"split","suite":"t","section":"bench","name":"decode","verdict":"PASS","mode":"cold","median_us":20,"low_us":19,"high_us":21,"bytes":1e6,"flops":1e7,"limit_us":5,"limit_by":"bytes"}
{"bench":"end"}
E2
cat >"$work/new.jsonl" <<'E2'
{"bench":"run","schema":1,"device":"cuda","device_name":"</style><script>console.error('name')</script>","driver":"1","toolkit":"2","commit":"after","seed":1}
{"bench":"limits","copy_bytes_s":4e12,"fma_f32_flops_s":6e13,"mma_bf16_flops_s":6e14,"gemm_bf16_flops_s":8e14,"cache_bytes":60000000}
{"bench":"case","case":"gate_attention mode=decode dtype=bf16 H=8 H_kv=4 D=128 kv_len=64,64","op":"gate_attention","variant":"split","suite":"t","section":"bench","name":"decode","verdict":"PASS","mode":"cold","median_us":10,"low_us":9,"high_us":11,"bytes":1e6,"flops":1e7,"limit_us":5,"limit_by":"bytes"}
{"bench":"case","case":"x","op":"<b>op</b>","variant":"<script>console.error('variant')</script>","suite":"t","section":"bench","name":"<img src=x onerror=console.error('case')>","verdict":"FAIL","message":"<i>message</i>","mode":""}
{"bench":"case","case":"long","op":"gate_attention","variant":"a_variant_whose_name_is_as_long_as_they_come","suite":"t","section":"bench","name":"long","verdict":"PASS","mode":"cold","median_us":123456.5,"low_us":9,"high_us":11,"bytes":1e6,"flops":1e7,"limit_us":5,"limit_by":"bytes"}
{"bench":"case","case":"long","op":"gate_attention","variant":"split","suite":"t","section":"bench","name":"long","verdict":"PASS","mode":"cold","median_us":12,"low_us":9,"high_us":11,"bytes":1e6,"flops":1e7,"limit_us":5,"limit_by":"bytes"}
{"bench":"case","case":"d1","op":"gate_attention","variant":"split","suite":"d","section":"bench","name":"scattered_10","verdict":"PASS","mode":"cold","median_us":4,"low_us":4,"high_us":4,"bytes":1e6,"flops":1e7,"live_keys":0.1}
{"bench":"case","case":"d2","op":"gate_attention","variant":"split","suite":"d","section":"bench","name":"scattered_90","verdict":"PASS","mode":"cold","median_us":9,"low_us":9,"high_us":9,"bytes":1e6,"flops":1e7,"live_keys":0.9}
{"bench":"peer","peer":"sdpa_x","case":"softmax_attention mode=decode dtype=bf16 H=8 H_kv=4 D=128 kv_len=64,64","mode":"cold","median_us":12,"low_us":12,"high_us":12}
{"bench":"peer","peer":"nobody","missing":"<u>no module</u>"}
{"bench":"scenario","name":"decode_heavy_b32","model":"asynct","layers":35,"batch":32,"prompt":64,"output":256,"wall_ms":300,"wall_low_ms":299,"wall_high_ms":301,"prefill_ms":5,"step_ms":1.1,"layer_us":31,"span_us":1100,"tokens_s":27000,"calls_a_step":300,"limit_ms":100,"live_keys":0.3,"published_s":0.575,"calls":[{"op":"gemm","variant":"skinny","calls":140,"us":500,"graph_us":333.25},{"op":"rope","variant":"vectors","calls":35,"us":90,"graph_us":-1.5},{"op":"qk_norm","variant":"vectors","calls":35,"us":80}]}
{"bench":"scenario","name":"decode_heavy_b32","model":"qwen3","layers":28,"batch":32,"prompt":64,"output":256,"wall_ms":250,"wall_low_ms":249,"wall_high_ms":251,"limit_ms":90,"calls":[]}
{"bench":"peer","peer":"step","scenario":"decode_heavy_b32","model":"qwen3","attention":"fa3","wall_ms":200,"wall_low_ms":199,"wall_high_ms":201}
{"bench":"peer","peer":"step","scenario":"decode_heavy_b32","model":"asynct","unsupported":"not of the family qwen3"}
{"bench":"online","trace":"azure_conv","model":"asynct","scale":1.6,"requests":9,"seconds":3,"ttft_ms":{"p50":1,"p90":2,"p99":3},"tpot_ms":{"p50":1,"p90":2,"p99":3},"itl_ms":{"p50":1,"p90":2,"p99":3},"e2e_ms":{"p50":1,"p90":2,"p99":3}}
{"bench":"end"}
E2
"$assay" report "$work/old.jsonl" "$work/new.jsonl" -o "$work/page.html"

load() {
  "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --enable-logging=stderr --v=0 \
    --virtual-time-budget=3000 --dump-dom "file://$work/$1.html" >"$work/$1.dom" 2>"$work/$1.log" || { echo "FAIL the browser ended with status $?"; failed=1; }
}
has() { grep -qE -- "$1" "$work/page.dom" || { echo "FAIL not there: $1"; failed=1; }; }
lacks() { ! grep -qE -- "$1" "$work/page.dom" || { echo "FAIL there: $1"; failed=1; }; }
load page
for section in scenarios online roofline density kernels history none; do has "<h2 id=\"$section\""; done
has 'sdpa_x'
has 'peer nobody is missing: &lt;u&gt;'
has '<b class="limit"'
has '<polyline class="s0 mark"'
has '50 % of the limit'
has '<td class="n">1.200</td>'
has '<td class="n">200.00</td><td class="n">250.00</td><td class="n">1.250</td><td class="n">2.22</td>'
has '<td colspan="4" class="bad">not of the family qwen3</td>'
has '<td class="n">0.500</td>'
has '123456.50 µs \(cut\), 0 % of the limit'
has '<td class="n">333.25</td></tr>'
has '<td class="n">-1.50</td></tr>'
has '<td class="n">–</td></tr>'
has '&lt;img src=x'
has '1.0 / 2.0 / 3.0'
lacks '<(script|img|u)[ >]'
lacks '(src|href)="[^#]'
! grep -E 'CONSOLE' "$work/page.log" || { echo 'FAIL the console is not silent'; failed=1; }

# cut NAME WIDTH [SED]: how many elements a window of that width cuts: a table or plot that scrolls inside its frame, a text
# that ends outside the window. Plots may scroll on a phone, where they keep a width that can be read.
cut() {
  sed "${3:-}" "$work/page.html" >"$work/$1.html"
  sed -i "s/default-src 'none'/& ; script-src 'unsafe-inline'/" "$work/$1.html"
  cat >>"$work/$1.html" <<'E2'
<script>
document.querySelectorAll('details').forEach(d => { d.open = true; });
const frames = [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1 && !(innerWidth < 700 && e.querySelector('svg.plot')));
const out = [...document.querySelectorAll('h1,h2,h3,p,summary,td,th,.bars span,.legend span')].filter(e => {
  if (e.closest('.wide') && innerWidth < 700 && e.closest('.wide').querySelector('svg.plot')) return false;
  const r = e.getBoundingClientRect(); return r.width > 0 && (r.left < -1 || r.right > innerWidth + 1); });
const cells = [...document.querySelectorAll('td')].filter(e => e.scrollWidth > e.clientWidth + 1);
document.body.dataset.cut = frames.length + out.length + cells.length;
document.body.dataset.cutAt = [...frames, ...out, ...cells].map(e => e.tagName + ' ' + e.textContent.slice(0, 40)).join('; ');
document.body.dataset.stacked = [...document.querySelectorAll('.stack td')].filter(e => getComputedStyle(e, '::before').content[0] === '"').length;
document.body.dataset.inner = innerWidth;
</script>
E2
  "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --window-size="$2,900" \
    --virtual-time-budget=3000 --dump-dom "file://$work/$1.html" 2>/dev/null >"$work/$1.dom"
  grep -oE '<body [^>]*>' "$work/$1.dom" | head -n 1 >"$work/$1.body"
}
holds() { grep -q 'data-cut="0"' "$work/$1.body"; }
for width in 390 1280; do
  cut "w$width" $width
  holds "w$width" || { echo "FAIL at $width pixels something is cut: $(cat "$work/w$width.body")"; failed=1; }
done
grep -q 'data-stacked="0"' "$work/w1280.body" || { echo 'FAIL tables are stacked in a wide window'; failed=1; }
! grep -q 'data-stacked="0"' "$work/w390.body" || { echo 'FAIL tables are not stacked on a phone'; failed=1; }
# The check itself: names in a column that is too narrow, tables that stay tables on a phone.
cut planted_names 1280 's/max-content minmax(6rem,1fr) max-content/max-content minmax(1400px,1fr) max-content/'
! holds planted_names || { echo 'FAIL a label that is cut went unnoticed'; failed=1; }
cut planted_phone 390 's/max-width:640px/max-width:10px/g'
! holds planted_phone || { echo 'FAIL a table that is cut went unnoticed'; failed=1; }

[ "$failed" -eq 0 ] && echo 'bench: the page holds in a browser'
