"""What this machine is: the device to train on, and which dtypes its matrix units know."""

import os

import torch


def device() -> torch.device:
    """The device every notebook and command uses: CUDA where there is one, else the CPU; `LABKIT_DEVICE` overrides."""
    name = os.environ.get("LABKIT_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
