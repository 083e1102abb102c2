"""Many images and which of them make pairs: a table of files, or a folder of images."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations, takewhile
from pathlib import Path
from typing import Any

import torch

from metreg.errors import MetregError

NEEDED = ("moving", "fixed")
OPTIONAL = ("moving_mask", "fixed_mask", "moving_labels", "fixed_labels", "moving_points", "fixed_points")
PAIRED = (("moving_labels", "fixed_labels"), ("moving_points", "fixed_points"))
"""Of use only together."""
SUBJECTS = ("moving_subject", "fixed_subject")
ENDINGS = r"nii|nii\.gz|img|nrrd|nhdr|mha|mhd|png|tif|tiff"
IMAGES = re.compile(rf".+\.({ENDINGS})", re.IGNORECASE)
IMAGE_FOLDERS = ("img", "images", "brains", "heads")
LABEL_FOLDERS = ("label", "labels", "atlases")
"""Of a data set, however they are capitalised; the first that is there."""
TRAIN, TEST = "train", "test"


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
    return pick(pairs, int(count[1]), seed)


def pick(pairs: list[PairFiles], count: int, seed: int) -> list[PairFiles]:
    """So many random ones of the pairs, in their order; all where there are no more."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    return [pairs[i] for i in sorted(order[:count].tolist())]


def read_pairs(path: Path) -> list[PairFiles]:
    """A table with the columns moving, fixed, perhaps masks, labels, landmarks, subjects; paths are relative to it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            columns = _columns_of(reader.fieldnames, path)
            rows = [{name: (row[name] or "").strip() for name in columns} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MetregError(f"pairs: cannot read {path}: {getattr(error, 'strerror', '') or 'not a CSV file'}") from None
    if not rows:
        raise MetregError(f"pairs: no line after the header: {path}")
    return [_files(row, path, line) for line, row in enumerate(rows, start=2)]


def _columns_of(header: Sequence[str], path: Path) -> list[str]:
    """The columns that are known. Others are let be, unless their names look like a known one's."""
    known = (*NEEDED, *OPTIONAL, *SUBJECTS)
    for name in NEEDED:
        if name not in header:
            raise MetregError(f"pairs: no column '{name}' in {path}; wanted {', '.join(NEEDED)}")
    for name in header:
        if name in known and header.count(name) > 1:
            raise MetregError(f"pairs: two columns are called '{name}' in {path}; take one away")
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if name not in known and close:
            raise MetregError(f"pairs: unknown column '{name}' in {path}; did you mean '{close[0]}'?")
    return [name for name in known if name in header]


def _files(row: dict[str, str], table: Path, line: int) -> PairFiles:
    found = {name: table.parent / value for name, value in row.items() if value and name not in SUBJECTS}
    for name in NEEDED:
        if name not in found:
            raise MetregError(f"pairs: line {line} of {table} names no {name} image")
    for moving, fixed in PAIRED:
        if (moving in found) != (fixed in found):
            here, wanting = (moving, fixed) if moving in found else (fixed, moving)
            raise MetregError(f"pairs: line {line} of {table} has {here} but no {wanting}; give both or none")
    for name, path in found.items():
        if not path.exists():
            raise MetregError(f"pairs: line {line} of {table}: no such file: {path} ({name})")
    given: dict[str, Any] = {**found, **{name: row[name] for name in SUBJECTS if name in row}}
    return PairFiles(**given)


@dataclass(frozen=True)
class Scan:
    """An image of a data set, its labels where it has any, and whose it is."""

    image: Path
    labels: Path | None = None
    subject: str = ""
    part: str = ""
    """`train` or `test`; empty: neither."""

    @property
    def name(self) -> str:
        return stem(self.image)


