"""What is compared: metrics to register with, and folders with other tools' transforms."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metreg.errors import MetregError
from metreg.io.images import read_image, read_mask
from metreg.io.tables import PairFiles
from metreg.metric.store import shipped_names, standard_of
from metreg.pipeline.resolve import GLOBAL, MEAN, Seen, choose, open_metric, refuse_others
from metreg.settings.model import AS_TRAINED, Settings, changed, make_settings

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
    changes: Iterable[str] | Mapping[str, Any],
) -> tuple[list[str], Settings]:
    """Metrics, M or NAME=M, the usual one where none is given; and settings for all, those of the first learned one."""
    if metrics is None:
        choice = choose(preset=preset, config=config, changes=changes, images=lambda: _images_of(files[0]))
        log.info("%s; said of the first pair, taken for all", choice.line)
        return [choice.metric], choice.settings
    learned = {given: open_metric(split_name(given)[1]) for given in metrics}
    used = next((metric.used for metric in learned.values() if metric is not None), None)
    settings = make_settings(preset, config=config, changes=changes, usual=used)
    for given, metric in learned.items():
        if metric is not None:
            refuse_others(settings, metric, given)
    return metrics, with_one_intensity([split_name(given)[1] for given in metrics], settings)


def _images_of(pair: PairFiles) -> Seen:
    """Both images of a pair, with their masks."""
    moving = read_image(pair.moving, "moving image")
    fixed = read_image(pair.fixed, "fixed image")
    moving_mask = None if pair.moving_mask is None else read_mask(pair.moving_mask, moving, "moving mask")
    fixed_mask = None if pair.fixed_mask is None else read_mask(pair.fixed_mask, fixed, "fixed mask")
    return [(moving, moving_mask), (fixed, fixed_mask)]


def with_one_intensity(metrics: Sequence[str], settings: Settings) -> Settings:
    """Settings with which all metrics see the same intensities, or a comparison would not be one of metrics alone.

    They are those of the first learned metric, unless the settings name others.
    """
    if settings.intensity != AS_TRAINED:
        standard_of(settings.intensity, ())  # an unknown one is told before any work
        return settings
    learned = [metric for metric in metrics if open_metric(metric) is not None]
    return changed(settings, {"intensity": learned[0].removeprefix(MEAN)}) if learned else settings


def intensities_of(metric: str, settings: Settings) -> str:
    """What a table says of the intensities that a metric saw."""
    learned = open_metric(metric)
    trained: tuple[float, ...] = () if learned is None else learned.intensity
    standard = standard_of(settings.intensity, trained)
    said = "own range"
    if standard:
        said = f"as {metric.removeprefix(MEAN) if settings.intensity == AS_TRAINED else settings.intensity}"
    return said if learned is None or standard == trained else f"{said}, not as in its training"


def methods_of(metrics: Sequence[str], transforms: Sequence[str], reference: str | None = None) -> list[Method]:
    """The affine alignment alone, then metrics (M, or NAME=M), then folders of transforms (NAME=FOLDER)."""
    found = [Method(AFFINE)]
    for given in metrics:
        name, metric = split_name(given)
        found.append(Method(name or _name_of(metric), metric))
    for given in transforms:
        name, _, folder = given.partition("=")
        if Path(given).is_dir():
            raise MetregError(f"--transforms: the folder {given} has no name; name it: --transforms NAME={given}")
        if not name or not folder or not Path(folder).is_dir():
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


def split_name(given: str) -> tuple[str, str]:
    """The name and the metric of NAME=M; no name where it is a metric as a whole.

    A path may have a "=" in it, such as runs/lr=0.1/metric.safetensors: what is there under all of these words is a
    metric, and what stands before the "=" is no name where it has a "/".
    """
    name, equals, metric = given.partition("=")
    if not equals or _is_metric(given):
        return "", given
    if not name:
        raise MetregError(f"--metric: wanted M or NAME=M, got '{given}'")
    if "/" in name and not _is_metric(metric):  # neither is there: the whole is told to be missing
        return "", given
    return name, metric


def _is_metric(name: str) -> bool:
    """Whether there is a metric of that name, or a file."""
    path = name.removeprefix(MEAN)
    return path == GLOBAL or path in shipped_names() or Path(path).is_file()


def _name_of(metric: str) -> str:
    path = Path(metric.removeprefix(MEAN))
    name = path.parent.name if path.name == "metric.safetensors" and path.parent.name else path.stem
    return f"mean of {name}" if metric.startswith(MEAN) else name


def find_transforms(folder: Path, pairs: Sequence[PairFiles]) -> list[Path]:
    """Every pair's transform in a folder: by the names of its images, MOVING_to_FIXED, or by its line in the table, 0001.

    Refused where a file could be of two pairs, or a pair has two files: nobody can tell which is meant.
    """
    found = []
    owners: dict[str, int] = {}  # the first pair of every name
    for number, pair in enumerate(pairs, start=1):
        by_name = _candidates(folder, pair.name)
        first = owners.setdefault(pair.name, number)
        if by_name and not _same_images(pairs[first - 1], pair):
            raise MetregError(
                f"--transforms: pairs {first} and {number} are both called {pair.name}, and {by_name[0]} cannot be of "
                f"both; name transforms by their line in the table: {first:04d}.h5, {number:04d}.h5"
            )
        files = [*by_name, *_candidates(folder, f"{number:04d}")]
        if not files:
            raise MetregError(
                f"--transforms: no transform of {pair.moving} to {pair.fixed} in {folder}; wanted {pair.name}.h5 or "
                f"{number:04d}.h5, an ITK file that maps fixed points to moving points"
            )
        if len(files) > 1:
            names = ", ".join(str(path.relative_to(folder)) for path in files)
            raise MetregError(
                f"--transforms: pair {number}, {pair.moving} to {pair.fixed}, has {len(files)} transforms in {folder}: "
                f"{names}; leave one of them there"
            )
        found.append(files[0])
    inverses = {inverse_beside(path): number for number, path in enumerate(found, start=1)}
    for number, path in enumerate(found, start=1):
        if path in inverses:
            raise MetregError(
                f"--transforms: {path} is the transform of pair {number} and, by its name, the inverse of pair "
                f"{inverses[path]}; name transforms by their line in the table: {inverses[path]:04d}.h5, {number:04d}.h5"
            )
    return found


def _candidates(folder: Path, name: str) -> list[Path]:
    paths = [folder / f"{name}{ending}" for ending in TRANSFORMS]
    return [path for path in paths if path.is_file()]


def _same_images(one: PairFiles, other: PairFiles) -> bool:
    """Whether two lines of a table are about the same two images, which have one transform."""
    return (one.moving.resolve(), one.fixed.resolve()) == (other.moving.resolve(), other.fixed.resolve())


def inverse_beside(transform: Path) -> Path:
    """Where the inverse of a transform lies, if there is one."""
    return sibling(transform, "/fixed_to_moving.h5" if transform.name == "moving_to_fixed.h5" else "_inverse.h5")


def facts_beside(transform: Path) -> Path:
    """Where a JSON file lies that tells what a transform cost, if there is one."""
    return sibling(transform, ".json")


def sibling(path: Path, end: str) -> Path:
    """What lies beside a transform file, under its name with another ending, or under a name of its own (/...)."""
    return path.parent / (end[1:] if end.startswith("/") else path.name.removesuffix(path.suffix) + end)
