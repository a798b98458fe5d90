// BitViewer: one number across formats, every bit a button. The one source of truth is the trait `source`,
// either a number as text ("0.1") or a bit pattern in a format ("fp16:0x2E66"); all else follows from it.

const ROUNDING_NAMES = [
  ["nearest_even", "to nearest, ties to even"], ["nearest_away", "to nearest, ties away"],
  ["toward_zero", "toward zero"], ["up", "up"], ["down", "down"], ["stochastic", "stochastic"],
];
const OVERFLOW_NAMES = [["ieee", "infinity or NaN (IEEE)"], ["saturate", "largest finite value"]];
const SPECIALS_NAMES = [
  ["ieee", "infinities and NaNs (ieee)"], ["fn", "one NaN, no infinity (fn)"],
  ["fnuz", "one NaN, no negative zero (fnuz)"], ["finite", "none (finite)"],
];
const KEYS_HELP = "Left and Right move between bits, Space flips a bit, Up and Down step by one ulp.";

const asText = (text) => text.replace(/-/g, "\u2212");
const isNaNClass = (name) => name.endsWith("NaN");

// ---- the state: what follows from the traits ----------------------------------------------------------------------

export function readSource(source, formats) {
  const match = /^([A-Za-z]\w*):0x([0-9a-f]+)$/i.exec(source);
  if (!match) return { value: parseNumber(source), pinned: null, code: null };
  const format = formats.find((one) => one.name === match[1]) ?? FORMATS[match[1]];
  if (!format) throw new Error(`${match[1]} is not one of the formats shown.`);
  const code = BigInt(`0x${match[2]}`);
  if (code >> BigInt(shapeOf(format).bits)) throw new Error(`${source} has more than ${shapeOf(format).bits} bits.`);
  return { value: decode(format, code), pinned: format.name, code };
}

// The code in one format, or the sentence that says why there is none.
function codeIn(format, read, options) {
  if (read.pinned === format.name) return { code: read.code, refusal: "" };
  try {
    return { code: encode(read.value, format, options), refusal: "" };
  } catch (error) {
    return { code: null, refusal: error.message };
  }
}

function optionsOf(model) {
  return { rounding: model.get("rounding"), overflow: model.get("overflow"), draw: fromDraw(model.get("draw")) };
}

export function codesOf(model) {
  const formats = model.get("formats");
  const read = readSource(model.get("source"), formats);
  const options = optionsOf(model);
  const codes = {};
  for (const format of formats) {
    const { code } = codeIn(format, read, options);
    if (code !== null) codes[format.name] = hexOf(format, code);
  }
  return codes;
}

// ---- words ----------------------------------------------------------------------------------------------------------

const inUlps = (amount, gap) => (gap === null ? null : finite(amount.num * gap.den, amount.den * gap.num, amount.negative));
const plusMinus = (value, digits) => pretty(value, digits).replace(/^(≈ )?(?=[\d.])/, "$1+");

function errorText(format, code, typed) {
  const stored = decode(format, code);
  if (typed.kind === "nan" || stored.kind === "nan") return typed.kind === stored.kind ? "" : "overflow: NaN stands for it";
  if (stored.kind === "infinity") return typed.kind === "infinity" ? "exact" : "overflow to infinity";
  if (typed.kind === "infinity") return "saturated at the largest finite value";
  const error = subtract(stored, typed);
  if (error.num === 0n) return "exact";
  if (typed.beyond) return "error too large or too small to print";
  return `error ${plusMinus(error, 6)} = ${plusMinus(inUlps(error, ulp(format, code)), 6)} ulp`;
}

function updateText(format, code, update, options) {
  const before = decode(format, code);
  if (before.kind === "nan") return { text: "NaN stays NaN.", result: code, vanished: false };
  const result = encode(add(before, update), format, options);
  const steps = orderKey(format, result) - orderKey(format, code);
  const gap = ulp(format, code);
  const size = gap && update.kind === "finite" ? `${pretty(inUlps({ ...update, negative: false }, gap), 3)} ulp` : "not finite";
  if (isZero(update)) return { text: "Nothing to add.", result, vanished: false };
  if (result === code) return { text: `The update vanishes: it is ${size}, and the stored bits stay as they are.`, result, vanished: true };
  const distance = steps < 0n ? -steps : steps;
  const moved = `${distance} code${distance === 1n ? "" : "s"} ${steps < 0n ? "down" : "up"}`;
  return { text: `The update is ${size} and moves the value ${moved}, to ${pretty(decode(format, result), 10)}.`, result, vanished: false };
}