def read_scans(folder: Path, subjects: Path | None = None) -> list[Scan]:
    """A data set, m2 before m10: images in img, images, Brains or Heads, or in the folder itself; labels in label, labels
    or Atlases, under the image's name or the one that begins with the most of its words (parted by `_`).

    `subjects`, by default the folder's subjects.csv, is a table with the columns id, subject and perhaps part: whose an
    image is, and whether it is there to train or to test. Without it every image is its own subject; without parts, seven
    subjects in ten, in order, are there to train, the others to test.
    """
    images = _images_in(_subfolder(folder, IMAGE_FOLDERS) or folder)
    if not images:
        raise MetregError(
            f"data: no images in {folder}; wanted {folder / 'img'} (or images, Brains, Heads) with images, and "
            f"{folder / 'label'} (or labels, Atlases) with labels of the same names"
        )
    first: dict[str, Path] = {}
    for path in images:
        other = first.setdefault(stem(path), path)
        if other != path:
            raise MetregError(
                f"data: {other.name} and {path.name} would both be called {stem(path)}: {path.parent}; take one of them "
                "away, or give it another name"
            )
    among = _subfolder(folder, LABEL_FOLDERS)
    labels = None if among is None else _images_in(among)
    scans = [Scan(path, None if labels is None else _labels_of(path, labels, among)) for path in images]
    given = subjects or folder / "subjects.csv"
    if subjects is None and not given.is_file():
        return _split([replace(scan, subject=scan.name) for scan in scans])
    return _assigned(scans, given)


def has_images(folder: Path) -> bool:
    """Whether `read_scans` finds a data set there."""
    return bool(_images_in(_subfolder(folder, IMAGE_FOLDERS) or folder))


def scan_pairs(scans: Sequence[Scan]) -> list[PairFiles]:
    """All ordered pairs of different subjects, the moving image in the outer loop."""
    return [
        PairFiles(
            moving.image,
            fixed.image,
            moving_labels=moving.labels,
            fixed_labels=fixed.labels,
            moving_subject=moving.subject,
            fixed_subject=fixed.subject,
        )
        for moving, fixed in permutations(scans, 2)
        if moving.subject != fixed.subject
    ]


def _subfolder(folder: Path, names: Sequence[str]) -> Path | None:
    there = {path.name.lower(): path for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else {}
    return next((there[name] for name in names if name in there), None)


def _images_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if IMAGES.fullmatch(path.name) and not path.name.startswith(".")]
    return sorted(found, key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)])


def _labels_of(image: Path, labels: list[Path], folder: Path | None) -> Path:
    """The one whose name has the most leading words in common with the image's."""

    def common(other: Path) -> int:
        words = zip(re.split(r"[_.]", stem(image)), re.split(r"[_.]", stem(other)), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], words))

    same = [path for path in labels if stem(path) == stem(image)]
    most = max(map(common, labels), default=0)
    close = same or [path for path in labels if common(path) == most > 0]
    if len(close) != 1:
        raise MetregError(f"data: wanted the labels of {image.name} in {folder}, got {len(close)} files that could be them")
    return close[0]


def _assigned(scans: Sequence[Scan], table: Path) -> list[Scan]:
    """With what the table says of them."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MetregError(f"subjects: cannot read {table}: {getattr(error, 'strerror', '') or 'not a CSV file'}") from None
    if not rows or not {"id", "subject"} <= set(rows[0]):
        raise MetregError(f"subjects: wanted the columns id, subject and perhaps part (train or test): {table}")
    said = {(row["id"] or "").strip(): row for row in rows}
    missing = [scan.name for scan in scans if scan.name not in said]
    if missing:
        raise MetregError(
            f"subjects: no line for the image {missing[0]} in {table}; wanted one for every image, by its name"
        )
    found = []
    for scan in scans:
        row = {name: (value or "").strip() for name, value in said[scan.name].items() if name}
        found.append(replace(scan, subject=row["subject"] or scan.name, part=row.get("part", "")))
    if "part" not in rows[0]:
        return _split(found)
    other = [scan for scan in found if scan.part not in (TRAIN, TEST, "")]
    if other:
        raise MetregError(
            f"subjects: part of {other[0].name}: wanted train, test or nothing, got '{other[0].part}': {table}"
        )
    both = {scan.subject for scan in found if scan.part == TRAIN} & {scan.subject for scan in found if scan.part == TEST}
    if both:
        raise MetregError(f"subjects: {min(both)} is there to train and to test; a subject may do one: {table}")
    return found


def _split(scans: Sequence[Scan]) -> list[Scan]:
    """Seven subjects in ten, in order, to train, the others to test."""
    subjects = list(dict.fromkeys(scan.subject for scan in scans))
    first = set(subjects[: 7 * len(subjects) // 10])
    return [replace(scan, part=TRAIN if scan.subject in first else TEST) for scan in scans]
