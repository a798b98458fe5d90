// What a placement of checkpoints costs on a chain of blocks, and which one is best: the same costs as labkit.memory.chain,
// the same recurrence as labkit.memory.placement. Bytes and milliseconds.
// A choice has one mark a block: "keep", "recompute" (a checkpoint of its own) or "join" (recomputed with the block before).

export const KEEP = "keep";
export const RECOMPUTE = "recompute";
export const JOIN = "join";

const times = (yes, bytes) => (yes ? bytes : 0);

// ---- units: a kept block, or a segment of recomputed ones ------------------------------------------------------------

export function unitsOf(choice) {
  const units = [];
  choice.forEach((mark, index) => {
    const last = units.at(-1);
    if (mark === JOIN && last?.recomputed && last.stop === index) last.stop = index + 1;
    else units.push({ start: index, stop: index + 1, recomputed: mark !== KEEP });
  });
  return units;
}

export function marksOf(total, segments) {
  const marks = Array(total).fill(KEEP);
  for (const segment of segments) segment.forEach((index, place) => (marks[index] = place ? JOIN : RECOMPUTE));
  return marks;
}

export const segmentsOf = (choice) =>
  unitsOf(choice).filter((unit) => unit.recomputed).map(({ start, stop }) => Array.from({ length: stop - start }, (_, place) => start + place));

// What happens in a unit's backward pass, in order; levels count from what the units before it store, its own input included.
function backwardActions(blocks, { start, stop, recomputed }) {
  const actions = [];
  const levels = [];
  const carried = blocks[stop - 1].carried;
  let held = 0;
  for (let index = start; index < stop; index += 1) {
    const block = blocks[index];
    const entering = times(index > start, block.input);
    const boundary = times(index > start && (block.saves_input || blocks[index - 1].saves_output), block.input);
    if (recomputed) {
      const work = index === stop - 1 ? block.recompute_work : block.output + block.forward_work;
      actions.push({ kind: "recompute", block: index, kept: held + entering, peak: carried + held + entering + block.saved + work, ms: block.forward_ms });
    }
    held += boundary + block.saved;
    levels[index] = held + times(block.saves_output, block.output);
  }
  for (let index = stop - 1; index >= start; index -= 1) {
    const block = blocks[index];
    actions.push({ kind: "backward", block: index, kept: levels[index], peak: block.carried + levels[index] + block.backward_work, ms: 2 * block.forward_ms });
  }
  return actions;
}

// The whole step: one entry an action, with the bytes that are stored when it starts (`kept`) and the most it reaches (`peak`).
export function timeline(chain, choice) {
  const { blocks, base, head_work: headWork, elsewhere } = chain;
  const forward = [];
  const backward = [];
  let stored = base;
  let hasInput = false;
  for (const unit of unitsOf(choice)) {
    const first = blocks[unit.start];
    const boundary = times(!hasInput, first.input);
    const lasting = times(unit.recomputed || first.saves_input, boundary);
    for (let index = unit.start; index < unit.stop; index += 1) {
      const block = blocks[index];
      const above = unit.recomputed ? times(index > unit.start, block.input) + block.output : block.saved + block.output + block.forward_work;
      forward.push({ kind: "forward", block: index, kept: stored + boundary, peak: stored + boundary + above, ms: block.forward_ms });
    }
    const floor = stored + lasting;
    backward.unshift(...backwardActions(blocks, unit).map((action) => ({ ...action, kept: floor + action.kept, peak: floor + action.peak })));
    hasInput = !unit.recomputed && first.saves_output;
    stored = floor + times(!unit.recomputed, first.saved) + times(hasInput, first.output);
  }
  const last = times(!hasInput, blocks.at(-1).output);
  const pause = blocks.reduce((sum, block) => sum + block.forward_ms, 0) / blocks.length;
  const head = { kind: "head", block: null, kept: stored + last, peak: stored + last + headWork, ms: pause };
  const rest = elsewhere > 0 ? [{ kind: "rest of the step", block: null, kept: base, peak: elsewhere, ms: pause }] : [];
  return [...forward, head, ...backward, ...rest];
}

