"""A task done by several processes side by side, each with its share of the cores."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from metreg.errors import MetregError
from metreg.many.processes import GRACE_SECONDS, Terminated, die_with_parent, end_now, raise_terminated
from metreg.settings.process import is_own, own_process

Task = Callable[[int], Any]
Map = Callable[[Iterable[int]], Iterator[Any]]
_TASK: Task | None = None
"""Of a worker."""


@contextmanager
def workers(task: Task, jobs: int) -> Iterator[Map]:
    """A map that hands numbers to `task` in so many processes, in order; in this one if that is enough.

    They are processes of their own, as what runs on a GPU cannot be forked, and end with this one.
    """
    if jobs == 1:
        yield lambda numbers: map(task, numbers)
        return
    others = active_children()
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin_worker, (task, jobs, os.getpid(), is_own())) as pool:
        try:
            yield lambda numbers: _in_order(pool, numbers)
        except BaseException as error:
            _end([process for process in active_children() if process not in others])
            pool.shutdown()  # its thread waits for them; two that wait for one process lose it
            if isinstance(error, BrokenProcessPool):
                raise MetregError("--jobs: a process was killed, perhaps for memory; use fewer, and --resume") from None
            raise


def _in_order(pool: Executor, numbers: Iterable[int]) -> Iterator[Any]:
    """As the pool's own map, which cancels what is left when it is interrupted: the pool's thread, told at the same time
    that its processes have ended, would stumble over that.
    """
    futures = [pool.submit(_do, number) for number in numbers]
    for future in futures:
        yield future.result()


def _begin_worker(task: Task, jobs: int, parent: int, own: bool) -> None:
    global _TASK
    _TASK = task
    if own:
        own_process()
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began them ends them
    signal.signal(signal.SIGTERM, raise_terminated)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))


def _do(number: int) -> Any:
    assert _TASK is not None
    try:
        return _TASK(number)
    except Terminated:  # the pool would take it for a result, and this process would go on
        end_now()
        raise


def _end(processes: Sequence[BaseProcess]) -> None:
    """Ask processes to end, and kill those that do not."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    left = {process.sentinel: process for process in processes}
    while left and time.monotonic() < deadline:
        for sentinel in wait(list(left), timeout=deadline - time.monotonic()):
            del left[sentinel]  # type: ignore[arg-type]
    for process in left.values():
        process.kill()
