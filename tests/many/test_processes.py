"""Processes end with the one that began them, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import is_running, wait_until
from metreg.many.processes import TERMINATED, run_command

SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
RUNS_A_COMMAND = f"""
import sys
from metreg.many.processes import ending_in_order, run_command
with ending_in_order():
    try:
        run_command([sys.executable, "-c", {SLEEP!r}])
    finally:
        print("closed", flush=True)
"""
LOOKS_FOR_ITS_PARENT = """
import os, sys, time
from metreg.many import processes
processes._kill_when_parent_ends = lambda: False
processes.die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
"""
BEGINS_ONE_THAT_LOOKS = f"""
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {LOOKS_FOR_ITS_PARENT!r}, str(os.getpid())])
"""


def begin(script: str) -> tuple[subprocess.Popen[str], int]:
    """A script in a process of its own, and the process that it has begun."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_command_runs_as_without_it(tmp_path: Path) -> None:
    done = run_command([sys.executable, "-c", "print('so'); raise SystemExit(3)"], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (3, "so\n")
    done = run_command(["/no/such/tool"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 127 and done.stderr == "/no/such/tool: No such file or directory\n"


def test_a_sigterm_ends_a_command_and_closes_what_is_open() -> None:
    process, child = begin(RUNS_A_COMMAND)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (TERMINATED, "closed\n", "")
    wait_until(lambda: not is_running(child))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the small process between them must be asked to end")
def test_a_sigkill_ends_a_command_too() -> None:
    process, child = begin(RUNS_A_COMMAND)
    process.kill()
    process.wait()
    wait_until(lambda: not is_running(child))


def test_without_the_kernel_s_help_a_process_looks_for_its_parent() -> None:
    process, child = begin(BEGINS_ONE_THAT_LOOKS)
    time.sleep(0.1)
    assert is_running(child)
    process.kill()
    process.wait()
    wait_until(lambda: not is_running(child))