function significandSum(format, part) {
  const m = format.fraction_bits;
  const terms = part.hidden === null ? [] : [String(part.hidden)];
  for (let place = 1; place <= m; place += 1) {
    if ((part.fraction >> BigInt(m - place)) & 1n) terms.push(place <= 10 ? `1/${2 ** place}` : `2^\u2212${place}`);
  }
  return terms.join(" + ");
}

// ---- one row ----------------------------------------------------------------------------------------------------------

function bitPlan(format) {
  const { bits } = shapeOf(format);
  const m = format.fraction_bits;
  return Array.from({ length: bits }, (_, offset) => {
    const position = bits - 1 - offset;
    if (position < m) return { position, part: "fraction", label: `fraction bit ${position}, weight 2^${position - m}` };
    if (position < m + format.exponent_bits) return { position, part: "exponent", label: `exponent bit ${position - m}, weight 2^${position - m}` };
    return { position, part: "sign", label: "sign bit" };
  });
}

function buildPart(name, plan) {
  const caption = h("span", { class: "lb-caption", "aria-hidden": "true", text: name });
  const cells = h("span", { class: "lb-cells" });
  const buttons = plan.map(({ position, label }) => h("button", { type: "button", class: "lb-bit lk-mono", "aria-pressed": "false", "aria-label": label, "data-position": position, tabindex: "-1", text: "0" }));
  const base = name === "exponent" && plan.length ? plan.at(-1).position : 0;
  let nibble = null;
  buttons.forEach((button, index) => {
    // Groups of four count from the low end, as hex digits do.
    if (!nibble || (plan[index].position - base + 1) % 4 === 0) cells.append((nibble = h("span", { class: "lb-nibble" })));
    nibble.append(button);
  });
  return { node: h("span", { class: `lb-part lb-${name}` }, caption, cells), caption, buttons };
}

function buildBits(format) {
  const plan = bitPlan(format);
  const group = h("div", { class: "lb-bits", role: "group", "aria-label": `${format.name} bits, highest first` });
  const hidden = h("span", { class: "lb-hidden-bit lk-mono", title: "the hidden bit: 1 for normal numbers, 0 for subnormal ones; it is not stored" });
  const captions = {};
  const buttons = [];
  for (const name of ["sign", "exponent", "fraction"]) {
    const inPart = plan.filter((bit) => bit.part === name);
    if (name === "fraction") group.append(hidden);
    if (!inPart.length) continue;
    const part = buildPart(name, inPart);
    captions[name] = part.caption;
    buttons.push(...part.buttons);
    group.append(part.node);
  }
  return { group, hidden, captions, buttons };
}

const describe = (format) => {
  const parts = [`${format.exponent_bits} exponent`, `${format.fraction_bits} fraction bits`];
  return parts.join(" + ") + (format.signed ? "" : ", no sign");
};

function buildAnatomy() {
  const entries = {};
  const list = h("dl", { class: "lb-facts" });
  for (const [key, label] of [
    ["value", "Value"], ["exponent", "Exponent"], ["significand", "Significand"], ["sum", "As a sum"],
    ["decimal", "Exact decimal"], ["error", "Error"], ["gap", "Gap to next"],
  ]) {
    entries[key] = h("dd", { class: "lk-number" });
    list.append(h("dt", { text: label }), entries[key]);
  }
  const line = svg("svg", { class: "lb-line", viewBox: "0 0 600 62", role: "img", "aria-label": "the stored value between its neighbours" });
  return { list, line, entries };
}

