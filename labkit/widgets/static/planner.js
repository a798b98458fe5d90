// Planner: a model's predicted memory as a stacked bar against a card's line. Python predicts; this file draws.

const GIB = 2 ** 30;
// The order of the bar, with the class that colours and hatches each part.
const PART_CLASS = {
  parameters: "pl-parameters",
  optimizer: "pl-optimizer",
  gradients: "pl-gradients",
  inputs: "pl-inputs",
  activations: "pl-activations",
  temporaries: "pl-temporaries",
  "workspaces, rounding": "pl-workspaces",
  "unused in segments": "pl-unused",
  "CUDA context": "pl-context",
};
const SIZE_LABELS = { vocab: "vocabulary", hidden: "hidden", intermediate: "intermediate", layers: "layers", heads: "heads", kv_heads: "KV heads", sequence: "sequence" };

// What the bar shows at `batch`: the exact prediction where it was made for this batch, else the straight line.
export function partsAt(view, batch) {
  const exact = batch === view.batch;
  const parts = view.parts.map(([name, fixed, each, now]) => [name, Math.max(0, exact ? now : fixed + each * batch)]);
  return { exact, parts, total: parts.reduce((sum, [, size]) => sum + size, 0) };
}

// The largest batch whose total on the straight line stays within the limit; null where the line does not rise.
export function largestBatch(view) {
  const fixed = view.parts.reduce((sum, [, base]) => sum + base, 0);
  const each = view.parts.reduce((sum, [, , slope]) => sum + slope, 0);
  return each > 0 ? Math.max(0, Math.floor((view.limit - fixed) / each)) : null;
}

const gib = (bytes) => (bytes / GIB).toFixed(2);

function verdictText(view, { exact, total }, batch) {
  const room = view.limit - total;
  const fit = room >= 0 ? `fits, with ${gib(room)} GiB to spare` : `does not fit: ${gib(-room)} GiB too much`;
  return `Batch ${batch} ${fit}. ${exact ? "Exact prediction." : "Straight-line estimate; release to predict."}`;
}

function slider(label, largest, read, { drag, drop }) {
  const input = h("input", { type: "range", min: 1, max: largest, step: 1 });
  const number = h("output", { class: "lk-number" });
  const show = () => setText(number, input.value);
  input.addEventListener("input", () => { show(); drag(Number(input.value)); });
  input.addEventListener("change", () => drop(Number(input.value)));
  input.addEventListener("keydown", (event) => event.stopPropagation());
  const field = labelled(label, input);
  field.append(number);
  return { field, input, refresh: () => { input.value = read(); show(); } };
}

function sizeFields(model, take) {
  const box = h("div", { class: "pl-sizes" });
  const refresh = () => {
    const sizes = model.get("sizes");
    const names = Object.keys(sizes).filter((name) => Number.isInteger(sizes[name]));
    box.replaceChildren(...names.map((name) => {
      const input = h("input", { type: "number", min: 1, step: 1, value: sizes[name] });
      input.addEventListener("keydown", (event) => event.stopPropagation());
      input.addEventListener("change", () => take({ ...model.get("sizes"), [name]: Number(input.value) }));
      return labelled(SIZE_LABELS[name] ?? name, input);
    }));
  };
  return { box, refresh };
}

function drawBar(bar, view, shown) {
  const scale = Math.max(view.limit * 1.12, shown.total * 1.04);
  bar.style.setProperty("--pl-limit", `${(100 * view.limit) / scale}%`);
  bar.classList.toggle("pl-over", shown.total > view.limit);
  const pieces = shown.parts.map(([name, size]) => {
    const piece = h("span", { class: `pl-part ${PART_CLASS[name]}`, title: `${name}: ${gib(size)} GiB` });
    piece.style.width = `${(100 * size) / scale}%`;
    return piece;
  });
  bar.replaceChildren(...pieces, h("span", { class: "pl-limit" }));
}

