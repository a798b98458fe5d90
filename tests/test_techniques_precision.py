"""The table of settings: what each row says, and what it makes."""

import pytest
import torch
from torch import nn

from labkit.techniques.optimizers import AdamW
from labkit.techniques.precision import PRECISIONS, Precision, as_precision

ROWS = {
    "64-true": (torch.float64, None, False, "plain"),
    "32-true": (torch.float32, None, False, "plain"),
    "bf16-true": (torch.bfloat16, None, False, "plain"),
    "16-true": (torch.float16, None, False, "plain"),
    "bf16-mixed": (torch.float32, torch.bfloat16, False, "plain"),
    "16-mixed": (torch.float32, torch.float16, True, "plain"),
    "16-mixed-unscaled": (torch.float32, torch.float16, False, "plain"),
    "bf16-true-sr": (torch.bfloat16, None, False, "stochastic"),
    "bf16-true-kahan": (torch.bfloat16, None, False, "kahan"),
}


def test_the_table_is_the_one_of_the_course() -> None:
    rows = {name: (p.parameter_dtype, p.autocast_dtype, p.scaled, p.update) for name, p in PRECISIONS.items()}
    assert rows == ROWS
    assert all(precision.name == name for name, precision in PRECISIONS.items())


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_product_runs_in_the_dtype_of_its_setting(name: str) -> None:
    precision = as_precision(name)
    layer = nn.Linear(2, 2).to(precision.parameter_dtype)
    with precision.autocast("cpu"):
        out = layer(precision.cast(torch.ones(1, 2)))
    assert out.dtype == (precision.autocast_dtype or precision.parameter_dtype)


def test_inputs_are_cast_only_where_the_parameters_are_not_fp32() -> None:
    batch = {"ids": torch.ones(2, dtype=torch.long), "pair": (torch.ones(2), torch.tensor(True)), "name": "x"}
    low = as_precision("bf16-true").cast(batch)
    assert low["ids"] is batch["ids"] and low["pair"][1] is batch["pair"][1] and low["name"] == "x"
    assert low["pair"][0].dtype == torch.bfloat16
    assert as_precision("bf16-mixed").cast(batch) is batch


def test_only_scaled_settings_have_a_scaler_and_options_reach_it() -> None:
    assert [name for name, precision in PRECISIONS.items() if precision.scaler("cpu") is not None] == ["16-mixed"]
    assert as_precision("16-mixed").scaler("cpu", init_scale=8.0).get_scale() == 8.0


def test_only_the_two_cures_change_the_optimizer() -> None:
    base = torch.optim.AdamW([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))])
    for name, precision in PRECISIONS.items():
        optimizer = precision.optimizer(base, seed=5)
        if precision.update == "plain":
            assert optimizer is base, name
        else:
            assert isinstance(optimizer, AdamW) and (optimizer.update, optimizer.seed) == (precision.update, 5)


def test_a_setting_of_ones_own_passes_and_an_unknown_name_is_refused_with_the_list() -> None:
    mine = Precision(name="mine", parameter_dtype=torch.bfloat16, autocast_dtype=torch.float16)
    assert as_precision(mine) is mine
    with pytest.raises(ValueError, match="'fp16' is not one of: 64-true, 32-true"):
        as_precision("fp16")
