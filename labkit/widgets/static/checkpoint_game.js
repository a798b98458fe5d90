// CheckpointGame: choose what is kept and what is recomputed; see the step's memory as it goes, and what the choice costs.

const PHASES = [
  ["forward", "forward"], ["head", "head and loss"], ["recompute", "recomputation"], ["backward", "backward"], ["rest of the step", "rest"],
];
const PHASE_CLASS = { forward: "cg-forward", head: "cg-head", recompute: "cg-recompute", backward: "cg-backward", "rest of the step": "cg-head" };
const MARK_TEXT = { [KEEP]: "kept", [RECOMPUTE]: "recomputed", [JOIN]: "recomputed with the block before" };

const unitOf = (bytes) => (bytes >= 1e9 ? ["GB", 1e9] : bytes >= 1e6 ? ["MB", 1e6] : bytes >= 1e3 ? ["kB", 1e3] : ["B", 1]);
const inUnit = (bytes, [name, size]) => `${(bytes / size).toLocaleString("en-US", { minimumFractionDigits: size > 1 ? 1 : 0, maximumFractionDigits: size > 1 ? 1 : 0 })} ${name}`;
const msText = (ms) => `${ms.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} ms`;
const described = ({ kind, block }) => (block === null ? kind : `${kind} of block ${block}`);

// What a press on a block, or on the link before it, makes of the choice.
export function toggled(choice, index) {
  const next = [...choice];
  next[index] = choice[index] === KEEP ? RECOMPUTE : KEEP;
  if (next[index] === KEEP && next[index + 1] === JOIN) next[index + 1] = RECOMPUTE;
  return next;
}

export function linked(choice, index) {
  const next = [...choice];
  if (index > 0 && choice[index] !== KEEP && choice[index - 1] !== KEEP) next[index] = choice[index] === JOIN ? RECOMPUTE : JOIN;
  return next;
}

export function everyK(total, size) {
  return Array.from({ length: total }, (_, index) => (index % size ? JOIN : RECOMPUTE));
}

