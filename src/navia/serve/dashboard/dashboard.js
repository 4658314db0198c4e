// One status a second comes in as a stream and is shown by render(). Texts of the service are set as text, never as HTML.
"use strict";

const SPAN = 300; // seconds that a chart shows
const SILENCE = 3; // seconds without a status after which the values count as old
const HUNG = 10; // seconds without a status after which an open stream counts as dead
const WAITS = [1, 2, 4, 8]; // seconds before the next try
const CONFIRM = 4; // seconds in which a second click confirms
const PICTURES = 12;

// ---- numbers and times as people read them

const MISSING = "–";

function number(value) {
  if (value === null || value === undefined) return MISSING;
  const size = Math.abs(value);
  if (size > 0 && size < 0.1) return value.toLocaleString("en", { maximumSignificantDigits: 2 });
  const digits = size === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function count(value) {
  return value < 1e6 ? value.toLocaleString("en") : `${number(value / 1e6)} M`;
}

function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

function milliseconds(value) {
  if (value === null) return [MISSING, "ms"];
  return value < 10_000 ? [number(value), "ms"] : [number(value / 1000), "s"];
}

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

function ago(seconds) {
  return seconds < 1 ? "just now" : `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}

function clock(time) {
  return new Date(1000 * time).toLocaleTimeString("en-GB");
}

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

const SIGNS = { guard: "M0-5 5 4-5 4z", rollback: "M-5 0 4-5 4 5z", reset: "M-4-4h8v8h-8z" };
const HEIGHT = 156, TOP = 14, BOTTOM = 20;

const CHARTS = [
  { title: "Throughput", unit: "images/s", least: 5, lines: [["answered", "images_per_second", "c2"], ["not adapted to", "shed", "c1"]] },
  { title: "Latency", unit: "ms", least: 5, lines: [["median", "p50_ms", "c2"], ["95th percentile", "p95_ms", "c1"]] },
  { title: "Entropy of the answers", unit: "nats", least: 0.5, lines: [["mean", "entropy", "c2"]] },
  { title: "Discrepancy to the source", unit: "", least: 0.05, lines: [["CLS statistics", "discrepancy", "c2"]] },
  { title: "Parameter drift", unit: "% of their size", least: 0.1, factor: 100, lines: [["tuned parameters", "drift", "c2"]] },
];

let cursor = null; // what is read out: a chart, so many seconds ago
const tip = element("div", "tip");

function sign(kind) {
  return shape("svg", { class: "sign-box", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, shape("path", { class: `sign ${kind}`, d: SIGNS[kind] }));
}

function buildChart(chart) {
  chart.values = chart.lines.map(() => element("b"));
  const keys = chart.lines.map(([name, , kind], i) => element("li", "", element("span", `key ${kind}`), `${name} `, chart.values[i]));
  chart.plot = shape("svg", { class: "plot", role: "img", tabindex: "0" });
  const move = (event) => {
    if (!latest?.series.time.length) return;
    const x = event.clientX - chart.plot.getBoundingClientRect().left;
    pointAt(chart, SPAN * (1 - (x - chart.left) / (chart.plot.clientWidth - chart.left)), event.clientY);
  };
  chart.plot.addEventListener("pointermove", move);
  chart.plot.addEventListener("pointerdown", move);
  // a finger that is lifted leaves too, but what it touched is still being read
  chart.plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && pointAt(null));
  chart.plot.addEventListener("focus", () => chart.plot.matches(":focus-visible") && pointAt(chart, 0, undefined, true));
  chart.plot.addEventListener("blur", () => pointAt(null));
  chart.plot.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: 1, ArrowRight: -1, PageUp: 30, PageDown: -30, Home: SPAN, End: -SPAN }[event.key];
    if (steps === undefined || !latest?.series.time.length) return;
    event.preventDefault();
    pointAt(chart, (cursor?.ago ?? 0) + steps, undefined, true);
  });
  return element("figure", "", element("figcaption", "", `${chart.title} `, element("span", "", chart.unit)), element("ul", "legend", ...keys), chart.plot);
}

function pointAt(chart, seconds, y, spoken = false) {
  cursor = chart && { chart, y, ago: Math.max(0, Math.min(seconds, SPAN)) };
  if (latest) drawCharts(latest);
  if (!cursor) return;
  // the ticking of the numbers below a resting cursor is not worth a word
  tip.setAttribute("aria-live", spoken ? "polite" : "off");
}

function drawCharts({ series, events, served }) {
  const end = series.time.at(-1) ?? 0;
  if (cursor) {
    cursor.index = nearest(series.time, end - cursor.ago);
    cursor.ago = end - series.time[cursor.index];
  }
  const marks = events.filter((event) => event.kind in SIGNS && event.time > end - SPAN && event.time <= end + 2);
  for (const chart of CHARTS) drawChart(chart, series, end, marks, served.images > 0);
  drawTip(series, end, marks);
}

function drawChart(chart, series, end, marks, any) {
  const width = chart.plot.clientWidth;
  const lines = chart.lines.map(([name, field, kind]) =>
    ({ name, kind, values: series[field].map((value) => (value === null ? null : value * (chart.factor ?? 1))) }));
  const known = lines.flatMap(({ values }) => values.filter((value) => value !== null));
  const levels = ticks(Math.max(chart.least, ...known));
  const labels = levels.map((level) => level.toLocaleString("en"));
  chart.left = Math.max(30, 10 + 7 * Math.max(...labels.map((label) => label.length)));
  const x = (time) => width - 1 - ((end - time) / SPAN) * (width - 1 - chart.left);
  const y = (value) => HEIGHT - BOTTOM - (value / levels.at(-1)) * (HEIGHT - BOTTOM - TOP);
  const [low, high] = [HEIGHT - BOTTOM, TOP];

  const parts = levels.flatMap((level, i) => [
    shape("line", { class: i ? "grid" : "base", x1: chart.left, x2: width, y1: y(level), y2: y(level) }),
    shape("text", { x: chart.left - 7, y: y(level) + 4, "text-anchor": "end" }, labels[i]),
  ]);
  for (const minutes of [4, 3, 2, 1, 0]) {
    parts.push(shape("text", { x: x(end - 60 * minutes), y: HEIGHT - 4, "text-anchor": minutes ? "middle" : "end" }, minutes ? `−${minutes} min` : "now"));
  }
  if (!any || !known.length) {
    const text = any ? "nothing in this time" : "no image yet";
    parts.push(shape("text", { x: (chart.left + width) / 2, y: (low + high) / 2, "text-anchor": "middle" }, text));
  } else {
    for (const { kind, time } of marks) {
      parts.push(shape("line", { class: "event", x1: x(time), x2: x(time), y1: high, y2: low }));
      parts.push(shape("path", { class: `sign ${kind}`, d: SIGNS[kind], transform: `translate(${x(time)} ${high - 7})` }));
    }
    const xs = series.time.map(x);
    for (const { kind, values } of lines) {
      const { line, dots } = strokes(xs, values.map((value, i) => (value === null || xs[i] < chart.left ? null : y(value))), x(5) - x(0));
      parts.push(shape("path", { class: `line ${kind}`, d: line }), shape("path", { class: `line dots ${kind}`, d: dots }));
    }
    if (cursor) {
      const at = xs[cursor.index];
      parts.push(shape("line", { class: "guide", x1: at, x2: at, y1: high, y2: low }));
      for (const { kind, values } of lines) {
        if (values[cursor.index] !== null) parts.push(shape("circle", { class: `dot ${kind}`, cx: at, cy: y(values[cursor.index]), r: 4 }));
      }
    }
  }
  chart.plot.replaceChildren(...parts);
  lines.forEach(({ values }, i) => {
    chart.now = cursor ? values[cursor.index] : values.findLast((value) => value !== null);
    chart.values[i].textContent = any ? number(chart.now) : MISSING;
  });
  const told = lines.map(({ name }, i) => `${name} ${chart.values[i].textContent}`).join(", ");
  chart.plot.setAttribute("aria-label", `${chart.title} in ${chart.unit || "no unit"}, last five minutes: ${told}. ${plural(marks.length, "mark")}. Arrow keys read out.`);
}

function drawTip(series, end, marks) {
  tip.hidden = !cursor;
  if (!cursor) return;
  const { chart, index, ago: seconds } = cursor;
  const time = series.time[index];
  const row = (name, value) => element("div", "", element("span", "", name), element("span", "", value));
  const rows = chart.lines.map(([name], i) => row(name, chart.values[i].textContent));
  const near = marks.filter((event) => Math.abs(event.time - time) < 3).map((event) => element("p", "", sign(event.kind), ` ${event.kind}: ${event.text}`));
  tip.replaceChildren(element("b", "", `${seconds < 1 ? "now" : ago(seconds)}, ${clock(time)}`), ...rows, row("step", count(series.step[index])), ...near);

  const box = chart.plot.getBoundingClientRect();
  const x = box.right - 1 - (seconds / SPAN) * (box.width - 1 - chart.left);
  const [across, room] = [tip.offsetWidth, document.documentElement.clientWidth];
  const left = x + 14 + across > room ? x - 14 - across : x + 14;
  const top = (cursor.y ?? box.top + 60) - tip.offsetHeight - 14;
  tip.style.left = `${Math.max(4, Math.min(left, room - across - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(top, window.innerHeight - tip.offsetHeight - 4))}px`;
}

// ---- the whole page from one status

const MEANING = {
  adapting: "A step is under way.", waiting: "For images.", shedding: "Answers need the machine: images are left out of the adaptation.",
  paused: "Images are answered, nothing is learned.", off: "This service does not adapt.",
};

let latest = null; // the last one
let heard = Date.now(); // when it came

const serverNow = () => latest.started + latest.uptime + (Date.now() - heard) / 1000; // its clock may differ from ours

function render({ model, method, reduce, version, started, uptime, served, adaptation, checkpoint, classes, events }) {
  put("version", version);
  put("uptime", duration(uptime));
  put("model", model);
  put("method", reduce === "none" ? method : `${method} + ${reduce}`);
  put("policy", adaptation.policy);
  put("state", adaptation.state);
  $("state").className = `badge ${adaptation.state}`;
  $("state").title = MEANING[adaptation.state];

  const [p50, unit] = milliseconds(served.p50_ms);
  put("rate", number(served.images_per_second));
  put("rate-more", `${plural(served.images, "image")} in ${plural(served.requests, "request")}`);
  put("p50", p50);
  put("p50-unit", unit);
  put("p50-more", `p95 ${milliseconds(served.p95_ms).join(" ")} · p99 ${milliseconds(served.p99_ms).join(" ")}`);
  put("step", count(adaptation.step));
  put("step-more", `${plural(adaptation.images_waiting, "image")} for the next`);
  put("queue", count(served.queue));
  put("queue-limit", `/ ${count(served.queue_limit)} images`);
  const fullness = served.queue / Math.max(1, served.queue_limit);
  $("queue-bar").style.width = `${100 * Math.min(1, fullness)}%`;
  $("queue-bar").className = fullness > 0.8 ? "full" : "";
  put("adapted", count(adaptation.images_adapted));
  put("adapted-more", `${count(adaptation.images_shed)} shed`);
  put("guard", count(adaptation.guard_events));
  put("guard-more", adaptation.guard_events ? "see the events" : "no trouble so far");

  const total = classes.reduce((sum, { count: images }) => sum + images, 0);
  const others = classes.slice(10).reduce((sum, { count: images }) => sum + images, 0);
  fill("classes", classes.slice(0, 10).map((one) => [one.label, one.count / total]), ([label, share]) => {
    const name = element("span", "name", label);
    name.title = label;
    return element("li", "", name, element("span", "", percent(share)), track(share));
  });
  const rest = others ? ` ${plural(classes.length - 10, "other class", "other classes")}: ${percent(others / total)}.` : "";
  put("classes-note", total ? `Of the last ${plural(total, "image")}.${rest}` : "No image yet.");

  fill("events", events, (event) => {
    const time = element("time");
    time.dateTime = new Date(1000 * event.time).toISOString();
    time.title = new Date(1000 * event.time).toLocaleString("en-GB");
    time.dataset.at = event.time;
    const what = element("span", "what", ...(event.kind in SIGNS ? [sign(event.kind)] : []), event.kind);
    return element("li", event.kind, what, element("span", "text", event.text), time);
  });
  $("events").hidden = !events.length;
  $("events-note").hidden = events.length > 0;

  put("checkpoint", !checkpoint ? "None are written." : checkpoint.step === null ? `None written yet, every ${plural(checkpoint.every, "step")}.`
    : `Step ${count(checkpoint.step)} saved ${ago(checkpoint.seconds_ago)}, every ${plural(checkpoint.every, "step")}.`);
  put("refused", Object.entries(served.refused).filter(([, times]) => times).map(([reason, times]) => `${reason}: ${count(times)}`).join(", ") || "none");
  put("last-step", adaptation.step_seconds === null ? "No step yet."
    : `${number(adaptation.step_seconds)} s, loss ${number(adaptation.loss)}, entropy ${number(adaptation.entropy)} nats, discrepancy ${number(adaptation.discrepancy)}.`);
  put("started", new Date(1000 * started).toLocaleString("en-GB"));
}

function show() {
  $("page").hidden = false; // before the charts: what is hidden has no width
  render(latest);
  drawCharts(latest);
  tellTime();
}

// ---- talking to the service

class Refused extends Error {} // with words of the service
class KeyWanted extends Error {}

let stream = null, nextTry = 0, excuse = "", keyGiven = null, pictures = { number: 0, images: 0, shown: [] };

async function ask(where, options = {}) {
  const key = sessionStorage.getItem("navia-key");
  const reply = await fetch(where, { ...options, cache: "no-store", headers: key ? { Authorization: `Bearer ${key}` } : {} });
  if (reply.status === 401) {
    askForKey(key);
    throw new KeyWanted("The service asks for a key.");
  }
  if (!reply.ok) {
    const problem = await reply.json().catch(() => ({}));
    throw new Refused(problem.error ?? `The service answered with status ${reply.status}.`);
  }
  return reply;
}

function askForKey(key) {
  if (!$("key-form").hidden) return;
  put("key-title", key ? "This key was not accepted" : "This service asks for a key");
  $("key-form").hidden = false;
  $("key").focus();
  keyGiven = new Promise((resolve) => {
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("navia-key", $("key").value);
      $("key").value = "";
      $("key-form").hidden = true;
      heard = Date.now();
      resolve();
    };
  });
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
      event = "message";
      data = [];
    }
  }
}

async function follow() {
  for (let tries = 0; ; tries++) {
    stream = new AbortController();
    try {
      const reply = await ask("v1/events", { signal: stream.signal });
      for await (const { event, data } of readEvents(reply.body)) {
        if (event !== "status") continue;
        const next = JSON.parse(data);
        if (latest?.started !== next.started) pictures = { number: 0, images: 0, shown: [] }; // another process counts anew
        [latest, heard, excuse, tries] = [next, Date.now(), "", 0];
        requestAnimationFrame(show); // not here: a mistake in drawing must not pass for a lost contact
      }
    } catch (error) {
      excuse = error instanceof Refused ? error.message : "";
      if (error instanceof KeyWanted) {
        await keyGiven;
        tries = -1;
        continue;
      }
    }
    const wait = WAITS[Math.min(tries, WAITS.length - 1)];
    nextTry = Date.now() + 1000 * wait;
    await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
  }
}

function tellTime() {
  const silent = (Date.now() - heard) / 1000;
  const [lost, asking] = [silent >= SILENCE, !$("key-form").hidden];
  document.body.classList.toggle("lost", lost);
  $("notice").classList.toggle("lost", lost);
  $("notice").hidden = asking || (latest !== null && !lost && latest.ready);
  put("contact", lost ? "No contact" : latest ? "Not ready" : "Connecting");
  const trying = nextTry > Date.now() ? ` Next try in ${Math.ceil((nextTry - Date.now()) / 1000)} s.` : " Trying now.";
  const old = latest ? ` What is shown is from ${clock(heard / 1000)}.` : "";
  put("contact-details", lost ? `for ${duration(silent)}.${excuse ? ` The service says: ${excuse}` : ""}${trying}${old}` : latest ? "yet: the service is starting." : "…");
  if (silent > HUNG && nextTry < Date.now() && !asking && stream) [stream] = [null, stream.abort()];
  document.title = latest ? `${lost ? "no contact" : latest.adaptation.state} · ${latest.model} · navia` : "navia serve";
  for (const time of document.querySelectorAll("time[data-at]")) time.textContent = ago(serverNow() - time.dataset.at);
  setButtons();
}

// ---- pictures: asked for only when someone looks and images were answered

async function lookForPictures() {
  if (document.hidden || !latest || latest.served.images === pictures.images) return;
  const [mine, images] = [pictures, latest.served.images];
  const reply = await ask(`v1/recent?after=${mine.number}`).catch(() => null); // a lost contact is told elsewhere
  if (!reply) return;
  const { images: newer } = await reply.json();
  mine.images = images;
  mine.shown = [...newer, ...mine.shown].slice(0, PICTURES);
  mine.number = Math.max(mine.number, ...newer.map((one) => one.number));
  fill("pictures", mine.shown, picture);
  $("pictures-note").hidden = mine.shown.length > 0;
}

function picture(one) {
  const image = element("img");
  image.alt = `taken for ${one.label}`;
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth < 64));
  if (one.picture.startsWith("data:image/")) image.src = one.picture;
  const name = element("span", "name", one.label);
  name.title = one.label;
  return element("figure", "", image, element("figcaption", "", name, track(one.probability),
    element("span", "", percent(one.probability)), element("span", "", `entropy ${number(one.entropy)}`), element("span", "", `step ${count(one.step)}`)));
}

// ---- buttons

const BUTTONS = {
  pause: { words: () => (latest?.adaptation.state === "paused" ? "Resume" : "Pause"), action: () => $("pause").textContent.toLowerCase() },
  rollback: { words: () => "Roll back", sure: "Roll back?", means: "go back to an earlier state" },
  reset: { words: () => "Reset", sure: "Reset?", means: "forget all that was learned" },
};
let busy = false, armed = null, disarm = 0;

function setButtons() {
  for (const [id, { words, sure }] of Object.entries(BUTTONS)) {
    put(id, armed === id ? sure : words());
    $(id).classList.toggle("armed", armed === id);
    $(id).disabled = busy || !latest || document.body.classList.contains("lost") || (id === "pause" && latest.adaptation.state === "off");
  }
}

function say(text, error = false) {
  put("said", text);
  $("said").classList.toggle("error", error);
}

function arm(id) {
  clearTimeout(disarm);
  armed = id;
  if (id) disarm = setTimeout(() => { say(""); arm(null); }, 1000 * CONFIRM);
  setButtons();
}

async function press(id, event) {
  const { sure, means, action = () => id } = BUTTONS[id];
  if (sure && armed !== id) {
    arm(id);
    say(`Press again within ${CONFIRM} s to ${means}.`);
    return;
  }
  if (sure && event.detail > 1) return; // the second half of a double click is no second thought
  const path = action();
  busy = true;
  arm(null);
  say("…");
  try {
    const done = await (await ask(`v1/${path}`, { method: "POST" })).json();
    say(done.text);
    latest = { ...latest, adaptation: { ...latest.adaptation, state: done.state, step: done.step } }; // sooner than the next status
    show();
  } catch (error) {
    say(error instanceof TypeError ? "The service could not be reached." : error.message, true);
  }
  busy = false;
  setButtons();
  $(id).focus({ preventScroll: true }); // a disabled button loses it
}

// ---- start

for (const id of Object.keys(BUTTONS)) {
  $(id).addEventListener("click", (event) => press(id, event));
  $(id).addEventListener("keydown", (event) => event.repeat && event.preventDefault()); // a key held down confirms nothing
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  pointAt(null);
  if (armed) say("");
  arm(null);
});
document.addEventListener("pointerdown", (event) => event.target.closest(".plot") || pointAt(null));
document.addEventListener("scroll", () => cursor && pointAt(null), { passive: true });
$("charts").append(...CHARTS.map(buildChart));
$("marks").append(...Object.keys(SIGNS).map((kind) => element("li", "", sign(kind), ` ${kind}`)));
tip.hidden = true;
tip.setAttribute("role", "status");
document.body.append(tip);
new ResizeObserver(() => latest && drawCharts(latest)).observe($("charts"));
setInterval(tellTime, 500);
setInterval(lookForPictures, 2000);
tellTime();
follow();
