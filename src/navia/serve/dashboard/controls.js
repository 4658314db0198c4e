// Buttons: what cannot be undone is asked for twice.

import { Refused, ask } from "./connection.js";
import { $, put } from "./elements.js";

const CONFIRM = 4; // seconds in which a second click confirms

const BUTTONS = {
  pause: { words: () => (status?.adaptation.state === "paused" ? "Resume" : "Pause") },
  rollback: { words: () => "Roll back", sure: "Roll back?", means: "go back to an earlier state" },
  reset: { words: () => "Reset", sure: "Reset?", means: "go back to the source model" },
};
let busy = false, armed = null, disarm = 0;
let status = null, reachable = false;
let changed = () => {};

/** latest: the status that the buttons are about, or null. inContact: whether the service can be reached. */
export function setButtons(latest, inContact) {
  [status, reachable] = [latest, inContact];
  drawButtons();
}

function drawButtons() {
  for (const [id, { words, sure }] of Object.entries(BUTTONS)) {
    put(id, armed === id ? sure : words());
    $(id).classList.toggle("armed", armed === id);
    const idle = id === "pause" && status?.adaptation.state === "off";
    $(id).disabled = busy || idle || !status || !reachable;
  }
}

/** Ask for the second press of a button; null: of none any more. */
export function arm(id) {
  clearTimeout(disarm);
  if (armed && !id) say("");
  armed = id;
  if (id) disarm = setTimeout(arm, 1000 * CONFIRM, null);
  drawButtons();
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
  let change = {};
  try {
    const { state, step, text } = await (await ask(`v1/${action}`, { method: "POST" })).json();
    say(text);
    change = { state, step };
  } catch (error) {
    say(error instanceof Refused ? error.message : "The service could not be reached.", true);
  }
  busy = false;
  changed(change);
  if (document.activeElement === document.body) $(id).focus({ preventScroll: true }); // a disabled button loses it
}

/** tell: is told after each press what changed of the adaptation, sooner than the next status. */
export function startControls(tell) {
  changed = tell;
  for (const id of Object.keys(BUTTONS)) {
    $(id).addEventListener("click", (event) => press(id, event));
    $(id).addEventListener("keydown", (event) => event.repeat && event.preventDefault()); // a key held down confirms nothing
  }
}
