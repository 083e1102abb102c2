"""What one iteration costs: forward, and backward to momentum and weights, on smooth random images of any size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.deformation.stationary import flow
from metreg.kernels import plain_torch
from metreg.kernels.heavy import heavy_work
from metreg.kernels.replay import Replay
from metreg.metric.simplex import to_simplex
from metreg.settings.model import FlowSettings, MetricSettings, Settings, SimilaritySettings, SolveSettings
from metreg.similarity import Similarity
from metreg.solve.energy import Objective, Scene
from metreg.solve.loop import minimise
from metreg.solve.pyramid import map_grid_of
from metreg.solve.register import make_metric

COPY_BYTES = 2**28
"""Of the copy that tells how fast memory is."""
FLOAT = 4
FORWARD_FIELDS = 4 * 4
"""Read and written by the four stages of an RK4 step on a GPU: start, last stage, velocity, next stage."""
BACKWARD_FIELDS = 4 * 6 + 3
"""The same on the way back: chain, velocity, map, next of the chain, and the gradient by the velocity twice; then a sum."""
IMAGES = {"ncc": 4, "lncc": 49}
"""Images read and written: ncc source and target, twice; lncc warp 2, its six passes 7 + 10 + 8 + 6 + 6 + 6, scaling and
warp on the way back 2 + 2."""


@dataclass(frozen=True)
class Case:
    """The work of one iteration. The defaults are the paper's in 3-D."""

    shape: tuple[int, ...] = (229, 193, 193)
    map_factor: float = 0.4
    similarity: Literal["ssd", "ncc", "lncc", "mi"] = "ncc"
    window: int = 5
    """Of lncc."""
    steps: int = 10
    gaussians: int = 4
    realisation: Literal["separable", "fourier"] = "separable"
    batch: int = 1
    folding: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Median and quartiles of repeated runs, milliseconds unless told otherwise."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Timing:
        low, median, high = statistics.quantiles(milliseconds, n=4)
        return cls(round(median, 4), round(low, 4), round(high, 4))


