"""Exercises of notebook 07: computing again instead of keeping."""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from math import ceil, isqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from labkit.exercises.core import Exercise, Wrong, expect
from labkit.memory.chain import BlockCost, Chain, cost
from labkit.memory.placement import all_placements

Function = Callable[[Tensor], Tensor]

# ---- 07-checkpoint --------------------------------------------------------------------------------------------------------


def checkpoint(function, x):
    """Run function(x) so that autograd keeps none of its intermediate results; backward runs function(x) once more."""
    numbers, again = itertools.count(), {}

    def forget(tensor):
        return next(numbers)

    def recompute(number):
        if not again:
            fresh = itertools.count()
            with (
                torch.enable_grad(),
                saved_tensors_hooks(lambda tensor: again.update({next(fresh): tensor.detach()}), lambda _: None),
            ):
                function(x.detach().requires_grad_())
        return again[number]

    with saved_tensors_hooks(forget, recompute):
        return function(x)


class _Watched(nn.Module):
    """A small block that counts its runs and can tell whether its widest intermediate result is still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 32), nn.Linear(32, 4)
        self.runs = 0
        self.wide: list[weakref.ref] = []

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        wide = self.up(x)
        self.wide.append(weakref.ref(wide))
        return x + self.down(wide.square())


def _check_checkpoint(answer: Callable[[Function, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    block, x = _Watched(), torch.randn(3, 4, requires_grad=True)
    block(x).square().sum().backward()
    want = [p.grad.clone() for p in [x, *block.parameters()]]
    for tensor in [x, *block.parameters()]:
        tensor.grad = None
    block.runs, block.wide = 0, []
    y = answer(block, x)
    expect(torch.equal(y, block(x)), "the result is not that of function(x)")
    block.runs = 1
    expect(y.requires_grad, "the result has no gradient: forward runs with gradients on, only its saved tensors are dropped")
    expect(block.wide[0]() is None, "after forward the wide intermediate result is still alive: autograd keeps it")
    y.square().sum().backward()
    expect(block.runs > 1, "backward did not run the function again")
    expect(block.runs == 2, f"the function ran {block.runs} times; one run in forward and one in backward are enough")
    for tensor, gradient in zip([x, *block.parameters()], want, strict=True):
        what = "x" if tensor is x else "a parameter"
        expect(tensor.grad is not None, f"the gradient of {what} is missing")
        expect(torch.equal(tensor.grad, gradient), f"the gradient of {what} differs from that without a checkpoint")


def _keeps_everything(function: Function, x: Tensor) -> Tensor:
    return function(x)


def _without_graph(function: Function, x: Tensor) -> Tensor:
    with torch.no_grad():
        return function(x)


def _cuts_the_input(function: Function, x: Tensor) -> Tensor:
    return checkpoint(function, x.detach().requires_grad_())


def _for_every_tensor(function: Function, x: Tensor) -> Tensor:
    numbers = itertools.count()

    def recompute(number: int) -> Tensor:
        seen: list[Tensor] = []
        with torch.enable_grad(), saved_tensors_hooks(lambda tensor: seen.append(tensor.detach()), lambda _: None):
            function(x.detach().requires_grad_())
        return seen[number]

    with saved_tensors_hooks(lambda tensor: next(numbers), recompute):
        return function(x)


# ---- 07-segment -----------------------------------------------------------------------------------------------------------


def best_segment(blocks, boundary, inside):
    """The K from 1 to `blocks` with the lowest peak of every:K; `boundary` and `inside` are bytes of one block."""

    def peak(k):
        return ceil(blocks / k) * boundary + k * inside

    return min(range(1, blocks + 1), key=peak)


def _check_segment(answer: Callable[[int, int, int], int]) -> None:
    for blocks, boundary, inside in [(16, 1, 1), (64, 10, 10), (12, 1, 18), (24, 40, 1), (10, 5, 4), (100, 3, 12), (7, 1, 1)]:
        peaks = {k: ceil(blocks / k) * boundary + k * inside for k in range(1, blocks + 1)}
        got = answer(blocks, boundary, inside)
        asked = f"{blocks} blocks, {boundary} bytes of input and {inside} inside each"
        expect(got in peaks, f"{asked}: K is a whole number from 1 to {blocks}, your function gave {got!r}")
        best = min(peaks.values())
        expect(
            inside == boundary or got != isqrt(blocks) or peaks[got] == best,
            f"{asked}: √n = {got} is best only where a block keeps inside what its input takes; there are better K here",
        )
        expect(peaks[got] == best, f"{asked}: every:{got} peaks at {peaks[got]}, but {best} can be had")


def _always_root(blocks: int, boundary: int, inside: int) -> int:
    return isqrt(blocks)


def _inputs_alone(blocks: int, boundary: int, inside: int) -> int:
    return blocks


def _inside_alone(blocks: int, boundary: int, inside: int) -> int:
    return 1


# ---- 07-passes ------------------------------------------------------------------------------------------------------------


def forward_passes(blocks, segments, micro_batches=1):
    """How often each of `blocks` blocks runs forward in one optimizer step: a list; `segments` are the recomputed ones."""
    again = {index for segment in segments for index in segment}
    return [micro_batches * (1 + (index in again)) for index in range(blocks)]


def _check_passes(answer: Callable[..., list[int]]) -> None:
    cases = [(4, [], 1), (4, [[0], [1], [2], [3]], 1), (4, [[0, 1], [2, 3]], 1), (5, [[1, 2, 3]], 1), (3, [[0]], 4)]
    for blocks, segments, count in cases:
        want, got = forward_passes(blocks, segments, count), list(answer(blocks, segments, count))
        asked = f"{blocks} blocks, segments {segments}, {count} micro-batch{'es' if count > 1 else ''}"
        expect(len(got) == blocks, f"{asked}: give one number a block, not {len(got)}")
        expect(segments or got == want, f"{asked}: without checkpoints each block runs once, your function gave {got}")
        expect(count == 1 or got != forward_passes(blocks, segments), f"{asked}: each micro-batch runs forward on its own")
        heads = [1 + any(index == segment[0] for segment in segments) for index in range(blocks)]
        expect(got == want or got != heads, f"{asked}: a recomputation runs the whole segment, not its first block only")
        nested = [1 + sum(len(s) - s.index(index) for s in segments if index in s) for index in range(blocks)]
        expect(got == want or got != nested, f"{asked}: one recomputation serves the whole segment; it is not run once a block")
        expect(got == want, f"{asked}: {want} passes, your function gave {got}")


def _first_block_only(blocks: int, segments: list[list[int]], micro_batches: int = 1) -> list[int]:
    heads = {segment[0] for segment in segments}
    return [micro_batches * (1 + (index in heads)) for index in range(blocks)]


def _all_twice(blocks: int, segments: list[list[int]], micro_batches: int = 1) -> list[int]:
    return [2 * micro_batches] * blocks


def _once_a_block(blocks: int, segments: list[list[int]], micro_batches: int = 1) -> list[int]:
    return [1 + sum(len(s) - s.index(i) for s in segments if i in s) for i in range(blocks)]


def _one_batch(blocks: int, segments: list[list[int]], micro_batches: int = 1) -> list[int]:
    return forward_passes(blocks, segments)


# ---- 07-rng ---------------------------------------------------------------------------------------------------------------


def rerun(function, x, state):
    """function(x) with torch's CPU generator in `state`; the generator goes on afterwards as if nothing had happened."""
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return function(x)
    finally:
        torch.set_rng_state(now)


