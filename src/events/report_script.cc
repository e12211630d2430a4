#include "events/report_page.h"

namespace tutti::events {

const char* const report_script = R"js("use strict";
const run = JSON.parse(document.getElementById("data").textContent), sum = run.summary;
const color = i => `var(--c${i % 7})`;
function el(tag, parent, text, cls) {  // Text only ever as text: nothing in the data becomes markup.
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  if (parent) parent.append(e);
  return e;
}
function svg(tag, parent, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.append(e);
  return e;
}

// ---- numbers
const trim = text => text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
function short(v) {
  if (v == null) return "\u2013";
  const a = Math.abs(v);
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "K"]])
    if (a >= size) return trim((v / (unit === "K" ? 1e3 : size)).toPrecision(3)) + unit;
  if (a >= 1000) return v.toFixed(0);
  return a >= 0.001 || a === 0 ? trim(v.toPrecision(4)) : trim(v.toExponential(2));
}
const percent = v => v == null ? "\u2013" : (100 * v).toFixed(v < 0.0995 && v > 0 ? 1 : 0) + "%";
const seconds = v => v >= 1 ? trim(v.toPrecision(3)) + " s" : v >= 1e-3 || v === 0 ? trim((1e3 * v).toPrecision(3)) + " ms" : trim((1e6 * v).toPrecision(3)) + " \u00b5s";
function span(v) {
  if (v == null) return "\u2013";
  if (v < 60) return v.toFixed(1) + " s";
  return v < 3600 ? Math.floor(v / 60) + "m " + String(Math.floor(v % 60)).padStart(2, "0") + "s"
                  : Math.floor(v / 3600) + "h " + String(Math.floor(v % 3600 / 60)).padStart(2, "0") + "m";
}
function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find(m => m * power >= raw * 0.999) * power, list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) list.push(+(i * step).toPrecision(12));
  return list;
}
const step_ticks = (low, high, w) => low === high ? [low] : ticks(low, high, Math.min(Math.max(2, w / 110), high - low));
const log_ticks = (low, high) => {
  const list = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
    for (const m of high / low > 100 ? [1] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8])
      if (m * 10 ** e >= low && m * 10 ** e <= high) list.push(m * 10 ** e);
  return list;
};

// ---- the frame of a page
const grid = document.getElementById("grid");
function card(title, wide, parent = grid) {
  const box = el("section", parent, undefined, "card" + (wide ? " wide" : "")), head = el("div", box, undefined, "head");
  el("h2", head, title);
  return {box, head, legend: el("div", head, undefined, "legend"), tools: el("div", head, undefined, "tools")};
}
function key(legend, i, text) { const e = el("span", legend); el("i", e).style.background = color(i); e.append(text); }
function toggle(tools, text, change) {
  const b = el("button", tools, text);
  b.type = "button"; b.setAttribute("aria-pressed", "false");
  b.onclick = () => { const on = b.getAttribute("aria-pressed") !== "true"; b.setAttribute("aria-pressed", on); change(on); };
}

// A plot area of that height: paint(g, w, h) draws into it, again whenever the width changes;
// told(x) gives [x in pixels, title, [[colour, name, text]]] for the pointer's place.
function plot(box, height, label, paint, told) {
  const holder = el("div", box, undefined, "plot"), root = svg("svg", holder, {height, role: "img", "aria-label": label});
  const tip = el("div", holder, undefined, "tip");
  let cross = null;
  tip.hidden = true;
  const hide = () => { tip.hidden = true; if (cross) cross.remove(); cross = null; };
  const draw = () => { hide(); root.replaceChildren(); const w = holder.clientWidth || 520; root.setAttribute("viewBox", `0 0 ${w} ${height}`); paint(root, w, height); };
  root.onpointermove = root.onpointerdown = event => {
    const box = root.getBoundingClientRect(), found = told(event.clientX - box.left, box.width);
    if (!found) return hide();
    const [x, title, rows] = found;
    if (!cross) cross = svg("line", root, {class: "cross", y1: 8, y2: height - 24});
    cross.setAttribute("x1", x); cross.setAttribute("x2", x);
    tip.hidden = false; tip.replaceChildren();
    el("b", tip, title);
    for (const [i, name, text] of rows) { const row = el("div", tip); el("i", row).style.background = color(i); row.append(name); el("em", row, text); }
    tip.style.left = (x + 14 + tip.offsetWidth > box.width ? Math.max(0, x - 14 - tip.offsetWidth) : x + 14) + "px";
  };
  root.onpointerleave = hide;
  new ResizeObserver(draw).observe(holder);
  return draw;
}
function axes(g, w, h, scale, xs, ys, say) {
  for (const v of ys) {
    svg("line", g, {class: "rule", x1: scale.left, x2: w - scale.right, y1: scale.y(v), y2: scale.y(v)});
    svg("text", g, {x: scale.left - 8, y: scale.y(v) + 4, "text-anchor": "end"}, say(v));
  }
  for (const v of xs) svg("text", g, {x: scale.x(v), y: h - 6, "text-anchor": "middle"}, short(v));
}
const nearest = (points, x) => {  // by binary search; points rise in [0]
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const mid = low + high >> 1; if (points[mid][0] <= x) low = mid; else high = mid; }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? low : high;
};
function smoothed(points, weight) {  // exponential means from both sides: no lag, no pull to zero
  const pass = list => { let mean = 0, mass = 0; return list.map(p => { mean = weight * mean + (1 - weight) * p[1]; mass = weight * mass + 1 - weight; return mean / mass; }); };
  const ahead = pass(points), back = pass([...points].reverse()).reverse();
  return points.map((p, k) => [p[0], (ahead[k] + back[k]) / 2]);
}

