// BitViewer: one number across formats, every bit a button. The one source of truth is the trait `source`,
// either a number as text ("0.1") or a bit pattern in a format ("fp16:0x2E66"); all else follows from it.

const ROUNDING_NAMES = [
  ["nearest_even", "to nearest, ties to even"], ["nearest_away", "to nearest, ties away"],
  ["toward_zero", "toward zero"], ["up", "up"], ["down", "down"], ["stochastic", "stochastic"],
];
const OVERFLOW_NAMES = [["ieee", "infinity, else NaN (IEEE)"], ["saturate", "largest finite (saturate)"]];
const SPECIALS_NAMES = [
  ["ieee", "infinities and NaNs (ieee)"], ["fn", "one NaN, no infinity (fn)"],
  ["fnuz", "one NaN, no negative zero (fnuz)"], ["finite", "none (finite)"],
];
const KEYS_HELP = "Left and Right move between bits, Space flips a bit, Up and Down step by one ulp.";

const signedText = (number) => String(number).replace("-", MINUS);

// ---- the state: what follows from the traits ----------------------------------------------------------------------

export function readSource(source, formats) {
  const match = /^([A-Za-z]\w*):0x([0-9a-f]+)$/i.exec(source);
  if (!match) return { value: parseNumber(source), pinned: null, code: null };
  const format = formats.find((one) => one.name === match[1]) ?? FORMATS[match[1]];
  if (!format) throw new Error(`${match[1]} is not one of the formats shown.`);
  const code = checkCode(format, BigInt(`0x${match[2]}`));
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

const optionsOf = (model) => ({ rounding: model.get("rounding"), overflow: model.get("overflow"), draw: fromDraw(model.get("draw")) });

function computeState(model) {
  const formats = model.get("formats");
  const read = readSource(model.get("source"), formats);
  const options = optionsOf(model);
  const update = model.get("update") ? parseNumber(model.get("update")) : null;
  const codes = new Map(formats.map((format) => [format.name, codeIn(format, read, options)]));
  return { formats, read, options, update, codes };
}

function codesTrait({ formats, codes }) {
  const known = formats.filter((format) => codes.get(format.name).code !== null);
  return Object.fromEntries(known.map((format) => [format.name, hexOf(format, codes.get(format.name).code)]));
}

// One line that holds everything on show, as BitViewer.state writes it in Python.
function formatText(format) {
  const { name, exponent_bits, fraction_bits, bias, specials, signed } = format;
  const known = FORMATS[name];
  const same = known && Object.keys(known).every((key) => known[key] === format[key]);
  return same ? name : [name, exponent_bits, fraction_bits, bias, specials, signed ? "signed" : "unsigned"].join(":");
}

function formatFromText(text) {
  if (FORMATS[text]) return FORMATS[text];
  const match = /^([A-Za-z]\w*):(\d+):(\d+):(-?\d+):(\w+):(signed|unsigned)$/.exec(text);
  if (!match) throw new Error(`${JSON.stringify(text.slice(0, 40))} is not a format such as fp16 or custom:5:10:15:ieee:signed.`);
  return checkFormat({ name: match[1], exponent_bits: Number(match[2]), fraction_bits: Number(match[3]), bias: Number(match[4]), specials: match[5], signed: match[6] === "signed" });
}

export function stateText(model) {
  const parts = { value: model.get("source"), formats: model.get("formats").map(formatText).join(",") };
  for (const name of ["rounding", "overflow", "draw", "update"]) parts[name] = String(model.get(name));
  const quote = (text) => encodeURIComponent(text).replace(/%(3A|2C|2F|5E)/g, decodeURIComponent);
  return Object.entries(parts).map(([name, text]) => `${name}=${quote(text)}`).join("&");
}

export function readState(text) {
  const parts = Object.fromEntries(new URLSearchParams(text.trim()));
  for (const name of ["value", "formats", "rounding", "overflow", "draw", "update"]) {
    if (!(name in parts)) throw new Error(`This is not a state of the viewer: ${name} is missing.`);
  }
  if (!ROUNDINGS.includes(parts.rounding)) throw new Error(`Rounding ${parts.rounding} is not one of ${ROUNDINGS.join(", ")}.`);
  if (!OVERFLOWS.includes(parts.overflow)) throw new Error(`Overflow ${parts.overflow} is not one of ${OVERFLOWS.join(", ")}.`);
  const formats = parts.formats.split(",").map(formatFromText);
  if (new Set(formats.map((format) => format.name)).size < formats.length) throw new Error("A format stands twice in this state.");
  readSource(parts.value, formats);
  if (parts.update) parseNumber(parts.update);
  fromDraw(Number(parts.draw));
  return { source: parts.value, formats, rounding: parts.rounding, overflow: parts.overflow, draw: Number(parts.draw), update: parts.update };
}

// ---- words ----------------------------------------------------------------------------------------------------------

const inUlps = (amount, gap) => finite(amount.num * gap.den, amount.den * gap.num, amount.negative);
const plusMinus = (value, digits) => pretty(value, digits).replace(/^(≈ )?(?=[\d.])/, "$1+");

function errorText(format, code, typed) {
  const stored = decode(format, code);
  if (typed.kind === "nan") return "";
  if (stored.kind === "nan") return "NaN stands for what does not fit";
  if (stored.kind === "infinity") return typed.kind === "infinity" ? "exact" : "overflow to infinity";
  if (typed.kind === "infinity") return "saturated: the largest finite value";
  const error = subtract(stored, typed);
  if (error.num === 0n) return "exact";
  const gap = ulp(format, code);
  const overflowed = code === encode(infinity(typed.negative), format, { overflow: "saturate" }) && 2n * error.num * gap.den > gap.num * error.den;
  if (typed.beyond) return "the error is beyond any format";
  const size = `error ${plusMinus(error, 6)} (${plusMinus(inUlps(error, gap), 6)} ulp)`;
  return overflowed ? `overflow: saturated, ${size}` : size;
}

function addUpdate(format, code, update, options) {
  const before = decode(format, code);
  if (before.kind === "nan") return { text: "NaN plus anything is NaN.", result: code, vanished: false };
  const result = codeIn(format, { value: add(before, update), pinned: null }, options).code;
  if (result === null) return { text: "The sum is NaN, which this format does not have.", result: code, vanished: false };
  if (isZero(update)) return { text: "Zero changes nothing.", result, vanished: false };
  if (before.kind === "infinity") return { text: "Infinity stays infinity.", result, vanished: false };
  const gap = ulp(format, code);
  const size = gap && update.kind === "finite" ? `${pretty({ ...inUlps(update, gap), negative: false }, 3)} ulp` : "not finite";
  if (result === code) return { text: `The update is ${size}: it vanishes, the bits stay as they are.`, result, vanished: true };
  const steps = orderKey(format, result) - orderKey(format, code);
  const distance = steps < 0n ? -steps : steps;
  const moved = distance === 1n ? "one code" : `${pretty(finite(distance), 6)} codes`;
  return { text: `The update is ${size}: it moves the value ${moved} ${steps < 0n ? "down" : "up"}, to ${pretty(decode(format, result), 10)}.`, result, vanished: false };
}

function significandSum(format, part) {
  const m = format.fraction_bits;
  const terms = [String(part.hidden)];
  for (let place = 1; place <= m; place += 1) {
    if ((part.fraction >> BigInt(m - place)) & 1n) terms.push(place <= 10 ? `1/${2 ** place}` : power(-place));
  }
  return terms.join(" + ");
}

const describe = (format) => `${format.exponent_bits} exponent + ${format.fraction_bits} fraction bits${format.signed ? "" : ", no sign"}`;

// ---- the bits of a row ------------------------------------------------------------------------------------------------

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
  const lowest = plan.at(-1).position;
  let nibble = null;
  const buttons = plan.map(({ position, label }) => {
    // Groups of four count from the low end of the part, as hex digits do.
    if (!nibble || (position - lowest + 1) % 4 === 0) cells.append((nibble = h("span", { class: "lb-nibble" })));
    const node = h("button", { type: "button", class: "lb-bit", "aria-pressed": "false", "aria-label": label, "data-position": position, tabindex: "-1", text: "0" });
    nibble.append(node);
    return node;
  });
  return { node: h("span", { class: `lb-part lb-${name}` }, caption, cells), caption, buttons };
}

