// UpdateExplorer: add one small update to one weight again and again, and see what each format and each way keeps of it.

const UPDATE_FORMATS = ["bf16", "fp16", "fp32"];
const WAYS = [["nearest", "rounded to nearest"], ["stochastic", "stochastic rounding"], ["kahan", "Kahan summation"]];
const LARGEST_STEPS = 500;

// Uniform draws from a seed: the low 32 bits of a Weyl sequence, mixed (mulberry32). The same as Draws in update_explorer.py.
export function makeDraws(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// The weight at step 0, 1, ..., steps under each way of adding, as exact numbers.
export function updatePaths(weight, update, steps, format, seed) {
  const rounded = (value, options = {}) => decode(format, encode(value, format, { overflow: "saturate", ...options }));
  const draw = makeDraws(seed);
  let nearest = rounded(weight);
  let stochastic = nearest;
  let kahan = nearest;
  let kept = finite(0n);
  const paths = { nearest: [nearest], stochastic: [stochastic], kahan: [kahan] };
  for (let step = 1; step <= steps; step += 1) {
    nearest = rounded(add(nearest, update));
    stochastic = rounded(add(stochastic, update), { rounding: "stochastic", draw: fromDraw(draw()) });
    const wanted = add(update, kept);
    const moved = rounded(add(kahan, wanted));
    kept = rounded(subtract(wanted, subtract(moved, kahan)));
    kahan = moved;
    paths.nearest.push(nearest);
    paths.stochastic.push(stochastic);
    paths.kahan.push(kahan);
  }
  return paths;
}

const timesWhole = (value, count) => finite(value.num * BigInt(count), value.den, value.negative);

// The share of the wanted change that arrived, in percent; null where no change was wanted.
export function arrived(path, update, steps) {
  const wanted = toNumber(timesWhole(update, steps));
  return wanted === 0 ? null : (100 * toNumber(subtract(path.at(-1), path[0]))) / wanted;
}

// Why the update is kept or lost at the first step, in one sentence.
export function reason(weight, update, format) {
  const start = encode(weight, format, { overflow: "saturate" });
  const up = toNumber(ulp(format, start));
  const ratio = Math.abs(toNumber(update)) / up;
  const next = encode(add(decode(format, start), update), format, { overflow: "saturate" });
  const spacing = `Near ${pretty(decode(format, start), 6)} the numbers of ${format.name} lie ${pretty(ulp(format, start), 4)} apart`;
  const part = `the update is ${Number(ratio.toPrecision(3))} of that step`;
  if (isZero(update)) return `${spacing}; an update of zero changes nothing.`;
  return next === start ? `${spacing}; ${part}, so rounding to nearest gives the old weight back.` : `${spacing}; ${part}, so the weight moves, to a number ${format.name} has.`;
}

function niceTicks(low, high) {
  const raw = (high - low) / 4;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * base).find((one) => one >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step); tick * step <= high; tick += 1) ticks.push(tick * step);
  return { ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

const HEIGHT = 240;
const EDGE = { left: 74, right: 14, top: 12, bottom: 40 };

function drawPaths(canvas, { paths, exact, steps, pixels }) {
  const values = [...Object.values(paths).flat(), ...exact];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - Math.max(1e-6, Math.abs(low) * 1e-3), high + Math.max(1e-6, Math.abs(high) * 1e-3)];
  const pad = (high - low) * 0.06;
  [low, high] = [low - pad, high + pad];
  const x = (step) => EDGE.left + (step / steps) * (pixels - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - ((value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const { ticks, digits } = niceTicks(low, high);
  const grid = ticks.flatMap((tick) => [
    svg("line", { x1: EDGE.left, x2: pixels - EDGE.right, y1: y(tick), y2: y(tick), class: "ue-grid" }),
    svg("text", { x: EDGE.left - 8, y: y(tick) + 4, "text-anchor": "end", class: "ue-tick", text: digits > 7 ? tick.toExponential(2) : tick.toFixed(digits) }),
  ]);
  const feet = niceTicks(0, steps).ticks.filter(Number.isInteger).map((step) => svg("text", { x: x(step), y: HEIGHT - EDGE.bottom + 17, "text-anchor": "middle", class: "ue-tick", text: String(step) }));
  const stairs = (path) => path.map((value, step) => (step ? `H${x(step).toFixed(1)}V${y(value).toFixed(1)}` : `M${x(0).toFixed(1)} ${y(value).toFixed(1)}`)).join("");
  setAttribute(canvas, "viewBox", `0 0 ${pixels} ${HEIGHT}`);
  setAttribute(canvas, "height", HEIGHT);
  canvas.replaceChildren(
    ...grid, ...feet,
    svg("line", { x1: EDGE.left, x2: pixels - EDGE.right, y1: HEIGHT - EDGE.bottom, y2: HEIGHT - EDGE.bottom, class: "ue-axis" }),
    svg("text", { x: (EDGE.left + pixels - EDGE.right) / 2, y: HEIGHT - 6, "text-anchor": "middle", text: "step" }),
    svg("path", { d: `M${x(0)} ${y(exact[0])}L${x(steps)} ${y(exact.at(-1))}`, class: "ue-line ue-exact" }),
    ...WAYS.map(([way]) => svg("path", { d: stairs(paths[way]), class: `ue-line ue-${way}` })),
  );
}

function legend() {
  const entry = (way, text) => h("li", {}, svg("svg", { width: 34, height: 8, "aria-hidden": "true" }, svg("path", { d: "M0 4H34", class: `ue-line ue-${way}` })), h("span", { text }));
  return h("ul", { class: "ue-key", "aria-label": "Lines" }, entry("exact", "exact sum"), ...WAYS.map(([way, text]) => entry(way, text)));
}

function buildTable() {
  const body = h("tbody");
  const head = h("tr", {}, ...["Format", ...WAYS.map(([, text]) => text)].map((text) => h("th", { scope: "col", text })));
  const table = h("table", {}, h("caption", { class: "lk-hidden", text: "Last weight, and the share of the change that arrived" }), h("thead", {}, head), body);
  const render = (all, update, steps) => {
    body.replaceChildren(...UPDATE_FORMATS.map((name) => h("tr", {}, h("th", { scope: "row", class: "lk-mono", text: name }), ...WAYS.map(([way]) => {
      const share = arrived(all[name][way], update, steps);
      const words = share === null ? "" : ` (${Math.round(share)} % arrived)`;
      return h("td", { class: share !== null && (share < 50 || share > 150) ? "lk-mono ue-lost" : "lk-mono", text: `${shortDecimal(all[name][way].at(-1), 9).text}${words}` });
    }))));
  };
  return { node: h("div", { class: "ue-scroll", tabindex: "0", role: "group", "aria-label": "Last weight by format and way" }, table), render };
}

function readFinite(text) {
  const value = parseNumber(text);
  if (value.kind !== "finite") throw new Error(`${text} is not a finite number.`);
  return value;
}

function render({ model, el, signal }) {
  const root = makeRoot(el, model, "labkit-update", "Update explorer");
  const speak = makeSpeaker(root, signal);
  const canvas = svg("svg", { class: "ue-canvas", width: "100%", role: "img", "aria-label": "The weight over the steps under each way of adding; the table below has the last weights" });
  const plot = h("div", { class: "ue-plot" }, canvas);
  const why = h("p", { class: "ue-why" });
  const table = buildTable();
  const put = (name, value) => {
    model.set(name, value);
    model.save_changes();
    draw();
    speak(why.textContent);
  };
  const number = (label, name) => textField({ label, root, read: () => model.get(name), take: (text) => { readFinite(text); put(name, text.trim()); } });
  const [weight, update] = [number("Weight", "weight"), number("Update, added each step", "update")];
  const format = choice({ label: "Format drawn", options: UPDATE_FORMATS.map((name) => [name, name]), read: () => model.get("format"), take: (name) => put("format", name) });
  const slider = h("input", { type: "range", min: 1, max: LARGEST_STEPS, step: 1 });
  slider.addEventListener("input", () => put("steps", Number(slider.value)));
  slider.addEventListener("keydown", (event) => event.stopPropagation());
  const sliderField = labelled("Steps", slider, { class: "lk-field ue-slider" });
  const again = button("New draws", () => put("seed", (model.get("seed") + 1) % 2 ** 31), { label: "New draws for stochastic rounding" });
  root.append(h("div", { class: "lk-bar ue-controls" }, weight.field, update.field, format.field, sliderField, again), why, plot, legend(), table.node);

  let drawnPixels = 0;
  function draw() {
    const [start, change, steps, seed] = [readFinite(model.get("weight")), readFinite(model.get("update")), model.get("steps"), model.get("seed")];
    const all = Object.fromEntries(UPDATE_FORMATS.map((name) => [name, updatePaths(start, change, steps, FORMATS[name], seed)]));
    const paths = Object.fromEntries(Object.entries(all[model.get("format")]).map(([way, path]) => [way, path.map(toNumber)]));
    const exact = [toNumber(start), toNumber(add(start, timesWhole(change, steps)))];
    drawnPixels = Math.max(280, Math.round(plot.clientWidth) || 800);
    drawPaths(canvas, { paths, exact, steps, pixels: drawnPixels });
    table.render(all, change, steps);
    for (const field of [weight, update, format]) field.refresh();
    if (Number(slider.value) !== steps) slider.value = String(steps);
    setAttribute(slider, "aria-valuetext", `${steps} steps`);
    setText(sliderField.querySelector("label"), `Steps: ${steps}`);
    setText(why, reason(start, change, FORMATS[model.get("format")]));
  }
  draw();
  const resize = new ResizeObserver(() => Math.round(plot.clientWidth) !== drawnPixels && draw());
  resize.observe(plot);
  signal?.addEventListener("abort", () => resize.disconnect());
  follow(model, ["weight", "update", "steps", "format", "seed"], draw, signal);
}

export default { render };
