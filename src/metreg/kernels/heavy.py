"""What makes work of many kernels faster, and is undone afterwards unless the process is metreg's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from metreg.kernels.cpu.threads import kept_threads
from metreg.kernels.memory import kept_memory
from metreg.settings.process import is_own


@contextmanager
def heavy_work() -> Iterator[None]:
    """Within it denormal numbers count as zero, threads wait for more work, and memory that is freed may stay."""
    with flushed_denormals(), kept_threads(), kept_memory():
        yield


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Within it numbers too small to have all their digits count as zero, on CPUs, in this thread: they are slow there."""
    before = denormals_are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if not is_own():
            torch.set_flush_denormal(before)


def denormals_are_flushed() -> bool:
    """Whether this thread takes denormal numbers for zero; torch does not tell."""
    return float(torch.tensor([1e-40], dtype=torch.float32).mul(1.0)[0] * 1e30) == 0.0
