"""What is compared: metrics to register with, and folders with other tools' transforms."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metreg.checks import MetregError
from metreg.choice import MEAN, Seen, choose, open_metric, refuse_others
from metreg.config import Settings, make_settings
from metreg.data.datasets import PairFiles
from metreg.data.io import read_image, read_mask

log = logging.getLogger(__name__)

AFFINE = "affine"
TRANSFORMS = (".h5", ".hdf5", ".tfm", ".txt", ".mat", ".xfm", "/moving_to_fixed.h5")


@dataclass(frozen=True)
class Method:
    """A name in the tables, and where its transforms come from: a metric to register with, or a folder to read from."""

    name: str
    metric: str | None = None
    folder: Path | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are others for this method alone, by dotted keys."""


def choose_methods(
    files: Sequence[PairFiles],
    metrics: list[str] | None,
    *,
    preset: str | None,
    config: Path | None,
    changes: Sequence[str],
) -> tuple[list[str], Settings]:
    """Metrics, M or NAME=M, the usual one where none is given; and settings for all, those of the first learned one."""
    if metrics is None:
        choice = choose(preset=preset, config=config, changes=changes, images=lambda: _images_of(files[0]))
        log.info("%s; said of the first pair, taken for all", choice.line)
        return [choice.metric], choice.settings
    learned = {given: open_metric(given.partition("=")[2] or given) for given in metrics}
    used = next((metric.used for metric in learned.values() if metric is not None), None)
    settings = make_settings(preset, config=config, changes=changes, usual=used)
    for given, metric in learned.items():
        if metric is not None:
            refuse_others(settings, metric, given)
    return metrics, settings


def _images_of(pair: PairFiles) -> Seen:
    """Both images of a pair, with their masks."""
    moving = read_image(pair.moving, "moving image")
    fixed = read_image(pair.fixed, "fixed image")
    moving_mask = None if pair.moving_mask is None else read_mask(pair.moving_mask, moving, "moving mask")
    fixed_mask = None if pair.fixed_mask is None else read_mask(pair.fixed_mask, fixed, "fixed mask")
    return [(moving, moving_mask), (fixed, fixed_mask)]


def methods_of(metrics: Sequence[str], transforms: Sequence[str], reference: str | None = None) -> list[Method]:
    """The affine alignment alone, then metrics (M, or NAME=M), then folders of transforms (NAME=FOLDER)."""
    found = [Method(AFFINE)]
    for given in metrics:
        name, equals, metric = given.partition("=")
        found.append(Method(name, metric) if equals else Method(_name_of(given), given))
    for given in transforms:
        name, equals, folder = given.partition("=")
        if not equals or not Path(folder).is_dir():
            raise MetregError(f"--transforms: wanted NAME=FOLDER with a folder of transform files, got '{given}'")
        found.append(Method(name, folder=Path(folder)))
    names = [method.name for method in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MetregError(f"methods: two are called '{twice[0]}'; name them: --metric NAME={twice[0]}")
    bad = [name for name in names if not name or "/" in name or name.startswith(".")]
    if bad:
        raise MetregError(f"methods: '{bad[0]}' cannot be the name of a method; wanted one without a slash")
    if reference is not None and reference not in names:
        raise MetregError(f"--reference: no method is called '{reference}'; there are {', '.join(names)}")
    for method in found:
        if method.metric is not None:
            open_metric(method.metric)
    return found


def _name_of(metric: str) -> str:
    path = Path(metric.removeprefix(MEAN))
    name = path.parent.name if path.name == "metric.safetensors" and path.parent.name else path.name.split(".")[0]
    return f"mean of {name}" if metric.startswith(MEAN) else name


def find_transform(folder: Path, pair: PairFiles, number: int) -> Path:
    """A pair's transform in a folder: by the names of its images, MOVING_to_FIXED, or by its line in the table, 0001."""
    names = (pair.name, f"{number:04d}")
    for path in (folder / f"{name}{end}" for name in names for end in TRANSFORMS):
        if path.is_file():
            return path
    raise MetregError(
        f"--transforms: no transform of {pair.moving} to {pair.fixed} in {folder}; wanted {names[0]}.h5 or {names[1]}.h5, "
        "an ITK file that maps fixed points to moving points"
    )


def sibling(path: Path, end: str) -> Path:
    """What lies beside a transform file, under its name with another ending, or under a name of its own (/...)."""
    return path.parent / (end[1:] if end.startswith("/") else path.name.removesuffix(path.suffix) + end)