class Iteration:
    """The tensors of a case, and the works that can be done on them."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(0)
        grid = Grid.unit_cube(case.shape)
        self.map_grid = map_grid_of(grid, case.map_factor)
        sizes = (case.batch, len(case.shape), *self.map_grid.shape)
        like = torch.empty(0, device=device)
        images = [smooth_noise(case.shape, case.batch, seed).to(device) for seed in range(2)]
        self.scene = Scene(images[0], images[1], grid, self.map_grid)
        sigma = (0.01, 0.05, 0.1, 0.2) if case.gaussians == 4 else tuple(0.2 * 0.6**i for i in range(case.gaussians))
        settings = MetricSettings(sigma=tuple(sorted(sigma)), realisation=case.realisation)
        noise = torch.randn(case.batch, case.gaussians, *self.map_grid.shape, generator=generator).to(device)
        self.w = to_simplex(0.25 + 0.05 * noise).requires_grad_()
        self.metric = make_metric(self.map_grid, settings, like=like, weights=self.w.detach())
        self.metric.weights = self.w
        self.m = (0.2 * torch.randn(sizes, generator=generator)).to(device).requires_grad_()
        self.similarity = Similarity(SimilaritySettings(name=case.similarity, window=case.window, noise=0))
        solve = SolveSettings(regularity=1.0, folding=case.folding)
        self.objective = Objective(self.similarity, FlowSettings(steps=case.steps), solve)
        self.v = self.metric.sharp(self.m).detach().requires_grad_()
        self.phi_inv = self._flow().detach().requires_grad_()
        self.p = torch.randn(sizes, generator=generator).to(device)

    def _flow(self) -> Tensor:
        return flow(self.v, self.map_grid, steps=self.case.steps, adapt=False)

    def whole(self) -> None:
        energy = self.objective.at(self.m, self.metric, self.scene, steps=self.case.steps).energy
        torch.autograd.grad(energy.total().sum(), (self.m, self.w))

    def smoothing(self) -> None:
        torch.autograd.grad(self.metric.sharp(self.m), (self.m, self.w), self.p)

    def transport(self) -> None:
        torch.autograd.grad(self._flow(), self.v, self.p)

    def comparison(self) -> None:
        scene = self.scene
        value = self.similarity.of_map(scene.source, self.phi_inv, scene.target, scene.grid)
        torch.autograd.grad(value.sum(), self.phi_inv)

    def least_bytes(self) -> int:
        """What the kernels of an iteration read and write at least, each tensor of theirs counted once."""
        case, axes, voxels = self.case, len(self.case.shape), self.scene.source[0].numel()
        points = self.map_grid.points(self.p).numel()  # of a field on the map's grid, all components
        flow_values = case.steps * (FORWARD_FIELDS + BACKWARD_FIELDS) * points
        smooth_values = 2 * 2 * axes * case.gaussians * points  # two ways, an image in and out for every axis
        image_values = IMAGES[case.similarity] * voxels + 4 * points if case.similarity in IMAGES else 0
        return FLOAT * case.batch * (flow_values + smooth_values + image_values)


def smooth_noise(shape: tuple[int, ...], batch: int, seed: int) -> Tensor:
    """Images (B, 1, *S) in [0, 1]."""
    small = torch.rand(batch, 1, *[max(4, n // 12) for n in shape], generator=torch.Generator().manual_seed(seed))
    mode = {2: "bilinear", 3: "trilinear"}[len(shape)]
    return torch.nn.functional.interpolate(small, size=shape, mode=mode, align_corners=True)


def measure(work: Callable[[], None], device: torch.device, repeats: int, *, record: bool = True) -> Timing:
    """Repeated runs after a warm-up, on a GPU recorded once and replayed unless told otherwise."""
    again: Callable[[], None] = Replay(work, device) if record else work
    for _ in range(4 if record else 1):
        again()
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            again()
            end.record()
            torch.cuda.synchronize(device)
            found.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            again()
            found.append(1000 * (time.perf_counter() - begin))
    return Timing.of(found)


def bench_protocol(case: Case, settings: Settings, device: torch.device, *, repeats: int) -> dict[str, Any]:
    """Seconds of all iterations that a paper's preset spends on a pair: with the global metric, then with a local one."""
    iteration, solve = Iteration(case, device), settings.solve
    objective = Objective(Similarity(settings.similarity), settings.flow, solve)
    assert solve.local_iterations is not None
    passes = ((None, solve.iterations[0]), (iteration.w.detach(), solve.local_iterations[0]))
    seconds = []
    for _ in range(repeats + 1):
        m = torch.zeros_like(iteration.p)
        begin = time.perf_counter()
        for weights, count in passes:
            metric = make_metric(iteration.map_grid, settings.metric, like=m, weights=weights)
            problem = objective.of(metric, iteration.scene)
            m = minimise(problem, m, solve, iterations=count, on_iteration=lambda *of: None)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    found = Timing.of(seconds[1:])  # in the first, kernels are made ready
    return {"preset": settings.preset, "iterations": [count for _, count in passes], "seconds": asdict(found)}


def copy_bandwidth(device: torch.device, repeats: int) -> float:
    """Bytes a second that a plain copy reads and writes."""
    source = torch.ones(COPY_BYTES // FLOAT, device=device)
    into = torch.empty_like(source)

    def copy() -> None:
        into.copy_(source)

    return 2 * COPY_BYTES / (measure(copy, device, repeats).median / 1000)


@heavy_work()
def bench_iteration(case: Case, device: torch.device, *, repeats: int, plain_repeats: int) -> dict[str, Any]:
    """The whole iteration, its parts, its memory, and the same in plain torch (0 repeats: not that)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    iteration = Iteration(case, device)
    parts = {"whole": iteration.whole, "smoothing": iteration.smoothing, "flow": iteration.transport}
    parts["comparison"] = iteration.comparison
    found: dict[str, Any] = {"case": asdict(case)}
    found["map"] = list(iteration.map_grid.shape)
    for name, work in parts.items():
        found[name] = asdict(measure(work, device, repeats))
        if name == "whole" and device.type == "cuda":
            found["peak_memory_mib"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
    found["least_bytes"] = iteration.least_bytes()
    if plain_repeats:
        with plain_torch():
            found["plain"] = asdict(measure(iteration.whole, device, plain_repeats, record=False))
        found["plain_over_fast"] = round(found["plain"]["median"] / found["whole"]["median"], 1)
    return found
