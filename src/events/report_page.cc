#include "events/report_page.h"

namespace tutti::events {

const char* const report_page = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tutti run</title>
<style>
:root { --ink:#1b1f24; --soft:#667080; --line:#e3e6ea; --card:#fff; --page:#f5f6f8;
  --a:#2563eb; --b:#d9480f; --c:#2b8a3e; --d:#862e9c; --e:#b08900; --f:#7a8492; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9ee; --soft:#98a2b0; --line:#2c323b;
  --card:#181c22; --page:#101318; --a:#6ea8fe; --b:#ff9466; --c:#63d07a; --d:#d197e6; --e:#e8c24a; --f:#8b95a3; } }
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink); font:15px/1.5 system-ui,sans-serif }
main { max-width:1120px; margin:0 auto; padding:28px 20px 60px }
h1 { font-size:26px; margin:0 } h2 { font-size:15px; margin:0 0 8px; font-weight:600 }
.sub { color:var(--soft); margin-bottom:20px }
.numbers { display:grid; grid-template-columns:repeat(auto-fit,minmax(140px,1fr)); gap:12px; margin-bottom:18px }
.grid { display:grid; grid-template-columns:repeat(auto-fit,minmax(440px,1fr)); gap:14px }
.card { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:14px 16px; min-width:0 }
.wide { grid-column:1/-1 }
.number b { display:block; font-size:22px; font-variant-numeric:tabular-nums } .number span { color:var(--soft); font-size:13px }
svg { width:100%; height:220px; display:block; overflow:visible } svg text { fill:var(--soft); font-size:11px }
.grid-line { stroke:var(--line) } .legend { color:var(--soft); font-size:12px } .legend i { display:inline-block; width:10px; height:10px; border-radius:2px; margin:0 5px 0 12px }
pre { white-space:pre-wrap; overflow-wrap:anywhere; margin:0; font:13px/1.45 ui-monospace,monospace; max-height:420px; overflow:auto }
button { font:12px system-ui; color:var(--soft); background:none; border:1px solid var(--line); border-radius:6px; padding:1px 8px; cursor:pointer; float:right; margin-left:6px }
button.on { color:var(--ink); border-color:var(--soft) }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums } td,th { text-align:left; padding:3px 10px 3px 0; border-bottom:1px solid var(--line); font-size:13px } th { color:var(--soft); font-weight:500 }
</style>
<main>
<h1 id="name"></h1><div class="sub" id="sub"></div>
<div class="numbers" id="numbers"></div>
<div class="grid" id="charts"></div>
</main>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const run = JSON.parse(document.getElementById("data").textContent);
const make = (tag, parent, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; parent.append(e); return e; };
const short = v => v == null ? "–" : Math.abs(v) >= 1e6 ? (v/1e6).toPrecision(3)+"M" : Math.abs(v) >= 1e4 ? (v/1e3).toPrecision(3)+"K" : Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 0.01 || v === 0 ? +v.toPrecision(4)+"" : v.toExponential(2);
const time = s => s == null ? "–" : s < 60 ? s.toFixed(1)+" s" : s < 3600 ? Math.floor(s/60)+" min "+Math.round(s%60)+" s" : Math.floor(s/3600)+" h "+Math.round(s%3600/60)+" min";
const s = run.summary;
document.title = run.name + " – Tutti";
document.getElementById("name").textContent = run.name;
document.getElementById("sub").textContent = run.subtitle;
for (const [value, label] of [[short(s.loss), "training loss"], [short(s.validation_loss), "validation loss"],
  [s.nats_per_byte == null ? null : short(s.nats_per_byte), "nats a byte, held out"],
  [short(s.tokens_per_second), "tokens a second"], [s.mfu ? (100*s.mfu).toFixed(0)+" %" : "–", "of the matrix-product rate"],
  [time(s.seconds), "training time"], [short(s.steps), "steps"], [s.workers, "workers"]])
  if (value !== null) { const box = make("div", document.getElementById("numbers"), undefined, "card number"); make("b", box, value); make("span", box, label); }
