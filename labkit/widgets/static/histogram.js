// The exponents of a tensor against the ranges of formats: pure functions, shared by RangeExplorer and LossScaleExplorer.
//
// A histogram is {exponents, counts, powers, over, zeros, infinities, nans}: counts[i] numbers lie in [2^e, 2^(e+1)) for
// e = exponents[i]; powers[i] of them are exactly 2^e; over[format][i] of them would overflow if their binade were the
// format's last one. With these three, the shares below are exact for every power-of-two scale (ties to even).

// The exponents where a format's fate changes: zero below, then subnormal, then normal, then overflow.
export function formatRange(format) {
  const { minExponent, maxCode, hasInfinity, hasNaN } = shapeOf(format);
  return {
    smallest: minExponent - format.fraction_bits,
    normal: minExponent,
    top: fields(format, maxCode).exponent,
    overflow: hasInfinity ? "infinity" : hasNaN ? "NaN" : "saturated",
  };
}

// How many numbers of a histogram, times 2^shift, end as zero, subnormal, normal or overflow in a format.
export function fates(histogram, format, shift) {
  const range = formatRange(format);
  const result = { zero: 0, subnormal: 0, normal: 0, overflow: 0 };
  const over = histogram.over?.[format.name] ?? [];
  histogram.exponents.forEach((exponent, index) => {
    const count = histogram.counts[index];
    const at = exponent + shift;
    // Half of the smallest subnormal is a tie, which goes to zero; all above it in its binade is rescued.
    const lost = at < range.smallest - 1 ? count : at === range.smallest - 1 ? (histogram.powers?.[index] ?? 0) : 0;
    const overflowed = at > range.top ? count : at === range.top ? (over[index] ?? 0) : 0;
    result.zero += lost;
    result.overflow += overflowed;
    result[at < range.normal ? "subnormal" : "normal"] += count - lost - overflowed;
  });
  return result;
}

export const nonzero = (histogram) => histogram.counts.reduce((sum, count) => sum + count, 0);

export function percent(count, total) {
  if (total === 0 || count === 0) return "0 %";
  const share = (100 * count) / total;
  if (share < 0.001) return "< 0.001 %";
  if (count !== total && share > 99.999) return "> 99.999 %";
  return `${Number(share.toPrecision(share < 1 ? 2 : 4))} %`;
}

// The exponents that the picture covers: the data, and the formats whose range is not far wider than the data.
export function axisOf(histogram, formats, shift) {
  const shown = histogram.exponents.filter((_, index) => histogram.counts[index] > 0);
  const [first, last] = shown.length ? [Math.min(...shown), Math.max(...shown)] : [-1, 1];
  const near = formats.map(formatRange).filter((range) => range.top - range.smallest <= Math.max(64, last - first));
  const low = Math.min(first, first + shift, ...near.map((range) => range.smallest - 1));
  const high = Math.max(last, last + shift, ...near.map((range) => range.top));
  return { low: low - 3, high: high + 4 };
}

const LANE_HEIGHT = 34;
const BARS_HEIGHT = 150;

function hatch(id, className) {
  return svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { width: 2.4, height: 6, class: className }));
}

// What becomes of most of a bar in a format.
function fateOfBar(range, exponent) {
  if (exponent < range.smallest - 1) return "zero";
  if (exponent > range.top) return "overflow";
  return exponent < range.normal ? "subnormal" : "normal";
}

function drawBars(histogram, format, shift, place, patternId) {
  const tallest = Math.max(1, ...histogram.counts);
  const range = formatRange(format);
  return histogram.exponents.flatMap((exponent, index) => {
    const count = histogram.counts[index];
    if (!count) return [];
    const height = Math.max(2, ((BARS_HEIGHT - 24) * count) / tallest);
    const [from, to] = [place(exponent + shift), place(exponent + shift + 1)];
    const fate = fateOfBar(range, exponent + shift);
    const fill = fate === "subnormal" ? `url(#${patternId}-bar)` : null;
    return [svg("rect", { x: from + 1, y: BARS_HEIGHT - height, width: Math.max(1, to - from - 2), height, class: `hg-bar hg-bar-${fate}`, fill })];
  });
}

