"""Fast paths. Each has a plain-torch twin elsewhere, which is its oracle and the path where no fast one exists."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor


class TransportKernels(Protocol):
    """f carried by Taylor steps of z = -dt v / (2 h), and the way back. Fields are (B, C, *S), contiguous."""

    def forward(self, f: Tensor, z: Tensor, steps: int, order: int) -> tuple[Tensor, Tensor]:
        """The map after all steps, and the maps at the start of each, (steps, B, C, *S)."""

    def backward(self, starts: Tensor, z: Tensor, p: Tensor, order: int) -> tuple[Tensor, Tensor]:
        """The gradients towards f and z of <p, forward(f, z)>."""


def transport_kernels(f: Tensor) -> TransportKernels | None:
    """The kernels for tensors like f, if there are any."""
    if is_compiled(f):
        import metreg.kernels.transport_cpu as on_cpu

        return cast(TransportKernels, on_cpu)
    if is_fast(f):
        import metreg.kernels.transport_gpu as on_gpu

        return cast(TransportKernels, on_gpu)
    return None


def is_compiled(f: Tensor) -> bool:
    """Whether the numba kernels take such a tensor."""
    return f.device.type == "cpu" and _has("numba") and f.dtype in (torch.float32, torch.float64)


def is_fast(f: Tensor) -> bool:
    """Whether the Triton kernels take such a tensor."""
    return f.device.type == "cuda" and f.dtype == torch.float32 and _has("triton")


@cache
def _has(package: str) -> bool:
    return find_spec(package) is not None
