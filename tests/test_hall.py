"""The small utilities that every room uses: scale, plots, data files, progress, the notebook's first line."""

import pytest
import torch

from labkit import hardware, notebook, plots, progress, resources, scale


def test_the_scale_is_the_environment_s_or_the_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_SCALE", "gpu")
    assert scale.current().name == "gpu"
    monkeypatch.delenv("LABKIT_SCALE")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert scale.current().name == "laptop"


def test_an_unknown_scale_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_SCALE", "huge")
    with pytest.raises(ValueError, match="scale 'huge' is unknown; choose one of ci, laptop, gpu"):
        scale.current()


@pytest.mark.parametrize("name, want", [("ci", 1), ("laptop", 2), ("gpu", 3)])
def test_pick_takes_the_value_of_the_scale(name: str, want: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_SCALE", name)
    assert scale.pick(ci=1, laptop=2, gpu=3) == want
    assert scale.pick(ci=1, laptop=2) == min(want, 2)


def test_scales_grow() -> None:
    steps = [scale.SCALES[name].steps for name in scale.NAMES]
    assert steps == sorted(steps)


def test_a_figure_is_shown_with_words_or_not_at_all() -> None:
    fig, ax = plots.figure("A finding", x="x (MB)", y="y (s)")
    assert (ax.get_title(loc="left") or ax.get_title(), ax.get_xlabel()) == ("A finding", "x (MB)")
    with pytest.raises(ValueError, match="alt text '' is empty"):
        plots.show(fig, alt="")


def test_the_same_figure_is_the_same_bytes() -> None:
    def draw() -> bytes:
        fig, ax = plots.figure("A line")
        ax.plot([1, 2, 3])
        return plots.png(fig)

    assert draw() == draw()


def test_every_precision_and_category_has_a_look_of_its_own() -> None:
    from labkit.techniques.precision import PRECISIONS

    assert set(plots.PRECISIONS) == set(PRECISIONS)
    assert len(set(plots.PRECISIONS.values())) == len(plots.PRECISIONS)
    assert len(set(plots.CATEGORIES.values())) == len(plots.CATEGORIES)


def test_a_missing_data_file_lists_those_there_are() -> None:
    with pytest.raises(FileNotFoundError, match=r"no data file named 'nothing.csv'; there are: .*README.md"):
        resources.data_file("nothing.csv")


def test_progress_can_be_silenced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LABKIT_PROGRESS", "0")
    assert list(progress.progress(range(3), label="work")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_start_says_that_a_t4_has_no_bf16_units(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hardware, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: "Tesla T4")
    for capability, told in (((7, 5), True), ((8, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where, found=capability: found)
        notebook.start("00")
        assert ("Tesla T4 has no bf16 units" in capsys.readouterr().out) == told


def test_start_seeds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    import random

    import numpy as np
    import torch

    def draws() -> tuple[float, float, float]:
        notebook.start("00")
        return random.random(), float(np.random.random()), torch.rand(1).item()

    assert draws() == draws()
    assert capsys.readouterr().out.startswith("notebook 00 · scale ")


def test_the_device_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_DEVICE", "meta")
    assert hardware.device().type == "meta"


def test_a_cpu_without_native_units_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_features", lambda: {"avx2": True, "amx_bf16": False})
    assert hardware.matmul_support("cpu")["bf16"] == "emulated"
    monkeypatch.setattr(hardware, "cpu_features", lambda: {"amx_bf16": True})
    support = hardware.matmul_support("cpu")
    assert (support["bf16"], support["fp16"]) == ("native", "emulated")
