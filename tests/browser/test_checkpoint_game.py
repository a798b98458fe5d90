"""CheckpointGame: its costs and its optimum are those of labkit.memory, and keys alone play it."""

import json
import random
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from labkit.memory.chain import BlockCost, Chain, cost
from labkit.memory.placement import all_placements, best_placement, least_peak
from labkit.widgets import CheckpointGame
from labkit.widgets.base import STATIC
from labkit.widgets.checkpoint_game import JOIN, KEEP, RECOMPUTE, example_chain

pytestmark = pytest.mark.browser


def random_chain(draw: random.Random) -> Chain:
    edges = [draw.randint(1, 10**7) for _ in range(draw.randint(2, 9))]
    blocks = tuple(
        BlockCost(
            input=a,
            output=b,
            saved=draw.randint(0, 10**8),
            saves_input=draw.random() < 0.7,
            saves_output=draw.random() < 0.4,
            forward_work=draw.randint(0, 10**7),
            recompute_work=draw.randint(0, 10**7),
            backward_work=draw.randint(0, 10**8),
            carried=b + draw.randint(0, 10**7),
            forward_ms=draw.uniform(0.5, 5.0),
        )
        for a, b in zip(edges, edges[1:], strict=False)
    )
    return Chain(blocks=blocks, base=10**7, head_work=draw.randint(0, 2 * 10**8), elsewhere=draw.randint(0, 10**8))


def plain(chain: Chain) -> dict[str, Any]:
    return {
        "blocks": [asdict(block) for block in chain.blocks],
        "base": chain.base,
        "head_work": chain.head_work,
        "elsewhere": chain.elsewhere,
    }


COMPARE = """
import { readFileSync } from "node:fs";
const found = [];
for (const { chain, placements, limits } of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const total = chain.blocks.length;
  const costs = placements.map((placement) => costOf(chain, marksOf(total, placement))).map(({ peak, extra }) => [peak, extra]);
  const best = limits.map((limit) => costOf(chain, optimum(chain, limit))).map(({ peak, extra }) => [peak, extra]);
  const back = placements.map((placement) => segmentsOf(marksOf(total, placement)));
  found.push({ costs, best, back, least: leastPeak(chain), none: optimum(chain, leastPeak(chain) - 1) });
}
console.log(JSON.stringify(found));
"""


