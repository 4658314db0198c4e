// One status a second comes in as a stream and is shown by render(). Texts of the service are set as text, never as HTML.
"use strict";

const SPAN = 300; // seconds that a chart shows
const SILENCE = 3; // seconds without a status after which the values count as old
const HUNG = 10; // seconds without a status after which an open stream counts as dead
const WAITS = [1, 2, 4, 8]; // seconds before the next try
const CONFIRM = 4; // seconds in which a second click confirms
const PICTURES = 12;
const WINDOW = 1000; // images that the counts of classes are about

// ---- numbers and times as people read them

const MISSING = "–";

function number(value) {
  if (value === null || value === undefined) return MISSING;
  const size = Math.abs(value);
  if (size > 0 && size < 0.1) return value.toLocaleString("en", { maximumSignificantDigits: 2 });
  const digits = size === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const count = (value) => (value < 1e6 ? value.toLocaleString("en") : `${number(value / 1e6)} M`);
const plural = (value, one) => `${count(value)} ${one}${value === 1 ? "" : "s"}`;

function percent(share) {
  if (share > 0 && share < 0.01) return "< 1 %";
  return share < 1 && share > 0.99 ? "> 99 %" : `${Math.round(100 * share)} %`;
}

function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

const ago = (seconds) => (seconds < 1 ? "just now" : `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago`);
const clock = (time) => new Date(1000 * time).toLocaleTimeString("en-GB");
const day = (time) => new Date(1000 * time).toLocaleString("en-GB");

// ---- scales and paths

/** Round values from 0 to the first at or above `top`, three or four of them. */
function ticks(top) {
  const raw = top / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * (1 - 1e-9));
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** A line that breaks where a value is missing or points lie more than `reach` apart; a value alone becomes a dot. */
function strokes(xs, ys, reach) {
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

// ---- the document

const $ = (id) => document.getElementById(id);

function put(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text; // what did not change stays selected
}

function element(name, kind, ...content) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...content); // strings become text nodes
  return made;
}

function shape(name, attributes, ...content) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

function track(share) {
  const bar = element("span");
  bar.style.width = `${100 * Math.min(1, share)}%`;
  return element("span", "track", bar);
}

const filled = new Map();

/** Build a list anew, but only if its data changed: a list that is read, scrolled or marked keeps still. */
function fill(id, data, make) {
  const text = JSON.stringify(data);
  if (filled.get(id) === text) return;
  filled.set(id, text);
  $(id).replaceChildren(...data.map(make));
}

// ---- charts

const HEIGHT = 150, TOP = 14, BOTTOM = 20; // pixels: of the plot, above it for the signs, below it for the minutes
const SIGNS = { guard: "M0-5 5 4-5 4z", rollback: "M-5 0 4-5 4 5z", reset: "M-4-4h8v8h-8z" };
// least: what the scale covers at least, so that noise near zero stays small
const CHARTS = [
  { title: "Throughput", unit: "images/s", least: 5, lines: [["answered", "images_per_second"], ["shed", "shed", "bars"]] },
  { title: "Latency", unit: "ms", least: 5, lines: [["median", "p50_ms"], ["95th percentile", "p95_ms"]] },
  { title: "Entropy of the answers", unit: "nats", least: 0.5, lines: [["", "entropy"]] },
  { title: "Discrepancy to the source", unit: "", least: 0.05, lines: [["", "discrepancy"]] },
  { title: "Drift of the parameters", unit: "%", least: 0.1, factor: 100, lines: [["", "drift"]] },
];
const tip = element("div", "tip");
tip.hidden = true;
tip.setAttribute("role", "status");
let cursor = null; // what is read out: { chart, ago in seconds, y of the pointer or undefined }

