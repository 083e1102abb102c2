"""Libraries that talk of damaged files are quiet while metreg reads: it says itself what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, local

_HERE = local()
"""In every thread, whether nibabel is to be quiet there."""
_LOCK = Lock()
_WITHIN = 0
_ITK_WARNED = True


@contextmanager
def quiet_nibabel() -> Iterator[None]:
    """Within it nibabel does not talk, in this thread, of headers that it repairs."""
    _add_filter()
    _HERE.quiet = True
    try:
        yield
    finally:
        _HERE.quiet = False


@cache
def _add_filter() -> None:
    import nibabel as nib

    nib.imageglobals.logger.addFilter(_is_heard)


def _is_heard(record: logging.LogRecord) -> bool:
    return not getattr(_HERE, "quiet", False) or record.levelno >= logging.CRITICAL


@contextmanager
def quiet_itk() -> Iterator[None]:
    """Within it ITK prints no pages about a file that it cannot read. Threads may be in here side by side."""
    import SimpleITK as sitk

    global _WITHIN, _ITK_WARNED
    with _LOCK:
        if _WITHIN == 0:
            _ITK_WARNED = sitk.ProcessObject.GetGlobalWarningDisplay()
            sitk.ProcessObject.SetGlobalWarningDisplay(False)
        _WITHIN += 1
    try:
        yield
    finally:
        with _LOCK:
            _WITHIN -= 1
            if _WITHIN == 0:
                sitk.ProcessObject.SetGlobalWarningDisplay(_ITK_WARNED)
