"""Pairs x iterations a second of the 2-D protocol: registering and learning. See README.md beside this file."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from metreg.experiments.rings.batch import RingBatch
from metreg.experiments.rings.draw import ring_pair
from metreg.learn.curriculum import train
from metreg.pipeline.register import version_of
from metreg.settings.model import changed, make_settings
from metreg.solve.register import register_tensors

SETTINGS = make_settings("paper2d")


def per_pair(run: Callable[[int], None], count: int, pairs: int, repeats: int, device: torch.device) -> dict[str, float]:
    """Milliseconds for one iteration of one pair: the time of `count` more iterations, so that the set-up cancels."""

    def seconds(iterations: int) -> float:
        start = time.perf_counter()
        run(iterations)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(5)
    found = sorted(1000 * (seconds(5 + count) - seconds(5)) / count / pairs for _ in range(repeats))
    low, median, high = statistics.quantiles(found, n=4)
    return {"median_ms": median, "quartile_low_ms": low, "quartile_high_ms": high, "per_second": 1000 / median}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=24, help="pairs of the batch")
    parser.add_argument("--count", type=int, default=10, help="iterations that are timed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_flush_denormal(True)
    generator = torch.Generator().manual_seed(0)
    rings = RingBatch.of([ring_pair(generator) for _ in range(arguments.pairs)])
    source, target, weights = (f.to(device) for f in (rings.pairs.source, rings.pairs.target, rings.weights))

    def register(iterations: int, local: bool) -> None:
        solve = changed(SETTINGS, {"solve.iterations": [iterations], "solve.local_iterations": None})
        register_tensors(source, target, rings.grid, solve, weights=weights if local else None)

    def learn(epochs: int, stage: int) -> None:
        both = (epochs, 0) if stage == 1 else (0, epochs)
        settings = changed(SETTINGS, {"train.epochs": both, "train.batch": arguments.pairs, "train.steps": 1})
        with tempfile.TemporaryDirectory() as folder:
            train(rings.pairs, settings, Path(folder), device=device)

    parts: dict[str, Callable[[int], None]] = {
        "registration, global metric": lambda n: register(n, local=False),
        "registration, local metric": lambda n: register(n, local=True),
        "learning, stage 1": lambda n: learn(n, 1),
        "learning, stage 2": lambda n: learn(n, 2),
    }
    sizes = (arguments.count, arguments.pairs, arguments.repeats)
    results = {name: per_pair(part, *sizes, device) for name, part in parts.items()}
    for name, found in results.items():
        spread = f"[{found['quartile_low_ms']:.2f}, {found['quartile_high_ms']:.2f}]"
        print(f"{name:<30}{found['median_ms']:>8.3f} ms  {spread}  {found['per_second']:>9.0f} pairs x iterations/s")  # noqa: T201
    about = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "pairs": arguments.pairs,
        "versions": {name: version_of(name) for name in ("metreg", "torch")},
        "results": results,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