function drawNeighbours(line, format, code, typed) {
  const stored = decode(format, code);
  const below = decode(format, nextDown(format, code));
  const above = decode(format, nextUp(format, code));
  if (stored.kind !== "finite") return line.replaceChildren();
  const ends = [below, above].filter((v) => v.kind === "finite");
  const reach = ends.map((v) => subtract(v, stored)).reduce((a, b) => (a.num * b.den > b.num * a.den ? a : b));
  const place = (value) => {
    const away = subtract(value, stored);
    return reach.num === 0n ? 300 : 300 + 220 * toNumber(finite(away.num * reach.den, away.den * reach.num, away.negative));
  };
  const tick = (value, name, strong) => {
    if (value.kind !== "finite" || (!strong && compare(value, stored) === 0)) return [];
    const x = place(value);
    return [
      svg("line", { x1: x, x2: x, y1: strong ? 12 : 18, y2: 34, class: strong ? "lb-here" : "lb-tick" }),
      svg("text", { x, y: 50, "text-anchor": "middle", text: `${name} ${pretty(value, 8)}` }),
    ];
  };
  const marks = [svg("line", { x1: 20, x2: 580, y1: 34, y2: 34, class: "lb-axis" })];
  marks.push(...tick(below, "", false), ...tick(stored, "", true), ...tick(above, "", false));
  if (typed.kind === "finite" && !typed.beyond) {
    const x = place(typed);
    if (x >= 20 && x <= 580) marks.push(svg("path", { d: `M ${x} 34 l -6 -9 l 6 -9 l 6 9 z`, class: "lb-typed" }), svg("text", { x, y: 11, "text-anchor": "middle", class: "lb-typed-label", text: "typed" }));
  }
  line.replaceChildren(...marks);
}

function renderAnatomy(anatomy, format, code, typed) {
  const { entries, line } = anatomy;
  const part = fields(format, code);
  const value = decode(format, code);
  const m = format.fraction_bits;
  const digits = m ? part.fraction.toString(2).padStart(m, "0") : "";
  const sign = part.sign ? "\u22121" : "+1";
  const power = part.exponent === null ? null : asText(String(part.exponent));
  const significand = part.hidden === null ? null : finite((BigInt(part.hidden) << BigInt(m)) + part.fraction, 1n << BigInt(m));
  const special = part.exponent === null;
  setText(entries.value, special ? (isNaNClass(part.kind) ? `${part.kind}, payload ${part.payload}` : `${sign} × infinity`)
    : `${sign} × 2^${power} × ${pretty(significand, 12)} = ${pretty(value, 12)}`);
  setText(entries.exponent, special ? `biased ${part.biased_exponent}, all ones: set aside for infinity and NaN`
    : `biased ${part.biased_exponent}, bias ${asText(String(format.bias))}, true exponent ${power}${part.kind === "subnormal" || part.kind === "zero" ? " (the smallest one: subnormals share it)" : ""}`);
  setText(entries.significand, special ? `fraction ${digits || "empty"}` : `${part.hidden}${digits && "."}${digits} in binary; the ${part.hidden} is the hidden bit`);
  setText(entries.sum, special ? "none" : significandSum(format, part));
  setText(entries.decimal, asText(exactDecimal(value)));
  setText(entries.error, errorText(format, code, typed) || "none");
  const gap = special ? null : ulp(format, code);
  setText(entries.gap, gap ? `one ulp = 2^${asText(String(part.exponent - m))} = ${pretty(gap, 8)}; below ${pretty(decode(format, nextDown(format, code)), 12)}, above ${pretty(decode(format, nextUp(format, code)), 12)}` : "none");
  drawNeighbours(line, format, code, typed);
}