function buildHidden() {
  const digit = h("span", { class: "lb-hidden-bit" });
  const title = "The hidden bit is not stored: it is 1 for normal numbers and 0 for subnormal ones.";
  const node = h("span", { class: "lb-part lb-hidden", title }, h("span", { class: "lb-caption", "aria-hidden": "true", text: "hidden" }), digit);
  return { node, digit };
}

function buildBits(format, helpId) {
  const plan = bitPlan(format);
  const group = h("div", { class: "lb-bits", role: "group", "aria-label": `${format.name} bits, highest first`, "aria-describedby": helpId });
  const hidden = buildHidden();
  const captions = {};
  const buttons = [];
  for (const name of ["sign", "exponent", "fraction"]) {
    const inPart = plan.filter((bit) => bit.part === name);
    if (name === "fraction") group.append(hidden.node);
    if (!inPart.length) continue;
    const part = buildPart(name, inPart);
    captions[name] = part.caption;
    buttons.push(...part.buttons);
    group.append(part.node);
  }
  return { group, hidden, captions, buttons, cursor: 0 };
}

function moveCursor(bits, index, focus) {
  bits.buttons[bits.cursor]?.setAttribute("tabindex", "-1");
  bits.cursor = Math.max(0, Math.min(bits.buttons.length - 1, index));
  const target = bits.buttons[bits.cursor];
  target?.setAttribute("tabindex", "0");
  if (focus) target?.focus({ preventScroll: true });
}

