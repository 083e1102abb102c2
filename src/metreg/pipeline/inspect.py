"""What a metric says, and what a result says: the facts behind `metreg inspect`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metreg.core.grid import Array, Grid
from metreg.core.resample import downsample, upsample
from metreg.errors import MetregError
from metreg.io.image import standardise
from metreg.io.images import read_image
from metreg.measure.regions import Region
from metreg.metric.store import MetricFile, load_metric, metric_path, shipped_names
from metreg.prepare.intensity import BACKGROUND
from metreg.prepare.pair import bring, domain_of
from metreg.report.pair import region_table
from metreg.report.planes import Plane, cuts, middle_of
from metreg.report.tables import Table
from metreg.settings.model import make_settings
from metreg.solve.pyramid import map_grid_of

CLASSES = ("background", "dark", "middle", "bright")
"""By intensity: what shows nothing, and thirds of the intensities of the rest. In a T1 brain: fluid, grey, white."""


@dataclass(frozen=True, eq=False)
class MetricView:
    """A metric over one image: facts, also by tissue class, and pictures; without an image there are none."""

    facts: dict[str, Any]
    planes: tuple[Plane, ...]


def inspect(what: str | Path, image: str | Path | None = None) -> dict[str, Any]:
    """What a metric has learned, or what a registration gave.

    Args:
        what: A metric, by its name or its file, or a folder that a registration was saved to.
        image: The image over which a metric is asked; by default the mean of those it was trained on.

    Returns:
        Facts, as `metreg inspect --json` prints them.

    Raises:
        MetregError: It is neither a metric nor such a folder.

    Example:
        >>> import metreg
        >>> metreg.inspect("brain-t1")["parameters"]
        12548
    """
    if Path(what).is_dir():
        if image is not None:
            raise MetregError(f"image: it is for metrics, and {what} is a folder; leave it out")
        return inspect_result(Path(what))
    if not Path(what).exists() and str(what) not in shipped_names():
        raise MetregError(f"inspect: no such file or folder: {what}; wanted a metric file or a folder that register wrote")
    return inspect_metric(what, None if image is None else Path(image)).facts


def inspect_metric(name: str | Path, image: Path | None = None) -> MetricView:
    """What a metric has learned, over an image, or over the mean of those it was trained on."""
    metric = load_metric(metric_path(name))
    length, sigma = metric.length_mm, metric.model.metric.sigma
    facts: dict[str, Any] = {
        "metric": str(name),
        "dim": metric.model.dim,
        "parameters": sum(p.numel() for p in metric.model.network.parameters()),
        "length_mm": length,
        "voxel_mm": metric.voxel_mm,
        "licence": metric.licence,
        "gaussians": {"sigma_mm": [s * length for s in sigma], "set_point": metric.model.get_buffer("set_point").tolist()},
        "learned": metric.model.learned.model_dump(),
        "training": metric.summary,
    }
    shown = _image_of(metric, image)
    if shown is None:
        return MetricView(facts, ())
    f, grid, place = shown
    m = torch.zeros(1, grid.dim, *grid.shape) if metric.model.network.momentum_input else None
    with torch.no_grad():
        w = metric.model.weights(f, grid, m).w[0].numpy()
    widths = np.array(sigma) * length
    spread = np.sqrt(np.tensordot(widths**2, w, 1))
    facts["over"] = str(image) if image is not None else "the mean of the training images"
    facts["classes"] = tissue_classes(f[0, 0].numpy(), spread, w)
    facts["sigma_mm"] = {"least": float(spread.min()), "mean": float(spread.mean()), "greatest": float(spread.max())}
    return MetricView(facts, _planes(f[0, 0].numpy(), spread, w, grid, place))


def _image_of(metric: MetricFile, image: Path | None) -> tuple[torch.Tensor, Grid, Array | None] | None:
    """An image (1, 1, *S) as the network sees it, its grid, and the plane of a slice; None where there is no image."""
    if image is not None:
        read = read_image(image)
        if read.dim != metric.model.dim:
            raise MetregError(f"image: wanted {metric.model.dim}-D, as the metric is, got {read.dim}-D: {image}")
        settings = make_settings().model_copy(
            update={"metric": metric.model.metric, "length_mm": metric.length_mm, "unit_cube": metric.unit_cube}
        )
        domain = domain_of(read, settings)
        f, _ = bring(read, None, np.eye(read.dim + 1), domain, torch.device("cpu"), metric.intensity)
        grid = metric.sees(domain, map_grid_of(domain, settings.flow.map_factor))
        return downsample(f, grid), grid, read.plane
    if metric.template is None:
        return None
    spacing = tuple(size / metric.length_mm for size in metric.template_mm)
    coarse = Grid(tuple(metric.template.shape[2:]), spacing, metric.length_mm, metric.template_affine)
    size = [size / metric.length_mm for size in metric.voxel_mm]
    grid = coarse.with_shape(tuple(round(e / h) + 1 for e, h in zip(coarse.extent, size, strict=True)))
    return upsample(metric.template, grid), grid, None


def tissue_classes(f: Array, sigma: Array, w: Array) -> list[dict[str, Any]]:
    """Mean sigma and weights where the image is background, dark, middle and bright.  f, sigma (*S), w (N, *S)."""
    seen = standardise(f)
    shown = seen > BACKGROUND
    limits = np.quantile(seen[shown], (1 / 3, 2 / 3)) if shown.any() else np.zeros(2)
    number = np.where(shown, 1 + np.digitize(seen, limits), 0)
    found = []
    for i, name in enumerate(CLASSES):
        here = number == i
        if here.any():
            weights = w[:, here].mean(1).tolist()
            means = {"share": float(here.mean()), "sigma_mm": float(sigma[here].mean())}
            found.append({"class": name, **means, "weights": weights})
    return found


def _planes(f: Array, sigma: Array, w: Array, grid: Grid, place: Array | None) -> tuple[Plane, ...]:
    size = np.array(grid.spacing) * grid.length_mm
    shown = f > BACKGROUND
    found = cuts(grid.shape, grid.affine, at=middle_of(shown), plane=place, lost=grid.dim == 2 and place is None)
    return tuple(
        Plane(
            cut,
            (float(size[cut.axes[0]]), float(size[cut.axes[1]])),
            fixed=cut.take(f),
            before=cut.take(f),
            after=cut.take(f),
            jacobian=np.ones_like(cut.take(f)),
            positions=cut.pixels(cut.voxels()),
            sigma=cut.take(sigma),
            weights=cut.take(w),
        ).around(cut.take(shown))
        for cut in found
    )


def inspect_result(folder: Path) -> dict[str, Any]:
    """What `result.json` of a registration says."""
    try:
        facts: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise MetregError(f"inspect: wanted a metric file or a folder that register wrote, got {folder}") from None
    return facts


def result_tables(facts: dict[str, Any]) -> list[Table]:
    """The numbers of a report: overlap by label, worst first, and regularity by region."""
    found = []
    if "overlap_by_label" in facts:
        rows = sorted(facts["overlap_by_label"], key=lambda row: row["target_overlap_after"])
        keys = ("target_overlap_before", "target_overlap_after")
        lines = [(str(row["label"]), row["name"], *[f"{row[key]:.3f}" for key in keys]) for row in rows]
        found.append(Table("Target overlap", ("label", "name", "before", "after"), lines))
    if facts.get("regions"):
        found.append(region_table([Region(**row) for row in facts["regions"]], "Regularity by region"))
    return found