const svgns = "http://www.w3.org/2000/svg";
const draw = (parent, tag, attrs, text) => { const e = document.createElementNS(svgns, tag); for (const k in attrs) e.setAttribute(k, attrs[k]); if (text !== undefined) e.textContent = text; parent.append(e); return e; };
function ticks(lo, hi, n) { const raw = (hi-lo)/n || 1, p = 10**Math.floor(Math.log10(raw)), step = [1,2,5,10].find(m => m*p >= raw)*p, out = []; for (let v = Math.ceil(lo/step)*step; v <= hi+step*1e-9; v += step) out.push(v); return out; }
function smooth(points) { let m = null; return points.map(([x, y]) => [x, m = m === null ? y : 0.9*m + 0.1*y]); }
const colors = ["var(--a)","var(--b)","var(--c)","var(--d)","var(--e)","var(--f)"];
function card(title, wide) { const c = make("div", document.getElementById("charts"), undefined, "card" + (wide ? " wide" : "")); make("h2", c, title); return c; }
function chart(title, series, options = {}) {
  series = series.filter(one => one.points.length); if (!series.length) return;
  const c = card(title, options.wide), head = c.firstChild; let log = false, soft = false;
  const svg = draw(c, "svg", {viewBox: "0 0 520 220", preserveAspectRatio: "none"}); svg.style.height = "220px";
  const legend = make("div", c, undefined, "legend");
  series.forEach((one, i) => { const mark = make("i", legend); mark.style.background = colors[i]; legend.append(one.name); });
  const note = make("span", legend, ""); note.style.float = "right";
  function paint() {
    const W = svg.clientWidth || 520, H = 220, L = 52, B = 22, R = 8, T = 8;
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`); svg.replaceChildren();
    let shown = series.map(one => soft && one.points.length > 20 ? smooth(one.points) : one.points);
    if (options.stacked) { const sums = new Map(); shown = shown.map(points => points.map(([x, y]) => { const v = (sums.get(x) || 0) + y; sums.set(x, v); return [x, v]; })); }
    const f = v => log ? Math.log10(v) : v;
    shown = shown.map(points => points.filter(([, y]) => y != null && (!log || y > 0)).map(([x, y]) => [x, f(y)]));
    const all = shown.flat(); if (!all.length) return;
    let x0 = Infinity, x1 = -Infinity, y0 = options.zero ? 0 : Infinity, y1 = -Infinity;
    for (const [x, y] of all) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
    if (x1 === x0) x1 = x0 + 1; if (y1 === y0) y1 = y0 + (Math.abs(y0) || 1) * 0.1;
    const X = x => L + (x-x0)/(x1-x0)*(W-L-R), Y = y => T + (1-(y-y0)/(y1-y0))*(H-T-B);
    for (const v of ticks(y0, y1, 4)) { draw(svg, "line", {x1: L, x2: W-R, y1: Y(v), y2: Y(v), class: "grid-line"}); draw(svg, "text", {x: L-6, y: Y(v)+4, "text-anchor": "end"}, short(log ? 10**v : v)); }
    for (const v of ticks(x0, x1, 6)) draw(svg, "text", {x: X(v), y: H-6, "text-anchor": "middle"}, short(v));
    shown.map((points, i) => [points, i]).reverse().forEach(([points, i]) => {
      const d = points.map(([x, y], k) => (k ? "L" : "M") + X(x).toFixed(1) + " " + Y(y).toFixed(1)).join("");
      if (options.stacked) draw(svg, "path", {d: d + `L${X(points.at(-1)[0])} ${Y(y0)}L${X(points[0][0])} ${Y(y0)}Z`, fill: colors[i]});
      else draw(svg, "path", {d, fill: "none", stroke: colors[i], "stroke-width": 1.6});
      if (points.length === 1) draw(svg, "circle", {cx: X(points[0][0]), cy: Y(points[0][1]), r: 3, fill: colors[i]}); });
    svg.onmousemove = event => { const box = svg.getBoundingClientRect(), x = x0 + (event.clientX-box.left-L)/(W-L-R)*(x1-x0);
      const near = series.map(one => one.points.reduce((a, b) => Math.abs(b[0]-x) < Math.abs(a[0]-x) ? b : a));
      note.textContent = "step " + near[0][0] + ": " + near.map((p, i) => series[i].name + " " + short(p[1])).join(", "); };
    svg.onmouseleave = () => { note.textContent = ""; };
  }
  if (!options.stacked) { const b = make("button", head, "log"); b.onclick = () => { log = !log; b.classList.toggle("on"); paint(); };
    const t = make("button", head, "smooth"); t.onclick = () => { soft = !soft; t.classList.toggle("on"); paint(); }; }
  paint(); addEventListener("resize", paint);
}
const of = (name, label) => ({name: label || name, points: run.series[name] || []});
chart("Loss", [of("loss", "training"), of("validation_loss", "held out")], {wide: true});
chart("Learning rate", [of("lr", "learning rate")], {zero: true});
chart("Gradient norm, before clipping", [of("grad_norm", "norm")]);
chart("Tokens a second", [of("tokens_per_second", "tokens/s")], {zero: true});
chart("Share of the matrix-product rate (MFU)", [of("mfu", "mfu")], {zero: true});
chart("Where each step's time went, seconds on rank 0", ["data", "forward", "backward", "wait", "optimizer"].map(n => of(n + "_seconds", n === "wait" ? "waiting for peers" : n)), {stacked: true, zero: true, wide: true});
if (run.waits.length > 1) chart("Waiting for peers, seconds a step", run.waits.map((points, rank) => ({name: "rank " + rank, points})).slice(0, 6), {zero: true, wide: true});
for (const text of run.samples) make("pre", card("What the model writes", true), text);
if (run.timeline.length) { const t = make("table", card("What happened", true)); for (const [when, what] of run.timeline) { const r = make("tr", t); make("td", r, when); make("td", r, what); } }
make("pre", card("Recipe"), run.recipe);
const facts = make("table", card("Where it ran")); for (const [k, v] of Object.entries(run.facts)) { const r = make("tr", facts); make("th", r, k); make("td", r, v); }
</script>
</html>
)html";

}  // namespace tutti::events
