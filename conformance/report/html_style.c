/* html_style.c: how a page looks. */
#include "html_cells.h"

static const char base[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5c6670;--line:#d6dbe0;--soft:#f3f5f7;--good:#17743a;"
    "--bad:#b3261e;--warn:#8a5a00;--badbg:#fdecea;--s0:#2563b0;--s1:#c2571a;--s2:#2e7d4f;--s3:#8e44ad;--s4:#a8842c;"
    "--s5:#00838f}"
    "@media screen and "
    "(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e3e7ea;--dim:#9aa5af;--line:#343b42;--soft:#1d2226;"
    "--good:#5cc98a;--bad:#ff8a80;--warn:#e0b050;--badbg:#3a1f1d;--s0:#6ea8f0;--s1:#f0995c;--s2:#6cc590;--s3:#c792e0;"
    "--s4:#d9bd6a;--s5:#58c4cf}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:1.2rem 1.2rem 4rem;background:var(--bg);"
    "color:var(--fg);font:15px/1.45 system-ui,sans-serif}h1{font-size:1.5rem;margin:.2rem 0}"
    "h2{font-size:1.15rem;margin:2.2rem 0 .5rem;padding-top:.6rem;border-top:1px solid var(--line)}"
    "h3{font-size:1rem;margin:1.2rem 0 .3rem}p{margin:.4rem 0}.dim{color:var(--dim)}"
    "nav{margin:.6rem 0;display:flex;flex-wrap:wrap;gap:.2rem .9rem}a{color:var(--s0)}"
    ".wide{overflow-x:auto;max-width:100%}table{border-collapse:collapse;font-size:13px;margin:.3rem 0}"
    "th,td{padding:.18rem .55rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}"
    "th{background:var(--soft);font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n{"
    "white-space:nowrap}td.c{text-align:center;font-variant-numeric:tabular-nums}td.good,.good{color:var(--good)}"
    "td.bad,.bad{color:var(--bad);font-weight:600}td.hole{background:var(--badbg);color:var(--bad);text-align:center;"
    "font-weight:600}td.off{color:var(--dim);text-align:center}"
    "code{font:12px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}code.replay{display:block;"
    "cursor:copy;color:var(--dim)}tr.again td{padding-top:0}tr.lead "
    "td{border-bottom:0;padding-bottom:0}td.msg{min-width:14rem;overflow-wrap:anywhere}.verdict{display:inline-block;"
    "padding:.1rem .7rem;"
    "border-radius:.4rem;border:1.5px solid;font-weight:700}.tiles{display:flex;flex-wrap:wrap;gap:.5rem;"
    "margin:.8rem 0}.tile{border:1px solid var(--line);border-radius:.4rem;padding:.35rem .8rem;background:var(--soft);"
    "min-width:6.5rem}.tile b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums}.tile "
    "span{font-size:12px;"
    "color:var(--dim)}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.6rem 0}"
    "dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}"
    "svg{display:block;max-width:100%;height:auto;font:11px system-ui,sans-serif}svg text{fill:var(--fg)}"
    "svg.plot{min-width:720px}svg .dim{fill:var(--dim)}svg .grid{stroke:var(--line)}svg "
    ".limit{stroke:var(--bad);stroke-dasharray:5 3}"
    "svg .s0{color:var(--s0)}svg .s1{color:var(--s1)}svg .s2{color:var(--s2)}svg .s3{color:var(--s3)}"
    "svg .s4{color:var(--s4)}svg .s5{color:var(--s5)}svg .box{fill:currentColor;fill-opacity:.25;stroke:currentColor}"
    "svg .mark{stroke:currentColor;stroke-width:2}svg .dot,svg .bar{fill:currentColor}svg .wisk{stroke:currentColor}"
    ".legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;font-size:13px}.legend i{display:inline-block;width:.8em;"
    "height:.8em;margin-right:.35em;border-radius:2px}.legend .s0 i{background:var(--s0)}.legend .s1 i{background:"
    "var(--s1)}.legend .s2 i{background:var(--s2)}.legend .s3 i{background:var(--s3)}.legend .s4 i{background:"
    "var(--s4)}.legend .s5 i{background:var(--s5)}.note{border-left:3px solid var(--bad);padding:.2rem .7rem;"
    "background:var(--badbg);white-space:pre-line;overflow-wrap:anywhere}details summary{cursor:pointer}";

/* For the bar that searches, for a narrow window, and for paper. */
static const char special[] =
    "[hidden]{display:none!important}.find{position:sticky;top:0;z-index:1;display:flex;flex-wrap:wrap;gap:.4rem "
    ".7rem;align-items:center;padding:.4rem 0;background:var(--bg);border-bottom:1px solid var(--line)}.find input"
    "{flex:1 1 14rem;min-width:0}.find input,.find select{font:inherit;padding:.2rem .4rem;color:var(--fg);background:"
    "var(--bg);border:1px solid var(--line);border-radius:.3rem}.find output{color:var(--dim)}"
    "tbody[id]{scroll-margin-top:3.2rem}tbody:target td{background:var(--soft)}table.sorts th{cursor:pointer}"
    "th[aria-sort=ascending]::after{content:' ▲'}th[aria-sort=descending]::after{content:' ▼'}"
    /* On a phone: a row becomes a block, a cell a line with its column's name; headings stay for sorting. */
    "@media screen and (max-width:640px){body{padding:.8rem .7rem 3rem}table.stack,.stack thead,.stack tbody,.stack tr,"
    ".stack td{display:block}.stack thead tr{display:flex;flex-wrap:wrap}.stack thead{display:none}"
    ".stack.sorts thead{display:block}.stack tbody tr{border-bottom:1px solid var(--line);padding:.3rem 0}"
    ".stack tbody tr.lead{border-bottom:0}.stack tbody td,.stack tbody td.n,.stack tbody td.c{display:flex;gap:.6rem;"
    "border:0;text-align:left;white-space:normal;padding:.08rem 0;min-width:0;overflow-wrap:anywhere}"
    ".stack td::before{flex:0 0 6.5rem;color:var(--dim);font-weight:400}.stack tr.again td{display:block}"
    ".tile{min-width:5rem;padding:.25rem .5rem}}"
    /* On paper: light whatever the screen is; a heading, a legend and the first line of a case stay with what follows.
     */
    "@media print{:root{color-scheme:light}nav,.screen{display:none}body{max-width:none;padding:0;font-size:11px}"
    "table,code{font-size:9px}th,td{padding:.15rem .35rem}td.msg{min-width:8rem}.legend{font-size:10px}"
    ".wide{overflow:visible;break-inside:avoid}h2,h3,h2+p,h3+p,.legend,summary,tr.lead{break-after:avoid}"
    "tr,svg,.tile,dl,.note{break-inside:avoid}svg.plot{min-width:0}"
    "#laws+.wide th.n{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;background:none}"
    "th,td.hole,.tile,.note,.legend i{print-color-adjust:exact;-webkit-print-color-adjust:exact}}";

void html_style(FILE *to) {
  (void)fputs(base, to);
  (void)fputs(special, to);
}