function drawTable(body, shown) {
  body.replaceChildren(...shown.parts.map(([name, size]) => h("tr", {},
    h("th", { scope: "row" }, h("span", { class: `pl-key ${PART_CLASS[name]}` }), h("span", { text: name })),
    h("td", { class: "lk-number", text: gib(size) }))),
  h("tr", { class: "pl-total" }, h("th", { scope: "row", text: "nvidia-smi would show" }), h("td", { class: "lk-number", text: gib(shown.total) })));
}

function render({ model, el, signal }) {
  const life = lifetime(signal);
  const root = makeRoot(el, model, "pl", "Memory planner");
  const speak = makeSpeaker(root, life.signal);
  const choices = model.get("choices");
  let dragged = null;

  const set = (name, value) => {
    root.classList.add("pl-busy");
    setText(state, "Predicting…");
    model.set(name, value);
    model.save_changes();
  };
  const drop = (name, label, options) => choice({
    label,
    options: options.map((option) => [option, option]),
    read: () => model.get(name),
    take: (value) => set(name, value),
  });
  const controls = [
    drop("preset", "Model", Object.keys(model.get("presets"))),
    drop("precision", "Precision", choices.precision),
    drop("checkpointing", "Checkpointing", choices.checkpointing),
    drop("optimizer", "Optimizer", choices.optimizer),
    drop("gpu", "Card", choices.gpu),
  ];
  const sizes = sizeFields(model, (value) => set("sizes", value));
  const batch = slider("Batch", choices.largest_batch, () => model.get("batch"), {
    drag: (value) => { dragged = value; draw(); },
    drop: (value) => { dragged = null; if (value === model.get("batch")) draw(); else set("batch", value); },
  });
  const bar = h("div", { class: "pl-bar", "aria-hidden": "true" });
  const state = h("p", { class: "pl-state" });
  const card = h("p", { class: "lk-soft pl-card" });
  const body = h("tbody");
  const notes = h("ul", { class: "pl-notes" });
  const error = h("p", { class: "lk-error", role: "alert" });

  function draw() {
    const view = model.get("view");
    const failed = Boolean(view.error) || !view.parts;
    setText(error, view.error ?? "");
    for (const node of [bar, table, notes, card, state]) node.hidden = failed;
    if (failed) return;
    const at = dragged ?? model.get("batch");
    const shown = partsAt(view, at);
    drawBar(bar, view, shown);
    drawTable(body, shown);
    const words = verdictText(view, shown, at);
    setText(state, words);
    root.classList.toggle("pl-estimate", !shown.exact);
    const most = largestBatch(view);
    const line = most === null ? "" : ` By the straight line about batch ${most} fits.`;
    setText(card, `${view.card}: ${gib(view.limit)} GiB usable.${line} Attention: ${view.attention}. Give or take ${view.margin} %.`);
    notes.replaceChildren(...[`The peak is ${view.peak}.`, ...view.warnings].map((text) => h("li", { text })));
    speak(words);
  }
  const refresh = () => {
    root.classList.remove("pl-busy");
    for (const control of controls) control.refresh();
    if (dragged === null) batch.refresh();
    sizes.refresh();
    draw();
  };

  const table = h("table", { class: "lk-table pl-table" },
    h("caption", { class: "lk-hidden", text: "Predicted memory by part, in GiB" }),
    h("thead", {}, h("tr", {}, h("th", { scope: "col", text: "Part" }), h("th", { scope: "col", text: "GiB" }))), body);
  root.append(
    h("div", { class: "lk-bar pl-controls" }, ...controls.map((control) => control.field)),
    disclosure("Sizes of the model", sizes.box), batch.field, state, bar, card, error, table, notes,
  );
  follow(model, ["view", "sizes", "batch", "preset", "precision", "checkpointing", "optimizer", "gpu"], refresh, life.signal);
  refresh();
  return life.end;
}

export default { render };
