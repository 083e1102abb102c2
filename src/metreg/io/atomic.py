"""Outputs appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from metreg.errors import MetregError


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
def atomic_folder(path: Path, *, names: frozenset[str], overwrite: bool) -> Iterator[Path]:
    """A temporary folder that becomes `path` at the end, or vanishes if anything goes wrong.

    With `overwrite`, an existing folder stays and only files under `names` are replaced in it; all else is left alone.
    """
    check_output(path, overwrite=overwrite)
    exists = path.exists()
    target = path.resolve()
    with _temporary_folder(path, target if exists else target.parent) as work:
        yield work
        for new in work.rglob("*"):
            new.chmod((0o777 if new.is_dir() else 0o666) & ~_umask())
        if not exists:
            work.chmod(0o777 & ~_umask())
            work.rename(target)
            return
        for old in names - {new.name for new in work.iterdir()}:  # of an earlier run, not made by this one
            _remove(target / old)
        for new in work.iterdir():
            if new.is_dir():
                _remove(target / new.name)
            new.replace(target / new.name)


@contextmanager
def atomic_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary file of the same name that takes the place of `path` at the end."""
    check_output(path, overwrite=overwrite, folder=False)
    target = path.resolve()
    with _temporary_folder(path, target.parent) as work:
        yield work / path.name
        as_usual(work / path.name)
        (work / path.name).replace(target)


def atomic_write(path: Path, content: str | bytes) -> None:
    """A file of this content, in the place of any earlier one; text as UTF-8."""
    with atomic_file(path, overwrite=True) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def _temporary_folder(path: Path, parent: Path) -> Iterator[Path]:
    """A hidden folder in `parent`, which is made if need be; gone at the end. Errors of the disk name `path`."""
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    work = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=parent))
        yield work
    except OSError as error:
        raise MetregError(f"output: cannot write {path}: {error.strerror or error}") from None
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        for folder in made:  # those that stayed empty
            with suppress(OSError):
                folder.rmdir()


def clear_folder(path: Path, names: frozenset[str]) -> None:
    """Take away what an earlier run wrote there under these names; all else is left alone."""
    for name in names:
        _remove(path / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def as_usual(path: Path) -> None:
    """Let a file be read by whom new files are; some libraries and temporary folders keep theirs private."""
    path.chmod(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
