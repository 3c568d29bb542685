"use strict";
// Filter and sort the table of runs, overlay the curves of the chosen runs, and list the settings in which they differ.
// Text is put into the page only as textContent and as attributes, so that it can't become HTML.
(function () {
const MOST = 20; // runs that can be overlaid at once
const FIRST = 5; // runs that are overlaid at first
const DASHES = ["", "7 3", "7 3 2 3", "2 3", "9 3 2 3 2 3"];
const X_AXES = [
  { place: 0, over: "time", label: () => "seconds of training" },
  { place: 1, over: "examples", label: unit => `${unit} trained on` },
];
const STORAGE_KEY = `runs-page:${location.pathname}`;
const find = id => document.getElementById(id);
const data = JSON.parse(find("data").textContent);
const colours = JSON.parse(find("colours").textContent);
const body = document.querySelector("#runs tbody");
const headings = [...document.querySelectorAll("#runs thead th")];
const selects = [...document.querySelectorAll("select[data-filter]")];
const rows = [...body.rows].map((row, index) => ({
  row, index, run: data.runs[index], box: row.querySelector("input"), text: row.textContent.toLowerCase(),
  order: [...row.cells].map(cell => cell.dataset.order),
}));

// What the reader has chosen. It survives a refresh of the page, as long as the tab is open.
let state = { text: "", filters: {}, sort: null, chosen: null, trained: false };
try { state = Object.assign(state, JSON.parse(sessionStorage.getItem(STORAGE_KEY) || "{}")); } catch (error) { /* no storage */ }

const isNew = !state.chosen;
state.chosen = state.chosen || {};

function keep() {
  state.scroll = [scrollX, scrollY, find("runs").scrollLeft, find("runs").scrollTop];
  const active = document.activeElement;
  state.focus = active && active.id ? active.id : null;
  try { sessionStorage.setItem(STORAGE_KEY, JSON.stringify(state)); } catch (error) { /* without storage, a refresh forgets the choice */ }
}

// The table.

const isShown = one => one.text.includes(state.text.trim().toLowerCase())
  && Object.entries(state.filters).every(([name, value]) => !value || one.run.filters[name] === value);

function filter() {
  for (const one of rows) one.row.hidden = !isShown(one);
}

function tell() {
  const shown = rows.filter(one => !one.row.hidden).length, chosen = choice().length;
  find("count").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} runs shown, ` +
    `${chosen} overlaid` + (chosen >= MOST ? `: at most ${MOST} runs can be overlaid` : "");
}

function before(left, right) {
  if (left === "" || right === "") return (left === "") - (right === "");
  const [one, other] = [Number(left), Number(right)];
  return isNaN(one) || isNaN(other) ? left.localeCompare(right) : one - other;
}

function sort() {
  const { column, down } = state.sort || {};
  headings.forEach((heading, index) => {
    if (index === column) heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  });
  const isLess = (left, right) => {
    const [one, other] = [left.order[column], right.order[column]];
    const unknown = one === "" || other === "";
    return (unknown || !down ? before(one, other) : before(other, one)) || left.index - right.index;
  };
  const sorted = column === undefined ? rows : [...rows].sort(isLess);
  body.append(...sorted.map(one => one.row));
}

// The chosen runs: name of a run → the index of its colour and line, which it keeps when the choice of other runs changes.

const choice = () => rows.filter(one => one.run.name in state.chosen);

function choose(one, wanted) {
  if (!wanted) { delete state.chosen[one.run.name]; return; }
  const taken = new Set(choice().map(other => state.chosen[other.run.name]));
  let place = 0;
  while (taken.has(place)) place++;
  state.chosen[one.run.name] = place;
}

function chooseFirst() {
  state.chosen = {};
  const inOrder = [...body.rows].map(row => rows.find(one => one.row === row));
  inOrder.filter(one => !one.row.hidden && Object.keys(one.run.tested).length).slice(0, FIRST)
    .forEach(one => choose(one, true));
}

const lookOf = one => {
  const place = state.chosen[one.run.name];
  return { colour: colours[place % colours.length], dash: DASHES[place % DASHES.length] };
};

// Drawing.

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function html(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(times => times * power >= raw * 0.999);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) found.push(index * step);
  return found;
}

function short(value) {
  for (const [unit, by, name] of [[1e9, 1e9, " G"], [1e6, 1e6, " M"], [1e4, 1e3, " k"]])
    if (Math.abs(value) >= unit) return `${Number((value / by).toPrecision(4))}${name}`;
  return String(Number(value.toPrecision(4)));
}
const percent = value => `${Number((100 * value).toPrecision(4))} %`;

function keyOf(one) {
  const { colour, dash } = lookOf(one);
  return svg("svg", { class: "key", viewBox: "0 0 26 12" },
    svg("line", { x1: 1, y1: 6, x2: 25, y2: 6, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dash }));
}

// Draw panels of {title, label, lines, text}. Each of `lines` has {one, points: [[x, y]], thin, dots}. All figures are put on
// the page before the first panel is drawn, because a drawing is as wide as its figure.
function drawPanels(into, panels, otherwise) {
  const figures = panels.map(({ title }) => html("figure", {}, html("h3", { textContent: title })));
  into.replaceChildren(...figures);
  panels.forEach((panel, index) => drawPanel(figures[index], panel));
  if (!panels.length) into.append(html("p", { className: "quiet", textContent: otherwise }));
}

function drawPanel(figure, { title, label, lines, text }) {
  const all = lines.flatMap(line => line.points);
  const width = Math.max(260, figure.clientWidth || 440), height = Math.round(Math.min(300, 120 + width / 3));
  const [xs, ys] = [0, 1].map(place => all.map(point => point[place]));
  const range = values => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  let [left, right] = range(xs), [low, high] = range(ys);
  left = Math.min(0, left);
  if (right === left) right = left + 1;
  if (high === low) { const more = Math.abs(high) * 0.1 || 0.1; low -= more; high += more; }
  const room = (high - low) * 0.05;
  low -= room; high += room;
  const yTicks = ticks(low, high, 5);
  const edge = { left: 14 + 7 * Math.max(...yTicks.map(value => text(value).length)), right: 16, top: 12, bottom: 42 };
  const x = value => edge.left + (value - left) / (right - left) * (width - edge.left - edge.right);
  const y = value => height - edge.bottom - (value - low) / (high - low) * (height - edge.top - edge.bottom);
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, ${label}` });
  for (const value of yTicks) {
    image.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value), stroke: "#e3e6ea" }),
      svg("text", { x: edge.left - 6, y: y(value) + 4, "text-anchor": "end" }, text(value)));
  }
  for (const value of ticks(left, right, width < 380 ? 3 : 5)) {
    image.append(svg("line", { x1: x(value), x2: x(value), y1: edge.top, y2: height - edge.bottom, stroke: "#eef0f2" }),
      svg("text", { x: x(value), y: height - edge.bottom + 16, "text-anchor": "middle" }, short(value)));
  }
  image.append(svg("text", { x: (edge.left + width - edge.right) / 2, y: height - 8, "text-anchor": "middle" }, label));
  for (const { one, points, thin, dots } of lines) {
    const { colour, dash } = lookOf(one);
    const path = points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
    image.append(svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": thin ? 1 : 2, opacity: thin ? 0.55 : 1,
      "stroke-dasharray": dash, "stroke-linejoin": "round" }, svg("title", {}, one.run.name)));
    if (!dots) continue;
    for (const [px, py] of points)
      image.append(svg("circle", { cx: x(px), cy: y(py), r: points.length > 30 ? 1.8 : 3, fill: colour },
        svg("title", {}, `${one.run.name}: ${text(py)} at ${short(px)} ${label}`)));
  }
  figure.append(image);
}