// Lines over steps. A point is [step, mean] or, where many steps share it, [step, mean, low, high].
function lines(title, series, options = {}) {
  series = series.map((one, i) => ({...one, i: one.i ?? i})).filter(one => one.points && one.points.length);
  if (!series.length) return;
  const {box, legend, tools} = card(title, options.wide), say = options.say || short;
  if (series.length > 1) for (const one of series) key(legend, one.i, one.name);
  const positive = series.every(one => one.points.every(p => p[1] > 0)), longest = Math.max(...series.map(one => one.points.length));
  let log = false, weight = options.smooth && longest >= 60 ? 0.6 : 0, scale, shown;
  const x0 = Math.min(...series.map(one => one.points[0][0])), x1 = Math.max(...series.map(one => one.points.at(-1)[0]));
  function paint(g, w, h) {
    let y0 = Infinity, y1 = -Infinity;
    for (const one of series) for (const p of one.points) { y0 = Math.min(y0, p[2] ?? p[1]); y1 = Math.max(y1, p[3] ?? p[1]); }
    if (log && y0 <= 0) y0 = Math.min(...series.flatMap(one => one.points.map(p => p[1])));
    if (options.zero && !log) { y0 = Math.min(0, y0); if (y1 > 0) y1 *= 1.06; } else if (!log) { const pad = (y1 - y0) * 0.05; y0 -= pad; y1 += pad; }
    if (y0 === y1) { const pad = Math.abs(y0) * 0.1 || 1; if (log) { y0 /= 1.1; y1 *= 1.1; } else { y0 -= pad; y1 += pad; } }
    const left = 54, right = 14, top = 8, bottom = 24, f = log ? Math.log : v => v;
    scale = {left, right, x: v => left + (x1 === x0 ? 0.5 : (v - x0) / (x1 - x0)) * (w - left - right),
             y: v => h - bottom - (f(Math.max(v, log ? y0 : v)) - f(y0)) / (f(y1) - f(y0)) * (h - top - bottom)};
    axes(g, w, h, scale, step_ticks(x0, x1, w), log ? log_ticks(y0, y1) : ticks(y0, y1, 4), say);
    shown = series.map(one => weight && one.points.length >= 60 ? smoothed(one.points, weight) : one.points);
    const path = points => points.map((p, k) => (k ? "L" : "M") + scale.x(p[0]).toFixed(1) + " " + scale.y(p[1]).toFixed(1)).join("");
    series.forEach((one, k) => {
      const c = color(one.i);
      if (one.points[0].length > 2) {
        const up = one.points.map(p => [p[0], p[3]]), down = one.points.map(p => [p[0], p[2]]).reverse();
        svg("path", g, {d: path(up) + path(down).replace("M", "L") + "Z", fill: c, opacity: 0.14});
      }
      if (shown[k] !== one.points) svg("path", g, {d: path(one.points), fill: "none", stroke: c, opacity: 0.25});
      svg("path", g, {d: path(shown[k]), fill: "none", stroke: c, "stroke-width": 2, "stroke-linejoin": "round", "stroke-linecap": "round"});
      if (one.points.length <= 40) for (const p of shown[k]) svg("circle", g, {cx: scale.x(p[0]), cy: scale.y(p[1]), r: 3, fill: c});
    });
  }
  const told = (px, w) => {
    const x = x0 + (px - scale.left) / Math.max(1, w - scale.left - scale.right) * (x1 - x0);
    const main = series.reduce((a, b) => b.points.length > a.points.length ? b : a), at = main.points[nearest(main.points, x)][0];
    return [scale.x(at), "step " + at.toLocaleString("en"), series.map((one, k) => {
      const n = nearest(one.points, at), p = one.points[n], off = p[0] !== at && main.points.length !== one.points.length ? ` (step ${p[0]})` : "";
      return [one.i, one.name + off, say(p[1]) + (p.length > 2 && p[2] !== p[3] ? `  [${say(p[2])}, ${say(p[3])}]` : "") + (shown[k] !== one.points ? "  ~ " + say(shown[k][n][1]) : "")];
    })];
  };
  const draw = plot(box, options.wide ? 300 : 210, title, paint, told);
  if (options.smooth && longest >= 60) {
    const label = el("label", tools, "smooth", "smooth"), range = el("input", label);
    range.type = "range"; range.min = 0; range.max = 0.99; range.step = 0.01; range.value = weight;
    range.oninput = () => { weight = +range.value; draw(); };
  }
  if (positive && !options.zero || options.log) toggle(tools, "log", on => { log = on; draw(); });
}

