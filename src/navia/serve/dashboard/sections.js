// The page from one status, section by section.

import { SIGNS, sign } from "./charts.js";
import { $, element, fill, put, track } from "./elements.js";
import { MISSING, ago, count, day, duration, number, percent, plural } from "./format.js";

const MEANING = {
  adapting: "A step is running.", waiting: "Waiting for images.", off: "This service does not adapt.",
  paused: "Images are predicted without adaptation.", shedding: "Predictions need the machine: not all images are adapted to.",
};

/** All but the charts. now: the time of the service; recent: the recent images, and how many were predicted then. */
export function render(status, now, recent) {
  const { served, adaptation, checkpoint, classes, events } = status;
  const saved = ({ step, seconds_ago: past, every, every_seconds: seconds, failures }) =>
    `${step === null ? "none yet" : `step ${count(step)} saved ${ago(past)}`}, every ${every} steps or ${duration(seconds)}`
    + (failures ? `; ${plural(failures, "write")} failed` : "");
  const guard = events.find(({ kind }) => kind === "guard");
  const texts = {
    version: status.version,
    uptime: duration(status.uptime),
    model: status.model,
    method: status.reduce === "none" ? status.method : `${status.method} + ${status.reduce}`,
    policy: adaptation.policy,
    state: adaptation.state,
    rate: served.images ? number(served.images_per_second) : MISSING,
    "rate-more": `${plural(served.images, "image")} so far`,
    p50: number(served.p50_ms),
    "p50-more": served.p50_ms === null ? (served.requests ? "no request in this time" : "no request yet") : `p95 ${number(served.p95_ms)}, p99 ${number(served.p99_ms)} ms`,
    step: count(adaptation.step),
    "step-more": `${plural(adaptation.images_waiting, "image")} for the next`,
    queue: count(served.queue),
    "queue-limit": `of ${count(served.queue_limit)}`,
    adapted: count(adaptation.images_adapted),
    "adapted-more": `${count(adaptation.images_shed)} shed`,
    guard: count(adaptation.guard_events),
    "guard-more": guard ? `last ${ago(now - guard.time)}` : adaptation.guard_events ? "" : "no trouble so far",
    checkpoint: checkpoint ? saved(checkpoint) : "none are written",
    requests: count(served.requests),
    refused: Object.entries(served.refused).map(([reason, times]) => `${reason}: ${count(times)}`).join(", ") || "none",
    "last-step": adaptation.step_seconds === null ? (adaptation.step ? "none since the start" : "none yet")
      : `${number(adaptation.step_seconds)} s, loss ${number(adaptation.loss)}, entropy ${number(adaptation.entropy)} nats`,
    started: day(status.started),
  };
  for (const [id, text] of Object.entries(texts)) put(id, text);
  $("state").className = `badge ${adaptation.state}`;
  $("state").title = MEANING[adaptation.state];
  $("queue-bar").style.width = `${100 * Math.min(1, served.queue / served.queue_limit)}%`;
  $("queue-bar").className = served.queue > 0.8 * served.queue_limit ? "full" : "";

  const sum = (counts) => counts.reduce((total, one) => total + one.count, 0);
  const total = Math.max(sum(classes), served.window_images); // rare classes are not in the list
  fill("classes", classes.slice(0, 10).map((one) => [one.label, one.count / total]), ([label, share]) =>
    element("li", "", named(label), element("span", "", percent(share)), track(share)));
  const others = total - sum(classes.slice(0, 10));
  const rest = others ? ` All other classes: ${percent(others / total)}.` : "";
  put("classes-note", total ? `Of ${plural(total, "image")}.${rest}` : served.images ? "No image in this time." : "No image yet.");
  if (recent.shown[0] !== $("images").firstChild) $("images").replaceChildren(...recent.shown);
  $("images-note").hidden = recent.shown.length > 0;
  const missing = recent.images ? "This service keeps no images." : "Loading the last images.";
  put("images-note", served.images ? missing : "No image yet.");
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

export async function figure(one) {
  const image = element("img");
  image.alt = `predicted: ${one.label}`;
  if (one.picture.startsWith("data:image/")) image.src = one.picture;
  await image.decode().catch(() => {}); // shown without an image then
  image.classList.toggle("pixels", image.naturalWidth < 64);
  const facts = [percent(one.probability), `entropy ${number(one.entropy)}`, `step ${count(one.step)}`];
  const below = [named(one.label), track(one.probability), ...facts.map((fact) => element("span", "", fact))];
  return element("figure", "", image, element("figcaption", "", ...below));
}
