// NumberLine: the numbers that formats have, on one line, from whole binades down to single ulps.
// The view is exact: a centre (a rational) and a width 2^zoom, in quarter steps of zoom.

const LANE = 80; // pixels of height for each format
const LINE_ROUNDINGS = [["nearest_even", "nearest, ties to even"], ["nearest_away", "nearest, ties away"], ["toward_zero", "toward zero"], ["up", "up"], ["down", "down"]];

// Quarter steps of zoom as exact widths: 1, 5/4, 3/2, 7/4 times a power of two.
export function widthOf(zoom) {
  const whole = Math.floor(zoom);
  const [num, den] = power2(whole - 2);
  return finite(BigInt(4 + Math.round((zoom - whole) * 4)) * num, den);
}

const halve = (value) => finite(value.num, value.den * 2n, value.negative);
const times = (value, num, den = 1n) => finite(num < 0n ? -num * value.num : num * value.num, den * value.den, num < 0n ? !value.negative : value.negative);

// A position in the view, 0 at its left and 1 at its right end, as a number for drawing.
export function makeView(center, zoom, pixels) {
  const width = widthOf(zoom);
  const low = subtract(center, halve(width));
  const ratio = (value) => {
    const away = subtract(value, low);
    return toNumber(finite(away.num * width.den, away.den * width.num, away.negative));
  };
  const pixelOf = (value) => Math.max(-1e4, Math.min(1e5, ratio(value) * pixels));
  return { center, width, low, high: add(center, halve(width)), pixels, pixelOf };
}

// The number nearest to a pixel on a grid far finer than a pixel, so that its text stays short.
function valueAt(view, pixel) {
  const steps = BigInt(Math.round((pixel / view.pixels) * 4096));
  return onGrid(add(view.low, times(view.width, steps, 4096n)), view.width);
}

function onGrid(value, width) {
  const exponent = floorLog2(width.num, width.den) - 12;
  const [num, den] = power2(exponent);
  const scaledNum = value.num * den;
  const scaledDen = value.den * num;
  const count = (2n * scaledNum + scaledDen) / (2n * scaledDen);
  return finite(count * num, den, value.negative);
}

function magnitudes(format, negative) {
  const shape = shapeOf(format);
  const first = shape.scaleOnly ? shape.minExponent : shape.minExponent - 1; // below the normals: the subnormals
  const last = fields(format, shape.maxCode).exponent;
  return { shape, first, last, negative };
}

// What one lane has to draw: marks {x, kind} for single numbers, blocks {from, to, kind} where they are too dense to tell apart.
export function laneMarks(format, view) {
  const marks = [];
  const blocks = [];
  for (const negative of format.signed ? [true, false] : [false]) sideMarks(format, view, negative, marks, blocks);
  if (!shapeOf(format).scaleOnly) {
    const zero = finite(0n);
    if (inView(view, zero)) marks.push({ x: view.pixelOf(zero), kind: "zero", label: "0" });
  }
  return { marks, blocks };
}

const inView = (view, value) => compare(value, view.low) >= 0 && compare(value, view.high) <= 0;

function sideMarks(format, view, negative, marks, blocks) {
  const { shape, first, last } = magnitudes(format, negative);
  const m = format.fraction_bits;
  const logPixel = Math.log2(view.pixels) - floorLog2(view.width.num, view.width.den);
  const edge = (exponent) => finite(...power2(exponent), negative);
  for (let exponent = last; exponent >= first; exponent -= 1) {
    const subnormal = exponent === first && !shape.scaleOnly;
    const outer = subnormal ? edge(shape.minExponent) : edge(exponent + 1);
    const inner = subnormal ? finite(0n) : edge(exponent);
    const [low, high] = negative ? [outer, inner] : [inner, outer];
    if (exponent + 1 + logPixel < -1) {
      // All that is left lies within half a pixel of zero.
      if (inView(view, finite(0n))) blocks.push({ from: view.pixelOf(finite(0n)) - 1, to: view.pixelOf(finite(0n)) + 1, kind: "dense" });
      return;
    }
    if (compare(high, view.low) < 0 || compare(low, view.high) > 0) continue;
    const ulpExponent = (subnormal ? shape.minExponent : exponent) - m;
    const spacing = 2 ** (ulpExponent + logPixel);
    const kind = subnormal ? "subnormal" : "normal";
    if (spacing < 3) blocks.push(denseBlock(view, low, high, kind, exponent === last ? decodeMax(format, negative) : null));
    else singleMarks({ view, format, inner, outer, ulpExponent, kind, negative, marks });
  }
}

