"""From files to a results folder, on one page: read, align, register, evaluate, write whole."""

from __future__ import annotations

import csv
import logging
import platform
import re
import resource
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metreg.core.grid import Array
from metreg.core.resample import downsample
from metreg.errors import MetregError, pick_device
from metreg.io.formats import import_formats, is_singular, open_image
from metreg.io.image import Image
from metreg.io.images import match_planes, read_image, read_labels_on, read_mask, read_weights
from metreg.kernels import load_kernels
from metreg.kernels.heavy import heavy_work
from metreg.measure.overlap import common_labels
from metreg.metric.store import MetricFile, standard_of
from metreg.pipeline.resolve import MEAN, choose, open_metric
from metreg.prepare.affine import align
from metreg.prepare.intensity import BACKGROUND, fill_value
from metreg.prepare.pair import Pair, make_pair
from metreg.prepare.skull import hint_at_skull
from metreg.result.folder import import_writers
from metreg.result.result import Result
from metreg.settings.model import Settings
from metreg.settings.process import is_own
from metreg.solve.pyramid import map_grid_of
from metreg.solve.register import WeightsOf, register_tensors
from metreg.solve.registration import Record

log = logging.getLogger(__name__)


@heavy_work()
def register(
    moving: Any,
    fixed: Any,
    *,
    metric: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    settings: Settings | None = None,
    changes: Iterable[str] | Mapping[str, Any] = (),
    weights: Any = None,
    moving_mask: Any = None,
    fixed_mask: Any = None,
    moving_labels: Any = None,
    fixed_labels: Any = None,
    label_names: str | Path | None = None,
    alignment: Array | None = None,
    fill: float | None = None,
    device: str = "auto",
    on_iteration: Callable[[Record], None] = lambda record: None,
) -> Result:
    """Bring the moving image onto the fixed one by a smooth map that can be inverted everywhere.

    Args:
        moving: The image that is moved: a path, a nibabel image, or an array and its affine from index to RAS millimetres.
        fixed: The image that it is to match.
        metric: How stiff the map is: "global", "brain-t1", a metric file, or "mean:FILE" for the mean of its weights. None:
            brain-t1 where both images show T1 brains without skulls, else global; a line in the log says so.
        preset: Settings to begin with: default, brain, brain-constant, paper2d, paper3d.
        config: A TOML file that changes them.
        settings: All settings, in place of preset, config and changes.
        changes: Single settings, such as {"solve.regularity": 100}, or a list of "key=value".
        weights: Weights (*S, N) in the space of the moving image, which make the metric local.
        moving_mask: Where the moving image counts.
        fixed_mask: Where the fixed image counts.
        moving_labels: Labels of the moving image. They are carried along, and play no part in the search.
        fixed_labels: Labels of the fixed image, to measure overlap.
        label_names: A CSV file with the number and the name of every label.
        alignment: Fixed to moving points, RAS millimetres, in place of the linear alignment that comes first.
        fill: What the warped image is where the moving one does not reach; by default the moving image's background.
        device: auto, cpu, cuda or cuda:N.
        on_iteration: Hears of every iteration its level and its energies by term.

    Returns:
        The warped image, the transforms and what is known of them; `save` writes it all into a folder.

    Raises:
        MetregError: Something that was given is wrong.

    Example:
        >>> import metreg
        >>> import numpy as np
        >>> x, y = np.meshgrid(np.arange(40.0), np.arange(44.0), indexing="ij")
        >>> blob = lambda middle: np.exp(-((x - middle) ** 2 + (y - 22) ** 2) / 60)
        >>> result = metreg.register((blob(18), np.eye(3)), (blob(21), np.eye(3)), changes={"affine.kind": "none"})
        >>> result.folds
        0
        >>> bool(np.abs(result.transform.apply([[21.0, 22.0]]) - [18, 22]).max() < 0.5)
        True
    """
    clock = _Clock()
    given = {"moving mask": moving_mask, "fixed mask": fixed_mask, "moving labels": moving_labels}
    given |= {"fixed labels": fixed_labels, "label names": label_names, "weights": weights}
    if settings is not None and (preset or config or changes):
        raise MetregError("settings: give either settings, or a preset, a config file and changes")
    if metric is not None:
        open_metric(metric)  # what is wrong with it should not wait for the images
    names = read_label_names(label_names)

    files = {"moving image": moving, "fixed image": fixed, "moving mask": moving_mask, "fixed mask": fixed_mask}
    with ThreadPoolExecutor() as pool:
        import_formats()
        opened = _open({**files, "moving labels": moving_labels, "fixed labels": fixed_labels}, pool)
        on_device = pick_device(device)
        _forget_peak_memory(on_device)
        _warm_up(on_device)
        images = _read(opened, pool)
        source, target = images["moving image"], images["fixed image"]
        source_mask, target_mask = images.get("moving mask"), images.get("fixed mask")
        list(pool.map(hint_at_skull, (source, target), (source_mask, target_mask), ("moving image", "fixed image")))
    choice = choose(
        metric,
        preset=preset,
        config=config,
        changes=changes,
        settings=settings,
        weights=weights is not None,
        images=lambda: [(source, source_mask), (target, target_mask)],
    )
    if choice.reason:
        log.info(choice.line)
    metric, learned, settings = choice.metric, choice.learned, choice.settings
    standard = standard_of(settings.intensity, () if learned is None else learned.intensity)
    command = _command(moving, fixed, {"metric": metric, **given, "fill": None if fill is None else str(fill)})
    local = None if weights is None else match_planes(read_weights(weights, source, len(settings.metric.sigma)), source)
    outside = fill_value(source.values, fill)
    clock.lap("read")

    affine = None if alignment is None else _check_alignment(alignment, source.dim)
    if affine is None:
        affine = align(
            source,
            target,
            settings.affine,
            moving_mask=source_mask,
            fixed_mask=target_mask,
            length_mm=settings.length_mm,
            device=on_device,
        )
    clock.lap("align")
    pair = make_pair(
        source,
        target,
        affine,
        settings,
        device=on_device,
        moving_mask=source_mask,
        fixed_mask=target_mask,
        weights=local,
        standard=standard,
    )
    clock.lap("prepare")
    registration = register_tensors(
        pair.source,
        pair.target,
        pair.grid,
        settings,
        weights=pair.weights if learned is None else predict_weights(learned, pair, settings, mean=metric.startswith(MEAN)),
        mask=pair.mask,
        on_iteration=on_iteration,
    )
    clock.lap("register")

    return Result(
        moving=source,
        fixed=target,
        affine=affine,
        pair=pair,
        registration=registration,
        settings=settings.model_copy(update={"length_mm": pair.grid.length_mm}),
        metric=metric if local is None else f"local weights of {local.name}",
        metric_licence=choice.licence,
        facts={**_facts(on_device, clock), "command": command, "metric_chosen": choice.reason or "by name"},
        moving_labels=images.get("moving labels"),
        fixed_labels=images.get("fixed labels"),
        label_names=names,
        fill=outside,
    )


