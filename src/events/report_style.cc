#include "events/report_page.h"

namespace tutti::events {

const char* const report_style = R"css(
:root { color-scheme: light dark;
  --ink:#16202c; --soft:#5d6b7c; --faint:#8b97a6; --line:#e4e8ee; --card:#fff; --page:#f4f6f9; --hole:#f0f3f7;
  --c0:#2f6fed; --c1:#e8590c; --c2:#0ca678; --c3:#9c36b5; --c4:#e0a100; --c5:#e64980; --c6:#868e96;
  --good:#0b7a55; --good-bg:#dcf5ea; --bad:#b42318; --bad-bg:#fde8e6; --warn:#8a5a00; --warn-bg:#fff1d1 }
@media (prefers-color-scheme: dark) { :root {
  --ink:#e8edf4; --soft:#9dabbd; --faint:#728197; --line:#28313d; --card:#171d26; --page:#0e131a; --hole:#10161e;
  --c0:#6ea2ff; --c1:#ff9050; --c2:#3ddba4; --c3:#d48ae8; --c4:#f2c14e; --c5:#ff85b3; --c6:#8f9bab;
  --good:#5fe0b0; --good-bg:#12352a; --bad:#ff9c92; --bad-bg:#421a17; --warn:#ffd27a; --warn-bg:#3b2d0d } }
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink); font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif }
main { max-width:1180px; margin:0 auto; padding:32px 20px 56px }
header { display:flex; flex-wrap:wrap; align-items:center; gap:6px 12px; margin-bottom:20px }
h1 { font-size:26px; line-height:1.2; letter-spacing:-.01em; margin:0; overflow-wrap:anywhere }
h2 { font-size:14px; font-weight:600; margin:0 }
.pill { font-size:12px; font-weight:600; padding:2px 10px; border-radius:99px; background:var(--good-bg); color:var(--good) }
.pill.warn { background:var(--warn-bg); color:var(--warn) } .pill.bad { background:var(--bad-bg); color:var(--bad) }
.sub { color:var(--soft); flex-basis:100% }
.tiles { display:flex; flex-wrap:wrap; gap:1px; background:var(--line);
  border:1px solid var(--line); border-radius:12px; overflow:hidden; margin-bottom:16px }
.tile { flex:1 1 112px; background:var(--card); padding:13px 16px }
.tile b { display:block; font-size:23px; line-height:1.25; font-weight:650; letter-spacing:-.01em; white-space:nowrap }
.tile span { color:var(--soft); font-size:12.5px }
.grid { display:grid; grid-template-columns:repeat(12,minmax(0,1fr)); gap:16px }
.card { grid-column:span 6; background:var(--card); border:1px solid var(--line); border-radius:12px; padding:14px 16px 12px; min-width:0 }
.wide { grid-column:1/-1 }
.column { grid-column:span 6; display:flex; flex-direction:column; gap:16px; min-width:0 }
@media (max-width:760px) { .card,.column { grid-column:1/-1 } main { padding:20px 12px 40px } }
.head { display:flex; flex-wrap:wrap; align-items:center; gap:4px 14px; min-height:26px; margin-bottom:6px }
.head .tools { margin-left:auto; display:flex; align-items:center; gap:10px }
.legend { display:flex; flex-wrap:wrap; gap:2px 14px; color:var(--soft); font-size:12.5px }
.legend i { display:inline-block; width:10px; height:10px; border-radius:3px; margin-right:6px }
button,select { font:12px/1.4 inherit; font-family:inherit; color:var(--soft); background:none; border:1px solid var(--line); border-radius:7px; padding:2px 9px; cursor:pointer }
button[aria-pressed=true] { color:var(--c0); border-color:var(--c0) }
button:focus-visible,input:focus-visible,select:focus-visible { outline:2px solid var(--c0); outline-offset:2px }
label.smooth { font-size:12px; color:var(--soft); display:flex; align-items:center; gap:6px } input[type=range] { width:84px; accent-color:var(--c0) }
.plot { position:relative } svg { display:block; width:100%; touch-action:pan-y }
svg text { fill:var(--faint); font-size:11px; font-variant-numeric:tabular-nums }
.rule { stroke:var(--line) } .cross { stroke:var(--faint); stroke-dasharray:3 3 }
.tip { position:absolute; top:4px; pointer-events:none; background:var(--card); border:1px solid var(--line); border-radius:9px;
  box-shadow:0 4px 18px rgba(0,0,0,.16); padding:7px 10px; font-size:12px; white-space:nowrap; z-index:2 }
.tip b { display:block; margin-bottom:2px } .tip div { display:flex; align-items:center; gap:6px; color:var(--soft) }
.tip i { width:8px; height:8px; border-radius:2px } .tip em { font-style:normal; color:var(--ink); margin-left:auto; padding-left:14px; font-variant-numeric:tabular-nums }
pre { margin:0; white-space:pre-wrap; overflow-wrap:anywhere; font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
  max-height:440px; overflow:auto; background:var(--hole); border-radius:8px; padding:12px 14px }
pre .k { color:var(--c0) } pre .n { color:var(--faint) }
table { border-collapse:collapse; width:100%; font-size:13px; font-variant-numeric:tabular-nums }
td,th { text-align:left; padding:5px 12px 5px 0; border-bottom:1px solid var(--line); vertical-align:top; overflow-wrap:anywhere }
tr:last-child>* { border-bottom:0 } th { color:var(--soft); font-weight:500 } td.t { color:var(--faint); white-space:nowrap; width:1% }
.scroll { max-height:440px; overflow:auto }
.dot { display:inline-block; width:8px; height:8px; border-radius:50%; margin-right:8px; background:var(--faint) }
.dot.checkpoint,.dot.done { background:var(--c2) } .dot.resume,.dot.start { background:var(--c0) } .dot.warning,.dot.dropped { background:var(--c4) }
.bars { display:grid; grid-template-columns:auto 1fr auto; gap:7px 12px; align-items:center; font-size:12.5px; color:var(--soft); font-variant-numeric:tabular-nums }
.bar { display:flex; height:14px; border-radius:5px; overflow:hidden; background:var(--hole) } .bar i { height:100% }
footer { color:var(--faint); font-size:12px; margin-top:22px }
@media print { .tools { display:none } .card { break-inside:avoid } pre,.scroll { max-height:none } }
)css";

}  // namespace tutti::events