function sign(kind) {
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

function pointAt(chart, seconds, y, live = "off") {
  if (!latest?.series.time.length) return;
  cursor = chart && { chart, y, ago: Math.max(0, Math.min(seconds, SPAN)) };
  tip.setAttribute("aria-live", live); // spoken for keys; not for a pointer, nor as time goes on
  drawCharts(latest);
}

function drawCharts({ series, events, served }) {
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
  if (any && known.length) parts.push(...drawLines(chart, lines, series.time.map(x), y));
  else parts.push(write((chart.left + right) / 2, (low + TOP) / 2, "middle", any ? "nothing in this time" : "no image yet"));
  chart.plot.replaceChildren(...parts);

  lines.forEach((values, i) => {
    const value = cursor ? values[cursor.index] : values.findLast((one) => one !== null);
    chart.texts[i].textContent = any ? number(value) : MISSING;
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

// ---- the whole page from one status

const MEANING = {
  adapting: "A step is under way.", waiting: "For images.", off: "This service does not adapt.",
  paused: "Images are answered, nothing is learned.", shedding: "Answers need the machine: images are not adapted to.",
};
let latest = null; // status
let heard = Date.now(); // when it came

const serviceNow = () => latest.started + latest.uptime + (Date.now() - heard) / 1000; // its clock may differ from ours

function render(status) {
  const { served, adaptation, checkpoint, classes, events } = status;
  const saved = ({ step, seconds_ago: past }) => (step === null ? "none yet" : `step ${count(step)} saved ${ago(past)}`);
  const guard = events.find(({ kind }) => kind === "guard");
  const texts = {
    version: status.version,
    uptime: duration(status.uptime),
    model: status.model,
    method: status.reduce === "none" ? status.method : `${status.method} + ${status.reduce}`,
    policy: adaptation.policy,
    state: adaptation.state,
    rate: number(served.images_per_second),
    "rate-more": `${plural(served.images, "image")} so far`,
    p50: number(served.p50_ms),
    "p50-more": served.p50_ms === null ? "no request yet" : `p95 ${number(served.p95_ms)}, p99 ${number(served.p99_ms)} ms`,
    step: count(adaptation.step),
    "step-more": `${plural(adaptation.images_waiting, "image")} for the next`,
    queue: count(served.queue),
    "queue-limit": `of ${count(served.queue_limit)}`,
    adapted: count(adaptation.images_adapted),
    "adapted-more": `${count(adaptation.images_shed)} shed`,
    guard: count(adaptation.guard_events),
    "guard-more": guard ? `last ${ago(serviceNow() - guard.time)}` : adaptation.guard_events ? "" : "no trouble so far",
    checkpoint: checkpoint ? `${saved(checkpoint)}, every ${checkpoint.every}` : "none are written",
    requests: count(served.requests),
    refused: Object.entries(served.refused).map(([reason, times]) => `${reason}: ${count(times)}`).join(", ") || "none",
    "last-step": adaptation.step_seconds === null ? "none yet"
      : `${number(adaptation.step_seconds)} s, loss ${number(adaptation.loss)}, entropy ${number(adaptation.entropy)} nats`,
    started: day(status.started),
  };
  for (const [id, text] of Object.entries(texts)) put(id, text);
  $("state").className = `badge ${adaptation.state}`;
  $("state").title = MEANING[adaptation.state];
  $("queue-bar").style.width = `${100 * Math.min(1, served.queue / served.queue_limit)}%`;
  $("queue-bar").className = served.queue > 0.8 * served.queue_limit ? "full" : "";

  const sum = (counts) => counts.reduce((total, one) => total + one.count, 0);
  const total = Math.max(sum(classes), Math.min(WINDOW, served.images)); // rare classes are not in the list
  fill("classes", classes.slice(0, 10).map((one) => [one.label, one.count / total]), ([label, share]) =>
    element("li", "", named(label), element("span", "", percent(share)), track(share)));
  const others = total - sum(classes.slice(0, 10));
  const rest = others ? ` All other classes: ${percent(others / total)}.` : "";
  put("classes-note", total ? `Of the last ${plural(total, "image")}.${rest}` : "No image yet.");
  if (pictures.shown[0] !== $("pictures").firstChild) $("pictures").replaceChildren(...pictures.shown);
  $("pictures-note").hidden = pictures.shown.length > 0;
  put("pictures-note", pictures.images ? "This service keeps no images." : "No image yet.");
  fill("events", events, eventLine);
  $("events-note").hidden = events.length > 0;
}

function named(label) {
  const name = element("span", "name", label);
  name.title = label; // it may be cut
  return name;
}

function eventLine({ time, kind, text }) {
  const when = element("time");
  when.title = day(time);
  when.dataset.at = time;
  const what = element("span", "what", ...(kind in SIGNS ? [sign(kind)] : []), kind);
  return element("li", kind, what, element("span", "text", text), when);
}

async function picture(one) {
  const image = element("img");
  image.alt = `taken for ${one.label}`;
  if (one.picture.startsWith("data:image/")) image.src = one.picture;
  await image.decode().catch(() => {}); // shown without a picture then
  image.classList.toggle("pixels", image.naturalWidth < 64);
  const facts = [percent(one.probability), `entropy ${number(one.entropy)}`, `step ${count(one.step)}`];
  const below = [named(one.label), track(one.probability), ...facts.map((fact) => element("span", "", fact))];
  return element("figure", "", image, element("figcaption", "", ...below));
}

function show() {
  $("page").hidden = false; // before the charts: what is hidden has no width
  tip.setAttribute("aria-live", "off");
  render(latest);
  drawCharts(latest);
  tellTime();
}

// ---- talking to the service

class Refused extends Error {} // with the words of the service

let stream = new AbortController(), alive = Date.now(); // when the stream was opened or last brought a status
let nextTry = 0, excuse = "";
let pictures = { number: 0, images: 0, shown: [] };

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const isLost = () => Date.now() - heard >= 1000 * SILENCE;
const asking = () => !$("key-form").hidden;

async function ask(where, options = {}) {
  const key = sessionStorage.getItem("navia-key");
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const reply = await fetch(where, { ...options, headers, cache: "no-store" });
  if (reply.ok) return reply;
  if (reply.status === 401 && !asking()) {
    put("key-title", key ? "This key was not accepted" : "This service asks for a key");
    $("key-form").hidden = false;
    $("key").focus();
  }
  const problem = await reply.json().catch(() => ({}));
  throw new Refused(problem.error ?? `The service answered with status ${reply.status}.`);
}

/** Server-sent events, read by hand because EventSource cannot send a key. Yields { event, data }. */
async function* readEvents(body) {
  const [reader, decoder] = [body.getReader(), new TextDecoder()];
  let text = "", event = "message", data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const lines = text.split(/\r\n|\n|\r(?!$)/); // a CR at the end may be half of a CRLF
    text = lines.pop();
    for (const line of lines) {
      const [, field, content] = line.match(/^([^:]*):? ?(.*)$/s); // a comment has an empty field
      if (field === "event") event = content;
      if (field === "data") data.push(content);
      if (line !== "") continue;
      if (data.length) yield { event, data: data.join("\n") };
      [event, data] = ["message", []];
    }
  }
}

function hear(status) {
  if (latest?.started !== status.started) pictures = { number: 0, images: 0, shown: [] }; // another process counts anew
  [latest, excuse, heard, alive] = [status, "", Date.now(), Date.now()];
  requestAnimationFrame(show); // not at once: a mistake in drawing must not pass for a lost contact
}

async function follow() {
  for (let tries = 0; ; tries++) {
    [stream, alive] = [new AbortController(), Date.now()];
    try {
      const reply = await ask("v1/events", { signal: stream.signal });
      for await (const { event, data } of readEvents(reply.body)) {
        if (event !== "status") continue;
        hear(JSON.parse(data));
        tries = 0;
      }
    } catch (error) {
      excuse = error instanceof Refused ? ` The service says: “${error.message}”.` : "";
    }
    stream.abort();
    if (asking()) {
      while (asking()) await sleep(0.2);
      [tries, heard] = [-1, Date.now()];
      continue;
    }
    const wait = WAITS[Math.min(tries, WAITS.length - 1)];
    nextTry = Date.now() + 1000 * wait;
    await sleep(wait);
  }
}

function tellTime() {
  if (Date.now() - alive > 1000 * HUNG) stream.abort();
  const [silent, lost] = [(Date.now() - heard) / 1000, isLost()];
  document.body.classList.toggle("lost", lost);
  $("notice").hidden = asking() || Boolean(latest?.ready && !lost);
  put("contact", lost ? "No contact" : latest ? "Not ready" : "Connecting");
  const next = nextTry > Date.now() ? ` Next try in ${Math.ceil((nextTry - Date.now()) / 1000)} s.` : " Trying now.";
  const old = latest ? ` All that is shown is from ${clock(heard / 1000)}.` : "";
  put("contact-details", lost ? `for ${duration(silent)}.${excuse}${next}${old}` : latest ? "yet." : "…");
  setButtons();
  if (!latest) return;
  document.title = `${lost ? "no contact" : latest.adaptation.state} · ${latest.model} · navia`;
  for (const time of document.querySelectorAll("time[data-at]")) time.textContent = ago(serviceNow() - time.dataset.at);
}

/** Pictures are asked for only when someone looks and images were answered since. */
async function lookForPictures() {
  if (document.hidden || !latest || isLost() || asking() || latest.served.images === pictures.images) return;
  const [mine, images] = [pictures, latest.served.images];
  const reply = await ask(`v1/recent?after=${mine.number}`, { signal: AbortSignal.timeout(1000 * HUNG) });
  const newer = (await reply.json()).images;
  mine.images = images;
  mine.shown = [...(await Promise.all(newer.map(picture))), ...mine.shown].slice(0, PICTURES);
  mine.number = Math.max(mine.number, ...newer.map((one) => one.number));
  show();
}

// ---- buttons: what cannot be undone is asked for twice

const BUTTONS = {
  pause: { words: () => (latest?.adaptation.state === "paused" ? "Resume" : "Pause") },
  rollback: { words: () => "Roll back", sure: "Roll back?", means: "go back to an earlier state" },
  reset: { words: () => "Reset", sure: "Reset?", means: "forget all that was learned" },
};
let busy = false, armed = null, disarm = 0;

function setButtons() {
  for (const [id, { words, sure }] of Object.entries(BUTTONS)) {
    put(id, armed === id ? sure : words());
    $(id).classList.toggle("armed", armed === id);
    const idle = id === "pause" && latest?.adaptation.state === "off";
    $(id).disabled = busy || idle || !latest || isLost();
  }
}

function arm(id) {
  clearTimeout(disarm);
  if (armed && !id) say("");
  armed = id;
  if (id) disarm = setTimeout(arm, 1000 * CONFIRM, null);
  setButtons();
}

function say(text, error = false) {
  put("said", text);
  $("said").classList.toggle("error", error);
}

async function press(id, event) {
  const { words, sure, means } = BUTTONS[id];
  if (sure && armed !== id) {
    arm(id);
    say(`Press again within ${CONFIRM} s to ${means}.`);
    return;
  }
  if (sure && event.detail > 1) return; // the second half of a double click is no second thought
  const action = id === "pause" ? words().toLowerCase() : id;
  busy = true;
  arm(null);
  say("…");
  try {
    const { state, step, text } = await (await ask(`v1/${action}`, { method: "POST" })).json();
    say(text);
    latest = { ...latest, adaptation: { ...latest.adaptation, state, step } }; // sooner than the next status
  } catch (error) {
    say(error instanceof Refused ? error.message : "The service could not be reached.", true);
  }
  busy = false;
  show();
  if (document.activeElement === document.body) $(id).focus({ preventScroll: true }); // a disabled button loses it
}

// ---- start

for (const id of Object.keys(BUTTONS)) {
  $(id).addEventListener("click", (event) => press(id, event));
  $(id).addEventListener("keydown", (event) => event.repeat && event.preventDefault()); // a key held down confirms nothing
}
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("navia-key", $("key").value);
  $("key-form").reset();
  $("key-form").hidden = true;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  pointAt(null);
  arm(null);
});
document.addEventListener("pointerdown", (event) => cursor && !event.target.closest(".plot") && pointAt(null));
document.addEventListener("scroll", () => {
  // the tab key scrolls to what it reaches: the tip of that goes along, one under a pointer is left behind
  if (cursor) cursor.y === undefined ? drawCharts(latest) : pointAt(null);
}, { passive: true });
$("charts").append(...CHARTS.map(buildChart));
$("marks").append(...Object.keys(SIGNS).map((kind) => element("li", "", sign(kind), ` ${kind}`)));
document.body.append(tip);
new ResizeObserver(() => latest && drawCharts(latest)).observe($("charts"));
setInterval(tellTime, 500);
tellTime();
follow();
(async () => {
  for (;;) await sleep(2).then(lookForPictures).catch(() => {}); // a lost contact is told elsewhere
})();