function render({ model, el, signal }) {
  const chain = model.get("chain");
  const total = chain.blocks.length;
  const root = makeRoot(el, model, "labkit-checkpoint-game", "Checkpoint game");
  const speak = makeSpeaker(root, signal);
  const all = costOf(chain, chain.blocks.map(() => KEEP));
  const least = leastPeak(chain);
  const unit = unitOf(all.peak);
  const size = (bytes) => inUnit(bytes, unit);
  let revealed = null;

  // ---- the parts of the page ----
  const help = h("p", { class: "lk-soft cg-help", id: freshId("help"), text: "Press a block to keep or recompute it. Press the link between two recomputed blocks to put them under one checkpoint. Left and Right move between them." });
  const row = h("div", { class: "cg-blocks", role: "group", "aria-label": "Blocks, in the order they run", "aria-describedby": help.id });
  const blockButtons = [];
  const linkButtons = [];
  chain.blocks.forEach((block, index) => {
    const link = h("button", { type: "button", class: "cg-link", "data-index": index, tabindex: "-1" }, h("span", { "aria-hidden": "true" }));
    const mark = h("span", { class: "cg-mark", "aria-hidden": "true" });
    const face = h("button", { type: "button", class: "cg-block", "data-index": index, tabindex: "-1" },
      h("span", { class: "cg-name", text: `block ${index}` }), mark,
      h("span", { class: "cg-size", text: `saves ${size(block.saved)}` }), h("span", { class: "cg-size", text: `forward ${msText(block.forward_ms)}` }));
    link.addEventListener("click", () => choose(linked(model.get("choice"), index)));
    face.addEventListener("click", () => choose(toggled(model.get("choice"), index)));
    blockButtons.push({ face, mark });
    linkButtons.push(link);
    row.append(h("span", { class: "cg-cell" }, index ? link : h("span", { class: "cg-gap" }), face));
  });
  const stops = () => blockButtons.flatMap(({ face }, index) => [linkButtons[index], face]).filter((node) => !node.disabled && node.isConnected);
  let tabStop = blockButtons[0].face;
  const focusOn = (node) => {
    tabStop.tabIndex = -1;
    tabStop = node;
    node.tabIndex = 0;
  };
  row.addEventListener("focusin", (event) => focusOn(event.target));
  row.addEventListener("keydown", (event) => {
    const nodes = stops();
    const place = nodes.indexOf(event.target);
    const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: nodes.length - 1 }[event.key];
    event.stopPropagation();
    if (next === undefined) return;
    event.preventDefault();
    nodes[Math.max(0, Math.min(nodes.length - 1, next))].focus();
  });

  const peakOut = h("span", { class: "cg-figure lk-number" });
  const extraOut = h("span", { class: "cg-figure lk-number" });
  const verdict = h("p", { class: "cg-verdict" });
  const slider = h("input", { type: "range", min: 0, max: 100, step: 1 });
  const budgetOf = (place) => Math.round(least + ((all.peak - least) * place) / 100);
  slider.addEventListener("input", () => {
    model.set("budget", Math.max(1, budgetOf(Number(slider.value))));
    model.save_changes();
    revealed = null;
    draw();
    speak(verdict.textContent);
  });
  slider.addEventListener("keydown", (event) => event.stopPropagation());
  const root2 = Math.ceil(Math.sqrt(total));
  const policies = h("div", { class: "cg-buttons", role: "group", "aria-label": "Start from a policy" },
    button("none", () => choose(chain.blocks.map(() => KEEP)), { label: "Policy none: keep every block" }),
    button("full", () => choose(everyK(total, 1)), { label: "Policy full: recompute every block" }),
    total > 2 ? button("every:2", () => choose(everyK(total, 2)), { label: "Policy every:2: segments of two blocks" }) : null,
    total > 2 && root2 !== 2 ? button("sqrt", () => choose(everyK(total, root2)), { label: `Policy sqrt: segments of ${root2} blocks` }) : null);
  const reveal = button("Show the optimum", () => {
    revealed = optimum(chain, model.get("budget"));
    draw();
    speak(answer.textContent);
  });
  const take = button("Play it", () => choose(revealed), { label: "Play the optimum" });
  const answer = h("p", { class: "cg-answer" });
  const canvas = svg("svg", { class: "cg-canvas", width: "100%", role: "img" });
  const plot = h("div", { class: "cg-plot" }, canvas);
  const key = h("ul", { class: "cg-key" }, h("li", { class: "cg-stored", text: "stored before" }), ...PHASES.filter(([kind]) => kind !== "rest of the step" || chain.elsewhere > 0).map(([kind, text]) => h("li", { class: PHASE_CLASS[kind], text })));
  const body = h("tbody");
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...["action", `stored before (${unit[0]})`, `most (${unit[0]})`].map((text) => h("th", { scope: "col", text })))), body);
  root.append(
    h("div", { class: "cg-figures" },
      h("div", {}, h("span", { class: "lk-label", text: "peak of the step" }), peakOut),
      h("div", {}, h("span", { class: "lk-label", text: "recomputation" }), extraOut), verdict),
    help, row, plot, key,
    h("div", { class: "lk-bar" }, labelled("Budget", slider, { class: "lk-field cg-slider" }), policies, h("div", { class: "cg-buttons" }, reveal, take)),
    answer, disclosure("The timeline as a table", h("div", { class: "cg-table", tabindex: "0", role: "region", "aria-label": "Timeline" }, table)),
  );

  function choose(choice) {
    model.set("choice", choice);
    model.save_changes();
    draw();
    speak(`${size(costOf(chain, choice).peak)}, ${msText(costOf(chain, choice).extra)} of recomputation. ${verdict.textContent}`);
  }

  // ---- drawing ----
  let drawnPixels = 0;
  function draw() {
    const [choice, budget] = [model.get("choice"), model.get("budget")];
    const now = costOf(chain, choice);
    const fits = now.peak <= budget;
    setText(peakOut, size(now.peak));
    setText(extraOut, msText(now.extra));
    setText(verdict, fits
      ? `✓ Within the budget of ${size(budget)}, with ${size(budget - now.peak)} to spare. The peak is in ${described(now.at)}.`
      : `✗ ${size(now.peak - budget)} over the budget of ${size(budget)}. The peak is in ${described(now.at)}.`);
    setAttribute(verdict, "data-fits", String(fits));
    blockButtons.forEach(({ face, mark }, index) => {
      const kept = choice[index] === KEEP;
      setText(mark, kept ? "keep" : "recompute");
      setAttribute(face, "data-mark", choice[index]);
      setAttribute(face, "aria-pressed", String(!kept));
      setAttribute(face, "aria-label", `recompute block ${index}, which saves ${size(chain.blocks[index].saved)} and runs ${msText(chain.blocks[index].forward_ms)}`);
      setAttribute(face, "data-best", revealed ? (revealed[index] === KEEP ? "keep" : "recompute") : null);
      const link = linkButtons[index];
      const possible = index > 0 && !kept && choice[index - 1] !== KEEP;
      if (!possible && link === document.activeElement) face.focus();
      link.disabled = !possible;
      setAttribute(link, "aria-pressed", String(choice[index] === JOIN));
      setAttribute(link, "aria-label", `one checkpoint for blocks ${index - 1} and ${index}`);
      setText(link.firstChild, choice[index] === JOIN ? "=" : possible ? "|" : "");
    });
    if (tabStop.disabled) focusOn(blockButtons[0].face);
    tabStop.tabIndex = 0;
    const place = Math.max(0, Math.min(100, Math.round((100 * (budget - least)) / Math.max(1, all.peak - least))));
    if (Number(slider.value) !== place) slider.value = String(place);
    setAttribute(slider, "aria-valuetext", size(budget));
    drawAnswer(choice, budget, now, fits);
    drawnPixels = Math.max(280, Math.round(plot.clientWidth) || 800);
    drawTimeline(canvas, now, { chain, all, budget, size, pixels: drawnPixels });
    setAttribute(canvas, "aria-label", `Memory over one step. Peak ${size(now.peak)} in ${described(now.at)}; budget ${size(budget)}.`);
    body.replaceChildren(...now.actions.map((action) => h("tr", {}, h("th", { scope: "row", text: described(action) }),
      ...[action.kept, action.peak].map((bytes) => h("td", { class: "lk-mono", text: inUnit(bytes, unit).split(" ")[0] })))));
  }

  function drawAnswer(choice, budget, now, fits) {
    take.disabled = !revealed;
    if (!revealed) {
      const none = budget < least ? ` No placement fits: the least peak is ${size(least)}.` : "";
      setText(answer, `Find a placement that fits and recomputes as little as possible, then show the optimum.${none}`);
      return;
    }
    const best = costOf(chain, revealed);
    const parts = segmentsOf(revealed).map((one) => (one.length > 1 ? `${one[0]}–${one.at(-1)}` : `${one[0]}`));
    const how = parts.length ? `recomputing ${parts.join(", ")}` : "keeping everything";
    const yours = !fits ? "Yours does not fit yet." : now.extra <= best.extra + 1e-9 ? "Yours is as good: there is nothing better." : `Yours needs ${msText(now.extra)}.`;
    setText(answer, `The least within ${size(budget)} is ${msText(best.extra)}, by ${how}. ${yours}`);
  }

  draw();
  const resize = new ResizeObserver(() => Math.round(plot.clientWidth) !== drawnPixels && draw());
  resize.observe(plot);
  signal?.addEventListener("abort", () => resize.disconnect());
  follow(model, ["choice", "budget"], draw, signal);
}

