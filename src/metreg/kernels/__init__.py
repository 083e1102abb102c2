"""Fast paths. Each has a plain-torch twin elsewhere, which is its oracle and the path where no fast one exists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor


class AdvectionKernels(Protocol):
    """f carried by Taylor steps of z_d = factors_d v_d, and the way back. Fields are (B, C, *S), contiguous."""

    def forward(
        self, f: Tensor, v: Tensor, factors: Sequence[float], steps: int, order: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The map after all steps, and what the way back needs to know of them."""

    def backward(
        self, kept: tuple[Tensor, ...], v: Tensor, factors: Sequence[float], p: Tensor, order: int
    ) -> tuple[Tensor, Tensor]:
        """The gradients towards f and v of <p, forward(f, v)>."""


def advection_kernels(f: Tensor) -> AdvectionKernels | None:
    """The kernels for tensors like f, if there are any."""
    if is_compiled(f):
        import metreg.kernels.cpu.advection as on_cpu

        return cast(AdvectionKernels, on_cpu)
    if is_fast(f):
        import metreg.kernels.triton.advection as on_gpu

        return cast(AdvectionKernels, on_gpu)
    return None


def load_kernels(like: Tensor) -> None:
    """Import what tensors like this one will be given to, and launch a kernel: the first time, that takes a while."""
    if is_fast(like):
        from metreg.kernels.triton.speed import fastest

        fastest(like.new_zeros(1, 2, 2, 2), (1.0, 1.0))
        for name in ("convolve", "smooth", "advection", "ncc", "lncc", "folding"):
            import_module(f"metreg.kernels.triton.{name}")
    elif is_compiled(like):
        for name in ("advection", "warp", "lncc", "folding", "bernstein", "sample", "splines", "affine"):
            import_module(f"metreg.kernels.cpu.{name}")


def is_compiled(f: Tensor) -> bool:
    """Whether the numba kernels take such a tensor."""
    return f.device.type == "cpu" and f.dtype in (torch.float32, torch.float64) and not _PLAIN and _has("numba")


def is_fast(f: Tensor) -> bool:
    """Whether the Triton kernels take such a tensor."""
    return f.device.type == "cuda" and f.dtype == torch.float32 and not _PLAIN and _has("triton")


@contextmanager
def plain_torch() -> Iterator[None]:
    """Within it no fast path is taken, so that it can be measured against."""
    global _PLAIN
    before, _PLAIN = _PLAIN, True
    try:
        yield
    finally:
        _PLAIN = before


_PLAIN = False


@cache
def _has(package: str) -> bool:
    return find_spec(package) is not None