// A row talks to the viewer through `api`: state() for what is shown, write(code) for what the hand did.
function buildRow(format, api, helpId) {
  const shape = shapeOf(format);
  const bits = buildBits(format);
  bits.group.setAttribute("aria-describedby", helpId);
  const kind = h("span", { class: "lb-class" });
  const stored = h("span", { class: "lb-stored lk-number" });
  const error = h("span", { class: "lb-error" });
  const button = (text, label, action) => {
    const node = h("button", { type: "button", "aria-label": `${format.name}: ${label}`, title: label, text });
    node.addEventListener("click", action);
    return node;
  };
  const current = () => api.codeOf(format) ?? 0n;
  const tools = h("div", { class: "lb-tools" },
    button("\u22121 ulp", "step down by one ulp", () => api.write(format, nextDown(format, current()))),
    button("+1 ulp", "step up by one ulp", () => api.write(format, nextUp(format, current()))),
    button("\u00b1", "negate", () => api.write(format, negateCode(format, current()))));
  const codeField = (label, prefix, base, width, read) => textField({
    label, read: () => (api.codeOf(format) === null ? "" : read(api.codeOf(format))),
    take: (raw) => api.write(format, readCode(raw, prefix, base, format)),
  });
  const hex = codeField(`${format.name} hex`, "0x", 16, 4, (code) => hexOf(format, code));
  const binary = codeField(`${format.name} binary`, "0b", 2, 1, (code) => binaryOf(format, code));
  hex.field.classList.add("lb-hex");
  binary.field.classList.add("lb-binary");
  const specials = specialCodes(format);
  const menu = select([["", "choose…"], ...specials.map(([name], index) => [String(index), name])]);
  menu.addEventListener("change", () => {
    if (menu.value !== "") api.write(format, specials[Number(menu.value)][1]);
    menu.value = "";
  });
  const anatomy = buildAnatomy();
  const body = h("div", { class: "lb-anatomy", id: freshId("anatomy"), hidden: true }, anatomy.list, anatomy.line, binary.field);
  const toggle = h("button", { type: "button", class: "lb-toggle", "aria-expanded": "false", "aria-controls": body.id, "aria-label": `${format.name}: anatomy`, text: "Anatomy" });
  const opened = (open) => {
    body.hidden = !open;
    toggle.setAttribute("aria-expanded", String(open));
    api.refresh();
  };
  toggle.addEventListener("click", () => opened(body.hidden));
  const updateLine = h("p", { class: "lb-update" });
  const updateWords = h("span");
  const updateAdd = button("Add it", "add the update to this value", () => api.addUpdate(format));
  updateLine.append(updateWords, updateAdd);
  tools.append(hex.field, labelled(`${format.name} special values`, menu), toggle);
  const node = h("article", { class: "lb-row", "aria-label": format.name, "data-format": format.name },
    h("header", { class: "lb-head" }, h("h3", { class: "lb-name lk-mono", text: format.name }), h("span", { class: "lk-soft", text: describe(format) }), kind),
    bits.group, h("p", { class: "lb-result" }, stored, error), updateLine, tools, body);
  const row = { format, shape, node, bits, kind, stored, error, hex, binary, anatomy, body, updateLine, updateWords, updateAdd, cursor: 0, opened };
  wireBits(row, api, current);
  return row;
}

export function readCode(raw, prefix, base, format) {
  const digits = raw.trim().replace(/[\s_]/g, "").replace(new RegExp(`^${prefix}`, "i"), "");
  const allowed = base === 16 ? /^[0-9a-f]{1,64}$/i : /^[01]{1,256}$/;
  const { bits } = shapeOf(format);
  if (!allowed.test(digits)) throw new Error(`${JSON.stringify(raw.slice(0, 40))} is not ${base === 16 ? "hexadecimal" : "binary"}: use the digits 0\u2013${base === 16 ? "9 and a\u2013f" : "1"}.`);
  const code = BigInt((base === 16 ? "0x" : "0b") + digits);
  if (code >> BigInt(bits)) throw new Error(`${raw.trim().slice(0, 40)} does not fit into the ${bits} bits of ${format.name}.`);
  return code;
}

function moveCursor(row, index, focus) {
  row.bits.buttons[row.cursor]?.setAttribute("tabindex", "-1");
  row.cursor = Math.max(0, Math.min(row.bits.buttons.length - 1, index));
  const button = row.bits.buttons[row.cursor];
  button?.setAttribute("tabindex", "0");
  if (focus) button?.focus({ preventScroll: true });
}

