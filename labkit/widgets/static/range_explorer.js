// RangeExplorer: slide a tensor's exponents over the ranges of formats by a power-of-two scale.

const SHIFT_LIMIT = 40;

function scaleWords(shift) {
  if (shift === 0) return "× 1: as it is";
  const factor = Math.abs(shift) <= 24 ? ` = ${shift > 0 ? "" : "1/"}${(2 ** Math.abs(shift)).toLocaleString("en-US")}` : "";
  return `× ${power(shift)}${factor}`;
}

function countsLine(histogram) {
  const plural = (count, word) => `${count.toLocaleString("en-US")} ${word}`;
  const parts = [plural(nonzero(histogram), "nonzero numbers"), plural(histogram.zeros, "zeros")];
  if (histogram.infinities) parts.push(plural(histogram.infinities, "infinities"));
  if (histogram.nans) parts.push(plural(histogram.nans, "NaNs"));
  return parts.join(", ");
}

function render({ model, el, signal: ended }) {
  const { signal, end } = lifetime(ended);
  const root = makeRoot(el, model, "labkit-range", "Range explorer");
  const speak = makeSpeaker(root, signal);
  const patternId = freshId("hatch");
  const canvas = svg("svg", { class: "hg-canvas", width: "100%", role: "img", "aria-label": "Histogram of exponents over the ranges of the formats; the table below has the shares" });
  const plot = h("div", { class: "hg-plot" }, canvas);
  const slider = h("input", { type: "range", min: -SHIFT_LIMIT, max: SHIFT_LIMIT, step: 1 });
  const words = h("output", { class: "hg-scale lk-mono" });
  const about = h("p", { class: "lk-soft hg-about" });
  const table = buildFates();
  const move = (shift) => {
    model.set("shift", Math.max(-SHIFT_LIMIT, Math.min(SHIFT_LIMIT, shift)));
    model.save_changes();
    draw();
    const formats = model.get("formats");
    speak(`${scaleWords(model.get("shift"))}. ` + formats.map((format) => `${format.name} loses ${percent(fates(model.get("histogram"), format, model.get("shift")).zero, nonzero(model.get("histogram")))} to zero`).join(", "));
  };
  slider.addEventListener("input", () => move(Number(slider.value)));
  slider.addEventListener("keydown", (event) => event.stopPropagation());
  const bar = h("div", { class: "lk-bar hg-bar-controls" }, labelled("Scale every number by a power of two", slider),
    h("div", { class: "hg-buttons" }, button("÷ 2", () => move(model.get("shift") - 1), { label: "Halve the scale" }), button("× 2", () => move(model.get("shift") + 1), { label: "Double the scale" }), button("× 1", () => move(0), { label: "Back to scale 1" })), words);
  const key = h("p", { class: "lk-soft hg-key" });
  root.append(bar, plot, key, about, table.node);

  let drawnPixels = 0;
  function draw() {
    const [histogram, formats, shift] = ["histogram", "formats", "shift"].map((name) => model.get(name));
    drawnPixels = Math.max(280, Math.round(plot.clientWidth) || 800);
    drawHistogram(canvas, { histogram, formats, shift, pixels: drawnPixels, patternId });
    table.render(histogram, formats, shift);
    if (Number(slider.value) !== shift) slider.value = String(shift);
    setAttribute(slider, "aria-valuetext", scaleWords(shift));
    setText(words, scaleWords(shift));
    setText(key, barsKey(formats[0]));
    setText(about, `${countsLine(histogram)}. Shares are of the nonzero numbers, rounded to nearest with ties to even.`);
  }
  draw();
  const resize = new ResizeObserver(() => Math.round(plot.clientWidth) !== drawnPixels && draw());
  resize.observe(plot);
  signal.addEventListener("abort", () => resize.disconnect());
  follow(model, ["histogram", "formats", "shift"], draw, signal);
  return end;
}

export default { render };
