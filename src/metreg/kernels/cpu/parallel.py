"""Compiled work, shared among threads: a kernel does the parts from `first` to `last`, and lets others run meanwhile.

Numba has threads of its own, but takes about a second more to compile a kernel that uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import torch
from torch import Tensor

from metreg.kernels.cpu.threads import kept_threads

LITTLE = 10_000
"""So many numbers are little work, which threads only slow down."""
TURNS = 4
"""Shares that a thread takes, one after the other, where these may be small."""


def parallel_for(kernel: Callable[..., None], parts: int, numbers: int, *arguments: Any, turns: int = TURNS) -> None:
    """kernel(*arguments, first, last) for all `parts`, by as many threads as torch uses; there are `numbers` to work on."""
    threads = min(torch.get_num_threads(), parts) if numbers > LITTLE else 1
    if threads <= 1:
        return kernel(*arguments, 0, parts)
    count = min(turns * threads, parts)
    shares = iter([(i * parts // count, (i + 1) * parts // count) for i in range(count)])

    def work() -> None:
        for first, last in shares:
            kernel(*arguments, first, last)

    with kept_threads() as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        try:
            work()
        finally:
            wait(others)
    for other in others:
        other.result()


def with_slabs(t: Tensor) -> Tensor:
    """(B, C, *S) as (B, C, n0, n1, n2): in 2-D one slab."""
    t = t.detach().contiguous()
    return t if t.dim() == 5 else t.unsqueeze(2)
