"""The cards that the planner knows: memory, what of it a process can have, bandwidth and architecture, from `data/gpus.csv`."""

import csv
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from labkit.memory.units import UNITS
from labkit.resources import data_file


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. Sizes in bytes, bandwidth in bytes a second."""

    name: str
    #: The size in the card's name, in binary units: "12 GB" on the box is 12 GiB of chips.
    memory: int
    #: What CUDA offers ("total capacity" in PyTorch's out-of-memory message), CUDA's context included.
    usable: int
    #: "reported" where such a message is the source, else "estimated": the lowest share reported for its kind.
    usable_basis: str
    bandwidth: int
    architecture: str
    #: Compute capability: (8, 6) is sm_86.
    capability: tuple[int, int]
    source: str
    usable_source: str


@cache
def gpus() -> dict[str, Gpu]:
    """Every card of `data/gpus.csv` by name, in the file's order."""
    with data_file("gpus.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: _card(row) for row in csv.DictReader(file)}


def as_gpu(gpu: str | Gpu) -> Gpu:
    """The card of that name (case, spaces and makers' prefixes do not matter), or `gpu` itself.

    A name that fits several cards, such as "A100", means the one with the least memory. Raises ValueError naming near ones.
    """
    if isinstance(gpu, Gpu):
        return gpu
    known = {_plain(name): card for name, card in gpus().items()}
    wanted = _plain(gpu)
    if wanted in known:
        return known[wanted]
    sizes = [card for name, card in known.items() if wanted and re.fullmatch(re.escape(wanted) + r"\d+gb", name)]
    if sizes:
        return min(sizes, key=lambda card: card.memory)
    near = get_close_matches(wanted, known, n=3, cutoff=0.5)
    names = ", ".join(known[name].name for name in near) if near else ", ".join(gpus())
    raise ValueError(f"GPU {gpu!r} is not in data/gpus.csv; {'near' if near else 'known'}: {names}")


def _plain(name: str) -> str:
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|geforce|tesla)+", "", text)


def _card(row: dict[str, str]) -> Gpu:
    major, minor = row["capability"].split(".")
    return Gpu(
        name=row["name"],
        memory=int(float(row["memory_gib"]) * UNITS["GiB"]),
        usable=int(float(row["usable_gib"]) * UNITS["GiB"]),
        usable_basis=row["usable_basis"],
        bandwidth=int(float(row["bandwidth_gb_s"]) * UNITS["GB"]),
        architecture=row["architecture"],
        capability=(int(major), int(minor)),
        source=row["source"],
        usable_source=row["usable_source"],
    )