function drawTimeline(canvas, now, { chain, all, budget, size, pixels }) {
  const [height, left, top, bottom] = [230, 62, 26, 22];
  const work = chain.blocks.reduce((sum, block) => sum + block.forward_ms, 0);
  // The axis has room for the longest step there is, so that recomputation is seen to make the step longer.
  const longest = now.actions.reduce((sum, action) => sum + action.ms, 0) - now.extra + work;
  const ceiling = Math.max(all.peak, budget, now.peak) * 1.06;
  const x = (ms) => left + ((pixels - left - 8) * ms) / longest;
  const y = (bytes) => height - bottom - ((height - top - bottom) * bytes) / ceiling;
  setAttribute(canvas, "viewBox", `0 0 ${pixels} ${height}`);
  setAttribute(canvas, "height", height);
  const hatch = freshId("hatch");
  const parts = [svg("defs", {}, svg("pattern", { id: hatch, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("line", { x1: 0, y1: 0, x2: 0, y2: 7, class: "cg-hatch" })))];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const bytes = (ceiling / 1.06) * share;
    parts.push(svg("line", { class: "cg-grid", x1: left, x2: pixels - 8, y1: y(bytes), y2: y(bytes) }), svg("text", { class: "cg-tick", x: left - 6, y: y(bytes) + 4, "text-anchor": "end", text: size(bytes) }));
  }
  let clock = 0;
  let peakAt = left;
  for (const action of now.actions) {
    const [from, width] = [x(clock), Math.max(1, x(clock + action.ms) - x(clock) - 1)];
    const box = { x: from, width };
    parts.push(svg("rect", { ...box, class: `${PHASE_CLASS[action.kind]} cg-most`, y: y(action.peak), height: Math.max(0, y(action.kept) - y(action.peak)) }));
    parts.push(svg("rect", { ...box, class: "cg-kept", y: y(action.kept), height: Math.max(0, y(0) - y(action.kept)) }));
    if (action.kind === "recompute") parts.push(svg("rect", { ...box, fill: `url(#${hatch})`, y: y(action.peak), height: Math.max(0, y(action.kept) - y(action.peak)) }));
    if (action === now.at) peakAt = from + width / 2;
    clock += action.ms;
  }
  const over = now.peak > budget;
  parts.push(svg("line", { class: "cg-budget", x1: left, x2: pixels - 8, y1: y(budget), y2: y(budget) }));
  parts.push(svg("text", { class: "cg-budget-text", x: pixels - 10, y: y(budget) - 5, "text-anchor": "end", text: `budget ${size(budget)}` }));
  parts.push(svg("path", { class: over ? "cg-peak cg-over" : "cg-peak", d: `M ${peakAt} ${y(now.peak) - 2} l -6 -9 h 12 z` }));
  parts.push(svg("text", { class: "cg-tick", x: left, y: height - 6, text: "time →" }));
  canvas.replaceChildren(...parts);
}

export default { render };
