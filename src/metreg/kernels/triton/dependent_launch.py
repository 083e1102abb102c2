"""Kernels that start before the last one has ended, where a GPU can do that: they find their places, and wait.

In a chain of such kernels, one may read before its wait what was written before the chain began.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = 9


@cache
def dependent_launch(device: torch.device, wanted: bool = True) -> dict[str, bool]:
    """How a kernel that has the constant DEPENDENT is launched (programmatic dependent launch)."""
    can = device.type == "cuda" and torch.version.cuda is not None and torch.cuda.get_device_capability(device)[0] >= HOPPER
    return {"DEPENDENT": True, "launch_pdl": True} if can and wanted else {"DEPENDENT": False}


@triton.jit
def wait(DEPENDENT: tl.constexpr):
    """Until all that was launched before is written; then the next kernel may start."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
