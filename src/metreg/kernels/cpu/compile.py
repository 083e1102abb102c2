"""How kernels for CPUs are compiled, and when what numba keeps of them on disk is out of date.

Numba compares a kernel's cache with the file in which the kernel stands. It does not see edits of helpers in other files,
which it has inlined. Here all kernels are out of date as soon as any of them changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "arcp"}}
"""Of all kernels."""


def compiled(*, inline: str = "never") -> Callable[[Callable[..., Any]], Any]:
    """njit with the options of all kernels, its cache keyed by what stands in all of them."""

    def compile_later(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(inline=inline, **OPTIONS)(function)  # type: ignore[call-overload]
        if hasattr(dispatcher, "_cache"):  # not with NUMBA_DISABLE_JIT
            # numba has no public way to say on what else a cache depends
            cache_file = dispatcher._cache._cache_file
            cache_file._source_stamp = (cache_file._source_stamp, hash_of_kernels())
        return dispatcher

    return compile_later


@cache
def hash_of_kernels(folder: Path = Path(__file__).parent) -> str:
    """Of all files with kernels for CPUs."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