function wireBits(row, api, current) {
  const { group, buttons } = row.bits;
  moveCursor(row, 0, false);
  const setBit = (index, on) => {
    const mask = 1n << BigInt(buttons[index].dataset.position);
    api.write(row.format, on ? current() | mask : current() & ~mask);
  };
  const isOn = (index) => (current() >> BigInt(buttons[index].dataset.position)) & 1n;
  wireKeys(row, api, current);
  wirePaint(row, setBit, isOn);
  group.addEventListener("focusin", (event) => {
    const index = buttons.indexOf(event.target);
    if (index >= 0 && index !== row.cursor) moveCursor(row, index, false);
  });
}

function wireKeys(row, api, current) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  row.bits.group.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.key in moves) moveCursor(row, row.cursor + moves[event.key], true);
    else if (event.key === "ArrowUp") api.write(row.format, nextUp(row.format, current()));
    else if (event.key === "ArrowDown") api.write(row.format, nextDown(row.format, current()));
    else return;
    event.preventDefault();
  });
}

// Press flips a bit; moving on paints the same value over the bits that the pointer passes.
function wirePaint(row, setBit, isOn) {
  const { group, buttons } = row.bits;
  let paint = null;
  let pressed = false;
  const under = (event) => buttons.indexOf(group.getRootNode().elementFromPoint(event.clientX, event.clientY)?.closest?.(".lb-bit"));
  const paintTo = (index) => {
    if (index < 0 || index === paint.last) return;
    // A fast hand skips bits: fill in the ones between, unless the row has wrapped onto another line.
    const sameLine = buttons[index].offsetTop === buttons[paint.last].offsetTop;
    const by = index > paint.last ? 1 : -1;
    for (let at = sameLine ? paint.last + by : index; ; at += by) {
      if (Boolean(isOn(at)) !== paint.on) setBit(at, paint.on);
      if (at === index) break;
    }
    paint.last = index;
  };
  group.addEventListener("pointerdown", (event) => {
    const index = buttons.indexOf(event.target);
    if (index < 0 || event.button !== 0) return;
    pressed = true;
    paint = { on: !isOn(index), last: index };
    moveCursor(row, index, true);
    group.setPointerCapture(event.pointerId);
    setBit(index, paint.on);
  });
  group.addEventListener("pointermove", (event) => {
    if (!paint) return;
    for (const point of event.getCoalescedEvents?.() ?? []) paintTo(under(point));
    paintTo(under(event));
  });
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) group.addEventListener(name, () => (paint = null));
  group.addEventListener("click", (event) => {
    // A click without a press comes from the keyboard or a screen reader.
    const index = buttons.indexOf(event.target);
    if (index >= 0 && !pressed) setBit(index, !isOn(index));
    pressed = false;
  });
}

function renderRow(row, code, refusal, typed, update, options) {
  const { format, bits, shape } = row;
  row.node.classList.toggle("lb-refused", code === null);
  const shown = code ?? 0n;
  bits.buttons.forEach((button) => {
    const on = (shown >> BigInt(button.dataset.position)) & 1n;
    setText(button, on ? "1" : "0");
    setAttribute(button, "aria-pressed", on ? "true" : "false");
  });
  row.hex.refresh();
  row.binary.refresh();
  if (code === null) {
    setText(row.kind, "no such value");
    setText(row.stored, refusal);
    setText(row.error, "");
    row.updateLine.hidden = true;
    row.anatomy.list.hidden = true;
    row.anatomy.line.replaceChildren();
    return;
  }
  row.anatomy.list.hidden = false;
  const part = fields(format, code);
  const value = decode(format, code);
  setText(row.kind, part.kind);
  setText(bits.hidden, part.hidden === null ? "" : `${part.hidden}.`);
  bits.hidden.hidden = part.hidden === null;
  if (bits.captions.sign) setText(bits.captions.sign, part.sign ? "sign \u2212" : "sign +");
  if (bits.captions.exponent) setText(bits.captions.exponent, part.exponent === null ? `exponent ${part.biased_exponent}` : `exponent ${part.biased_exponent}\u2009\u2192\u20092^${asText(String(part.exponent))}`);
  setText(row.stored, value.kind === "nan" ? `NaN, payload ${part.payload}` : pretty(value, 24));
  setText(row.error, errorText(format, code, typed));
  row.updateLine.hidden = update === null;
  if (update !== null) {
    const outcome = updateText(format, code, update, options);
    setText(row.updateWords, outcome.text);
    row.updateLine.classList.toggle("lb-vanished", outcome.vanished);
  }
  if (!row.body.hidden) renderAnatomy(row.anatomy, format, code, typed);
  void shape;
}