def _check_alignment(alignment: Any, dim: int) -> Array:
    """The alignment as an array, if it is an invertible homogeneous matrix."""
    wanted = f"alignment: wanted {dim + 1} x {dim + 1} numbers, fixed to moving points in RAS millimetres"
    try:
        matrix = np.array(alignment, dtype=float)
    except (TypeError, ValueError):
        raise MetregError(f"{wanted}, got something else") from None
    if matrix.shape != (dim + 1, dim + 1):
        raise MetregError(f"{wanted}, got an array of shape {matrix.shape}")
    last = np.eye(dim + 1)[-1]
    if not np.allclose(matrix[-1], last, rtol=0, atol=1e-9):
        raise MetregError(f"{wanted}, the last row {last.tolist()}, got {matrix[-1].tolist()}")
    matrix[-1] = last
    if is_singular(matrix):
        raise MetregError(f"{wanted}, got a matrix that is not finite or has no inverse")
    return matrix


def _open(files: Mapping[str, Any], pool: Executor) -> dict[str, Future[Image]]:
    """By role, what was given, unpacked side by side."""
    if files["fixed labels"] is not None and files["moving labels"] is None:
        raise MetregError("fixed labels: they measure overlap with moving labels; give those too")
    return {role: pool.submit(open_image, file, role) for role, file in files.items() if file is not None}


