"""What one evaluation of the energy costs, by part, and against the plain-torch twin. See README.md beside this file."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from metreg.config import FlowSettings, MetricSettings, SimilaritySettings, SolveSettings
from metreg.energy import Objective, Scene
from metreg.flow.stationary import transport
from metreg.flow.steps import step
from metreg.grid import Grid
from metreg.pipeline import version_of
from metreg.similarity import Similarity
from metreg.solve.register import make_metric

SIZES = {"2-D, 128 x 128": (128, 128), "3-D, 80 x 96 x 80": (80, 96, 80)}
STEPS = 10


def measure(run: Callable[[], object], repeats: int, device: torch.device) -> dict[str, float]:
    """Median and quartiles in milliseconds, after one warm-up."""
    seconds = []
    for i in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if i:
            seconds.append(1000 * (time.perf_counter() - start))
    low, median, high = statistics.quantiles(seconds, n=4)
    return {"median_ms": median, "quartile_low_ms": low, "quartile_high_ms": high}


def benchmark(shape: tuple[int, ...], repeats: int, device: torch.device) -> dict[str, dict[str, float]]:
    grid = Grid.unit_cube(shape)
    map_grid = grid.coarsen(0.5)
    x = grid.points(torch.empty(0, device=device))
    source = torch.exp(-((x - 0.5) ** 2).sum(1, keepdim=True) / 0.05)
    scene = Scene(source, source.roll(3, 2), grid, map_grid)
    m = (0.1 * torch.randn_like(map_grid.points(x))).requires_grad_()
    metric = make_metric(map_grid, MetricSettings(), like=source)
    v = metric.sharp(m).detach().requires_grad_()
    start = map_grid.points(x)

    def plain() -> None:
        f = start
        for _ in range(STEPS):
            f = step(f, v=v, dt=1 / STEPS, grid=map_grid)
        f.sum().backward()

    parts: dict[str, Callable[[], object]] = {
        "smoothing": lambda: metric.sharp(m).sum().backward(),
        "flow, plain torch": plain,
        "flow": lambda: transport(start, v, map_grid, STEPS).sum().backward(),
    }
    for name in ("ncc", "lncc", "mi"):
        similarity = Similarity(SimilaritySettings(name=name))
        energy = Objective(similarity, FlowSettings(steps=STEPS), SolveSettings(regularity=1.0, folding=0.0))
        parts[f"whole energy, {name}"] = lambda energy=energy: energy(m, metric, scene).total().sum().backward()
    found = {name: measure(part, repeats, device) for name, part in parts.items()}
    found["flow"]["plain_over_fast"] = found["flow, plain torch"]["median_ms"] / found["flow"]["median_ms"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_flush_denormal(True)
    results = {name: benchmark(shape, arguments.repeats, device) for name, shape in SIZES.items()}
    for name, parts in results.items():
        print(name)  # noqa: T201
        for part, found in parts.items():
            ratio = f"   {found['plain_over_fast']:.1f} x the plain one" if "plain_over_fast" in found else ""
            spread = f"[{found['quartile_low_ms']:.1f}, {found['quartile_high_ms']:.1f}]"
            print(f"  {part:<22}{found['median_ms']:>9.1f} ms  {spread}{ratio}")  # noqa: T201
    about = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {name: version_of(name) for name in ("metreg", "torch")},
        "results": results,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