def _check_rng(answer: Callable[[Function, Tensor, Tensor], Tensor]) -> None:
    def drop(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)

    x = torch.ones(64)
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            state = torch.get_rng_state()
            first = drop(x)
            torch.rand(10)  # other layers draw in between
            here = torch.get_rng_state()
            again = answer(drop, x, state)
            lost = int((first != again).sum())
            expect(lost == 0, f"{lost} of 64 values differ from the first run: the dropout mask is another one")
            expect(
                torch.equal(torch.get_rng_state(), here),
                "the result is right, but afterwards the generator is somewhere else: later layers would draw other numbers",
            )

        def fails(x: Tensor) -> Tensor:
            raise ArithmeticError("on purpose")

        here = torch.get_rng_state()
        with contextlib.suppress(ArithmeticError):
            answer(fails, x, state)
        expect(torch.equal(torch.get_rng_state(), here), "when the function fails, the generator is not put back")


def _plain_rerun(function: Function, x: Tensor, state: Tensor) -> Tensor:
    return function(x)


def _fixed_seed(function: Function, x: Tensor, state: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return function(x)


def _leaves_it_moved(function: Function, x: Tensor, state: Tensor) -> Tensor:
    torch.set_rng_state(state)
    return function(x)


def _not_on_failure(function: Function, x: Tensor, state: Tensor) -> Tensor:
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    y = function(x)
    torch.set_rng_state(now)
    return y


# ---- 07-budget ------------------------------------------------------------------------------------------------------------


def place(chain, budget):
    """The segments with the least extra time whose peak is at most `budget` bytes; None when nothing fits."""
    costs = {placement: cost(chain, placement) for placement in all_placements(len(chain))}
    fitting = [placement for placement in costs if costs[placement].peak <= budget]
    return min(fitting, key=lambda placement: costs[placement].extra_ms, default=None)


def _chains() -> list[Chain]:
    def chain(saved: Sequence[int], times: Sequence[float], head: int) -> Chain:
        blocks = tuple(
            BlockCost(input=2, output=2, saved=each, carried=2, backward_work=3, forward_ms=ms)
            for each, ms in zip(saved, times, strict=True)
        )
        return Chain(blocks=blocks, base=10, head_work=head)

    return [chain((10,) * 6, (1.0,) * 6, 4), chain((30, 8, 9, 8, 30), (9.0, 1.0, 1.5, 1.0, 2.0), 20)]


def _check_place(answer: Callable[[Chain, int], Sequence[Sequence[int]] | None]) -> None:
    for chain in _chains():
        costs = [cost(chain, placement) for placement in all_placements(len(chain))]
        low, high = min(each.peak for each in costs), cost(chain, ()).peak
        for budget in (high, (low + high) // 2, low):
            got = answer(chain, budget)
            asked = f"at a budget of {budget} bytes ({low} at least, {high} with everything kept)"
            expect(got is not None, f"{asked} some placement fits, your function gave None")
            found, least = cost(chain, got), min(each.extra_ms for each in costs if each.peak <= budget)
            expect(found.peak <= budget, f"{asked} your placement peaks at {found.peak}")
            expect(
                found.extra_ms <= least + 1e-9,
                f"{asked} your placement adds {found.extra_ms:g} ms, but {least:g} ms are enough",
            )
        expect(answer(chain, low - 1) is None, f"nothing fits in {low - 1} bytes, so the answer is None")


def _always_sqrt(chain: Chain, budget: int) -> list[list[int]]:
    size = ceil(len(chain) ** 0.5)
    return [list(range(start, min(start + size, len(chain)))) for start in range(0, len(chain), size)]


def _least_memory(chain: Chain, budget: int) -> Sequence[Sequence[int]]:
    return min(all_placements(len(chain)), key=lambda placement: cost(chain, placement).peak)


def _largest_first(chain: Chain, budget: int) -> list[list[int]] | None:
    order = sorted(range(len(chain)), key=lambda index: -chain.blocks[index].saved)
    for count in range(len(chain) + 1):
        placement = [[index] for index in sorted(order[:count])]
        if cost(chain, placement).peak <= budget:
            return placement
    return None


# ---- 07-loss --------------------------------------------------------------------------------------------------------------


def chunked_loss(hidden, weight, targets, chunk):
    """Mean cross-entropy of hidden (N, D) @ weight.T (V, D) on targets (N), never with more than chunk x V logits kept."""

    def part(rows, labels):
        return F.cross_entropy(rows @ weight.T, labels, reduction="sum")

    parts = [
        torch.utils.checkpoint.checkpoint(part, rows, labels, use_reentrant=False)
        for rows, labels in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return sum(parts) / len(targets)


def _check_loss(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(50, (10,), generator=generator)
    plain = F.cross_entropy(hidden @ weight.T, targets)
    want = torch.autograd.grad(plain, (hidden, weight))
    kept: list[int] = []
    with saved_tensors_hooks(lambda tensor: (kept.append(tensor.numel()), tensor)[1], lambda tensor: tensor):
        got = answer(hidden, weight, targets, 4)
    expect(
        not torch.isclose(got, plain * 10),
        f"the loss is {got.item():.4f}, the sum over the tokens; the mean is {plain.item():.4f}",
    )
    expect(
        torch.isclose(got, plain),
        f"the loss is {got.item():.4f} instead of {plain.item():.4f}: 10 tokens make chunks of 4, 4 and 2, which do not weigh "
        "the same",
    )
    expect(got.requires_grad, "the loss has no gradient")
    found = torch.autograd.grad(got, (hidden, weight))
    for name, mine, right in zip(("hidden", "weight"), found, want, strict=True):
        expect(torch.allclose(mine, right), f"the gradient of {name} is not that of the plain loss")
    expect(max(kept) < 4 * 50, "the logits of a chunk are kept for backward: put each chunk under a checkpoint")


def _mean_of_means(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    return torch.stack([F.cross_entropy(rows @ weight.T, labels) for rows, labels in pairs]).mean()


def _keeps_logits(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    return sum(F.cross_entropy(rows @ weight.T, labels, reduction="sum") for rows, labels in pairs) / len(targets)


def _sum_of_all(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    return chunked_loss(hidden, weight, targets, chunk) * len(targets)


EXERCISES = [
    Exercise(
        id="07-checkpoint",
        solution=checkpoint,
        check=_check_checkpoint,
        hints=(
            "`saved_tensors_hooks(pack, unpack)` decides what autograd keeps: whatever `pack` returns instead of the tensor.",
            "Let `pack` return only a running number. When `unpack` is asked for the first number, run the function again, "
            "under hooks of its own that collect the tensors it wants to save, in the same order.",
            "Collect in a dict `again`; `if not again:` run `function(x.detach().requires_grad_())` under "
            "`torch.enable_grad()` and `saved_tensors_hooks(lambda t: again.update({next(fresh): t.detach()}), "
            "lambda _: None)`; return `again[number]`.",
        ),
        wrong=(
            Wrong(_keeps_everything, "calling the function is enough", "still alive"),
            Wrong(_without_graph, "forward runs without gradients", "has no gradient"),
            Wrong(_cuts_the_input, "the checkpoint's input is a leaf", "the gradient of x is missing"),
            Wrong(_for_every_tensor, "each saved tensor is recomputed by itself", "the function ran"),
        ),
        note="This is how `use_reentrant=False` works: the graph of the first run stays, its saved tensors do not. Parameters "
        "and closures get their gradients as always, because it is the ordinary graph that runs backward.",
    ),
    Exercise(
        id="07-segment",
        solution=best_segment,
        check=_check_segment,
        hints=(
            "The peak has two parts: the inputs of all segments, and the inside of the one segment that is recomputed now.",
            "There are `ceil(blocks / k)` inputs, and k blocks inside the segment: `ceil(blocks / k) * boundary + k * inside`.",
            "`min(range(1, blocks + 1), key=peak)`",
        ),
        wrong=(
            Wrong(_always_root, "√n is always best", "is best only where"),
            Wrong(_inputs_alone, "only stored inputs take memory", "can be had"),
            Wrong(_inside_alone, "only the inside takes memory", "can be had"),
        ),
        note="Where derivatives help: n·a/K + K·s is least at K = √(n·a/s). A transformer block keeps some twenty times its "
        "input, so K falls to 1 for most depths: `full` is the right choice there, not `sqrt`.",
    ),
    Exercise(
        id="07-passes",
        solution=forward_passes,
        check=_check_passes,
        hints=(
            "Every block runs forward once, in the forward pass. Which run a second time?",
            "All blocks of a recomputed segment run once more in the backward pass, and only they.",
            "`[micro_batches * (1 + (index in again)) for index in range(blocks)]` with `again` the indices in all segments.",
        ),
        wrong=(
            Wrong(_first_block_only, "only the block with the checkpoint runs again", "the whole segment"),
            Wrong(_all_twice, "checkpointing runs everything twice", "each block runs once"),
            Wrong(_once_a_block, "a segment is run again for each of its blocks", "serves the whole segment"),
            Wrong(_one_batch, "accumulation does not multiply the recomputation", "each micro-batch runs forward"),
        ),
        note="The price does not depend on how segments are cut, only on which blocks are in one: at most one forward pass "
        "more, and a forward pass is about a third of the step.",
    ),
    Exercise(
        id="07-rng",
        solution=rerun,
        check=_check_rng,
        hints=(
            "Two states matter: the one to run the function with, and the one to return to.",
            "`torch.get_rng_state()` before you touch anything; `torch.set_rng_state(state)` before the run.",
            "Put the old state back in a `finally:`, so that it returns even when the function raises.",
        ),
        wrong=(
            Wrong(_plain_rerun, "running again gives the same", "the dropout mask is another one"),
            Wrong(_fixed_seed, "a fixed seed makes runs equal", "the dropout mask is another one"),
            Wrong(_leaves_it_moved, "what happens to the generator afterwards is nobody's business", "somewhere else"),
            Wrong(_not_on_failure, "functions do not fail", "is not put back"),
        ),
        note="`preserve_rng_state=True`, torch's default, does exactly this. It costs one copy of the generator's state a "
        "checkpoint, 5,056 bytes on a CPU.",
    ),
    Exercise(
        id="07-budget",
        solution=place,
        check=_check_place,
        hints=(
            "For few blocks there is no need to be clever: `all_placements(len(chain))` lists every placement there is.",
            "`cost(chain, placement)` has `.peak` and `.extra_ms`. Keep those that fit.",
            "`min(fitting, key=lambda placement: cost(chain, placement).extra_ms, default=None)`",
        ),
        wrong=(
            Wrong(_always_sqrt, "√n is the answer to every budget", "are enough"),
            Wrong(_least_memory, "the least memory is the aim", "are enough"),
            Wrong(_largest_first, "recompute what saves most, whatever it costs", "are enough"),
        ),
        note="Twelve blocks have 75,025 placements, a hundred more than 10^41. `plan_checkpointing` gets the same answer by "
        "dynamic programming in a second or two.",
    ),
    Exercise(
        id="07-loss",
        solution=chunked_loss,
        check=_check_loss,
        hints=(
            "`hidden.split(chunk)` and `targets.split(chunk)` go hand in hand.",
            "The last chunk may be shorter, so a mean of means is wrong. Add up sums, divide once.",
            "Put `F.cross_entropy(rows @ weight.T, labels, reduction='sum')` into a function and call it through "
            "`torch.utils.checkpoint.checkpoint(part, rows, labels, use_reentrant=False)`.",
        ),
        wrong=(
            Wrong(_mean_of_means, "the mean of chunk means is the mean", "do not weigh the same"),
            Wrong(_keeps_logits, "computing in chunks is enough", "are kept for backward"),
            Wrong(_sum_of_all, "the sum is the loss", "the sum over the tokens"),
        ),
        note="A chunk's logits live only while the chunk is at work, forward and again in backward. The head's product runs "
        "twice; nothing else does.",
    ),
]
