"""What a command costs in a process of its own: `python stopwatch.py PARENT RECORD.json CORES COMMAND...`.

A process counts the memory of the one that started it as its own peak; so this one, which starts it, is small. Both end
when the process PARENT does.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path

PROCESSES = Path(__file__).resolve().parents[1] / "many" / "processes.py"
"""Read as a file: importing metreg would need its packages, and memory for them."""


def main() -> None:
    parent, record, cores, *command = sys.argv[1:]
    supervise = runpy.run_path(str(PROCESSES))["supervise"]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    start = time.perf_counter()
    code, usage = supervise(command, int(parent))
    seconds = time.perf_counter() - start
    told = {
        "code": code,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_memory_mb": round(usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)),
    }
    Path(record).write_text(json.dumps(told), encoding="ascii")


if __name__ == "__main__":
    main()
