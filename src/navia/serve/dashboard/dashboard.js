// One status a second comes in as a stream; show() draws all that is seen from the latest.

import { drawCharts, pointAt } from "./charts.js";
import { Refused, ask, asking, readEvents } from "./connection.js";
import { arm, setButtons, startControls } from "./controls.js";
import { $, put } from "./elements.js";
import { figure, render } from "./sections.js";
import { ago, clock, duration } from "./format.js";

const SILENCE = 3; // seconds without a status after which the values count as old
const HUNG = 10; // seconds without a status after which an open stream counts as dead
const WAITS = [1, 2, 4, 8]; // seconds before the next try
const RECENT = 12;

let latest = null; // status
let heard = Date.now(); // when it came
let stream = new AbortController(), alive = Date.now(); // when the stream was opened or last brought a status
let nextTry = 0, excuse = "";
let recent = { number: 0, images: 0, shown: [] };

const serviceNow = () => latest.started + latest.uptime + (Date.now() - heard) / 1000; // its clock may differ from ours
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const isLost = () => Date.now() - heard >= 1000 * SILENCE;

function show() {
  $("page").hidden = false; // before the charts: what is hidden has no width
  render(latest, serviceNow(), recent);
  drawCharts(latest);
  tellTime();
}

// ---- following the service

function hear(status) {
  if (latest?.started !== status.started) recent = { number: 0, images: 0, shown: [] }; // another process counts anew
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
  $("notice").hidden = asking() || Boolean(latest && !lost);
  put("contact", lost ? "No contact" : "Connecting");
  const next = nextTry > Date.now() ? ` Next try in ${Math.ceil((nextTry - Date.now()) / 1000)} s.` : " Trying now.";
  const old = latest ? ` All that is shown is from ${clock(heard / 1000)}.` : "";
  put("contact-details", lost ? `for ${duration(silent)}.${excuse}${next}${old}` : "…");
  setButtons(latest, !lost);
  if (!latest) return;
  document.title = `${lost ? "no contact" : latest.adaptation.state} · ${latest.model} · navia`;
  for (const time of document.querySelectorAll("time[data-at]")) time.textContent = ago(serviceNow() - time.dataset.at);
}

/** Recent images are requested only when the page is visible and images were predicted since. */
async function fetchRecent() {
  if (document.hidden || !latest || isLost() || asking() || latest.served.images === recent.images) return;
  const [mine, images] = [recent, latest.served.images];
  const reply = await ask(`v1/recent?after=${mine.number}`, { signal: AbortSignal.timeout(1000 * HUNG) });
  const newer = (await reply.json()).images;
  mine.images = images;
  mine.shown = [...(await Promise.all(newer.map(figure))), ...mine.shown].slice(0, RECENT);
  mine.number = Math.max(mine.number, ...newer.map((one) => one.number));
  show();
}

// ---- start

startControls((change) => {
  latest = { ...latest, adaptation: { ...latest.adaptation, ...change } };
  show();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  pointAt(null);
  arm(null);
});
setInterval(tellTime, 500);
tellTime();
follow();
(async () => {
  for (;;) await sleep(2).then(fetchRecent).catch(() => {}); // a lost contact is told elsewhere
})();
