"""Processes that end with the one that began them, and a SIGTERM that ends everything in order.

As a script, `python processes.py PARENT COMMAND...` runs a command that ends when the process PARENT does. It needs the
standard library alone: it also runs where metreg cannot be imported.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TERMINATED = 128 + signal.SIGTERM
"""The exit code of what a SIGTERM ended, as shells have it."""
GRACE_SECONDS = 10.0
"""What is asked to end gets so long for it; then it is killed."""
LOOK_SECONDS = 0.5
"""How often a process looks for its parent where the kernel does not tell of its end."""
PR_SET_PDEATHSIG = 1
"""The prctl that asks Linux for a signal when the parent ends; see prctl(2)."""


class Terminated(SystemExit):
    """A SIGTERM came. Like Ctrl-C it is no error that a step may pass over; all that is open is closed on the way out."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


def raise_terminated(*signal_and_frame: object) -> None:
    """As the handler of SIGTERM. The first one ends everything; further ones must not disturb that."""
    signal.signal(signal.SIGTERM, lambda *later: None)
    raise Terminated


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside, a SIGTERM raises Terminated in the main thread."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say what becomes of signals
        yield
        return
    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_now() -> None:
    os._exit(TERMINATED)


def die_with_parent(parent: int, end: Callable[[], None] = end_now) -> None:
    """Let this process end when `parent` does, which began it, even if that is killed.

    On Linux the kernel kills it, at once and whatever it is doing. The kernel takes the thread that began it for the
    parent, so that one should last. Elsewhere a thread looks for the parent, and calls `end` when it is gone.
    """
    if not _kill_when_parent_ends():
        threading.Thread(target=_watch, args=(parent, end), daemon=True).start()
    if os.getppid() != parent:  # it ended before all this
        end()


def _kill_when_parent_ends() -> bool:
    """Ask the kernel for it; gives whether it can."""
    if sys.platform != "linux":
        return False
    import ctypes

    arguments = [ctypes.c_ulong(value) for value in (signal.SIGKILL, 0, 0, 0)]
    return ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, *arguments) == 0


def _watch(parent: int, end: Callable[[], None]) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    end()


def supervise(command: Sequence[str], parent: int) -> tuple[int, Any]:
    """Run a command that ends with this process, which ends with `parent`: its exit code, and what it used (rusage).

    For a small process without threads, which can be forked.
    """
    own = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, own)

    def end(*signal_and_frame: object) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # it writes nothing from here on
        end_now()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began this one ends it
    die_with_parent(parent, end)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage


def _become(command: Sequence[str], parent: int) -> None:
    """In a fork: end with the parent, and turn into the command."""
    try:
        _kill_when_parent_ends()  # kept by what is executed
        if os.getppid() == parent:
            os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(127)


def run_command(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Like subprocess.run without its checks; the command ends when this process does."""
    script = [sys.executable, "-I", str(Path(__file__).absolute())]
    return run_supervised([*script, str(os.getpid()), *words], **options)


def run_supervised(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run what calls `supervise`, with the number of this process among its words; an interruption ends it."""
    with subprocess.Popen(words, **options) as process:
        try:
            out, errors = process.communicate()
        except BaseException:
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


if __name__ == "__main__":
    code, _ = supervise(sys.argv[2:], int(sys.argv[1]))
    sys.exit(code if code >= 0 else 128 - code)
