"""`metreg bench pair` and `bench train`: how long things take here, as tables and JSON."""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from metreg.bench.iteration import Case, Iteration, bench_iteration, bench_protocol, copy_bandwidth, measure, smooth_noise
from metreg.core.grid import Grid
from metreg.errors import MetregError
from metreg.kernels.heavy import heavy_work
from metreg.learn.curriculum import train
from metreg.learn.pairs import TrainingPairs
from metreg.pipeline.register import version_of
from metreg.settings.model import changed, make_settings

Tell = Callable[[str], None]
COUNTS = {"batch": (1, 2, 4, 8), "gaussians": (1, 2, 4, 8), "steps": (5, 10, 20, 40)}
"""What is varied, one at a time, in the tables of growth."""


def about(device: torch.device) -> dict[str, Any]:
    """Machine and versions, without names of hosts or users."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {name: version_of(name) for name in ("metreg", "torch", "triton", "numba")}
    return {"machine": machine, "device": device.type, "threads": torch.get_num_threads(), "versions": versions}


@heavy_work()
def bench_pair(
    case: Case, device: torch.device, *, repeats: int, plain: bool, sizes: tuple[int, ...], tell: Tell
) -> dict[str, Any]:
    """One iteration with either correlation, against plain torch in the same run, and how its cost grows."""
    found: dict[str, Any] = {**about(device), "copy_bytes_per_second": copy_bandwidth(device, repeats), "iterations": {}}
    for name in ("ncc", "lncc"):
        tell(f"one iteration, {name}")
        here = replace(case, similarity=name)
        result = bench_iteration(here, device, repeats=repeats, plain_repeats=3 if plain else 0)
        rate = result["least_bytes"] / (result["whole"]["median"] / 1000)
        result["share_of_copy_bandwidth"] = round(rate / found["copy_bytes_per_second"], 3)
        found["iterations"][name] = result
    if device.type == "cuda":
        tell("all iterations of the paper's protocol")
        settings = make_settings(f"paper{len(case.shape)}d")
        found["protocol"] = bench_protocol(case, settings, device, repeats=5)
    found["growth"] = {}
    cubes = [replace(case, shape=(n,) * len(case.shape)) for n in sizes]
    rows = {"voxels": cubes} if cubes else {}
    if cubes:
        middle = cubes[(len(cubes) - 1) // 2]
        for what, counts in COUNTS.items():
            rows[what] = [replace(middle, **{what: count}) for count in counts]  # type: ignore[arg-type]
    for what, cases in rows.items():
        tell(f"growth with {what}")
        found["growth"][what] = [_row(here, device, repeats) for here in cases]
    return found


def _row(case: Case, device: torch.device, repeats: int) -> dict[str, Any]:
    iteration = Iteration(case, device)
    known = {"voxels": iteration.scene.source[0].numel(), "batch": case.batch, "gaussians": case.gaussians}
    return {**known, "steps": case.steps, **asdict(measure(iteration.whole, device, repeats))}


def pair_tables(found: dict[str, Any]) -> str:
    """The same in Markdown."""
    lines = [
        "| milliseconds | whole | smoothing | flow | comparison | plain torch | ratio | share of copy bandwidth | MiB |"
    ]
    lines += ["|---" * 9 + "|"]
    for name, result in found["iterations"].items():
        medians = [f"{result[part]['median']:.2f}" for part in ("whole", "smoothing", "flow", "comparison")]
        plain = [f"{result['plain']['median']:.1f}", f"{result['plain_over_fast']}"] if "plain" in result else ["", ""]
        rest = [f"{result['share_of_copy_bandwidth']:.2f}", str(result.get("peak_memory_mib", ""))]
        lines.append("| " + " | ".join([name, *medians, *plain, *rest]) + " |")
    if "protocol" in found:
        first, then = found["protocol"]["iterations"]
        seconds = found["protocol"]["seconds"]["median"]
        lines += ["", f"The paper's {first} global and {then} local iterations of a pair: {seconds:.2f} s"]
    for what, rows in found["growth"].items():
        lines += ["", f"| {what} | " + " | ".join(str(row[what]) for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
        lines.append("| ms | " + " | ".join(f"{row['median']:.2f}" for row in rows) + " |")
    return "\n".join(lines)


@heavy_work()
def bench_train(
    shape: tuple[int, ...], device: torch.device, *, preset: str, pairs: int, epochs: tuple[int, int], tell: Tell
) -> dict[str, Any]:
    """The protocol of a preset on synthetic volumes: seconds of every epoch, and of the preset's own number of them."""
    if pairs < 2:
        raise MetregError(f"--pairs: wanted 2 or more, got {pairs}")
    settings = make_settings(preset)
    wanted = settings.train.epochs
    settings = changed(settings, {"train.epochs": list(epochs)})
    count = max(2, round((1 + (1 + 4 * pairs) ** 0.5) / 2))  # images of which all ordered pairs are so many
    images = smooth_noise(shape, count, seed=0)
    every = [(i, j) for i in range(count) for j in range(count) if i != j]
    index = torch.tensor((every * (1 + pairs // len(every)))[:pairs])
    records: list[dict[str, Any]] = []

    def heard(record: dict[str, Any]) -> None:
        records.append(record)
        tell(f"stage {record['stage']}, epoch {record['epoch']}: {record['seconds']:.2f} s")

    with tempfile.TemporaryDirectory() as folder:
        train(TrainingPairs(images, index, Grid.unit_cube(shape)), settings, Path(folder), device=device, on_epoch=heard)
    seconds = [[r["seconds"] for r in records if r["stage"] == stage] for stage in (1, 2)]
    usual = [statistics.median(times[1:] or times or [0.0]) for times in seconds]  # in the first, kernels are made ready
    first = sum(times[0] - each for times, each in zip(seconds, usual, strict=True) if times)
    return {
        **about(device),
        "preset": preset,
        "shape": list(shape),
        "pairs": pairs,
        "epochs": list(epochs),
        "seconds_by_epoch": seconds,
        "seconds": round(sum(map(sum, seconds)), 2),
        "milliseconds_per_pair_and_step": [round(1000 * t / pairs / settings.train.steps, 4) for t in usual],
        "protocol_epochs": list(wanted),
        "protocol_seconds_expected": round(first + sum(t * n for t, n in zip(usual, wanted, strict=True)), 1),
    }
