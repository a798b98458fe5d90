"""One element of a live torch tensor, read and written as bits."""

from typing import Any

import torch

from labkit.numbers import FloatFormat, as_format

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Element:
    """The element of `tensor` at `index`, in the tensor's own format.

    Raises TypeError where `tensor` is no torch tensor, ValueError where it holds no floats or has no such single element.
    """

    def __init__(self, tensor: Any, index: int | tuple[int, ...]) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a torch tensor is needed, not {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise ValueError(f"a tensor of floats is needed, not of {tensor.dtype}")
        self.format: FloatFormat = as_format(tensor.dtype)
        self._bits = tensor.detach().view(_INTEGERS[tensor.element_size()])
        self._index = index if isinstance(index, tuple) else (index,)
        self._check_index(tuple(tensor.shape))

    @property
    def source(self) -> str:
        """The element's bits as a source text, "fp16:0x2E66"."""
        stored = int(self._bits[self._index].item())  # two's complement, so negative where the sign bit is set
        return f"{self.format.name}:0x{stored % (1 << self.format.bits):0{self.format.hex_digits}X}"

    def write(self, code: int) -> None:
        """Put `code` into the tensor, seen by all that shares its memory; autograd does not notice."""
        top = 1 << (self.format.bits - 1)
        signed = self._bits.dtype != torch.uint8 and code >= top
        self._bits[self._index] = code - 2 * top if signed else code

    def _check_index(self, shape: tuple[int, ...]) -> None:
        inside = len(self._index) == len(shape) and all(
            isinstance(at, int) and -size <= at < size for at, size in zip(self._index, shape, strict=True)
        )
        if not inside:
            raise ValueError(f"index {self._index} picks no single element of a tensor of shape {shape}")
