"""Going on with what was stopped, only from what it was begun with: files by their content, settings by their values.

Dates and sizes are no shortcut here: copies keep their dates, and a retrained metric has the size of the one before. Every
file is read, once a run, which takes less than working with it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from metreg.errors import MetregError
from metreg.io.atomic import atomic_write
from metreg.io.tables import NEEDED, OPTIONAL, PairFiles

ROLES = (*NEEDED, *OPTIONAL)
"""Files of a pair."""
TRAINING_ROLES = (*NEEDED, "moving_mask", "fixed_mask")
"""Those that a training looks at."""
HEADERS = (".img", ".hdr", ".mhd", ".nhdr")
"""Endings of images whose header and voxels lie in files of their own."""
DATA_FILE = re.compile(r"^(?:ElementDataFile|data ?file)\s*[:=]\s*(.+?)\s*$", re.MULTILINE | re.IGNORECASE)
"""Where the header of an mhd or nhdr image names its voxels."""
MOST_HEADER = 2**26
"""Bytes of the header of a safetensors file."""
READERS = 4
SHOWN = 3
"""Of what changed so many are named."""


def hash_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def content_of(path: Path) -> str:
    """A hash (BLAKE2b) of a file's bytes; of a folder's, as DICOM series are; of an image's header and voxels."""
    parts = _files_of(path)
    found = hashlib.blake2b(digest_size=16)
    try:
        for part in parts:
            own = _hash_of_file(part)
            if len(parts) == 1:
                return own
            found.update(f"{part.name} {own}\n".encode())
    except OSError as error:
        raise MetregError(f"cannot read {path}: {error.strerror or error}") from None
    return found.hexdigest()


def _hash_of_file(path: Path) -> str:
    """Of its bytes; the header of a safetensors file, which is written in random order, is put in order first."""
    with path.open("rb") as file:
        header = b""
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            try:
                header = json.dumps(json.loads(file.read(min(length, MOST_HEADER))), sort_keys=True).encode()
            except ValueError:  # no such file, whatever its name
                file.seek(0)
        rest = hashlib.file_digest(file, lambda: hashlib.blake2b(header, digest_size=16))
    return rest.hexdigest()


def _files_of(path: Path) -> list[Path]:
    """All files in which an image lies, in order."""
    if path.is_dir():
        return sorted(part for part in path.iterdir() if part.is_file())
    plain = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    if plain.suffix.lower() not in HEADERS:
        return [path]
    files = {path, *(part for part in path.parent.glob(f"{_escape(plain.stem)}.*") if part.is_file())}
    if path.suffix.lower() in (".mhd", ".nhdr"):
        with path.open("rb") as file:
            header = file.read(2**16).decode("latin-1")
        files |= {path.parent / name for name in DATA_FILE.findall(header) if (path.parent / name).is_file()}
    return sorted(files)


def _escape(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def contents_of(paths: Iterable[Path | None]) -> dict[Path, str]:
    """Of many files, each read once."""
    wanted = sorted({path for path in paths if path is not None})
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(wanted, pool.map(content_of, wanted), strict=True))


def files_of_pairs(pairs: Sequence[PairFiles], roles: Sequence[str] = ROLES) -> dict[str, Path]:
    """All files of a table of pairs: `3.moving` is the moving image of the third."""
    found = {}
    for number, pair in enumerate(pairs, start=1):
        for role in roles:
            path = getattr(pair, role)
            if path is not None:
                found[f"{number}.{role}"] = path
    return found


def check_resume(
    record: Path, given: Mapping[str, Any], *, form: str, folder: Path, paths: Mapping[str, Path] | None = None
) -> None:
    """Refuse to go on in a folder whose record names other things than those that are given, and say which.

    `given` has a group under every name, such as settings; `paths` are those of files, to name them by. Changes nothing.
    """
    before = read_record(record, form)
    if before is None:
        raise MetregError(f"--resume: {folder} was begun by another version of metreg; use that, or a new folder")
    told = []
    for group, values in given.items():
        names = differences(before.get(group), values)
        if names:
            named = [f"{name} {paths[name]}" if paths and name in paths else name for name in names[:SHOWN] if name]
            more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
            told.append(f"other {group}" + (f" ({', '.join([*named, *more])})" if named else ""))
    if told:
        others = " and ".join(told)
        raise MetregError(f"--resume: {folder} was begun with {others}; use what it was begun with, or a new folder")


def read_record(record: Path, form: str) -> dict[str, Any] | None:
    """What was written; none where it is of another format."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == form else None


def write_record(record: Path, given: Mapping[str, Any], *, form: str) -> None:
    """Keep what something is begun with; a record that says so already is left as it is."""
    text = json.dumps({"format": form, **given}, indent=1)
    if not record.is_file() or record.read_text(encoding="utf-8") != text:
        atomic_write(record, text)


def differences(before: Any, now: Any, prefix: str = "") -> list[str]:
    """Names, joined by dots, of what is not the same in two nested mappings; an empty name for two plain values."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        same = json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True)  # tuples are lists there
        return [] if same else [prefix]
    found = []
    for name in dict.fromkeys([*before, *now]):
        if name not in before or name not in now:
            found.append(f"{prefix}.{name}".lstrip("."))
        else:
            found += differences(before[name], now[name], f"{prefix}.{name}".lstrip("."))
    return found
