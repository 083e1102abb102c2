"""Commands in processes of their own, on a fixed number of cores, with what they cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metreg.many.processes import run_supervised

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS")
"""The environment variables by which libraries learn how many threads they may use."""
STOPWATCH = Path(__file__).with_name("stopwatch.py")


@dataclass(frozen=True)
class Run:
    """What a command cost, start-up included, and how it ended."""

    seconds: float
    cpu_seconds: float
    """Of all its threads and children, user and system."""
    peak_memory_mb: int
    code: int
    said: str
    """The last line that it printed."""


def run_fresh(command: Sequence[str | Path], *, cores: int, log: Path) -> Run:
    """Run a command; all that it prints goes to `log`. It ends when this process does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **dict.fromkeys(THREADS, str(cores)), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("GOMP_SPINCOUNT", None)  # metreg has set it for itself, and its processes do so again
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        words = [sys.executable, "-I", str(STOPWATCH), str(os.getpid()), str(record), str(cores), *map(str, command)]
        with log.open("wb") as file:
            done = run_supervised(words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        said = lines[-1].strip() if lines else ""
        if not record.is_file():
            return Run(0.0, 0.0, 0, done.returncode or 1, said or "it could not be started")
        told = json.loads(record.read_text(encoding="ascii"))
    if told["code"] < 0:
        said = f"killed by signal {-told['code']}, perhaps for want of memory. {said}".strip()
    return Run(said=said, **told)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