export function costOf(chain, choice) {
  const actions = timeline(chain, choice);
  const top = actions.reduce((best, action) => (action.peak > best.peak ? action : best));
  const extra = actions.reduce((sum, action) => sum + times(action.kind === "recompute", action.ms), 0);
  return { peak: top.peak, extra, at: top, actions };
}

// ---- the best placement ------------------------------------------------------------------------------------------------

function allUnits(chain) {
  const total = chain.blocks.length;
  const units = [];
  for (let start = 0; start < total; start += 1) {
    units.push(priced(chain, { start, stop: start + 1, recomputed: false }));
    for (let stop = start + 1; stop <= total; stop += 1) units.push(priced(chain, { start, stop, recomputed: true }));
  }
  return units;
}

function priced({ blocks }, unit) {
  const first = blocks[unit.start];
  const actions = backwardActions(blocks, unit);
  return {
    ...unit,
    storesInput: unit.recomputed || first.saves_input,
    storesOutput: !unit.recomputed && first.saves_output,
    stores: unit.recomputed ? 0 : first.saved + times(first.saves_output, first.output),
    forwardNeed: unit.recomputed ? 0 : first.saved + first.output + first.forward_work,
    backwardNeed: Math.max(...actions.map((action) => action.peak)),
    extra: actions.reduce((sum, action) => sum + times(action.kind === "recompute", action.ms), 0),
  };
}

// Pairs (stored bytes, extra time) that no other pair at the same node beats or equals in both.
function pareto(labels) {
  labels.sort((a, b) => a.stored - b.stored || a.extra - b.extra);
  const best = [];
  for (const label of labels) if (!best.length || label.extra < best.at(-1).extra) best.push(label);
  return best;
}

// The placement with the least extra time whose peak is within the limit, as a choice; null where there is none.
export function optimum(chain, limit) {
  const { blocks, base, head_work: headWork, elsewhere } = chain;
  if (elsewhere > limit) return null;
  const total = blocks.length;
  const units = allUnits(chain);
  const nodes = Array.from({ length: total + 1 }, () => [[], []]);
  nodes[0][0] = [{ stored: base, extra: 0, unit: null, from: null }];
  for (let index = 1; index <= total; index += 1) {
    for (const unit of units.filter((one) => one.stop === index)) {
      for (const hasInput of [0, 1]) {
        const boundary = hasInput ? 0 : blocks[unit.start].input;
        const lasting = times(unit.storesInput, boundary);
        const need = Math.max(boundary + unit.forwardNeed, lasting + unit.backwardNeed);
        for (const from of nodes[unit.start][hasInput]) {
          if (from.stored + need > limit) break;
          nodes[index][Number(unit.storesOutput)].push({ stored: from.stored + lasting + unit.stores, extra: from.extra + unit.extra, unit, from });
        }
      }
    }
    nodes[index] = nodes[index].map(pareto);
  }
  const ends = nodes[total].flatMap((labels, hasInput) =>
    labels.filter((label) => label.stored + headWork + (hasInput ? 0 : blocks.at(-1).output) <= limit));
  if (!ends.length) return null;
  const segments = [];
  for (let label = ends.reduce((best, one) => (one.extra < best.extra ? one : best)); label.unit; label = label.from) {
    if (label.unit.recomputed) segments.unshift(Array.from({ length: label.unit.stop - label.unit.start }, (_, place) => label.unit.start + place));
  }
  return marksOf(total, segments);
}

// The lowest peak that any placement reaches, by halving.
export function leastPeak(chain) {
  let low = chain.elsewhere;
  let high = costOf(chain, chain.blocks.map(() => KEEP)).peak;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (optimum(chain, middle)) high = middle;
    else low = middle + 1;
  }
  return high;
}
