"""Fast low-precision products: one rounding, fp32 untouched, stock kernels back afterwards."""

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from technique_models import Gpt, batch, gradients, loss, same_bits
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.techniques import fast_matmul as module
from labkit.techniques.checkpointing import apply_checkpointing
from labkit.techniques.fast_matmul import fast_matmul, is_native

LOW = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _a_cpu_without_native_units(monkeypatch: pytest.MonkeyPatch) -> None:
    # The override is what is tested; on a machine with native units it would stand aside.
    monkeypatch.setattr(module, "is_native", lambda dtype: dtype not in LOW)


def rand(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(9, 300), (300, 11)]),
    "mm of transposed": (lambda a, b: a.t() @ b.t(), [(300, 9), (11, 300)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), [(11,), (9, 300), (300, 11)]),
    "linear": (lambda x, w, b: F.linear(x, w, b), [(2, 9, 300), (11, 300), (11,)]),
    "bmm": (torch.bmm, [(3, 9, 300), (3, 300, 11)]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=2.0), [(3, 9, 11), (3, 9, 300), (3, 300, 11)]),
    "einsum": (lambda a, b: torch.einsum("bik,bkj->bij", a, b), [(3, 9, 300), (3, 300, 11)]),
}


def ulps(actual: Tensor, exact: Tensor) -> Tensor:
    """Distance of `actual` from the float64 `exact` rounded once to its dtype, in codes: 1 is a neighbour."""
    dtype = actual.dtype

    def order(x: Tensor) -> Tensor:
        code = x.view(torch.int16).int()
        return torch.where(code < 0, -(code & 0x7FFF), code)

    return (order(actual) - order(exact.to(dtype))).abs()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_the_float64_product_rounded_once(name: str, dtype: torch.dtype) -> None:
    product, shapes = PRODUCTS[name]
    inputs = [rand(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    with fast_matmul():
        actual = product(*inputs)
    assert actual.dtype == dtype
    distance = ulps(actual, product(*(each.double() for each in inputs)))
    assert distance.le(1).float().mean() >= 0.999
    assert distance.eq(0).float().mean() >= 0.98


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("mask", ["causal", "none", "bool", "low", "fp32"])
def test_attention_forward_and_backward_are_near_the_float64_ones(mask: str, dtype: torch.dtype) -> None:
    given = {
        "causal": {"is_causal": True},
        "none": {},
        "bool": {"attn_mask": torch.ones(20, 20, dtype=torch.bool).tril()},
        "low": {"attn_mask": rand(20, 20, dtype=dtype)},
        "fp32": {"attn_mask": rand(20, 20, dtype=torch.float32)},
    }[mask]

    def attend(wide: bool) -> list[Tensor]:
        q, k, v = (rand(2, 3, 20, 16, dtype=dtype, seed=seed) for seed in range(3))
        leaves = [(each.double() if wide else each).requires_grad_() for each in (q, k, v)]
        options = (
            {
                key: each.double() if wide and key == "attn_mask" and each.is_floating_point() else each
                for key, each in given.items()
            }
            if mask in ("low", "fp32")
            else given
        )
        out = F.scaled_dot_product_attention(*leaves, **options)
        return [out, *torch.autograd.grad(out.sum(), leaves)]

    with fast_matmul():
        fast = attend(wide=False)
    stock = attend(wide=False)
    for mine, theirs, exact in zip(fast, stock, attend(wide=True), strict=True):
        assert mine.dtype == dtype
        error = (mine.double() - exact).norm() / exact.norm().clamp(min=1e-6)
        reference = (theirs.double() - exact).norm() / exact.norm().clamp(min=1e-6)
        assert error <= reference + torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_give_the_same_bits_on_and_off(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Gpt().to(dtype)

    def run() -> list[Tensor]:
        model.zero_grad()
        value = loss(model, batch(4))
        value.backward()
        return [value.detach(), *gradients(model)]

    off = run()
    with fast_matmul():
        on = run()
    assert same_bits(on, off)
    assert same_bits(run(), off)


def test_stock_kernels_come_back_after_the_context_an_exception_and_nesting() -> None:
    a = rand(33, 257, dtype=torch.bfloat16)
    stock = a @ a.t()
    for _ in range(3):
        with fast_matmul():
            fast = a @ a.t()
            with fast_matmul():
                assert torch.equal(a @ a.t(), fast)
            with fast_matmul(enabled=False):
                assert torch.equal(a @ a.t(), fast)
            assert torch.equal(a @ a.t(), fast)
            assert module._library is not None
        assert module._library is None
        assert torch.equal(a @ a.t(), stock)
    with pytest.raises(ZeroDivisionError), fast_matmul(), fast_matmul():
        raise ZeroDivisionError
    assert module._library is None and module._depth == 0
    assert torch.equal(a @ a.t(), stock)


def test_disabled_and_native_leave_the_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with fast_matmul(enabled=False):
        assert module._library is None
    monkeypatch.setattr(module, "is_native", lambda dtype: True)
    with fast_matmul():
        assert module._library is None


def test_only_the_dtype_without_units_is_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    a = rand(17, 129, dtype=torch.bfloat16)
    h = rand(17, 129, dtype=torch.float16)
    stock, half = a @ a.t(), (h.float() @ h.float().t()).half()
    monkeypatch.setattr(module, "is_native", lambda dtype: dtype != torch.float16)
    with fast_matmul():
        assert torch.equal(a @ a.t(), stock)
        assert torch.equal(h @ h.t(), half)


@pytest.mark.parametrize("features", [{}, {"avx512_bf16": True}, {"amx_fp16": True}, {"amx_bf16": True, "amx_fp16": True}])
def test_native_units_are_read_from_the_cpus_features(features: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert is_native(torch.bfloat16) == any("bf16" in name for name in features)
    assert is_native(torch.float16) == any("fp16" in name for name in features)
    assert is_native(torch.float32)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not is_native(torch.bfloat16)


@pytest.mark.parametrize("dtype", LOW)
def test_it_holds_under_autocast_backward_and_checkpointing(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Gpt(dropout=0.2)

    def run(policy: str) -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        with apply_checkpointing(model, model.blocks, policy), fast_matmul():
            with torch.autocast("cpu", dtype=dtype):
                value = loss(model, batch(4))
            value.backward()
        return gradients(model)

    plain = run("none")
    for policy in ("full", "every:2", "selective", "offload"):
        assert same_bits(run(policy), plain)


def test_it_holds_in_other_threads_and_they_may_enter_and_leave_it() -> None:
    a = rand(33, 257, dtype=torch.bfloat16)
    stock, expected = a @ a.t(), (a.float() @ a.float().t()).bfloat16()
    results: list[bool] = []

    def work() -> None:
        for _ in range(20):
            with fast_matmul():
                results.append(torch.equal(a @ a.t(), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
    assert torch.equal(a @ a.t(), stock)


class Seen(TorchDispatchMode):
    """The dtypes and bytes of what a dispatch mode, and so the memory meter, sees."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[tuple[str, torch.dtype, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor):
                self.results.append((str(func), each.dtype, each.numel()))
        return result


def test_what_the_memory_meter_sees_does_not_change() -> None:
    def events(on: bool) -> list[tuple[str, torch.dtype, int]]:
        torch.manual_seed(0)
        model = Gpt().bfloat16()
        with fast_matmul(enabled=on), Seen() as seen:
            loss(model, batch(2)).backward()
        return seen.results

    assert events(on=True) == events(on=False)


def test_fake_tensors_pass_through() -> None:
    with fast_matmul(), FakeTensorMode():
        out = torch.empty(4, 5, dtype=torch.bfloat16) @ torch.empty(5, 6, dtype=torch.bfloat16)
    assert out.shape == (4, 6) and out.dtype == torch.bfloat16


def test_wrong_shapes_get_torchs_own_message() -> None:
    with fast_matmul(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        rand(2, 3, dtype=torch.bfloat16) @ rand(4, 5, dtype=torch.bfloat16)
    with fast_matmul(), pytest.raises(RuntimeError, match="dtype"):
        rand(2, 3, dtype=torch.bfloat16) @ rand(3, 2, dtype=torch.float32)


def test_entering_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fast_matmul():
            rand(2, 2, dtype=torch.bfloat16) @ rand(2, 2, dtype=torch.bfloat16)