// ---- the whole viewer ---------------------------------------------------------------------------------------------------

function render({ model, el, signal }) {
  const root = makeRoot(el, model, "labkit-bits", "Bit viewer");
  const speak = makeSpeaker(root, signal);
  const help = h("p", { class: "lk-hidden", id: freshId("keys"), text: KEYS_HELP });
  let rows = [];
  let state = null;
  let writing = false;

  const compute = () => {
    const formats = model.get("formats");
    const read = readSource(model.get("source"), formats);
    const options = optionsOf(model);
    const updateSource = model.get("update");
    return { formats, read, options, update: updateSource ? parseNumber(updateSource) : null,
      codes: new Map(formats.map((format) => [format.name, codeIn(format, read, options)])) };
  };
  const set = (changes) => {
    writing = true;
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.set("codes", codesOf(model));
    writing = false;
    model.save_changes();
    refresh();
  };
  const api = {
    codeOf: (format) => state.codes.get(format.name)?.code ?? null,
    write(format, code) {
      set({ source: `${format.name}:${hexOf(format, code)}` });
      speak(`${format.name} ${hexOf(format, code)}, ${pretty(decode(format, code), 12)}, ${fields(format, code).kind}`);
    },
    addUpdate(format) {
      const code = this.codeOf(format);
      api.write(format, updateText(format, code, state.update, state.options).result);
    },
    refresh: () => refresh(),
  };

  const valueField = textField({
    label: "Value",
    read: () => (state.read.pinned ? exactDecimal(state.read.value) : model.get("source")),
    take(raw) {
      const text = raw.trim();
      parseNumber(text);
      set({ source: text });
      speak(`${text}: ${state.formats.map((format) => `${format.name} ${model.get("codes")[format.name] ?? "none"}`).join(", ")}`);
    },
  });
  valueField.field.classList.add("lb-value");
  const choice = (name, label, options) => {
    const control = select(options);
    control.addEventListener("change", () => set({ [name]: control.value }));
    return { field: labelled(label, control), refresh: () => (control.value = model.get(name)) };
  };
  const rounding = choice("rounding", "Rounding", ROUNDING_NAMES);
  const overflow = choice("overflow", "On overflow", OVERFLOW_NAMES);
  const updateField = textField({
    label: "Add this update", placeholder: "for example 1e-4", read: () => model.get("update"),
    take(raw) {
      if (raw.trim()) parseNumber(raw);
      set({ update: raw.trim() });
    },
  });
  updateField.field.classList.add("lb-update-field");
  const list = h("div", { class: "lb-rows" });
  root.append(help, h("div", { class: "lk-bar lb-top" }, valueField.field, rounding.field, overflow.field, updateField.field), list);

  let built = null;
  const buildRows = () => {
    const key = JSON.stringify(state.formats);
    if (key === built) return;
    const open = new Set(rows.filter((row) => !row.body.hidden).map((row) => row.format.name));
    rows = state.formats.map((format) => buildRow(format, api, help.id));
    list.replaceChildren(...rows.map((row) => row.node));
    built = key;
    for (const row of rows) if (open.has(row.format.name)) row.body.hidden = false;
  };
  function refresh() {
    if (writing) return;
    state = compute();
    buildRows();
    for (const control of [valueField, rounding, overflow, updateField]) control.refresh();
    for (const row of rows) {
      const { code, refusal } = state.codes.get(row.format.name);
      renderRow(row, code, refusal, state.read.value, state.update, state.options);
    }
  }
  refresh();
  follow(model, ["source", "formats", "rounding", "overflow", "draw", "update"], refresh, signal);
}

export default { render };
