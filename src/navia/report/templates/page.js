// Sorting of tables, and charts with ECharts. Texts go in as text, never as HTML.
"use strict";
document.querySelector(".noscript").remove();

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// ---- tables: a click on a header sorts, best first where one end is better; missing values stay at the bottom

const keyOf = (cell) => cell.dataset.key ?? (cell.querySelector("strong") ?? cell).firstChild?.textContent.trim() ?? "";

function sortRows(table, column, head) {
  const before = head.getAttribute("aria-sort");
  const order = before === "none" ? head.dataset.first : before === "ascending" ? "descending" : "ascending";
  for (const other of head.parentNode.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const numeric = head.classList.contains("number");
  const compare = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
  const missing = (key) => key === "" || (numeric && Number.isNaN(Number(key)));
  const rows = Array.from(table.tBodies[0].rows, (row) => ({ row, key: keyOf(row.cells[column]) }));
  rows.sort((a, b) =>
    missing(a.key) || missing(b.key) ? missing(a.key) - missing(b.key) : sign * compare(a.key, b.key));
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

for (const table of document.querySelectorAll(".scroll > table")) {
  Array.from(table.tHead.rows[0].cells, (head, column) => {
    const button = head.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => sortRows(table, column, head));
  });
}

// ---- charts: one sign (colour, symbol, dashes) per name; colours are the style sheet's, for light and dark

const COLOURS = 12;
const GROUP_COLOURS = [1, 2, 3, 4]; // of super-classes: the clearest
const SYMBOLS = [
  "M10 5a5 5 0 1 1-10 0a5 5 0 1 1 10 0Z", "M.5.5h9v9h-9Z", "M5 0L10 9.5H0Z", "M5-.8L10.8 5 5 10.8-.8 5Z", "M0 .5h10L5 10Z",
  "M3.3 0h3.4v3.3H10v3.4H6.7V10H3.3V6.7H0V3.3h3.3Z", "M0 2L2 0 5 3 8 0 10 2 7 5 10 8 8 10 5 7 2 10 0 8 3 5Z",
  "M5 0L10 3.8 8.1 9.8H1.9L0 3.8Z", "M5-.6L6.5 3.4 10.7 3.6 7.4 6.2 8.5 10.3 5 7.9 1.5 10.3 2.6 6.2-.7 3.6 3.5 3.4Z",
  "M5-.2L9.5 2.4V7.6L5 10.2 .5 7.6V2.4Z", "M9.5 0V10L0 5Z",
]; // as the markers of the files
const DASHES = [[], [7, 3], [2, 2], [8, 3, 2, 3]];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const sans = () => ({ color: css("--ink"), fontFamily: css("--sans"), fontSize: 12 });

function signOf(index, group = -1) {
  const colour = `--c${group < 0 ? index % COLOURS : GROUP_COLOURS[group % GROUP_COLOURS.length]}`;
  return { name: colour, colour: css(colour), symbol: SYMBOLS[index % SYMBOLS.length], dash: DASHES[index % DASHES.length] };
}

// the signs of all series of a box, by name; series of one group share their colour
function signsOf(charts) {
  const all = new Map(charts.flatMap((data) => data.series.map((series) => [series.name, series.group])));
  const groups = [...new Set(all.values())].filter(Boolean);
  return new Map([...all].map(([name, group], i) => [name, () => signOf(i, groups.indexOf(group))]));
}

function show(value) {
  if (typeof value !== "number") return value ?? "–";
  const digits = Number.isInteger(value) ? {} : { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
  return value.toLocaleString("en-US", digits).replace("-", "−");
}

function tipOf(head, rows) {
  const box = element("div");
  const table = element("table");
  for (const [name, value] of rows) table.insertRow().append(element("td", name), element("td", value));
  box.append(element("b", head), table);
  return box;
}

function errorBars(data, colours) {
  const points = data.series.flatMap((series, number) =>
    series.points.filter((p) => p[2] != null && p[3] != null).map((p) => [p[0], p[2], p[3], number]));
  if (!points.length) return [];
  const renderItem = (_, api) => {
    const [x, low] = api.coord([api.value(0), api.value(1)]);
    const high = api.coord([api.value(0), api.value(2)])[1];
    const style = { stroke: colours[api.value(3)], lineWidth: 1.2, opacity: 0.75 };
    const ends = [[x, low, x, high], [x - 4, low, x + 4, low], [x - 4, high, x + 4, high]];
    return {
      type: "group",
      children: ends.map(([x1, y1, x2, y2]) => ({ type: "line", shape: { x1, y1, x2, y2 }, style })),
    };
  };
  return [{ type: "custom", name: "95 % interval", renderItem, data: points, encode: { x: 0, y: [1, 2] }, silent: true, z: 1, tooltip: { show: false } }];
}

// around the highlighted points of curves
function rings(data, colours) {
  const points = data.series.flatMap((series, number) => series.points.filter((p) => p[4]).map((p) => ({
    value: [p[0], p[1]], itemStyle: { color: "transparent", borderColor: colours[number], borderWidth: 2 },
  })));
  return points.length ? [{ type: "scatter", name: "highlighted", data: points, symbolSize: 17, silent: true, z: 3, tooltip: { show: false } }] : [];
}

function front(data) {
  let best = -Infinity;
  const points = data.series.flatMap((series) => series.points).sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  const line = points.filter((p) => p[1] > best && (best = p[1], true)).map((p) => [p[0], p[1]]);
  if (line.length) line.push([points.at(-1)[0], best]);
  const look = { color: css("--quiet"), type: [2, 3], width: 1.2 };
  return { type: "line", name: "front", step: "end", data: line, lineStyle: look, symbol: "none", silent: true, z: 0, tooltip: { show: false } };
}

function axis(name, more = {}) {
  const quiet = { ...sans(), color: css("--quiet") };
  const line = { lineStyle: { color: css("--quiet"), opacity: 0.7 } };
  return {
    name, nameTextStyle: quiet, axisLabel: { ...quiet, hideOverlap: true }, axisLine: line, axisTick: { show: false },
    splitLine: { lineStyle: { color: css("--grid") } }, scale: true, splitNumber: 4, ...more,
  };
}

// powers of 2 where there are less than two of 10
function logRange(data) {
  const x = data.series.flatMap((one) => one.points.map((p) => p[0]));
  const [low, high] = [Math.min(...x), Math.max(...x)];
  const margin = data.kind === "scatter" ? 1.25 : 1;
  if (high / low >= 100) return { min: low / margin, max: high * margin };
  const formatter = (value) => (Number.isInteger(Math.log2(value)) ? show(value) : ""); // not at the ends
  return { logBase: 2, min: low / margin, max: high * margin, axisLabel: { ...sans(), color: css("--quiet"), formatter } };
}

function optionsOf(data, allSigns, width) {
  const signs = data.series.map((series) => allSigns.get(series.name)());
  const colours = signs.map((sign) => sign.colour);
  const isMap = data.kind === "map";
  const below = axis(data.x, { nameLocation: "middle", nameGap: 28, type: data.log ? "log" : "value", splitLine: { show: false }, ...(data.log && logRange(data)),
    ...(data.kind === "line" && data.series.every((one) => one.points.every((p) => Number.isInteger(p[0]))) && { minInterval: 1 }) });
  const options = {
    animation: false, color: colours, textStyle: sans(),
    aria: { enabled: true, label: { description: describe(data) }, decal: { show: data.kind === "bar" } },
    grid: { left: 4, right: 16, top: data.y ? 30 : 8, bottom: data.x ? 34 : 4, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    xAxis: below,
    yAxis: axis(data.y, { nameTextStyle: { ...sans(), color: css("--quiet"), align: "left" } }),
    tooltip: {
      trigger: data.kind === "line" || data.kind === "bar" ? "axis" : "item", confine: true, className: "tip",
      backgroundColor: css("--paper"), borderColor: css("--rule"), textStyle: sans(), transitionDuration: 0, hideDelay: 0,
      axisPointer: { type: data.kind === "bar" ? "shadow" : "line", snap: true, label: { show: false } },
      formatter: (found) => tipOfPoint(data, [found].flat()),
    },
  };
  const series = (type, look) => data.series.map((one, i) => ({
    type, name: one.name, data: one.points.map((p) => [p[0], p[1]]), itemStyle: { color: colours[i], borderColor: css("--paper"), borderWidth: 1 },
    symbol: `path://${signs[i].symbol}`, symbolSize: 10, ...look(one, i),
  }));
  if (data.kind === "scatter") {
    const crowded = data.series.flatMap((one) => one.points).length > 12;
    const placed = []; // labels so far: each moves down until it covers none of them
    const label = (one) => ({
      label: { ...sans(), show: true, position: [14, -7], minMargin: 5, formatter: ({ dataIndex }) => one.points[dataIndex][4] },
      labelLayout: ({ rect, labelRect, seriesIndex, dataIndex }) => {
        if (!seriesIndex && !dataIndex) placed.length = 0;
        const turned = labelRect.x + labelRect.width > width && { x: rect.x - 4, align: "right" };
        const own = { x: turned ? rect.x - 4 - labelRect.width : labelRect.x, y: labelRect.y, width: labelRect.width };
        const hit = (one) => Math.abs(one.y - own.y) < 14 && one.x < own.x + own.width && own.x < one.x + one.width;
        while (!crowded && placed.some(hit)) own.y += 14;
        placed.push(own);
        return { dy: own.y - labelRect.y, hideOverlap: crowded, ...turned };
      },
    });
    options.series = [...series("scatter", label), ...errorBars(data, colours), front(data)];
    const least = ({ min, max }) => (min >= 0 && min < 0.06 * (max - min) ? 0 : null); // no negative cost
    for (const one of data.log ? [options.yAxis] : [options.xAxis, options.yAxis]) Object.assign(one, { boundaryGap: ["5%", "5%"], min: least });
  } else if (data.kind === "line") {
    options.series = [...series("line", (one, i) => ({
      lineStyle: { type: signs[i].dash.length ? signs[i].dash : "solid", width: 1.8 }, showAllSymbol: true,
      symbolSize: (_, { dataIndex }) => (one.points.length <= 10 || dataIndex === one.points.length - 1 ? 8 : 0),
    })), ...errorBars(data, colours), ...rings(data, colours)];
  } else if (data.kind === "bar") {
    options.yAxis = axis("", { type: "category", inverse: true, data: data.series[0].points.map((p) => p[0]), splitLine: { show: false } });
    options.xAxis = { ...below, min: 0, splitLine: { lineStyle: { color: css("--grid") } } };
    options.series = series("bar", (one) => ({ data: one.points.map((p) => p[1]), barMaxWidth: 14 }));
  } else {
    const points = data.series.flatMap((one) => one.points);
    const [x, y] = [0, 1].map((at) => points.map((p) => p[at]));
    const half = 0.54 * Math.max(Math.max(...x) - Math.min(...x), Math.max(...y) - Math.min(...y), 1e-9);
    [options.xAxis, options.yAxis] = [x, y].map((values) => {
      const middle = (Math.max(...values) + Math.min(...values)) / 2;
      return { show: false, min: middle - half, max: middle + half };
    });
    options.grid = { left: 6, right: 6, top: 6, bottom: 6 };
    options.series = series("scatter", () => ({ symbolSize: 8, itemStyle: undefined }));
  }
  if (isMap) options.series.forEach((one, i) => (one.itemStyle = { color: colours[i], borderColor: css("--paper"), borderWidth: 0.5 }));
  return options;
}

function describe(data) {
  const what = data.y ? `${data.y} against ${data.x}` : data.x;
  const names = data.series.map((series) => series.name).join(", ");
  return `${data.title}. ${what ? `${what}: ` : ""}${names}. Arrow keys read the points; the data is in the table below.`;
}

function tipOfPoint(data, found) {
  const known = found.filter(({ seriesIndex }) => seriesIndex < data.series.length);
  if (!known.length) return "";
  const { seriesIndex, dataIndex } = known[0];
  const point = data.series[seriesIndex].points[dataIndex];
  if (data.kind === "map") return tipOf(point[4], []);
  if (data.kind === "scatter") return tipOf(point[4], Object.entries(point[5] ?? {}));
  const head = data.kind === "bar" ? point[0] : `${data.x}: ${show(point[0])}`;
  return tipOf(head, known.map((one) => {
    const point = data.series[one.seriesIndex].points[one.dataIndex];
    return [one.seriesName, `${show(point[1])}${point[4] ? ` (${point[4]})` : ""}`];
  }));
}

function dataTable(data) {
  const box = element("details", "", "data");
  box.append(element("summary", "Data of this chart"));
  box.addEventListener("toggle", () => {
    if (box.querySelector("table")) return;
    const table = element("table");
    const add = (cells) => table.insertRow().append(...cells.map((text) => element("td", text)));
    if (data.kind === "scatter") {
      add(["", data.x, data.y, "low", "high"]);
      for (const p of data.series.flatMap((one) => one.points)) add([p[4], ...[0, 1, 2, 3].map((at) => show(p[at]))]);
    } else if (data.kind === "map") {
      add(["class", "points"]);
      for (const one of data.series) add([one.name, show(one.points.length)]);
    } else {
      const places = [...new Set(data.series.flatMap((one) => one.points.map((p) => p[0])))];
      if (typeof places[0] === "number") places.sort((a, b) => a - b);
      add([data.x, ...data.series.map((one) => one.name)]);
      for (const x of places) add([show(x), ...data.series.map((one) => show(one.points.find((p) => p[0] === x)?.[1]))]);
    }
    const scroll = element("div", "", "scroll");
    scroll.tabIndex = 0;
    scroll.append(table);
    box.append(scroll);
  });
  return box;
}

function draw(canvas, data, signs, said) {
  const chart = canvas.chart = echarts.init(canvas, null, { renderer: "svg" });
  const paint = () => chart.setOption(optionsOf(data, signs, canvas.clientWidth), { notMerge: true });
  paint();
  new ResizeObserver(() => { chart.resize(); paint(); }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  const places = data.kind === "line" || data.kind === "bar"
    ? data.series.reduce((most, one, i) => (one.points.length > most.length ? one.points.map((_, j) => [i, j]) : most), [])
    : data.series.flatMap((one, i) => one.points.map((_, j) => [i, j]));
  let at = -1;
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") chart.dispatchAction({ type: "hideTip" });
    if (!step || !places.length) return;
    event.preventDefault();
    at = at < 0 ? (step > 0 ? 0 : places.length - 1) : Math.min(Math.max(at + step, 0), places.length - 1);
    const [seriesIndex, dataIndex] = places[at];
    chart.dispatchAction({ type: "showTip", seriesIndex, dataIndex });
    said.textContent = Array.from(canvas.querySelectorAll(".tip b, .tip td"), (part) => part.textContent).join(" ");
  });
  canvas.addEventListener("blur", () => { at = -1; chart.dispatchAction({ type: "hideTip" }); });
}

function legend(signs, data) {
  const kind = data.kind;
  const list = element("ul", "", "legend");
  const add = (text, dash, colour, symbol, edge = "none") => {
    const item = element("li", text);
    const line = `<path d="M0 7h26" fill="none" stroke="${colour}" stroke-width="1.8" stroke-dasharray="${dash}"/>`;
    const mark = symbol ? `<path d="${symbol}" fill="${colour}" stroke="${edge}" transform="translate(8 2)"/>` : "";
    item.insertAdjacentHTML("afterbegin", `<svg viewBox="0 0 26 14" aria-hidden="true">${dash == null ? "" : line}${mark}</svg>`);
    list.append(item);
  };
  for (const [name, sign] of signs) {
    const { symbol, dash, name: colour } = sign();
    const square = kind === "bar" ? SYMBOLS[1] : symbol;
    add(name, kind === "line" ? dash.join(" ") : null, `var(${colour})`, square);
  }
  if (data.series.some((one) => one.points.some((p) => kind === "line" && p[4]))) add("ring: the best of the curve", null, "none", SYMBOLS[0], "var(--ink)");
  if (kind === "scatter") add("front: nothing further left is higher", "2 3", "var(--quiet)");
  return list;
}

const charts = JSON.parse(document.getElementById("charts")?.textContent ?? "[]");
const said = element("div", "", "said");
said.setAttribute("role", "status");
document.body.append(said);
const waiting = new Map();
const drawNow = (figure) => { waiting.get(figure)?.(); waiting.delete(figure); };
const observer = new IntersectionObserver((seen) => seen.forEach((one) => one.isIntersecting && drawNow(one.target)), { rootMargin: "600px" });
for (const box of document.querySelectorAll(".charts")) {
  const figures = Array.from(box.querySelectorAll("figure.chart"));
  const own = figures.map((figure) => charts[figure.dataset.chart]);
  const signs = signsOf(own);
  if (signs.size > 1 && figures.length > 1) box.prepend(legend(signs, own[0]));
  else if (signs.size > 1) figures[0].querySelector("figcaption").after(legend(signs, own[0]));
  figures.forEach((figure, i) => {
    const canvas = figure.querySelector(".canvas");
    if (!own[i].series.some((series) => series.points.length)) {
      canvas.replaceWith(element("p", "No values."));
      return;
    }
    canvas.tabIndex = 0;
    if (own[i].kind === "bar") canvas.style.height = `${4 + 2.4 * own[i].series[0].points.length}rem`;
    figure.append(dataTable(own[i]));
    waiting.set(figure, () => draw(canvas, own[i], signs, said));
    observer.observe(figure);
  });
}
addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawNow));
