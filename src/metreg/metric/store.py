"""Metric files: a network with all that gives its output a meaning, in safetensors. No pickle is ever loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metreg.core.grid import Array, Grid
from metreg.errors import MetregError
from metreg.io.tensors import read_tensors, write_tensors
from metreg.metric.learned import LearnedMetric
from metreg.settings.model import AS_TRAINED, OWN_RANGE, LearnedSettings, MetricSettings, Settings

FORMAT = "metreg-metric-1"
TEMPLATE = "template"
SHIPPED = Path(__file__).with_name("shipped")
"""Metrics that come with the package, NAME.safetensors."""
NEARLY = 0.1
"""Voxels that differ by this share of their size are the same to a network."""
USED = ("preset", "similarity", "flow", "solve")
"""Settings of a training with which its metric registers, where nothing else is said."""


@dataclass(frozen=True, eq=False)
class MetricFile:
    """A learned metric and the facts of its training."""

    model: LearnedMetric
    length_mm: float
    """The reference length it was trained with."""
    voxel_mm: tuple[float, ...]
    """Voxel size of the maps it was trained on."""
    unit_cube: bool = False
    intensity: tuple[float, ...] = ()
    """The average quantile function that images are matched to; empty: each image by its own range."""
    summary: dict[str, Any] = field(default_factory=dict)
    """What it was trained on and with, and how that went."""
    licence: str = "Apache-2.0"
    used: dict[str, Any] = field(default_factory=dict)
    """The USED settings with which it registers: those of its training, unless better ones were found since."""
    template: Tensor | None = None
    """The mean of the images it was trained on, (1, 1, *S) in [0, 1], coarse: for pictures."""
    template_mm: tuple[float, ...] = ()
    """Its voxel size, the spacing of its grid in reference lengths times `length_mm`."""
    template_affine: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """From its indices to RAS millimetres."""

    def sees(self, grid: Grid, map_grid: Grid) -> Grid:
        """The grid on which the network looks at an image on `grid`: its points are as far apart as in the training.

        That is the map's own grid where it nearly fits. No axis gets more points than the image has.
        """
        wanted = [size / self.length_mm for size in self.voxel_mm]
        if all(abs(math.log(h / w)) < NEARLY for h, w in zip(map_grid.spacing, wanted, strict=True)):
            return map_grid
        counts = [round(e / w) + 1 for e, w in zip(grid.extent, wanted, strict=True)]
        return grid.with_shape(tuple(max(2, min(n, k)) for n, k in zip(grid.shape, counts, strict=True)))


def used_of(settings: Settings) -> dict[str, Any]:
    """What a metric file keeps of the settings of its training."""
    return settings.model_dump(include=set(USED), mode="json")


def shipped_names() -> list[str]:
    """Metrics that may be called by name."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def metric_path(name: str | Path) -> Path:
    """The file of a metric: one that comes with the package, by its name, or any other, by its path."""
    if str(name) in shipped_names():
        return SHIPPED / f"{name}.safetensors"
    if isinstance(name, Path) and not name.is_file():
        raise MetregError(f"metric: no such file: {name}")
    if not Path(name).is_file():
        raise MetregError(f"metric: unknown '{name}'; use {', '.join(['global', *shipped_names()])} or a metric file")
    return Path(name)


def file_of_intensity(intensity: str) -> Path | None:
    """The metric file that the setting `intensity` names, if it names one."""
    if intensity in (AS_TRAINED, OWN_RANGE):
        return None
    if intensity not in shipped_names() and not Path(intensity).is_file():
        known = ", ".join([AS_TRAINED, OWN_RANGE, *shipped_names()])
        raise MetregError(f"intensity: unknown '{intensity}'; use {known} or a metric file")
    return metric_path(intensity)


def standard_of(intensity: str, usual: Sequence[float]) -> tuple[float, ...]:
    """The quantile function that the setting `intensity` asks for, `usual` if none in particular. Empty: own ranges."""
    path = file_of_intensity(intensity)
    if path is not None:
        return load_metric(path).intensity
    return tuple(usual) if intensity == AS_TRAINED else ()


def save_metric(path: Path, metric: MetricFile) -> None:
    model = metric.model
    about = {
        "dim": model.dim,
        "metric": model.metric.model_dump(),
        "learned": model.learned.model_dump(),
        "length_mm": metric.length_mm,
        "voxel_mm": metric.voxel_mm,
        "unit_cube": metric.unit_cube,
        "intensity": metric.intensity,
        "summary": metric.summary,
        "licence": metric.licence,
        "used": metric.used,
        "template_mm": metric.template_mm,
        "template_affine": metric.template_affine.tolist(),
    }
    tensors = dict(model.network.state_dict())
    if metric.template is not None:
        tensors[TEMPLATE] = (metric.template * 255).round().to(torch.uint8)
    write_tensors(path, tensors, form=FORMAT, header={"about": json.dumps(about)})


def load_metric(name: str | Path) -> MetricFile:
    """The metric of a file, ready for use: in evaluation mode, on the CPU.

    Args:
        name: A file that `metreg train` wrote, or the name of a metric that comes with the package.

    Returns:
        The network and all that gives it a meaning: kernel, reference length, intensities, licence.

    Raises:
        MetregError: There is no such file, or it is damaged or not a metric.

    Example:
        >>> import metreg
        >>> metreg.load_metric("brain-t1").length_mm
        200.0
    """
    path = metric_path(name)
    tensors, header = read_tensors(path, form=FORMAT, role="metric")
    try:
        about = json.loads(header["about"])
        metric, learned = MetricSettings.model_validate(about["metric"]), LearnedSettings.model_validate(about["learned"])
        model = LearnedMetric(about["dim"], metric, learned)
        template = tensors.pop(TEMPLATE, None)
        model.network.load_state_dict(tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        raise MetregError(f"metric: its header and its tensors do not fit ({str(error).splitlines()[0]}): {path}") from None
    model.eval().requires_grad_(False)
    if not all(torch.isfinite(tensor.float()).all() for tensor in tensors.values()):
        raise MetregError(f"metric: its weights are not finite: {path}")
    return MetricFile(
        model,
        length_mm=about["length_mm"],
        voxel_mm=tuple(about["voxel_mm"]),
        unit_cube=about["unit_cube"],
        intensity=tuple(about["intensity"]),
        summary=about["summary"],
        licence=about["licence"],
        used=about.get("used", {}),
        template=None if template is None else template.float() / 255,
        template_mm=tuple(about.get("template_mm", ())),
        template_affine=np.array(about.get("template_affine") or np.zeros((0, 0)), dtype=float),
    )
