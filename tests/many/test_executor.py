"""Processes side by side: results in order, and an orderly end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import children_of, is_running, wait_until
from metreg.errors import MetregError
from metreg.many.executor import workers
from metreg.many.processes import TERMINATED

SCRIPT = """
import sys, time
from metreg.many.processes import ending_in_order
from metreg.many.executor import workers

def task(number):
    if number > 1:
        time.sleep(60)
    return number

if __name__ == "__main__":
    with ending_in_order(), workers(task, 2) as each:
        for found in each(range(1, 20)):
            print(found, flush=True)
"""


def square(number: int) -> int:
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01 * (number % 2))
    return number**2


def test_results_come_in_order() -> None:
    for jobs in (1, 2):
        with workers(square, jobs) as each:
            assert list(each(range(6))) == [0, 1, 4, 9, 16, 25]


def test_a_process_that_is_killed_is_told() -> None:
    with pytest.raises(MetregError, match="--jobs: a process was killed"), workers(square, 2) as each:
        list(each(range(40)))


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_they_end_with_the_one_that_began_them_with_much_left_to_do(way: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    processes = children_of(process.pid)
    assert len(processes) >= 2
    process.send_signal(way)
    _, told = process.communicate(timeout=90)
    wait_until(lambda: not any(map(is_running, processes)))
    if way == signal.SIGTERM:
        assert process.returncode == TERMINATED and told == ""
    if way == signal.SIGINT:
        assert told.count("Traceback") == 1  # the script's own: it does not catch Ctrl-C
