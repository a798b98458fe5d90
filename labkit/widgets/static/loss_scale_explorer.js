// LossScaleExplorer: slide the loss scale and see what fp16 makes of a model's gradients, and what a scaler would do.

const LARGEST_SHIFT = 40;

const scaleText = (shift) => `${power(shift)}${shift <= 24 ? ` = ${(2 ** shift).toLocaleString("en-US")}` : ""}`;

// The largest power of two at which no number overflows in the format; null where there is none from 2^0 up.
export function largestSafeShift(histogram, format) {
  for (let shift = LARGEST_SHIFT; shift >= 0; shift -= 1) {
    if (fates(histogram, format, shift).overflow === 0) return shift;
  }
  return null;
}

// What a dynamic scaler does with a step at this scale, in one sentence.
export function verdict(histogram, format, shift) {
  const broken = (histogram.infinities ?? 0) + (histogram.nans ?? 0);
  if (broken) return `A scaler would skip this step at every scale: ${broken.toLocaleString("en-US")} of the gradients are infinite or NaN before any scaling.`;
  const count = fates(histogram, format, shift);
  const safe = largestSafeShift(histogram, format);
  const room = safe === null ? "No scale from 1 up avoids that." : `The largest scale without overflow is ${power(safe)}.`;
  if (count.overflow) return `A scaler would skip this step and halve the scale: ${count.overflow.toLocaleString("en-US")} of the gradients overflow in ${format.name}. ${room}`;
  return `A scaler would take this step. ${room}`;
}

function render({ model, el, signal }) {
  const root = makeRoot(el, model, "labkit-loss-scale", "Loss scale explorer");
  const speak = makeSpeaker(root, signal);
  const patternId = freshId("hatch");
  const canvas = svg("svg", { class: "hg-canvas", width: "100%", role: "img", "aria-label": "Histogram of the gradients' exponents over the ranges of the formats; the table below has the shares" });
  const plot = h("div", { class: "hg-plot" }, canvas);
  const slider = h("input", { type: "range", min: 0, max: LARGEST_SHIFT, step: 1 });
  const words = h("output", { class: "ls-scale lk-mono" });
  const sentence = h("p", { class: "ls-verdict" });
  const key = h("p", { class: "lk-soft ls-note" });
  const about = h("p", { class: "lk-soft ls-note" });
  const table = buildFates();
  const current = () => model.get("histograms")[model.get("part")] ?? Object.values(model.get("histograms"))[0];
  const move = (shift) => {
    model.set("shift", Math.max(0, Math.min(LARGEST_SHIFT, shift)));
    model.save_changes();
    draw();
    speak(`Loss scale ${scaleText(model.get("shift"))}. ${sentence.textContent}`);
  };
  const parts = Object.keys(model.get("histograms"));
  const part = choice({
    label: "Gradients of",
    options: parts.map((name) => [name, name]),
    read: () => model.get("part"),
    take: (name) => {
      model.set("part", name);
      model.save_changes();
      draw();
    },
  });
  slider.addEventListener("input", () => move(Number(slider.value)));
  slider.addEventListener("keydown", (event) => event.stopPropagation());
  const safest = () => move(largestSafeShift(current(), model.get("formats")[0]) ?? 0);
  const buttons = h("div", { class: "ls-buttons" },
    button("÷ 2", () => move(model.get("shift") - 1), { label: "Halve the loss scale" }),
    button("× 2", () => move(model.get("shift") + 1), { label: "Double the loss scale" }),
    button("1", () => move(0), { label: "No loss scale" }),
    button("65,536", () => move(16), { label: "GradScaler's first scale, 65,536" }),
    button("largest safe", safest, { label: "The largest scale without overflow" }));
  root.append(
    h("div", { class: "lk-bar ls-controls" }, labelled("Loss scale (a power of two)", slider, { class: "lk-field ls-slider" }), words),
    h("div", { class: "lk-bar ls-controls" }, buttons, parts.length > 1 ? part.field : null),
    sentence, plot, key, table.node, about,
  );

  let drawnPixels = 0;
  function draw() {
    const [formats, shift, histogram] = [model.get("formats"), model.get("shift"), current()];
    drawnPixels = Math.max(280, Math.round(plot.clientWidth) || 800);
    drawHistogram(canvas, { histogram, formats, shift, pixels: drawnPixels, patternId });
    table.render(histogram, formats, shift);
    part.refresh();
    if (Number(slider.value) !== shift) slider.value = String(shift);
    setAttribute(slider, "aria-valuetext", scaleText(shift));
    setText(words, `loss × ${scaleText(shift)}`);
    setText(sentence, verdict(histogram, formats[0], shift));
    setAttribute(sentence, "data-skip", fates(histogram, formats[0], shift).overflow > 0 ? "true" : "false");
    setText(key, barsKey(formats[0]));
    setText(about, `${nonzero(histogram).toLocaleString("en-US")} nonzero gradients; ${(histogram.zeros ?? 0).toLocaleString("en-US")} more are exactly zero and stay it at any scale. Each step of the slider moves every bar by one exponent.`);
  }
  draw();
  const resize = new ResizeObserver(() => Math.round(plot.clientWidth) !== drawnPixels && draw());
  resize.observe(plot);
  signal?.addEventListener("abort", () => resize.disconnect());
  follow(model, ["histograms", "formats", "shift", "part"], draw, signal);
}

export default { render };