def _read(opened: dict[str, Future[Image]], pool: Executor) -> dict[str, Image]:
    """By role, what was opened, checked in the order given."""
    found = {role: opened.pop(role).result() for role in list(opened)}
    images = ("moving image", "fixed image")
    source, target = pool.map(read_image, [found[role] for role in images], images)
    if source.dim != target.dim:
        raise MetregError(
            f"moving image is {source.dim}-D and fixed image {target.dim}-D: {source.name}, {target.name}; wanted the same"
        )
    if (source.plane is None) != (target.plane is None):
        log.warning("one image is a slice of a 3-D file and the other is 2-D: the transforms written are 2-D")
    source = match_planes(source, target)
    found |= {"moving image": source, "fixed image": target}
    for role, image in found.items():
        like = source if role.startswith("moving") else target
        if role.endswith("mask"):
            found[role] = read_mask(image, like, role)
        elif role.endswith("labels"):
            found[role] = read_labels_on(image, like, role)
    if "fixed labels" in found:
        moving, fixed = found["moving labels"], found["fixed labels"]
        if not len(common_labels(moving.values, fixed.values)):
            raise MetregError(f"fixed labels: no label in common: {moving.name}, {fixed.name}")
    return found


def _warm_up(device: torch.device) -> None:
    """What takes a while when first used, while the images are read by other threads.

    Modules are imported in this thread alone: two threads that import one package at the same time may see half of it.
    """
    import_module("scipy.optimize")
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        load_kernels(torch.zeros(1, device=device))
    import_writers()


def predict_weights(learned: MetricFile, pair: Pair, settings: Settings, *, mean: bool = False) -> Tensor | WeightsOf:
    """The weights (1, N, *S) that a learned metric gives the source, or their function of the momentum.

    They come on the grid on which its network looks at the source. Their `mean` is over what that shows, background aside.
    """
    if learned.model.dim != pair.grid.dim:
        raise MetregError(f"metric: it is for {learned.model.dim}-D images, these are {pair.grid.dim}-D")
    seen = learned.sees(pair.grid, map_grid_of(pair.grid, settings.flow.map_factor))
    weights = learned.model.to(pair.source.device).weights_of(pair.source, seen)
    if not mean:
        return weights
    if callable(weights):
        raise MetregError("metric: this one looks at the momentum, so its weights have no mean before the registration")
    shown = (downsample(pair.source, seen) > BACKGROUND).to(weights)
    average = (weights * shown).flatten(2).sum(2) / shown.sum()
    return average.view(*average.shape, *[1] * seen.dim).expand_as(weights).contiguous()


def read_label_names(path: str | Path | None) -> dict[int, str]:
    """Names of labels from the first two columns, number and name, of a CSV file."""
    if path is None:
        return {}
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 2]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MetregError(f"label names: cannot read {path}: {getattr(error, 'strerror', '') or 'not text'}") from None
    names = {int(row[0]): " ".join(row[1].split()) for row in rows if re.fullmatch(r"\s*-?[0-9]{1,18}\s*", row[0])}
    if not names:
        raise MetregError(f"label names: wanted lines 'number,name', got none: {path}")
    return names


def version_of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _command(moving: Any, fixed: Any, options: dict[str, Any]) -> str:
    """The command line that does the same again, where everything came from files."""
    given = [moving, fixed, *[value for value in options.values() if value is not None]]
    if not all(isinstance(value, (str, Path)) for value in given):
        return ""
    words = ["metreg", "register", str(moving), str(fixed), "-o", "again", "--config", "settings.toml"]
    for name, value in options.items():
        words += [] if value is None else [f"--{name.replace(' ', '-')}", str(value)]
    return shlex.join(words)


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self.last, 3)
        self.last = now


def _facts(device: torch.device, clock: _Clock) -> dict[str, Any]:
    packages = ("metreg", "torch", "numpy", "nibabel", "SimpleITK")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": {"python": platform.python_version(), **{package: version_of(package) for package in packages}},
        "device": {"kind": device.type, "name": name, "threads": torch.get_num_threads()},
        "seconds": clock.seconds,
        **_peak_memory(device),
    }


def _forget_peak_memory(device: torch.device) -> None:
    """Begin anew, so that what is told later is of this registration alone; in a process of metreg's own, on Linux."""
    if not is_own():
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> dict[str, int]:
    mebibytes = {}
    try:
        told = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        mebibytes["peak_memory_mb"] = round(int(re.findall(r"VmHWM:\s+(\d+) kB", told)[0]) / 1024)
    except (OSError, IndexError):
        mebibytes["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if device.type == "cuda":
        mebibytes["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
    return mebibytes
