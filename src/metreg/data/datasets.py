"""Many images and which of them make pairs: a table of files, or a folder of images."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from metreg.checks import MetregError

NEEDED = ("moving", "fixed")
OPTIONAL = ("moving_mask", "fixed_mask", "moving_labels", "fixed_labels", "moving_points", "fixed_points")
SUBJECTS = ("moving_subject", "fixed_subject")
ENDINGS = r"nii|nii\.gz|nrrd|nhdr|mha|mhd|png|tif|tiff"
IMAGES = re.compile(rf".+\.({ENDINGS})", re.IGNORECASE)


@dataclass(frozen=True)
class PairFiles:
    """The files of one pair."""

    moving: Path
    fixed: Path
    moving_mask: Path | None = None
    fixed_mask: Path | None = None
    moving_labels: Path | None = None
    fixed_labels: Path | None = None
    moving_points: Path | None = None
    fixed_points: Path | None = None
    moving_subject: str = ""
    fixed_subject: str = ""

    @property
    def name(self) -> str:
        return f"{stem(self.moving)}_to_{stem(self.fixed)}"

    @property
    def subjects(self) -> tuple[str, str]:
        """Whose images these are; without a word on it, an image is its own subject."""
        return self.moving_subject or str(self.moving), self.fixed_subject or str(self.fixed)


def stem(path: Path) -> str:
    """An image file's name without its ending."""
    return re.sub(rf"\.({ENDINGS})$", "", path.name, flags=re.IGNORECASE)


def find_pairs(source: Path, *, choose: str | None = None, seed: int = 0) -> list[PairFiles]:
    """The pairs of a table (CSV), or of a folder of images, of which `choose` takes all ordered ones or random:N."""
    if not source.is_dir():
        if choose is not None:
            raise MetregError(f"--pairs: for a folder of images; {source} names its pairs itself")
        return read_pairs(source)
    images = sorted(path for path in source.iterdir() if IMAGES.fullmatch(path.name) and path.is_file())
    if len(images) < 2:
        raise MetregError(f"pairs: wanted a folder of two images or more, got {len(images)}: {source}")
    pairs = [PairFiles(moving, fixed) for moving, fixed in permutations(images, 2)]
    choose = choose or "all"
    if choose == "all":
        return pairs
    count = re.fullmatch(r"random:([0-9]{1,9})", choose)
    if not count or not 1 <= int(count[1]) <= len(pairs):
        raise MetregError(f"--pairs: wanted all or random:N with N from 1 to {len(pairs)}, got '{choose}'")
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    return [pairs[i] for i in sorted(order[: int(count[1])].tolist())]


def read_pairs(path: Path) -> list[PairFiles]:
    """A table with the columns moving, fixed, perhaps masks, labels, landmarks, subjects; paths are relative to it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name for name in (*NEEDED, *OPTIONAL, *SUBJECTS) if name in (reader.fieldnames or ())]
            missing = [name for name in NEEDED if name not in columns]
            if missing:
                raise MetregError(f"pairs: no column '{missing[0]}' in {path}; wanted {', '.join(NEEDED)}")
            rows = [{name: (row[name] or "").strip() for name in columns} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MetregError(f"pairs: cannot read {path}: {getattr(error, 'strerror', '') or 'not a CSV file'}") from None
    if not rows:
        raise MetregError(f"pairs: no line after the header: {path}")
    return [_files(row, path, line) for line, row in enumerate(rows, start=2)]


def _files(row: dict[str, str], table: Path, line: int) -> PairFiles:
    found = {name: table.parent / value for name, value in row.items() if value and name not in SUBJECTS}
    for name in NEEDED:
        if name not in found:
            raise MetregError(f"pairs: line {line} of {table} names no {name} image")
    for name, path in found.items():
        if not path.exists():
            raise MetregError(f"pairs: line {line} of {table}: no such file: {path} ({name})")
    given: dict[str, Any] = {**found, **{name: row[name] for name in SUBJECTS if name in row}}
    return PairFiles(**given)
