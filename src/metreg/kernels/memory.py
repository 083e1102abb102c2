"""Memory that is freed stays with the process while it works on a CPU.

The C library gives large arrays back to the system as soon as they are freed, and the system fills them with zeros, page by
page, when they are wanted again: to add a number to a field of some megabytes then takes nine times as long.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

from metreg.settings.process import is_own

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""As malloc.h of glibc has them: what may be free before some is given back, from which size on arrays get pages of their
own, and how many arrays may."""
KEEP = {TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0}
USUAL = {TRIM_THRESHOLD: 2**23, MMAP_THRESHOLD: 2**22, MMAP_MAX: 2**16}
"""Once told something, glibc no longer finds such numbers by itself. With these, images are given back when freed."""

_LOCK = Lock()
_WITHIN = 0


@contextmanager
def kept_memory() -> Iterator[None]:
    """Within it nothing is given back, afterwards all that is free.

    It does nothing where the C library is not glibc, nor in a process that is not metreg's own: glibc does not tell what
    was set before, so that could not be undone.
    """
    if not is_own():
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    """The first one in begins it, in whatever thread; the last one out ends it."""
    global _WITHIN
    library = _glibc()
    with _LOCK:
        _WITHIN += change
        if library is None or max(change, 0) != _WITHIN:
            return
        for name, value in (KEEP if change > 0 else USUAL).items():
            library.mallopt(name, value)
        if change < 0:
            library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
