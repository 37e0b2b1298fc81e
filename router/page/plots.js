// Plots: time series as SVG. Knows no router; values and places in, elements out.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 190, LEFT = 56, RIGHT = 10, TOP = 10, BOTTOM = 22;
export const COLOURS = 8;

export function element(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

// The smallest of 1, 2, 5 times a power of ten that is not below `value`.
export function roundedUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value * 0.999999);
}

export function short(value) {
  if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  return `${+value.toPrecision(3)}`;
}

// Axes for a place as wide as it is now; redrawn with every look.
function frame(place, times, top, label) {
  const width = Math.max(200, place.clientWidth);
  const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  const first = times[0], last = times[times.length - 1];
  const x = (time) => LEFT + (width - LEFT - RIGHT) * (last > first ? (time - first) / (last - first) : 1);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * Math.min(value / top, 1);
  for (const share of [0, 0.5, 1]) {
    svg.append(element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(top * share), y2: y(top * share) }));
    svg.append(element("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, label(top * share)));
  }
  const minutes = Math.max(1, Math.ceil((last - first) / 60 / 5));
  for (let back = 0; last - back * 60 >= first; back += minutes) {
    const anchor = back ? "middle" : "end";
    svg.append(element("text", { x: x(last - back * 60), y: HEIGHT - 6, "text-anchor": anchor }, back ? `-${back} min` : "now"));
  }
  return { svg, x, y, width };
}

// A line for each series; a null is a gap.
export function lines(place, times, series, label = short) {
  const values = series.flatMap((one) => one.values).filter((value) => value !== null);
  if (!values.length) return empty(place);
  const { svg, x, y } = frame(place, times, roundedUp(Math.max(...values)), label);
  for (const { values, colour, name } of series) {
    let path = "", isDown = false;
    values.forEach((value, index) => {
      if (value === null) { isDown = false; return; }
      path += `${isDown ? "L" : "M"}${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`;
      if (!isDown && (index + 1 === values.length || values[index + 1] === null)) path += "h0.01"; // a dot
      isDown = true;
    });
    const line = element("path", { class: `line stroke${colour % COLOURS}`, d: path, "vector-effect": "non-scaling-stroke" });
    line.append(element("title", {}, name));
    svg.append(line);
  }
  show(place, svg, series);
}

// Shares of a whole, one upon the other; a moment without any is a gap.
export function shares(place, times, series) {
  const totals = times.map((_, index) => series.reduce((sum, one) => sum + one.values[index], 0));
  if (!totals.some((total) => total > 0)) return empty(place);
  const { svg, x, y, width } = frame(place, times, 1, (value) => `${Math.round(100 * value)} %`);
  const wide = Math.max(1, (width - LEFT - RIGHT) / Math.max(1, times.length - 1) - 0.6);
  const below = times.map(() => 0);
  for (const { values, colour, name } of series) {
    values.forEach((value, index) => {
      if (!(value > 0)) return;
      const from = below[index], to = (below[index] += value / totals[index]);
      const left = Math.min(Math.max(LEFT, x(times[index]) - wide / 2), width - RIGHT - wide);
      const bar = element("rect", { class: `fill${colour}`, x: left, width: wide, y: y(to), height: y(from) - y(to) });
      bar.append(element("title", {}, `${name}: ${short(value)} tokens`));
      svg.append(bar);
    });
  }
  show(place, svg, series);
}

// One bar of parts, for a table's cell.
export function bar(parts, most) {
  const svg = element("svg", { class: "bar", viewBox: "0 0 150 10", preserveAspectRatio: "none" });
  let left = 0;
  for (const { value, colour, name } of parts) {
    const width = most > 0 ? (150 * value) / most : 0;
    const part = element("rect", { class: `fill${colour}`, x: left, y: 0, width, height: 10 });
    part.append(element("title", {}, `${name}: ${short(value)} ms`));
    svg.append(part);
    left += width;
  }
  return svg;
}

function keys(series) {
  const list = document.createElement("div");
  list.className = "keys";
  for (const { name, colour } of series) {
    const key = document.createElement("span"), mark = document.createElement("i");
    mark.className = `fill${colour % COLOURS}`;
    key.append(mark, name);
    list.append(key);
  }
  return list;
}

function show(place, svg, series) {
  place.replaceChildren(svg, keys(series));
}

function empty(place) {
  const text = document.createElement("div");
  text.className = "empty";
  text.textContent = "nothing yet";
  place.replaceChildren(text);
}
