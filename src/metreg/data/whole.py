"""Outputs appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metreg.checks import MetregError


def check_output(path: Path, *, overwrite: bool, folder: bool = True) -> None:
    """Refuse, before any work is done, an output that exists or cannot be written."""
    if path.exists():
        if folder != path.is_dir():
            raise MetregError(f"output: {path} is a {'file' if folder else 'folder'}; choose another name")
        if not overwrite:
            raise MetregError(f"output: {path} exists; choose another name or say --overwrite")
    ancestor = path.absolute().parent
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise MetregError(f"output: cannot write {path}: {ancestor} is not a folder that you may write to")


@contextmanager
def whole_folder(path: Path, *, names: frozenset[str], overwrite: bool) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place at the end, or vanishes if anything goes wrong.

    With `overwrite` an existing folder gives way; what it holds under other names than `names` is kept.
    """
    check_output(path, overwrite=overwrite)
    with _readable(path):
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.absolute().parent))
    try:
        work.chmod(0o777 & ~_umask())
        with _readable(path):
            yield work
            if path.exists():
                for old in path.iterdir():
                    if old.name not in names:
                        old.rename(work / old.name)
                retired = work.with_suffix(".old")
                path.rename(retired)
                work.rename(path)
                shutil.rmtree(retired)
            else:
                work.rename(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def whole_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary file of the same ending beside `path` that takes its place at the end."""
    check_output(path, overwrite=overwrite, folder=False)
    with _readable(path):
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.absolute().parent))
    try:
        with _readable(path):
            yield folder / path.name
            (folder / path.name).replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MetregError(f"output: cannot write {path}: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
