"""The first line of every notebook: same seeds, same look, and a word on where it runs."""

import os
import random


def start(number: str) -> None:
    """Seed every generator, set the plot style and print scale, device and versions for notebook `number` ("01")."""
    import numpy as np
    import torch

    from labkit import hardware, plots, scale

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    plots.use_style()
    threads = os.environ.get("LABKIT_THREADS")
    if threads:
        torch.set_num_threads(int(threads))
    device = hardware.device()
    if device.type == "cuda" and hardware.matmul_support(device)["bf16"] != "native":
        print(
            f"{hardware.name(device)} has no bf16 units: everything in bf16 runs and is right, but gains no speed; fp16 does."
        )
    print(f"notebook {number} · scale {scale.current().name} · device {device.type} · torch {torch.__version__.split('+')[0]}")