const pointsOf = (curve, place) => (curve || []).filter(point => point[place] !== null).map(point => [point[place], point[2]]);

function drawCurves(chosen) {
  const units = new Set(chosen.map(one => one.run.unit)), unit = units.size === 1 ? [...units][0] : "examples";
  const panels = [];
  for (const measure of ["accuracy", "error", "loss"]) {
    for (const { place, over, label } of X_AXES) {
      const lines = [];
      for (const one of chosen) {
        if (state.trained) lines.push({ one, points: pointsOf(one.run.trained[measure], place), thin: true });
        lines.push({ one, points: pointsOf(one.run.tested[measure], place), dots: true });
      }
      const name = state.trained ? measure[0].toUpperCase() + measure.slice(1) : `Test ${measure}`;
      panels.push({
        title: `${name} over ${over === "time" ? over : unit}`, label: label(unit),
        lines: lines.filter(line => line.points.length), text: measure === "accuracy" ? percent : short,
      });
    }
  }
  drawPanels(find("panels"), panels.filter(panel => panel.lines.length), nothing(chosen, "a curve"));
}

function drawStaleness(chosen) {
  const lines = chosen.filter(one => one.run.staleness.length)
    .map(one => ({ one, points: one.run.staleness, dots: one.run.staleness.length <= 30 }));
  const panel = { title: "Share of the updates with at most this staleness", label: "staleness", lines, text: percent };
  drawPanels(find("stale"), lines.length ? [panel] : [], nothing(chosen, "a measured staleness"));
}