// Where each step's time went: areas on top of each other, in seconds or in shares.
function stack(title, parts) {
  if (!parts.steps.length) return;
  const {box, legend, tools} = card(title, true), n = parts.steps.length, total = parts.steps.map((_, k) => parts.values.reduce((a, v) => a + v[k], 0));
  const all = total.reduce((a, b) => a + b, 0) || 1, xs = parts.steps, order = parts.names.map((name, i) => i);
  for (const i of order) key(legend, i, `${parts.names[i]} ${percent(parts.values[i].reduce((a, b) => a + b, 0) / all)}`);
  let share = false, scale;
  function paint(g, w, h) {
    const sorted = [...total].sort((a, b) => a - b), most = sorted.at(-1), usual = sorted[Math.floor(0.98 * (n - 1))];
    const top = share ? 1 : (most > 3 * usual && usual > 0 ? usual * 1.6 : most * 1.06) || 1, left = 54, right = 14;
    const x0 = xs[0], x1 = xs.at(-1), y = v => h - 24 - Math.min(v / top, 1) * (h - 32);
    scale = {left, right, y, x: v => left + (x1 === x0 ? 0.5 : (v - x0) / (x1 - x0)) * (w - left - right)};
    const base = new Array(n).fill(0);
    for (const i of order) {
      const lower = base.map((b, k) => [xs[k], b]);
      for (let k = 0; k < n; ++k) base[k] += parts.values[i][k] / (share ? total[k] || 1 : 1);
      const edge = list => list.map(p => scale.x(p[0]).toFixed(1) + " " + y(p[1]).toFixed(1)).join("L");
      if (n === 1) svg("rect", g, {x: scale.x(x0) - 30, width: 60, y: y(base[0]), height: Math.max(0, y(lower[0][1]) - y(base[0])), fill: color(i)});
      else svg("path", g, {d: "M" + edge(base.map((b, k) => [xs[k], b])) + "L" + edge(lower.reverse()) + "Z", fill: color(i), opacity: 0.85});
    }
    axes(g, w, h, scale, step_ticks(x0, x1, w), ticks(0, top, 4), share ? percent : seconds);
  }
  const draw = plot(box, 260, title, paint, (px, w) => {
    const x = xs[0] + (px - scale.left) / Math.max(1, w - scale.left - scale.right) * (xs.at(-1) - xs[0]), k = nearest(xs.map(s => [s]), x);
    const rows = order.map(i => [i, parts.names[i], seconds(parts.values[i][k]) + "  " + percent(parts.values[i][k] / (total[k] || 1))]).reverse();
    return [scale.x(xs[k]), `step ${xs[k].toLocaleString("en")}: ${seconds(total[k])}`, rows];
  });
  toggle(tools, "shares", on => { share = on; draw(); });
}