// One format's band under the bars: zero | subnormal (hatched) | normal | overflow.
function drawLaneOf(format, y, place, pixels, patternId) {
  const range = formatRange(format);
  const clip = (exponent) => Math.max(0, Math.min(pixels, place(exponent)));
  const [smallest, normal, top] = [clip(range.smallest - 1), clip(range.normal), clip(range.top + 1)];
  const nodes = [
    svg("rect", { x: smallest, y: y + 16, width: Math.max(0, normal - smallest), height: 12, class: "hg-subnormal", fill: `url(#${patternId})` }),
    svg("rect", { x: normal, y: y + 16, width: Math.max(0, top - normal), height: 12, class: "hg-normal" }),
  ];
  const word = (x, anchor, text) => svg("text", { x, y: y + 26, "text-anchor": anchor, class: "hg-word", text });
  if (smallest > 34) nodes.push(word(smallest - 6, "end", "zero"));
  if (pixels - top > 62) nodes.push(word(top + 6, "start", range.overflow));
  nodes.push(svg("text", { x: Math.max(2, Math.min(pixels - 110, (smallest + top) / 2)), y: y + 11, "text-anchor": (smallest + top) / 2 > pixels - 110 ? "start" : "middle", class: "hg-name", text: format.name }));
  for (const edge of [range.smallest - 1, range.normal, range.top + 1]) {
    const x = place(edge);
    if (x > 0 && x < pixels) nodes.push(svg("line", { x1: x, x2: x, y1: 20, y2: y + 28, class: "hg-edge" }));
  }
  return nodes;
}

function drawAxis(axis, place, y, pixels) {
  const span = axis.high - axis.low;
  const step = [1, 2, 4, 8, 16, 32, 64, 128, 256].find((one) => (one * pixels) / span >= 42) ?? 512;
  const nodes = [svg("line", { x1: 0, x2: pixels, y1: BARS_HEIGHT, y2: BARS_HEIGHT, class: "hg-axis" })];
  for (let exponent = Math.ceil(axis.low / step) * step; exponent <= axis.high; exponent += step) {
    const x = place(exponent);
    if (x < 16 || x > pixels - 16) continue;
    nodes.push(svg("line", { x1: x, x2: x, y1: y, y2: y + 4, class: "hg-axis" }), svg("text", { x, y: y + 17, "text-anchor": "middle", class: "hg-label", text: power(exponent) }));
  }
  return nodes;
}

export const barsKey = (format) => `Bars show what ${format.name} keeps: solid is normal, hatched subnormal, hollow lost to zero, orange overflow. Bands show each format's range.`;

// Draw the whole picture into an <svg>; the bars tell their fate in the first format; `patternId` has to be unique on the page.
export function drawHistogram(canvas, { histogram, formats, shift, pixels, patternId }) {
  const axis = axisOf(histogram, formats, shift);
  const place = (exponent) => ((exponent - axis.low) / (axis.high - axis.low)) * pixels;
  const bottom = BARS_HEIGHT + formats.length * LANE_HEIGHT + 6;
  setAttribute(canvas, "viewBox", `0 0 ${pixels} ${bottom + 24}`);
  setAttribute(canvas, "height", bottom + 24);
  canvas.replaceChildren(
    svg("defs", {}, hatch(patternId, "hg-hatch"), hatch(`${patternId}-bar`, "hg-hatch-bar")),
    ...formats.flatMap((format, index) => drawLaneOf(format, BARS_HEIGHT + index * LANE_HEIGHT, place, pixels, patternId)),
    ...drawBars(histogram, formats[0], shift, place, patternId),
    ...drawAxis(axis, place, bottom, pixels),
  );
}

// A table of fates, a row for each format; `render` fills it.
export function buildFates() {
  const body = h("tbody");
  const heads = ["Format", "lost to zero", "subnormal", "normal", "overflow"];
  const table = h("table", { class: "lk-table" }, h("caption", { class: "lk-hidden", text: "Share of the nonzero numbers by fate" }),
    h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col", text })))), body);
  const render = (histogram, formats, shift) => {
    const total = nonzero(histogram);
    body.replaceChildren(...formats.map((format) => {
      const count = fates(histogram, format, shift);
      const cell = (name, warn) => h("td", { class: warn && count[name] ? "lk-mono lk-lost" : "lk-mono", text: percent(count[name], total) });
      const overflow = cell("overflow", true);
      if (count.overflow) overflow.append(` to ${formatRange(format).overflow}`.replace("to saturated", "saturated"));
      return h("tr", {}, h("th", { scope: "row", class: "lk-mono", text: format.name }), cell("zero", true), cell("subnormal", false), cell("normal", false), overflow);
    }));
  };
  return { node: h("div", { class: "lk-scroll", tabindex: "0", role: "group", "aria-label": "Share of the numbers by format and fate" }, table), render };
}