const nothing = (chosen, what) => chosen.length ? `None of the chosen runs has ${what}.` : "Choose runs in the table to overlay them.";

function listSettings(chosen) {
  const into = find("settings"), differing = data.settings.filter(one => new Set(chosen.map(({ index }) => one.of[index])).size > 1);
  into.replaceChildren();
  into.hidden = !differing.length;
  find("difference").textContent = chosen.length < 2 ? "Choose two or more runs in the table."
    : differing.length ? `${differing.length} settings differ between the ${chosen.length} chosen runs. A – means that the run has no such setting.`
    : `The ${chosen.length} chosen runs have the same settings.`;
  if (!differing.length) return;
  const head = html("tr", {}, html("th", { textContent: "setting", scope: "col" }),
    ...chosen.map(one => html("th", { scope: "col" }, keyOf(one), ` ${one.run.name}`)));
  const body = differing.map(({ key, values, of }) => html("tr", {}, html("th", { textContent: key, scope: "row" }),
    ...chosen.map(({ index }) => html("td", { textContent: of[index] < 0 ? "–" : values[of[index]] }))));
  into.append(html("table", {}, html("thead", {}, head), html("tbody", {}, ...body)));
}

function draw() {
  const chosen = choice();
  for (const one of rows) {
    const is = one.run.name in state.chosen;
    one.box.checked = is;
    one.box.disabled = !is && chosen.length >= MOST;
  }
  find("legend").replaceChildren(...chosen.map(one => html("li", {}, keyOf(one), html("span", { textContent: one.run.name }))));
  drawCurves(chosen);
  drawStaleness(chosen);
  listSettings(chosen);
  tell();
}

// React to what the reader does.

find("text").value = state.text;
find("trained").checked = state.trained;
for (const select of selects) {
  select.value = state.filters[select.dataset.filter] || "";
  if (select.selectedIndex < 0) select.value = "";  // no run has this value any more
  state.filters[select.dataset.filter] = select.value;
  select.addEventListener("change", () => { state.filters[select.dataset.filter] = select.value; filter(); tell(); keep(); });
}
find("text").addEventListener("input", event => { state.text = event.target.value; filter(); tell(); keep(); });
find("trained").addEventListener("change", event => { state.trained = event.target.checked; draw(); keep(); });
find("first").addEventListener("click", () => { chooseFirst(); draw(); keep(); });
find("none").addEventListener("click", () => { state.chosen = {}; draw(); keep(); });
headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
  const again = state.sort && state.sort.column === column;
  // Sort numbers from the largest at first, and words from A.
  const numbers = rows.some(one => one.order[column] !== "" && !isNaN(Number(one.order[column])));
  state.sort = { column, down: again ? !state.sort.down : numbers };
  sort();
  keep();
}));
rows.forEach(one => one.box.addEventListener("change", () => { choose(one, one.box.checked); draw(); keep(); }));
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
addEventListener("pagehide", keep);

sort();
filter();
if (isNew) chooseFirst();
draw();
if (state.scroll) {
  find("runs").scrollTo(state.scroll[2], state.scroll[3]);
  scrollTo(state.scroll[0], state.scroll[1]);
}
if (state.focus && find(state.focus)) find(state.focus).focus({ preventScroll: true });
})();
