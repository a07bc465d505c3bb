#!/usr/bin/env bash
# page_test.sh BUILD: the page of assay bench files in a real browser: what it must show is there, names and messages stay
# text, nothing is fetched, the console is silent. Status 77 where there is no chromium.
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
{"bench":"case","case":"d1","op":"gate_attention","variant":"split","suite":"d","section":"bench","name":"scattered_10","verdict":"PASS","mode":"cold","median_us":4,"low_us":4,"high_us":4,"bytes":1e6,"flops":1e7,"live_keys":0.1}
{"bench":"case","case":"d2","op":"gate_attention","variant":"split","suite":"d","section":"bench","name":"scattered_90","verdict":"PASS","mode":"cold","median_us":9,"low_us":9,"high_us":9,"bytes":1e6,"flops":1e7,"live_keys":0.9}
{"bench":"peer","peer":"sdpa_x","case":"softmax_attention mode=decode dtype=bf16 H=8 H_kv=4 D=128 kv_len=64,64","mode":"cold","median_us":12,"low_us":12,"high_us":12}
{"bench":"peer","peer":"nobody","missing":"<u>no module</u>"}
{"bench":"scenario","name":"decode_heavy_b32","model":"asynct","layers":35,"batch":32,"prompt":64,"output":256,"wall_ms":300,"wall_low_ms":299,"wall_high_ms":301,"prefill_ms":5,"step_ms":1.1,"layer_us":31,"span_us":1100,"tokens_s":27000,"calls_a_step":300,"limit_ms":100,"live_keys":0.3,"published_s":0.575,"calls":[{"op":"gemm","variant":"skinny","calls":140,"us":500,"graph_us":333.25},{"op":"rope","variant":"vectors","calls":35,"us":90,"graph_us":-1.5},{"op":"qk_norm","variant":"vectors","calls":35,"us":80}]}
{"bench":"scenario","name":"decode_heavy_b32","model":"qwen3","layers":28,"batch":32,"prompt":64,"output":256,"wall_ms":250,"wall_low_ms":249,"wall_high_ms":251,"limit_ms":90,"calls":[]}
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
has '<line class="limit"'
has '<polyline class="s0 mark"'
has '50 % of the limit'
has '<td class="n">1.200</td>'
has '<td class="n">0.500</td>'
has '<td class="n">333.25</td></tr>'
has '<td class="n">-1.50</td></tr>'
has '<td class="n">–</td></tr>'
has '&lt;img src=x'
has '1.0 / 2.0 / 3.0'
lacks '<(script|img|u)[ >]'
lacks '(src|href)="[^#]'
! grep -E 'CONSOLE' "$work/page.log" || { echo 'FAIL the console is not silent'; failed=1; }
[ "$failed" -eq 0 ] && echo 'bench: the page holds in a browser'
