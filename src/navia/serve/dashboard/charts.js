// The charts of the last minutes, and what is read out of them by pointer or key.

import { $, element, shape } from "./elements.js";
import { MISSING, clock, count, duration, number, plural } from "./format.js";

const SPAN = 300; // seconds that a chart shows

// ---- scales and paths

/** Round values from 0 to the first at or above `top`, three or four of them. */
export function ticks(top) {
  const raw = top / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * (1 - 1e-9));
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** A line that breaks where a value is missing or points lie more than `reach` apart; a value alone becomes a dot. */
export function strokes(xs, ys, reach) {
  const runs = [[]];
  ys.forEach((y, i) => {
    if (y === null || xs[i] - xs[i - 1] > reach) runs.push([]);
    if (y !== null) runs.at(-1).push(`${xs[i].toFixed(1)},${y.toFixed(1)}`);
  });
  return {
    line: runs.filter((run) => run.length > 1).map((run) => `M${run.join("L")}`).join(""),
    dots: runs.filter((run) => run.length === 1).map(([point]) => `M${point}h0`).join(""), // drawn by its round ends
  };
}

function nearest(values, wanted) {
  return values.reduce((best, value, i) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? i : best), 0);
}

// ---- charts

const HEIGHT = 150, TOP = 14, BOTTOM = 20; // pixels: of the plot, above it for the signs, below it for the minutes
export const SIGNS = { guard: "M0-5 5 4-5 4z", rollback: "M-5 0 4-5 4 5z", reset: "M-4-4h8v8h-8z" };
// least: what the scale covers at least, so that noise near zero stays small
const CHARTS = [
  { title: "Throughput", unit: "images/s", least: 5, lines: [["images", "images_per_second"], ["shed", "shed", "bars"]] },
  { title: "Latency", unit: "ms", least: 5, lines: [["median", "p50_ms"], ["95th percentile", "p95_ms"]] },
  { title: "Prediction entropy", unit: "nats", least: 0.5, lines: [["", "entropy"]] },
  { title: "Discrepancy to the source", unit: "", least: 0.05, lines: [["", "discrepancy"]] },
  { title: "Drift of the parameters", unit: "%", least: 0.1, factor: 100, lines: [["", "drift"]] },
];
const tip = element("div", "tip");
tip.hidden = true;
tip.setAttribute("role", "status");
let drawn = null; // the status that the charts show
let cursor = null; // what is read out: { chart, ago in seconds, y of the pointer or undefined }

export function sign(kind) {
  const drawn = shape("path", { class: `sign ${kind}`, d: SIGNS[kind] });
  return shape("svg", { class: "sign-box", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, drawn);
}

function buildChart(chart) {
  chart.texts = chart.lines.map(() => element("b"));
  const keys = chart.lines.map(([name], i) => element("li", "", element("span", `key c${i}`), `${name} `, chart.texts[i]));
  const plot = shape("svg", { class: "plot", role: "img", tabindex: "0" });
  const move = (event) => {
    const box = plot.getBoundingClientRect();
    pointAt(chart, (SPAN * (box.right - event.clientX)) / (box.width - chart.left), event.clientY);
  };
  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerdown", move);
  // a finger that is lifted leaves too, but what it touched is still being read
  plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && pointAt(null));
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && pointAt(chart, 0, undefined, "polite"));
  plot.addEventListener("blur", () => pointAt(null));
  plot.addEventListener("keydown", (event) => {
    const back = { ArrowLeft: 1, ArrowRight: -1, PageUp: 30, PageDown: -30, Home: SPAN, End: -SPAN }[event.key];
    if (back === undefined) return;
    event.preventDefault();
    pointAt(chart, (cursor?.ago ?? 0) + back, undefined, "polite");
  });
  chart.plot = plot;
  const title = element("span", "", `${chart.title} `, element("small", "", chart.unit));
  return element("figure", "", element("figcaption", "head", title, element("ul", "legend", ...keys)), plot);
}

/** Read out one moment of a chart in all of them; null: none. */
export function pointAt(chart, seconds, y, live = "off") {
  if (!drawn?.series.time.length) return;
  cursor = chart && { chart, y, ago: Math.max(0, Math.min(seconds, SPAN)) };
  tip.setAttribute("aria-live", live); // spoken for keys; not for a pointer, nor as time goes on
  draw(drawn);
}

export function drawCharts(status) {
  drawn = status;
  tip.setAttribute("aria-live", "off");
  draw(drawn);
}

function draw({ series, events, served }) {
  const end = series.time.at(-1) ?? 0;
  if (cursor) cursor.index = nearest(series.time, end - cursor.ago);
  if (cursor) cursor.ago = end - series.time[cursor.index];
  const marks = events.filter(({ kind, time }) => kind in SIGNS && time > end - SPAN && time < end + 2);
  for (const chart of CHARTS) drawChart(chart, series, end, marks, served.images > 0);
  tip.hidden = !cursor;
  if (cursor) drawTip(cursor, series, marks);
}