function wireKeys(bits, step) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  bits.group.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.key in moves) moveCursor(bits, bits.cursor + moves[event.key], true);
    else if (event.key === "ArrowUp") step(nextUp);
    else if (event.key === "ArrowDown") step(nextDown);
    else return;
    event.preventDefault();
  });
  bits.group.addEventListener("focusin", (event) => {
    const index = bits.buttons.indexOf(event.target);
    if (index >= 0 && index !== bits.cursor) moveCursor(bits, index, false);
  });
}

// Press flips a bit; moving on paints the same value over the bits that the pointer passes.
function wirePaint(bits, isOn, setBit) {
  const { group, buttons } = bits;
  let paint = null;
  let pressed = false;
  const under = (point) => buttons.indexOf(group.getRootNode().elementFromPoint(point.clientX, point.clientY)?.closest?.(".lb-bit"));
  const paintOne = (index) => {
    if (isOn(index) !== paint.on) setBit(index, paint.on);
  };
  const paintTo = (index) => {
    if (index < 0 || index === paint.last) return;
    // A fast hand skips bits: fill in the ones between, unless the row has wrapped onto another line.
    const sameLine = buttons[index].getBoundingClientRect().top === buttons[paint.last].getBoundingClientRect().top;
    const by = index > paint.last ? 1 : -1;
    if (sameLine) for (let at = paint.last + by; at !== index; at += by) paintOne(at);
    paintOne(index);
    paint.last = index;
  };
  group.addEventListener("pointerdown", (event) => {
    const index = buttons.indexOf(event.target);
    if (index < 0 || event.button !== 0) return;
    pressed = true;
    paint = { on: !isOn(index), last: index };
    moveCursor(bits, index, true);
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

function exponentWords(format, part) {
  const stored = `exponent ${part.biased_exponent}`;
  if (part.exponent === null) return stored;
  if (part.hidden === 0) return `${stored}: the lowest, ${signedText(part.exponent)}`;
  return `${stored} ${format.bias < 0 ? "+" : MINUS} ${Math.abs(format.bias)} = ${signedText(part.exponent)}`;
}

function renderBits(bits, format, code) {
  const shown = code ?? 0n;
  for (const node of bits.buttons) {
    const on = (shown >> BigInt(node.dataset.position)) & 1n;
    setText(node, on ? "1" : "0");
    setAttribute(node, "aria-pressed", on ? "true" : "false");
  }
  const part = fields(format, shown);
  bits.hidden.node.hidden = part.hidden === null || code === null;
  setText(bits.hidden.digit, `${part.hidden}`);
  if (bits.captions.sign) setText(bits.captions.sign, part.sign ? `sign ${MINUS}` : "sign +");
  if (bits.captions.exponent) setText(bits.captions.exponent, exponentWords(format, part));
}

// ---- anatomy: one number taken apart ------------------------------------------------------------------------------------

function buildAnatomy() {
  const entries = {};
  const list = h("dl", { class: "lb-facts" });
  for (const [key, label] of [
    ["value", "Value"], ["exponent", "Exponent"], ["significand", "Significand"], ["sum", "As a sum"],
    ["decimal", "Exact decimal"], ["error", "Error"], ["gap", "Neighbours"],
  ]) {
    entries[key] = h("dd");
    list.append(h("dt", { text: label }), entries[key]);
  }
  const parts = ["sign", "exponent", "fraction"].map((name) => h("span", { class: `lb-term lb-term-${name}` }));
  entries.value.append(parts[0], " × ", parts[1], " × ", parts[2]);
  return { list, entries, parts, strip: h("div", { class: "lb-strip", "aria-hidden": "true" }) };
}

function specialWords(part) {
  if (part.kind === "infinity") return part.sign ? `${MINUS}infinity` : "+infinity";
  return `${part.kind}, payload 0x${part.payload.toString(16).toUpperCase()}, sign bit ${part.sign}`;
}

function renderAnatomy(anatomy, format, code, read, options) {
  const { entries, parts } = anatomy;
  const part = fields(format, code);
  const value = decode(format, code);
  const m = format.fraction_bits;
  const digits = m ? part.fraction.toString(2).padStart(m, "0") : "";
  const finiteValue = part.exponent !== null;
  const significand = finiteValue ? finite((BigInt(part.hidden) << BigInt(m)) + part.fraction, 1n << BigInt(m)) : null;
  const words = finiteValue
    ? [part.sign ? `${MINUS}1` : "+1", power(part.exponent), pretty(significand, 14)]
    : [specialWords(part), "", ""];
  entries.value.classList.toggle("lb-special", !finiteValue);
  parts.forEach((node, index) => setText(node, words[index]));
  const shared = part.hidden === 0 ? ", the lowest: zero and the subnormals share it" : "";
  const stored = `biased ${part.biased_exponent}`;
  setText(entries.exponent, finiteValue ? `${stored}, true ${signedText(part.exponent)} (bias ${signedText(format.bias)})${shared}` : `${stored}: set aside for what is no number`);
  setText(entries.significand, finiteValue ? `${part.hidden}${digits && "."}${digits} in binary` : `fraction ${digits || "empty"}`);
  setText(entries.sum, finiteValue ? significandSum(format, part) : "none");
  setText(entries.decimal, exactDecimal(value).replace(/-/g, MINUS));
  setText(entries.error, errorText(format, code, read.value).replace(/^error /, "") || "none");
  setText(entries.gap, finiteValue ? neighbourWords(format, code, part) : "none");
  renderStrip(anatomy.strip, format, code, read, options);
}

// Decimal digits that tell neighbours apart.
const tellingDigits = (format) => Math.max(8, Math.min(36, Math.ceil(format.fraction_bits * 0.302) + 2));

function neighbourWords(format, code, part) {
  const below = pretty(decode(format, nextDown(format, code)), tellingDigits(format));
  const above = pretty(decode(format, nextUp(format, code)), tellingDigits(format));
  const exponent = part.exponent - format.fraction_bits;
  return `${below} below, ${above} above; the gap, one ulp, is ${power(exponent)} ${pretty(ulp(format, code), 8).replace(/^(?!≈)/, "= ")}`;
}

// The stored value between its neighbours, to scale; the band holds what rounds to it.
function renderStrip(strip, format, code, read, options) {
  const stored = decode(format, code);
  const [below, above] = [decode(format, nextDown(format, code)), decode(format, nextUp(format, code))];
  if ([stored, below, above].some((value) => value.kind !== "finite")) return strip.replaceChildren();
  const gaps = [subtract(stored, below), subtract(above, stored)];
  const reach = compare(gaps[0], gaps[1]) > 0 ? gaps[0] : gaps[1];
  if (isZero(reach)) return strip.replaceChildren();
  const place = (value) => 50 + 36 * toNumber(inUlps(subtract(value, stored), reach));
  const at = [place(below), 50, place(above)];
  const half = { nearest_even: [0.5, 0.5], nearest_away: [0.5, 0.5], up: [1, 0], down: [0, 1], stochastic: [1, 1], toward_zero: stored.negative ? [1, 0] : [0, 1] }[options.rounding];
  const from = 50 - half[0] * (50 - at[0]);
  const to = 50 + half[1] * (at[2] - 50);
  const nodes = [
    h("span", { class: "lb-axis" }),
    h("span", { class: "lb-band", style: `left:${from}%;width:${to - from}%` }),
    ...[below, stored, above].flatMap((value, index) => index !== 1 && compare(value, stored) === 0 ? [] : [
      h("span", { class: `lb-tick${index === 1 ? " lb-here" : ""}`, style: `left:${at[index]}%` }),
      h("span", { class: `lb-tick-label lb-end-${index} lk-mono`, style: `left:${at[index]}%`, text: pretty(value, tellingDigits(format)) }),
    ]),
  ];
  strip.classList.toggle("lb-long", tellingDigits(format) > 12);
  const typed = read.pinned || read.value.kind !== "finite" || read.value.beyond ? null : place(read.value);
  if (typed !== null && typed > 1 && typed < 99) {
    nodes.push(h("span", { class: "lb-typed", style: `left:${typed}%` }), h("span", { class: "lb-typed-label", style: `left:${typed}%`, text: "typed" }));
  }
  strip.replaceChildren(...nodes);
}

// ---- one row ----------------------------------------------------------------------------------------------------------

export function readCode(raw, base, format) {
  const digits = raw.trim().replace(/[\s_]/g, "").replace(base === 16 ? /^0x/i : /^0b/i, "");
  const allowed = base === 16 ? /^[0-9a-f]{1,64}$/i : /^[01]{1,256}$/;
  const shown = JSON.stringify(raw.trim().slice(0, 40));
  if (!allowed.test(digits)) throw new Error(`${shown} is not ${base === 16 ? "hexadecimal: use 0 to 9 and A to F" : "binary: use 0 and 1"}.`);
  const code = BigInt((base === 16 ? "0x" : "0b") + digits);
  const { bits } = shapeOf(format);
  if (code >> BigInt(bits)) throw new Error(`${shown} does not fit into the ${bits} bits of ${format.name}.`);
  return code;
}

function buildSpecialMenu(format, write) {
  const specials = specialCodes(format);
  const menu = select([["", "special value…"], ...specials.map(([name], index) => [String(index), name])], { "aria-label": `${format.name}: special values` });
  menu.addEventListener("keydown", (event) => event.stopPropagation());
  menu.addEventListener("change", () => {
    if (menu.value !== "") write(specials[Number(menu.value)][1]);
    menu.value = "";
  });
  return menu;
}

// A row talks to the viewer through `api`: codeOf, write, addUpdate, refresh.
function buildRow(format, api, helpId) {
  const current = () => api.codeOf(format) ?? 0n;
  const write = (code) => api.write(format, code);
  const step = (next) => write(next(format, current()));
  const bits = buildBits(format, helpId);
  const isOn = (index) => ((current() >> BigInt(bits.buttons[index].dataset.position)) & 1n) === 1n;
  const setBit = (index, on) => {
    const mask = 1n << BigInt(bits.buttons[index].dataset.position);
    write(on ? current() | mask : current() & ~mask);
  };
  moveCursor(bits, 0, false);
  wireKeys(bits, step);
  wirePaint(bits, isOn, setBit);

  const tool = (text, label, action) => button(text, action, { label: `${format.name}: ${label}` });
  const codeField = (label, base, spell) => textField({
    label, read: () => (api.codeOf(format) === null ? "" : spell(format, api.codeOf(format))),
    take: (raw) => write(readCode(raw, base, format)),
  });
  const hex = codeField(`${format.name} hex`, 16, hexOf);
  hex.field.classList.add("lb-hex");
  hex.input.size = Math.max(6, Math.ceil(shapeOf(format).bits / 4) + 3);
  const binary = codeField(`${format.name} binary`, 2, binaryOf);
  const anatomy = buildAnatomy();
  const body = h("div", { class: "lb-anatomy", id: freshId("anatomy"), hidden: true }, anatomy.list, anatomy.strip, binary.field);
  const toggle = h("button", { type: "button", class: "lb-toggle", "aria-expanded": "false", "aria-controls": body.id, "aria-label": `Anatomy of ${format.name}`, text: "Anatomy" });
  const negate = tool("±", "negate", () => write(negateCode(format, current())));
  negate.disabled = !format.signed;
  const tools = h("div", { class: "lb-tools" }, tool(`${MINUS}1 ulp`, "step down by one ulp", () => step(nextDown)), tool("+1 ulp", "step up by one ulp", () => step(nextUp)),
    negate, hex.field, buildSpecialMenu(format, write), toggle);
  const kind = h("span", { class: "lb-kind" });
  const stored = h("span", { class: "lb-stored lk-number" });
  const error = h("span", { class: "lb-error lk-soft" });
  const updateWords = h("span");
  const updateLine = h("div", { class: "lb-update" }, updateWords, tool("Add it", "add the update to this value", () => api.addUpdate(format)));
  const head = h("div", { class: "lb-head" }, h("strong", { class: "lb-name lk-mono", text: format.name }), h("span", { class: "lk-soft", text: describe(format) }), kind);
  const node = h("div", { class: "lb-row", role: "group", "aria-label": format.name, "data-format": format.name },
    head, bits.group, h("div", { class: "lb-result" }, stored, error), updateLine, tools, body);
  const row = { format, node, bits, kind, stored, error, fields: [hex, binary], anatomy, body, toggle, updateLine, updateWords };
  toggle.addEventListener("click", () => {
    openRow(row, body.hidden);
    api.refresh();
  });
  return row;
}

function openRow(row, open) {
  row.body.hidden = !open;
  row.toggle.setAttribute("aria-expanded", String(open));
}

function renderRow(row, { code, refusal }, { read, update, options }) {
  const { format } = row;
  renderBits(row.bits, format, code);
  for (const field of row.fields) field.refresh();
  const missing = code === null;
  row.node.classList.toggle("lb-refused", missing);
  setText(row.kind, missing ? "no such value" : fields(format, code).kind);
  const value = missing ? null : decode(format, code);
  setText(row.stored, missing ? refusal : value.kind === "nan" ? "NaN" : pretty(value, 30));
  setText(row.error, missing ? "" : errorText(format, code, read.value));
  row.updateLine.hidden = missing || update === null;
  row.anatomy.list.hidden = missing;
  row.anatomy.strip.hidden = missing;
  if (missing) return;
  if (update !== null) {
    const outcome = addUpdate(format, code, update, options);
    setText(row.updateWords, outcome.text);
    row.updateLine.classList.toggle("lb-vanished", outcome.vanished);
  }
  if (!row.body.hidden) renderAnatomy(row.anatomy, format, code, read, options);
}

// ---- the folds at the foot ----------------------------------------------------------------------------------------------

function buildFormatPicker(view) {
  const boxes = new Map();
  const list = h("div", { class: "lb-checks" });
  const message = h("p", { class: "lk-error", role: "alert" });
  for (const format of Object.values(FORMATS)) {
    const box = h("input", { type: "checkbox", id: freshId("format") });
    box.addEventListener("change", () => {
      const others = view.state().formats.filter((one) => one.name !== format.name);
      const next = box.checked ? [...others, format] : others;
      setText(message, next.length ? "" : "One format has to stay.");
      if (next.length) view.set({ formats: next });
      else box.checked = true;
    });
    boxes.set(format.name, box);
    list.append(h("label", { for: box.id, class: "lb-check lk-mono" }, box, format.name));
  }
  const refresh = () => {
    const shown = new Set(view.state().formats.map((format) => format.name));
    for (const [name, box] of boxes) box.checked = shown.has(name);
  };
  return { node: disclosure("Formats", list, message), refresh };
}

function buildCustom(view) {
  const whole = (label, value, min, max) => {
    const input = h("input", { type: "number", class: "lk-mono", value, min, max, step: 1 });
    input.addEventListener("keydown", (event) => event.stopPropagation());
    return { input, field: labelled(label, input) };
  };
  const exponent = whole("Exponent bits", 4, 0, 15);
  const fraction = whole("Fraction bits", 3, 0, 112);
  const bias = whole("Bias (empty: the usual)", "", -32768, 32768);
  const specials = select(SPECIALS_NAMES);
  const sign = h("input", { type: "checkbox", checked: true, id: freshId("signed") });
  const message = h("p", { class: "lk-error", role: "alert" });
  const show = () => {
    try {
      const biasText = bias.input.value.trim();
      const format = checkFormat(makeFormat("custom", Number(exponent.input.value), Number(fraction.input.value), specials.value, sign.checked, biasText === "" ? null : Number(biasText)));
      setText(message, "");
      view.set({ formats: [...view.state().formats.filter((one) => one.name !== "custom"), format] });
    } catch (error) {
      setText(message, error.message);
    }
  };
  const remove = () => {
    const others = view.state().formats.filter((one) => one.name !== "custom");
    if (others.length) view.set({ formats: others });
  };
  const removeButton = button("Remove it", remove);
  const bar = h("div", { class: "lk-bar lb-custom" }, exponent.field, fraction.field, bias.field, labelled("Special values", specials),
    h("label", { class: "lb-check", for: sign.id }, sign, "sign bit"), button("Show this format", show), removeButton);
  const refresh = () => (removeButton.hidden = !view.state().formats.some((format) => format.name === "custom"));
  return { node: disclosure("Custom format", bar, message), refresh };
}

function buildShare(view, model) {
  const field = textField({ label: "The whole state in one line: copy it, or paste one and press Enter", read: () => stateText(model), take: (raw) => view.set(readState(raw)) });
  const note = h("span", { class: "lk-soft", role: "status" });
  const copy = button("Copy", async () => {
    field.input.select();
    try {
      await navigator.clipboard.writeText(field.input.value);
      setText(note, "Copied.");
    } catch {
      setText(note, "Selected: press Ctrl+C to copy.");
    }
  });
  const python = h("p", { class: "lk-soft", text: "In Python: viewer.state, and BitViewer.from_state(\"…\")." });
  const refresh = () => {
    field.refresh();
    setText(note, "");
  };
  return { node: disclosure("Share", h("div", { class: "lk-bar lb-share" }, field.field, copy, note), python), refresh };
}

// ---- the whole viewer ---------------------------------------------------------------------------------------------------

function buildControls(view, model) {
  const value = textField({
    label: "Value", read: () => (view.state().read.pinned ? exactDecimal(view.state().read.value) : model.get("source")),
    take(raw) {
      parseNumber(raw);
      view.set({ source: raw.trim() });
      view.speak(view.state().formats.map((format) => `${format.name} ${model.get("codes")[format.name] ?? "has no such value"}`).join(", "));
    },
  });
  value.field.classList.add("lb-value");
  const pick = (name, label, options) => choice({ label, options, read: () => model.get(name), take: (chosen) => view.set({ [name]: chosen }) });
  const rounding = pick("rounding", "Rounding", ROUNDING_NAMES);
  const overflow = pick("overflow", "On overflow", OVERFLOW_NAMES);
  const draw = textField({
    label: "Draw (0 to 1)", read: () => String(model.get("draw")),
    take(raw) {
      const number = raw.trim() === "" ? NaN : Number(raw);
      fromDraw(number);
      view.set({ draw: number });
    },
  });
  const again = button("Draw again", () => view.set({ draw: Math.random() }));
  const update = textField({
    label: "Add this update", placeholder: "such as 1e-4", read: () => model.get("update"),
    take(raw) {
      if (raw.trim()) parseNumber(raw);
      view.set({ update: raw.trim() });
    },
  });
  const drawing = h("div", { class: "lk-bar lb-draw" }, draw.field, again);
  const top = h("div", { class: "lk-bar lb-top" }, value.field, rounding.field, overflow.field, drawing, update.field);
  const refresh = () => {
    for (const control of [value, rounding, overflow, draw, update]) control.refresh();
    drawing.hidden = model.get("rounding") !== "stochastic";
  };
  return { node: top, refresh };
}

function render({ model, el, signal: ended }) {
  const { signal, end } = lifetime(ended);
  const root = makeRoot(el, model, "labkit-bits", "Bit viewer");
  const help = h("p", { class: "lk-hidden", id: freshId("keys"), text: KEYS_HELP });
  let state = computeState(model);
  let rows = [];
  let shownFormats = null;
  let writing = false;

  const view = { state: () => state, speak: makeSpeaker(root, signal), set };
  // A pattern whose format goes away lives on as the number that it stood for.
  function keepsPinned(formats) {
    const own = (list) => JSON.stringify(list.find((one) => one.name === state.read.pinned));
    return own(formats) === own(state.formats);
  }
  function set(changes) {
    const lost = changes.formats && !changes.source && state.read.pinned && !keepsPinned(changes.formats);
    const all = lost ? { ...changes, source: exactDecimal(state.read.value) } : changes;
    writing = true;
    for (const [name, value] of Object.entries(all)) model.set(name, value);
    state = computeState(model);
    model.set("codes", codesTrait(state));
    writing = false;
    model.save_changes();
    draw();
  }
  const api = {
    codeOf: (format) => state.codes.get(format.name)?.code ?? null,
    write(format, code) {
      if (code === api.codeOf(format)) return;
      set({ source: `${format.name}:${hexOf(format, code)}` });
      view.speak(`${format.name} ${hexOf(format, code)}, ${pretty(decode(format, code), 12)}, ${fields(format, code).kind}`);
    },
    addUpdate(format) {
      const outcome = addUpdate(format, api.codeOf(format), state.update, state.options);
      api.write(format, outcome.result);
      if (outcome.vanished) view.speak(`${format.name}: ${outcome.text}`);
    },
    refresh: () => draw(),
  };

  const controls = buildControls(view, model);
  const folds = [buildFormatPicker(view), buildCustom(view), buildShare(view, model)];
  const list = h("div", { class: "lb-rows" });
  root.append(help, controls.node, list, h("div", { class: "lb-folds" }, ...folds.map((fold) => fold.node)));

  function buildRows() {
    const key = JSON.stringify(state.formats);
    if (key === shownFormats) return;
    const open = new Set(rows.filter((row) => !row.body.hidden).map((row) => row.format.name));
    rows = state.formats.map((format) => buildRow(format, api, help.id));
    for (const row of rows) openRow(row, open.has(row.format.name));
    list.replaceChildren(...rows.map((row) => row.node));
    shownFormats = key;
  }
  function draw() {
    buildRows();
    controls.refresh();
    for (const fold of folds) fold.refresh();
    for (const row of rows) renderRow(row, state.codes.get(row.format.name), state);
  }
  draw();
  const onChange = () => {
    if (writing) return;
    state = computeState(model);
    draw();
  };
  follow(model, ["source", "formats", "rounding", "overflow", "draw", "update"], onChange, signal);
  return end;
}

export default { render };
