// Sorting and reading out. The page is complete without this: tables and plots are there, only still.
"use strict";

// ---- tables: a click on a header sorts, best first where one end is better; missing values stay at the bottom

function compare(a, b, numeric) {
  return numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
}

function sortRows(table, column, head) {
  const was = head.getAttribute("aria-sort");
  const order = was === "none" ? head.dataset.first : was === "ascending" ? "descending" : "ascending";
  for (const other of head.parentNode.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const numeric = head.classList.contains("number");
  const missing = (key) => key === "" || (numeric && Number.isNaN(Number(key)));
  const rows = Array.from(table.tBodies[0].rows, (row) => ({ row, key: row.cells[column].dataset.key }));
  rows.sort((a, b) =>
    missing(a.key) || missing(b.key) ? missing(a.key) - missing(b.key) : sign * compare(a.key, b.key, numeric));
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

for (const table of document.querySelectorAll(".scroll > table")) {
  Array.from(table.tHead.rows[0].cells, (head, column) => {
    const button = head.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => sortRows(table, column, head));
  });
}

// ---- one tip for all plots; texts go in as text, never as HTML

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("role", "status");
document.body.append(tip);

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function showTip(head, rows, x, y, spoken) {
  const table = document.createElement("table");
  for (const [name, value, kind] of rows) {
    const row = table.insertRow();
    const cell = element("td", name);
    if (kind) cell.prepend(element("i", "", kind));
    row.append(cell, element("td", value));
  }
  tip.setAttribute("aria-live", spoken ? "polite" : "off");
  tip.replaceChildren(element("b", head), table);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const width = document.documentElement.clientWidth;
  const left = x + 16 + box.width > width ? x - 16 - box.width : x + 16;
  const top = y - box.height - 14 < 4 ? y + 18 : y - box.height - 14;
  tip.style.left = `${Math.max(4, Math.min(left, width - box.width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(top, window.innerHeight - box.height - 4))}px`;
}

function hideTip() {
  tip.hidden = true;
  for (const point of document.querySelectorAll(".point.on")) point.classList.remove("on");
  for (const guide of document.querySelectorAll(".guide")) guide.setAttribute("visibility", "hidden");
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
let showAgain = hideTip;
document.addEventListener("scroll", () => {
  // the tab key scrolls to what it reaches: the tip of that goes along, one under the pointer is left behind
  const byKey = document.activeElement.matches("svg.plot:focus-visible, .point:focus-visible");
  if (!tip.hidden) (byKey ? showAgain : hideTip)();
}, { passive: true });

// the browser's own tips would lie over ours
for (const title of document.querySelectorAll("svg.plot title")) title.remove();

// ---- points: the one nearest to the pointer, or focused; arrow keys go to the next one to the right or left

const REACH = 24; // pixels from a point within which the pointer means it

function centre(point) {
  const box = point.querySelector(".hit").getBoundingClientRect();
  return { x: box.left + box.width / 2, y: box.top + box.height / 2 };
}

function showPoint(points, point) {
  showAgain = () => showPoint(points, point);
  for (const other of points) other.classList.toggle("on", other === point);
  const { head, rows } = JSON.parse(point.dataset.tip);
  const { x, y } = centre(point);
  showTip(head, rows, x, y, false);
}

function watchPoints(plot) {
  const points = Array.from(plot.querySelectorAll(".point"));
  const place = (point) => Number(point.querySelector(".hit").getAttribute("cx"));
  points.sort((a, b) => place(a) - place(b));
  function follow(event) {
    const distance = (point) => Math.hypot(centre(point).x - event.clientX, centre(point).y - event.clientY);
    const nearest = points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
    if (distance(nearest) <= REACH) showPoint(points, nearest);
    else hideTip();
  }
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", hideTip);
  points.forEach((point, index) => {
    point.setAttribute("tabindex", index ? "-1" : "0");
    point.addEventListener("focus", () => {
      if (point.matches(":focus-visible")) showPoint(points, point);
    });
    point.addEventListener("blur", hideTip);
    point.addEventListener("keydown", (event) => {
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      points[index + STEPS[event.key]]?.focus();
    });
  });
}

for (const plot of document.querySelectorAll("svg.plot:has(.point)")) watchPoints(plot);

// ---- lines and bars: all series at the place nearest to the pointer, or reached by the arrow keys

function addShape(plot, name, attributes) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
  plot.append(shape);
  return shape;
}

function readOut(plot) {
  const data = JSON.parse(plot.dataset.readout);
  const [top, bottom] = JSON.parse(plot.dataset.box);
  if (!data.x.length) return;
  const guide = addShape(plot, "rect", {
    class: data.width > 1 ? "guide" : "guide thin", y: top, height: bottom - top, width: data.width, visibility: "hidden",
  });
  let at = data.x.length - 1;

  function scale() {
    const box = plot.getBoundingClientRect();
    return { box, factor: plot.viewBox.baseVal.width / box.width };
  }
  function show(index, y, spoken) {
    at = index;
    showAgain = () => show(at, undefined, false);
    const { box, factor } = scale();
    guide.setAttribute("x", data.x[at] - data.width / 2);
    guide.setAttribute("visibility", "visible");
    const rows = data.rows.map((row) => [row.name, row.text[at], row.kind]);
    showTip(data.heads[at], rows, box.left + data.x[at] / factor, y ?? box.top + box.height / 3, spoken);
  }
  function follow(event) {
    const { box, factor } = scale();
    const x = (event.clientX - box.left) * factor;
    const distance = (index) => Math.abs(data.x[index] - x);
    show(data.x.reduce((best, _, index) => (distance(index) < distance(best) ? index : best), 0), event.clientY, false);
  }
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", hideTip);
  plot.addEventListener("focus", () => {
    if (plot.matches(":focus-visible")) show(at, undefined, true);
  });
  plot.addEventListener("blur", hideTip);
  plot.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    show(Math.max(0, Math.min(at + STEPS[event.key], data.x.length - 1)), undefined, true);
  });
}

for (const plot of document.querySelectorAll("svg.plot[data-readout]")) readOut(plot);

// closed facts would be missing on paper
window.addEventListener("beforeprint", () => {
  for (const facts of document.querySelectorAll("details.facts")) facts.open = true;
});