const decodeMax = (format, negative) => decode(format, shapeOf(format).maxCode | (negative ? shapeOf(format).signBit : 0n));

function denseBlock(view, low, high, kind, limit) {
  const [from, to] = [limit?.negative ? limit : low, limit && !limit.negative ? limit : high];
  return { from: Math.max(0, view.pixelOf(from)), to: Math.min(view.pixels, view.pixelOf(to)), kind };
}

// floor(value / unit), or the ceiling, as a BigInt.
function countOf(value, num, den, up) {
  const top = signed(value) * den;
  const bottom = value.den * num;
  const quotient = top / bottom;
  const floor = top % bottom !== 0n && top < 0n ? quotient - 1n : quotient;
  return up && floor * bottom !== top ? floor + 1n : floor;
}

// The numbers of one binade, from its power of two (or zero) up to but not including the next.
function singleMarks({ view, format, inner, outer, ulpExponent, kind, negative, marks }) {
  const [num, den] = power2(ulpExponent);
  const [low, high] = negative ? [outer, inner] : [inner, outer];
  const from = compare(low, view.low) > 0 ? low : view.low;
  const to = compare(high, view.high) < 0 ? high : view.high;
  const max = decodeMax(format, negative);
  for (let step = countOf(from, num, den, true); step <= countOf(to, num, den, false); step += 1n) {
    const value = finite(step * num, den);
    const beyond = negative ? compare(value, max) < 0 : compare(value, max) > 0;
    if (step === 0n || beyond || compare(value, outer) === 0) continue;
    marks.push({ x: view.pixelOf(value), kind: kind === "normal" && compare(value, inner) === 0 ? "binade" : kind });
  }
}

// Where a number lands in a format under each rounding: {lower, upper, by: {rounding: code}}.
export function landings(format, value) {
  const by = {};
  for (const [rounding] of LINE_ROUNDINGS) {
    try {
      by[rounding] = encode(value, format, { rounding });
    } catch {
      by[rounding] = null;
    }
  }
  return by;
}

const shortNames = { nearest_even: "nearest", toward_zero: "to zero", up: "up", down: "down" };

function landingGroups(format, value) {
  const by = landings(format, value);
  const groups = new Map();
  for (const [rounding, name] of Object.entries(shortNames)) {
    if (by[rounding] === null) continue;
    const landed = decode(format, by[rounding]);
    if (landed.kind !== "finite") continue;
    const key = exactDecimal(landed).replace(/^-0$/, "0");
    if (!groups.has(key)) groups.set(key, { value: landed, names: [] });
    groups.get(key).names.push(name);
  }
  return [...groups.values()];
}

// The roundings that leave the line altogether: "up to inf".
function beyondWords(format, value) {
  const by = landings(format, value);
  const gone = Object.entries(shortNames).filter(([rounding]) => by[rounding] !== null && decode(format, by[rounding]).kind !== "finite");
  if (!gone.length) return "";
  return `${gone.map(([, name]) => name).join(", ")}: ${exactDecimal(decode(format, by[gone[0][0]]))}`;
}

