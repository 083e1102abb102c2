"""What a command costs in a process of its own: `python stopwatch.py RECORD.json CORES COMMAND...`.

A process counts the memory of the one that started it as its own peak; so this one, which starts it, is small.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    record, cores, *command = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    start = time.perf_counter()
    _, status, usage = os.wait4(os.posix_spawnp(command[0], command, os.environ), 0)
    seconds = time.perf_counter() - start
    told = {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_memory_mb": round(usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)),
    }
    Path(record).write_text(json.dumps(told), encoding="ascii")


if __name__ == "__main__":
    main()