function drawChart(chart, series, end, marks, any) {
  const lines = chart.lines.map(([, field]) => series[field].map((value) => value && value * (chart.factor ?? 1)));
  const known = lines.flat().filter((value) => value !== null);
  const empty = !any && !known.some((value) => value > 0); // a restart knows how far its parameters moved before
  const levels = ticks(Math.max(chart.least, ...known));
  const labels = levels.map((level) => level.toLocaleString("en"));
  const [right, low] = [chart.plot.clientWidth - 1, HEIGHT - BOTTOM];
  chart.left = Math.max(30, 10 + 7 * Math.max(...labels.map((label) => label.length)));
  const x = (time) => right - ((end - time) / SPAN) * (right - chart.left);
  const y = (value) => low - (value / levels.at(-1)) * (low - TOP);
  const write = (at, height, anchor, text) => shape("text", { x: at, y: height, "text-anchor": anchor }, text);

  const parts = levels.flatMap((level, i) => [
    shape("line", { class: i ? "grid" : "base", x1: chart.left, x2: right, y1: y(level), y2: y(level) }),
    write(chart.left - 7, y(level) + 4, "end", labels[i]),
  ]);
  parts.push(...[4, 3, 2, 1].map((back) => write(x(end - 60 * back), HEIGHT - 4, "middle", `−${back} min`)));
  parts.push(write(right, HEIGHT - 4, "end", "now"));
  for (const { kind, time } of marks) {
    parts.push(shape("line", { class: "event", x1: x(time), x2: x(time), y1: TOP, y2: low }));
    parts.push(shape("path", { class: `sign ${kind}`, d: SIGNS[kind], transform: `translate(${x(time)} ${TOP - 7})` }));
  }
  if (!empty && known.length) parts.push(...drawLines(chart, lines, series.time.map(x), y));
  else parts.push(write((chart.left + right) / 2, (low + TOP) / 2, "middle", any ? "nothing in this time" : "no image yet"));
  chart.plot.replaceChildren(...parts);

  lines.forEach((values, i) => {
    const value = cursor ? values[cursor.index] : values.findLast((one) => one !== null);
    chart.texts[i].textContent = empty ? MISSING : number(value);
  });
  const told = chart.lines.map(([name], i) => `${name} ${chart.texts[i].textContent} ${chart.unit}`.trim()).join(", ");
  chart.plot.setAttribute("aria-label", `${chart.title}, last five minutes: ${told}. ${plural(marks.length, "mark")}.`);
}

function drawLines(chart, lines, xs, y) {
  const second = (xs.at(-1) - chart.left) / SPAN;
  const parts = lines.flatMap((values, i) => {
    if (chart.lines[i][2] === "bars") { // so many in that second; none is no bar
      const d = values.map((v, at) => (v && xs[at] >= chart.left ? `M${xs[at]},${y(0)}V${y(v)}` : "")).join("");
      return [shape("path", { class: `bars c${i}`, d, "stroke-width": second + 1 })]; // without slits
    }
    const { line, dots } = strokes(xs, values.map((v, at) => (v === null || xs[at] < chart.left ? null : y(v))), 6 * second);
    return [shape("path", { class: `line c${i}`, d: line }), shape("path", { class: `line dots c${i}`, d: dots })];
  });
  if (!cursor) return parts;
  const cx = xs[cursor.index];
  const seen = lines.map((values, i) => [values[cursor.index], i]).filter(([value]) => value !== null);
  return [...parts, shape("line", { class: "guide", x1: cx, x2: cx, y1: TOP, y2: y(0) }),
    ...seen.map(([value, i]) => shape("circle", { class: `dot c${i}`, cx, cy: y(value), r: 4 }))];
}

function drawTip({ chart, index, ago: seconds, y }, series, marks) {
  const time = series.time[index];
  const near = marks.filter((mark) => Math.abs(mark.time - time) < 3);
  const row = (name, value) => element("div", "", element("span", "", name), element("span", "", value));
  tip.replaceChildren(
    element("b", "", `${seconds < 1 ? "now" : `${duration(seconds)} ago`}, ${clock(time)}`),
    ...chart.lines.map(([name], i) => row(name || chart.title, `${chart.texts[i].textContent} ${chart.unit}`)),
    row("step", count(series.step[index])),
    ...near.map(({ kind, text }) => element("p", "", sign(kind), ` ${kind}: ${text}`)),
  );
  const box = chart.plot.getBoundingClientRect();
  const x = box.right - (seconds / SPAN) * (box.width - chart.left);
  const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
  const left = x + 14 > room ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = `${Math.max(4, Math.min(left, room))}px`;
  tip.style.top = `${Math.max(4, (y ?? box.top + 60) - tip.offsetHeight - 14)}px`;
}

// ---- start

$("charts").append(...CHARTS.map(buildChart));
$("marks").append(...Object.keys(SIGNS).map((kind) => element("li", "", sign(kind), ` ${kind}`)));
document.body.append(tip);
document.addEventListener("pointerdown", (event) => cursor && !event.target.closest(".plot") && pointAt(null));
document.addEventListener("scroll", () => {
  // the tab key scrolls to what it reaches: the tip of that goes along, one under a pointer is left behind
  if (cursor) cursor.y === undefined ? draw(drawn) : pointAt(null);
}, { passive: true });
new ResizeObserver(() => drawn && draw(drawn)).observe($("charts"));