function drawLane(format, view, y, typed) {
  const { marks, blocks } = laneMarks(format, view);
  const nodes = [svg("line", { x1: 0, x2: view.pixels, y1: y + 38, y2: y + 38, class: "nl-axis" })];
  for (const { from, to, kind } of blocks) {
    if (to > from) nodes.push(svg("rect", { x: from, y: y + (kind === "subnormal" ? 31 : 25), width: Math.max(1, to - from), height: kind === "subnormal" ? 7 : 13, class: `nl-block nl-${kind}` }));
  }
  const reach = { binade: [17, 38], normal: [25, 38], subnormal: [31, 38], zero: [14, 43] };
  for (const { x, kind } of marks) nodes.push(svg("line", { x1: x, x2: x, y1: y + reach[kind][0], y2: y + reach[kind][1], class: `nl-mark nl-${kind}` }));
  if (typed) nodes.push(...drawLandings(format, view, y, typed));
  const max = decodeMax(format, false);
  const gone = typed ? beyondWords(format, typed) : "";
  const note = gone || (compare(max, view.low) < 0 ? `largest: ${pretty(max, 6)}, to the left` : "");
  nodes.push(svg("text", { x: 8, y: y + 10, class: "nl-name", text: format.name }), svg("text", { x: 20 + 8 * format.name.length, y: y + 10, text: note }));
  return nodes;
}

function drawLandings(format, view, y, typed) {
  const groups = landingGroups(format, typed).map((group) => ({ ...group, x: view.pixelOf(group.value) })).filter(({ x }) => x >= 0 && x <= view.pixels);
  const home = view.pixelOf(typed);
  const apart = groups.length < 2 || Math.abs(groups[0].x - groups[1].x) > 5;
  const nodes = groups.flatMap(({ x, names }) => {
    const side = Math.abs(x - home) < 0.5 ? "middle" : x < home ? "end" : "start";
    const room = 7 * names.join(", ").length; // of the words, in pixels
    const anchor = x < room && side === "end" ? "start" : x > view.pixels - room && side === "start" ? "end" : side;
    const target = [
      svg("path", { d: `M ${home} ${y + 56} Q ${(home + x) / 2} ${y + 58} ${x} ${y + 43}`, class: "nl-path" }),
      svg("circle", { cx: x, cy: y + 38, r: 4.5, class: "nl-landing" }),
    ];
    const text = svg("text", { x: x + (anchor === "end" ? 2 : anchor === "start" ? -2 : 0), y: y + 70, "text-anchor": anchor, class: "nl-words", text: names.length === 4 ? "every rounding" : names.join(", ") });
    return apart ? [...target, text] : target;
  });
  if (!apart) nodes.push(svg("text", { x: home, y: y + 70, "text-anchor": home < 130 ? "start" : home > view.pixels - 130 ? "end" : "middle", class: "nl-words", text: "zoom in to tell the roundings apart" }));
  return nodes;
}

// Labels of the axis: plain numbers, or distances from the centre once digits would only repeat.
function axisLabels(view) {
  const exponent = floorLog2(view.width.num, view.width.den);
  const [num, den] = power2(exponent - (view.pixels < 520 ? 1 : 2));
  const step = finite(num, den);
  const scale = view.center.num === 0n ? exponent : floorLog2(view.center.num, view.center.den);
  const relative = scale - exponent > 16;
  const labels = [];
  const toStep = (value) => value.num * step.den / (value.den * step.num);
  const origin = relative ? view.center : finite(0n);
  const start = subtract(view.low, origin);
  let count = toStep(start) * (start.negative ? -1n : 1n) - 1n;
  for (let guard = 0; guard < 24; guard += 1, count += 1n) {
    const away = times(step, count);
    const value = add(origin, away);
    if (!inView(view, value)) continue;
    const text = relative && count !== 0n ? `${away.negative ? "" : "+"}${pretty(away, 5)}` : pretty(value, relative ? 12 : 8);
    labels.push({ x: view.pixelOf(value), text });
  }
  return labels;
}

