"""Threads that share the work of compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

import torch

from metreg.settings.process import is_own

_LOCK = Lock()
_POOL: ThreadPoolExecutor | None = None
_WITHIN = 0


@contextmanager
def kept_threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that wait for more work until the last one is out of here; in a process of metreg's own, for good."""
    global _POOL, _WITHIN
    with _LOCK:
        if _POOL is None:
            # they treat as zero what is too small to have all its digits, as registrations do
            _POOL = ThreadPoolExecutor(os.cpu_count(), "metreg", torch.set_flush_denormal, (True,))
        _WITHIN += 1
        pool = _POOL
    try:
        yield pool
    finally:
        with _LOCK:
            _WITHIN -= 1
            last = _WITHIN == 0 and not is_own()
            if last:
                _POOL = None
        if last:
            pool.shutdown()


def _forget() -> None:
    """In a forked process: threads do not come along."""
    global _POOL, _WITHIN
    _POOL = None
    _WITHIN = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