function workers(list, count) {
  if (!list.length || !list.some(one => one.step > 0)) return;
  const {box, legend} = card("Workers: seconds a step, mean over the run", true), most = Math.max(...list.map(one => one.step)) || 1;
  key(legend, 0, "working"); key(legend, 3, "waiting for peers");
  const bars = el("div", el("div", box, undefined, "scroll"), undefined, "bars");
  for (const one of list) {
    el("span", bars, "rank " + one.rank);
    const bar = el("div", bar_holder(bars), undefined, "bar"), part = (v, i) => { const e = el("i", bar); e.style.width = 100 * v / most + "%"; e.style.background = color(i); };
    part(Math.max(0, one.step - one.wait), 0); part(one.wait, 3);
    bar.title = `${seconds(one.step)} a step, of it ${seconds(one.wait)} waiting`;
    el("span", bars, `${seconds(one.step)}, waits ${percent(one.step ? one.wait / one.step : 0)}`);
  }
  if (count > list.length) el("p", box, `The first ${list.length} of ${count} workers.`, "sub");
}
const bar_holder = parent => el("div", parent);

// ---- the page
document.title = run.name + " \u2013 Tutti";
el("h1", document.getElementById("top"), run.name);
const ended = sum.exit == null ? ["warn", "under way"] : sum.exit === 0 ? ["", "finished"] : sum.exit === 130 ? ["warn", "interrupted"] : ["bad", "failed, exit code " + sum.exit];
el("span", document.getElementById("top"), ended[1], "pill " + ended[0]);
el("div", document.getElementById("top"), run.subtitle, "sub");
for (const [value, label] of [[short(sum.loss), "training loss"], [sum.validation_loss == null ? null : short(sum.validation_loss), "validation loss"],
    [sum.nats_per_byte == null ? null : short(sum.nats_per_byte), "nats per byte"], [short(sum.tokens_per_second), "tokens/s"],
    [sum.mfu ? percent(sum.mfu) : null, "MFU"], [span(sum.seconds), "duration"], [sum.steps == null ? null : sum.steps.toLocaleString("en"), "steps"],
    [sum.tokens == null ? null : short(sum.tokens), "tokens seen"], [sum.workers == null ? null : sum.workers, "workers"],
    [sum.exposed == null ? null : percent(sum.exposed), "exposed communication"]])
  if (value !== null) { const tile = el("div", document.getElementById("tiles"), undefined, "tile"); el("b", tile, value); el("span", tile, label); }

const of = (name, label, i) => ({name: label, points: run.series[name], i});
lines("Loss", [of("loss", "training"), of("validation_loss", "validation")], {wide: true, smooth: true});
lines("Learning rate", [of("lr", "learning rate", 2)], {zero: true});
lines("Gradient norm, before clipping", [of("grad_norm", "norm", 3)], {smooth: true});
lines("Tokens a second", [of("tokens_per_second", "tokens/s", 0)], {zero: true, smooth: true});
lines("Model flops utilisation (MFU)", [of("mfu", "MFU", 1)], {zero: true, say: percent, smooth: true});
stack("Where each step's time went, on rank 0", run.parts);
for (const name of run.more) lines(name.replaceAll("_", " "), [of(name, name, 4)], {smooth: true});
workers(run.ranks, run.rank_count);
if (run.samples.length) {
  const {box, tools} = card("What the model writes", true), text = el("pre", box), show = k => { text.textContent = run.samples[k].text; };
  if (run.samples.length > 1) {
    const pick = el("select", tools);
    pick.setAttribute("aria-label", "step");
    run.samples.forEach((one, k) => { el("option", pick, "after step " + one.step).value = k; });
    pick.value = run.samples.length - 1; pick.onchange = () => show(+pick.value);
  } else el("span", tools, "after step " + run.samples[0].step, "legend");
  show(run.samples.length - 1);
}
if (run.recipe) {
  const text = el("pre", card("Recipe, as resolved").box);
  for (const line of run.recipe.split("\n")) {
    const [, indent, name, rest] = line.match(/^([\s-]*)([\w.-]+:)(.*)$/) || [null, "", "", line], note = rest.search(/(^|\s)#/);
    text.append(indent); if (name) el("span", text, name, "k");
    text.append(note < 0 ? rest : rest.slice(0, note)); if (note >= 0) el("span", text, rest.slice(note), "n");
    text.append("\n");
  }
}
const column = el("div", grid, undefined, "column");
if (run.timeline.length) {
  const rows = el("table", el("div", card("What happened", false, column).box, undefined, "scroll"));
  for (const one of run.timeline) { const row = el("tr", rows); el("td", row, one.at, "t"); const what = el("td", row); el("span", what, undefined, "dot " + one.kind); what.append(one.text); }
}
const facts = Object.entries(run.facts);
if (facts.length) { const table = el("table", card("Where it ran", false, column).box); for (const [name, value] of facts) { const row = el("tr", table); el("th", row, name.replaceAll("_", " ")); el("td", row, value); } }
)js";

}  // namespace tutti::events