function drawAll(canvas, view, formats, typed) {
  const height = formats.length * LANE + 30;
  setAttribute(canvas, "viewBox", `0 0 ${view.pixels} ${height}`);
  setAttribute(canvas, "height", height);
  const nodes = formats.flatMap((format, index) => drawLane(format, view, index * LANE + 14, typed));
  const bottom = formats.length * LANE + 8;
  for (const { x, text } of axisLabels(view)) {
    const anchor = x < 46 ? "start" : x > view.pixels - 46 ? "end" : "middle";
    nodes.push(svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 5, class: "nl-axis" }), svg("text", { x, y: bottom + 18, "text-anchor": anchor, class: "nl-label", text }));
  }
  const x = typed ? view.pixelOf(typed) : -1;
  if (x >= 0 && x <= view.pixels) {
    const flag = svg("path", { d: `M ${x - 5} 0 h 10 l -5 8 z`, class: "nl-flag" });
    nodes.unshift(svg("line", { x1: x, x2: x, y1: 6, y2: bottom, class: "nl-typed" }), flag);
  }
  canvas.replaceChildren(...nodes);
}

function buildTable() {
  const body = h("tbody");
  const heads = ["Format", ...LINE_ROUNDINGS.map(([, name]) => name), "stochastic: away from zero"];
  const table = h("table", { class: "lk-table" }, h("caption", { class: "lk-hidden", text: "Where the typed value lands" }),
    h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col", text })))), body);
  const node = h("div", { class: "lk-scroll", tabindex: "0", role: "group", "aria-label": "Where the typed value lands, by format and rounding" }, table);
  return { node, body };
}

function stochasticWords(format, typed) {
  if (typed.kind !== "finite") return "";
  const land = (draw) => encode(typed, format, { rounding: "stochastic", draw });
  const nearer = land(fromDraw(1 - 2 ** -53));
  if (nearer === land(finite(0n))) return "never";
  const cut = subtract(typed, decode(format, nearer));
  const gap = ulp(format, nearer);
  const chance = 100 * toNumber(finite(cut.num * gap.den, cut.den * gap.num));
  return `${pretty(parseNumber(chance.toFixed(3)), 3)} % of draws`;
}

function renderTable(table, formats, typed) {
  table.body.replaceChildren(...formats.map((format) => {
    const by = landings(format, typed);
    const cells = LINE_ROUNDINGS.map(([rounding]) => {
      if (by[rounding] === null) return h("td", { text: "no such value" });
      return h("td", { class: "lk-mono", text: pretty(decode(format, by[rounding]), 10) });
    });
    return h("tr", {}, h("th", { scope: "row", class: "lk-mono", text: format.name }), ...cells, h("td", { text: stochasticWords(format, typed) }));
  }));
}

// Zoom goes from a width that holds the widest format down to a quarter of the finest gap.
export function zoomLimits(formats) {
  const shapes = formats.map((format) => ({ format, ...shapeOf(format) }));
  const finest = Math.min(...shapes.map(({ format, minExponent }) => minExponent - format.fraction_bits));
  const widest = Math.max(...shapes.map(({ format, maxCode }) => fields(format, maxCode).exponent));
  return [finest - 2, widest + 3];
}

function wireLine(plot, view, act) {
  let drag = null;
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, center: view().center, moved: false };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const by = event.clientX - drag.x;
    if (Math.abs(by) > 4) drag.moved = true;
    if (drag.moved) act.lookAt(add(drag.center, times(view().width, BigInt(Math.round((-by / view().pixels) * 4096)), 4096n)));
  });
  plot.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) act.type(valueAt(view(), event.clientX - plot.getBoundingClientRect().left));
    drag = null;
  });
  plot.addEventListener("pointercancel", () => (drag = null));
  plot.addEventListener("wheel", (event) => {
    // The page scrolls unless the line has been chosen first.
    if (plot.ownerDocument.activeElement !== plot && plot.getRootNode().activeElement !== plot && !event.ctrlKey) return;
    event.preventDefault();
    act.zoom(event.deltaY > 0 ? 0.25 : -0.25, event.clientX - plot.getBoundingClientRect().left);
  }, { passive: false });
  const keys = { ArrowLeft: () => act.pan(-1n), ArrowRight: () => act.pan(1n), "+": () => act.zoom(-1), "=": () => act.zoom(-1), ArrowUp: () => act.zoom(-1), "-": () => act.zoom(1), ArrowDown: () => act.zoom(1), Home: () => act.home() };
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });
}