def test_costs_and_optimum_are_those_of_python(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on the PATH")
    draw = random.Random(0)
    chains = [random_chain(draw) for _ in range(25)]
    placements = [draw.sample(list(all_placements(len(chain))), 2) for chain in chains]
    lows = [least_peak(chain) for chain in chains]
    limits = [[low, low + (cost(c, ()).peak - low) // 2] for low, c in zip(lows, chains, strict=True)]
    cases = [
        {"chain": plain(chain), "placements": some, "limits": budgets}
        for chain, some, budgets in zip(chains, placements, limits, strict=True)
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (tmp_path / "compare.mjs").write_text((STATIC / "checkpoint_chain.js").read_text(encoding="utf-8") + COMPARE)
    command = [node, str(tmp_path / "compare.mjs"), str(tmp_path / "cases.json")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for chain, some, budgets, low, got in zip(chains, placements, limits, lows, found, strict=True):
        assert got["least"] == low and got["none"] is None
        for placement, (peak, extra), back in zip(some, got["costs"], got["back"], strict=True):
            want = cost(chain, placement)
            assert (peak, back) == (want.peak, [list(segment) for segment in placement])
            assert extra == pytest.approx(want.extra_ms)
        for budget, (peak, extra) in zip(budgets, got["best"], strict=True):
            assert peak <= budget and extra == pytest.approx(best_placement(chain, budget).cost.extra_ms)


def trait(page: Page, name: str) -> Any:
    return page.evaluate("name => window.models[0].state[name]", name)


def block(page: Page, index: int) -> Any:
    return page.get_by_role("button", name=f"recompute block {index},")


def figures(page: Page) -> list[str]:
    return page.locator(".cg-figure").all_text_contents()


def words(price: Any) -> list[str]:
    return [f"{price.peak / 1e6:.1f} MB", f"{price.extra_ms:.1f} ms"]


def test_a_click_moves_cost_and_timeline_at_once(show: Any) -> None:
    page, troubles = show(CheckpointGame())
    chain = example_chain()
    assert figures(page) == words(cost(chain, ()))
    before = page.locator(".cg-canvas rect").count()
    block(page, 0).click()
    block(page, 1).click()
    assert figures(page) == words(cost(chain, ((0,), (1,))))
    page.get_by_role("button", name="one checkpoint for blocks 0 and 1").click()
    assert trait(page, "choice") == [RECOMPUTE, JOIN, *[KEEP] * 6]
    assert figures(page) == words(cost(chain, ((0, 1),)))
    assert page.locator(".cg-canvas rect").count() > before
    block(page, 0).click()  # the head of the segment is kept again: what had joined it stands alone
    assert trait(page, "choice") == [KEEP, RECOMPUTE, *[KEEP] * 6]
    assert page.evaluate("window.models[0].saves.length") == 4
    assert troubles == []


def test_the_budget_decides_and_the_optimum_is_shown_after(show: Any) -> None:
    game = CheckpointGame(budget="70 MB")
    best = best_placement(example_chain(), "70 MB")
    page, troubles = show(game)
    expect(page.locator(".cg-verdict")).to_contain_text("over the budget of 70.0 MB")
    take = page.get_by_role("button", name="Play the optimum")
    expect(take).to_be_disabled()
    page.get_by_role("button", name="Show the optimum").click()
    expect(page.locator(".cg-answer")).to_contain_text(f"The least within 70.0 MB is {best.cost.extra_ms:.1f} ms")
    expect(page.locator(".cg-answer")).to_contain_text("Yours does not fit yet.")
    take.click()
    expect(page.locator(".cg-answer")).to_contain_text("Yours is as good")
    assert figures(page) == words(best.cost)
    expect(page.locator(".cg-verdict")).to_contain_text("✓ Within the budget of 70.0 MB")
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    assert trait(page, "budget") == least_peak(example_chain())
    expect(take).to_be_disabled()
    assert troubles == []


def test_policies_are_those_of_the_package(show: Any) -> None:
    page, troubles = show(CheckpointGame())
    for name, segments in (
        ("full", [[i] for i in range(8)]),
        ("every:2", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("sqrt", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("none", []),
    ):
        page.get_by_role("button", name=f"Policy {name}:").click()
        assert figures(page) == words(cost(example_chain(), segments))
    assert troubles == []


def test_keys_alone_play_it(show: Any) -> None:
    page, troubles = show(CheckpointGame())
    page.keyboard.press("Tab")
    expect(block(page, 0)).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowLeft")  # the link between the two is in reach now
    expect(page.get_by_role("button", name="one checkpoint for blocks 0 and 1")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("End")
    page.keyboard.press("Space")
    assert trait(page, "choice") == [RECOMPUTE, JOIN, *[KEEP] * 5, RECOMPUTE]
    expect(block(page, 7)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")  # the row is one tab stop
    expect(page.get_by_role("slider")).to_be_focused()
    expect(page.get_by_role("status")).to_contain_text("of recomputation")
    assert troubles == []


def test_python_moves_the_view(show: Any) -> None:
    page, troubles = show(CheckpointGame())
    page.evaluate("window.models[0].set('choice', ['recompute', 'join', 'join', 'keep', 'keep', 'keep', 'keep', 'keep'])")
    assert figures(page) == words(cost(example_chain(), ((0, 1, 2),)))
    page.evaluate("window.models[0].set('budget', 1000000000)")
    expect(page.locator(".cg-verdict")).to_contain_text("Within the budget of 1,000.0 MB")
    assert troubles == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1000])
def test_it_is_accessible_and_fits(show: Any, dark: bool, width: int) -> None:
    page, troubles = show(CheckpointGame(), dark=dark, width=width)
    page.get_by_role("button", name="Policy every:2").click()
    page.get_by_role("button", name="Show the optimum").click()
    page.locator("summary").click()
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = [button.bounding_box() for button in page.locator(".labkit button:visible").all()]
    assert all(box["width"] >= 24 and box["height"] >= 24 for box in boxes if box)
    assert troubles == []


def test_python_reads_the_choice_and_refuses_what_is_none() -> None:
    game = CheckpointGame(choice=[RECOMPUTE, JOIN, KEEP, RECOMPUTE, RECOMPUTE, KEEP, KEEP, KEEP])
    assert game.segments == [[0, 1], [3], [4]]
    assert game.cost == cost(example_chain(), game.segments)
    with pytest.raises(ValueError, match="choice: block 0 cannot join the block before it"):
        game.choice = [JOIN] + [KEEP] * 7
    with pytest.raises(ValueError, match="choice: 'drop' is not one of keep, recompute, join"):
        game.choice = ["drop"] * 8
    with pytest.raises(ValueError, match="budget: .*'12 G'"):
        CheckpointGame(budget="12 G")
    with pytest.raises(ValueError, match="choice has 1 marks for 8 blocks"):
        CheckpointGame(choice=[KEEP])
    with pytest.raises(ValueError, match="the game takes 1 to 16 blocks, not 17"):
        CheckpointGame(Chain(blocks=(BlockCost(input=1, output=1, saved=1),) * 17))
    with pytest.raises(TypeError, match="a chain is a labkit.memory.chain.Chain, not int"):
        CheckpointGame(3)  # type: ignore[arg-type]
    assert game.segments == [[0, 1], [3], [4]]
