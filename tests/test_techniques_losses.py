"""The chunked loss: torch's values and gradients, without the logits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.techniques.fast_matmul import fast_matmul
from labkit.techniques.losses import linear_cross_entropy


def tensors(
    tokens: int, width: int, words: int, *, bias: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(tokens, width), (words, width), *([(words,)] if bias else [])]
    leaves = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    return leaves, torch.randint(words, (tokens,), generator=generator)


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, **options: object) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, **options)


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, **options: object) -> Tensor:
    return linear_cross_entropy(hidden, weight, targets, bias, **options)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 40),
    width=st.integers(1, 9),
    words=st.integers(1, 30),
    chunk=st.integers(1, 50) | st.none(),
    bias=st.booleans(),
    reduction=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 10**6),
)
def test_fp64_loss_and_gradients_are_torchs(
    tokens: int, width: int, words: int, chunk: int | None, bias: bool, reduction: str, seed: int
) -> None:
    leaves, targets = tensors(tokens, width, words, bias=bias, dtype=torch.float64, seed=seed)
    hidden, weight, *rest = leaves
    expected = plain(hidden, weight, targets, *rest, reduction=reduction)
    actual = chunked(hidden, weight, targets, *rest, reduction=reduction, chunk=chunk)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(actual, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_gradients_pass_torchs_numerical_check() -> None:
    (hidden, weight, bias), targets = tensors(7, 3, 5, bias=True, dtype=torch.float64)
    targets[2] = -100
    assert torch.autograd.gradcheck(lambda h, w, b: chunked(h, w, targets, b, chunk=3), (hidden, weight, bias))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_tokens_count_for_nothing(reduction: str) -> None:
    (hidden, weight), targets = tensors(20, 4, 9)
    targets[::3] = 5
    options = {"ignore_index": 5, "reduction": reduction}
    leaves = (hidden, weight)
    expected, actual = plain(*leaves, targets, **options), chunked(*leaves, targets, chunk=6, **options)
    torch.testing.assert_close(actual, expected)
    gradient = torch.autograd.grad(actual, leaves)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, leaves))
    assert gradient[0][::3].eq(0).all()


def test_nothing_but_ignored_tokens_is_nan_as_in_torch() -> None:
    (hidden, weight), targets = tensors(4, 3, 5)
    ignored = torch.full_like(targets, -100)
    assert plain(hidden, weight, ignored).isnan()
    assert chunked(hidden, weight, ignored).isnan()


def test_any_leading_shape_will_do() -> None:
    (hidden, weight), targets = tensors(24, 4, 9)
    whole = chunked(hidden.view(2, 3, 4, 4), weight, targets.view(2, 3, 4), chunk=5)
    torch.testing.assert_close(whole, plain(hidden, weight, targets))


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_gradients_are_as_near_to_the_truth_as_the_plain_ones(dtype: torch.dtype, autocast: bool) -> None:
    (hidden, weight, bias), targets = tensors(96, 16, 50, bias=True, dtype=torch.float32 if autocast else dtype)
    leaves = (hidden, weight, bias)
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = torch.autograd.grad(plain(*exact_leaves[:2], targets, exact_leaves[2]), exact_leaves)

    def error(loss: Tensor) -> list[float]:
        gradient = torch.autograd.grad(loss * 1024, leaves)
        assert [each.dtype for each in gradient] == [leaf.dtype for leaf in leaves]
        return [((g.double() / 1024 - e).norm() / e.norm()).item() for g, e in zip(gradient, exact, strict=True)]

    with fast_matmul(), torch.autocast("cpu", dtype=dtype, enabled=autocast):
        mine = chunked(hidden, weight, targets, bias, chunk=17)
        theirs = plain(hidden, weight, targets, bias)
    assert mine.dtype == torch.float32
    with fast_matmul():
        for ours, reference in zip(error(mine), error(theirs), strict=True):
            assert ours <= 1.5 * reference + torch.finfo(dtype).eps / 4


def test_a_loss_scale_saves_small_fp16_gradients() -> None:
    # The mean over 4096 tokens of weights near 2^-12: a gradient near 2^-24, the smallest fp16 number. The scale has to act
    # before the cast to fp16.
    (hidden, weight), targets = tensors(4096, 4, 64, dtype=torch.float16)
    weight = (weight.detach() * 2.0**-12).requires_grad_()
    lost = torch.autograd.grad(chunked(hidden, weight, targets, chunk=512), hidden)[0].eq(0).float().mean()
    kept = torch.autograd.grad(chunked(hidden, weight, targets, chunk=512) * 2.0**12, hidden)[0].eq(0).float().mean()
    assert kept < lost / 4


class Largest(TorchDispatchMode):
    """Records the most elements that any result had."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
        return result


@pytest.mark.parametrize(("tokens", "words"), [(512, 1000), (512, 4000), (2048, 1000)])
def test_no_tensor_grows_with_tokens_times_vocabulary(tokens: int, words: int) -> None:
    width = 8
    (hidden, weight), targets = tensors(tokens, width, words)
    with Largest() as largest:
        chunked(hidden, weight, targets).backward()
    assert largest.elements <= max(tokens * width, words * 64, words * width)
    with Largest() as largest:
        plain(hidden, weight, targets).backward()
    assert largest.elements == tokens * words


def test_what_is_kept_for_backward_is_one_number_a_token() -> None:
    (hidden, weight), targets = tensors(512, 8, 2000)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        chunked(hidden, weight, targets)
    floats = [
        t
        for t in kept
        if t.is_floating_point()
        and t.untyped_storage().data_ptr() not in {hidden.untyped_storage().data_ptr(), weight.untyped_storage().data_ptr()}
    ]
    assert sum(t.numel() for t in floats) <= 512 + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(3, 5)}, "share D"),
        ({"targets": torch.zeros(4, dtype=torch.long)}, "shape"),
        ({"chunk": 0}, "at least 1"),
        ({"reduction": "none"}, "mean, sum"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change: dict[str, object], message: str) -> None:
    arguments = {"hidden": torch.zeros(3, 4), "weight": torch.zeros(6, 4), "targets": torch.zeros(3, dtype=torch.long)}
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**(arguments | change))


def test_a_target_outside_the_vocabulary_is_refused() -> None:
    for wrong in (6, -1):
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            linear_cross_entropy(torch.zeros(3, 4), torch.zeros(6, 4), torch.tensor([0, wrong, 1]))