function render({ model, el, signal: ended }) {
  const { signal, end } = lifetime(ended);
  const root = makeRoot(el, model, "labkit-line", "Number line");
  const speak = makeSpeaker(root, signal);
  const canvas = svg("svg", { class: "nl-canvas", "aria-hidden": "true", width: "100%" });
  const plot = h("div", { class: "nl-plot", tabindex: "0", role: "group", "aria-label": "Number line: Left and Right move, plus and minus zoom, Home goes back to the typed value" }, canvas);
  const table = buildTable();
  let view = null;

  const typed = () => parseNumber(model.get("source"));
  const clamp = (zoom) => {
    const [low, high] = zoomLimits(model.get("formats"));
    return Math.max(low, Math.min(high, zoom));
  };
  const set = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
    draw();
    speak(`The line shows ${pretty(view.low, 8)} to ${pretty(view.high, 8)}.`);
  };
  const act = {
    lookAt: (center) => set({ center: exactDecimal(onGrid(center, view.width)) }),
    pan: (direction) => act.lookAt(add(view.center, times(view.width, direction, 8n))),
    home: () => typed().kind === "finite" && !typed().beyond && set({ center: model.get("source") }),
    type: (value) => set({ source: exactDecimal(value) }),
    zoom(by, pixel = null) {
      const zoom = clamp(model.get("zoom") + by);
      const width = widthOf(zoom);
      // Keep what lies under the pointer where it is.
      const around = pixel === null ? null : valueAt(view, pixel);
      const center = around === null ? view.center : add(around, times(width, BigInt(Math.round((0.5 - pixel / view.pixels) * 4096)), 4096n));
      set(around === null ? { zoom } : { zoom, center: exactDecimal(onGrid(center, width)) });
    },
  };
  const value = textField({
    label: "Value", read: () => model.get("source"),
    take(raw) {
      const number = parseNumber(raw);
      if (number.kind !== "finite" || number.beyond) return set({ source: raw.trim() });
      const far = !inView(view, number);
      set(far ? { source: raw.trim(), center: raw.trim() } : { source: raw.trim() });
    },
  });
  value.field.classList.add("nl-value");
  const buttons = h("div", { class: "nl-buttons" },
    button("◀", () => act.pan(-1n), { label: "Move left" }), button("▶", () => act.pan(1n), { label: "Move right" }),
    button("−", () => act.zoom(1), { label: "Zoom out" }), button("+", () => act.zoom(-1), { label: "Zoom in" }),
    button("To the value", () => act.home()),
    button("To its gap", () => set({ ...(typed().kind === "finite" ? { center: model.get("source") } : {}), zoom: clamp(gapZoom()) })));
  const scale = h("p", { class: "nl-scale lk-soft" });
  root.append(h("div", { class: "lk-bar" }, value.field, buttons), plot, scale, table.node);

  function gapZoom() {
    const gaps = model.get("formats").map((format) => {
      const number = typed();
      const code = number.kind === "nan" ? 0n : encode(number, format, { overflow: "saturate" });
      const gap = ulp(format, code);
      return gap === null ? Infinity : floorLog2(gap.num, gap.den);
    });
    return Math.min(...gaps.filter(Number.isFinite), 1000) + 3;
  }
  function draw() {
    const formats = model.get("formats");
    const number = typed();
    const pixels = Math.max(280, Math.round(plot.clientWidth) || 800);
    view = makeView(parseNumber(model.get("center")), model.get("zoom"), pixels);
    drawAll(canvas, view, formats, number.kind === "finite" && !number.beyond ? number : null);
    renderTable(table, formats, number);
    setText(scale, `From ${pretty(view.low, 10)} to ${pretty(view.high, 10)}. A tall mark is a power of two; short ones are subnormal; a solid block is too dense to tell its numbers apart.`);
    value.refresh();
  }
  draw();
  const resize = new ResizeObserver(() => Math.round(plot.clientWidth) !== view.pixels && draw());
  resize.observe(plot);
  signal.addEventListener("abort", () => resize.disconnect());
  wireLine(plot, () => view, act);
  follow(model, ["source", "center", "zoom", "formats"], draw, signal);
  return end;
}

export default { render };
