"""Measures that many tests share: how symmetric, how fast a scheme converges, how right a gradient is."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from metreg.metric.learned import LearnedMetric


def random_field(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def curious_network(dim: int, seed: int = 0) -> LearnedMetric:
    """A network that looks at the momentum too, in double precision, its output far enough from none to matter."""
    from metreg.metric.learned import LearnedMetric
    from metreg.settings.model import LearnedSettings, MetricSettings, NetworkSettings

    settings = LearnedSettings(network=NetworkSettings(momentum_input=True))
    model = LearnedMetric(dim, MetricSettings(), settings, torch.Generator().manual_seed(seed)).double().eval()
    with torch.no_grad():
        model.network.layers[-1].weight.fill_(0.15)  # type: ignore[union-attr, operator]
    return model


def adjoint_gap(a: Callable[[Tensor], Tensor], a_transposed: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """|<A x, y> - <x, A^T y>| relative to its size."""
    left, right = float((a(x) * y).sum()), float((x * a_transposed(y)).sum())
    return abs(left - right) / max(abs(left), abs(right), 1e-30)


def observed_order(error: Callable[[int], float], sizes: Sequence[int]) -> float:
    """The slope of log error against log size: 2 for a scheme of order 2."""
    logs = [(math.log(n), math.log(error(n))) for n in sizes]
    (x0, y0), (x1, y1) = logs[0], logs[-1]
    return (y0 - y1) / (x1 - x0)


def taylor_slope(f: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor, steps: Sequence[float]) -> float:
    """The slope of log |f(x + e d) - f(x) - e f'(x) d| against log e: 2 where the gradient is right."""
    x = x.clone().requires_grad_()
    value = f(x)
    (g,) = torch.autograd.grad(value, x)
    with torch.no_grad():
        rest = [abs(float(f(x + e * direction) - value - e * (g * direction).sum())) for e in steps]
    return math.log(rest[0] / rest[-1]) / math.log(steps[0] / steps[-1])


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that other processes do; fails where it takes too long."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def is_running(process: int) -> bool:
    """Whether there is a process of that number; one that has ended and was not waited for is none."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return bool(done.stdout.strip()) and not done.stdout.strip().startswith("Z")


def children_of(process: int) -> list[int]:
    """The processes that it began and that are running."""
    done = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [int(pid) for pid, parent, state in rows if int(parent) == process and not state.startswith("Z")]
