"""The folder that a registration leaves: what is written, in which order, and what `result.json` says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metreg.io.images import write_image
from metreg.io.transforms import write_transform
from metreg.result.momentum import write_momentum

if TYPE_CHECKING:
    from metreg.result.result import Result

log = logging.getLogger(__name__)

NAMES = frozenset(
    [
        "warped.nii.gz",
        "warped_labels.nii.gz",
        "moving_to_fixed.h5",
        "fixed_to_moving.h5",
        "moving_affine.nii.gz",
        "sigma.nii.gz",
        "weights.nii.gz",
        "jacobian.nii.gz",
        "momentum.safetensors",
        "result.json",
        "settings.toml",
        "report.html",
    ]
)
"""Every file that may be written."""
MEASURED = ("overlaps", "viewer", "regions", "inverse_facts", "planes", "certificate")
"""Properties of a result that take a while, and can be found side by side."""
PERCENTILES = {"min": 0, "p1": 1, "p5": 5, "p50": 50, "p95": 95, "p99": 99, "max": 100}


def import_writers() -> None:
    """Import all that writing wants, in one thread: two threads that import one package may see half of it.

    Where the figures cannot be imported, what draws them fails later, and is left out.
    """
    import_module("nibabel")
    import_module("h5py")
    with suppress(Exception):
        import_module("metreg.report.pair")
        import_module("matplotlib.image")
        import_module("PIL.Image").init()


def write_files(result: Result, out: Path) -> None:
    """Transforms and images must be written. What fails while measuring or drawing is left out, with a warning."""
    import nibabel as nib

    import_writers()
    planes = {"fixed": result.fixed.plane, "moving": result.moving.plane}
    place = result.place_on(result.registration.grid)
    with ThreadPoolExecutor() as pool:
        needed = [
            pool.submit(nib.save, result.warped, out / "warped.nii.gz"),
            pool.submit(write_image, out / "moving_affine.nii.gz", result.aligned[0], result.fixed),
            pool.submit(write_transform, out / "moving_to_fixed.h5", result.transform),
            pool.submit(write_transform, out / "fixed_to_moving.h5", result.inverse),
            pool.submit(nib.save, result.sigma, out / "sigma.nii.gz"),
            pool.submit(write_image, out / "weights.nii.gz", np.moveaxis(result.weights, 0, -1), place),
        ]
        if result.warped_labels is not None:
            needed.append(pool.submit(nib.save, result.warped_labels, out / "warped_labels.nii.gz"))
        write_momentum(out / "momentum.safetensors", result.registration, result.affine, result.settings, planes)
        (out / "settings.toml").write_text(result.settings.to_toml(), encoding="utf-8")
        with _left_out_if_it_fails("jacobian.nii.gz"):
            needed.append(pool.submit(write_image, out / "jacobian.nii.gz", result.jacobian, result.fixed))
        for work in [pool.submit(getattr, result, name) for name in MEASURED]:
            work.exception()  # the summary says what failed
        summary = result.summary
        for part, reason in summary.get("not_measured", {}).items():
            log.warning("%s: not measured (%s); transforms and images are written", part, reason)
        (out / "result.json").write_text(json.dumps(summary, indent=2), encoding="utf-8")
        with _left_out_if_it_fails("report.html"):
            (out / "report.html").write_text(result.report(), encoding="utf-8")
        for file in needed:
            file.result()


@contextmanager
def _left_out_if_it_fails(name: str) -> Iterator[None]:
    """Warn and go on, whatever happens to a part without which a result is still of use."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        log.warning("%s: left out, as it failed (%s); transforms and images are written", name, reason)


def summarise(result: Result) -> dict[str, Any]:
    """What `result.json` holds. What cannot be measured is named under `not_measured`, with the reason."""
    registration = result.registration
    summary: dict[str, Any] = {
        "moving": result.moving.name,
        "fixed": result.fixed.name,
        "metric": result.metric,
        "metric_licence": result.metric_licence,
        "gaussians": _gaussians(result),
        "energy": {**registration.energy, "total": sum(registration.energy.values())},
        "affine": result.affine.tolist(),
        "fill": result.fill,
        "seed": result.settings.seed,
        **result.facts,
        "configuration": result.settings.model_dump(),
        "history": [{"level": r.level, "iteration": r.iteration, **r.terms} for r in registration.history],
    }
    measures: dict[str, Callable[[Result], dict[str, Any]]] = {
        "before_repair": _before_repair,
        "folds": _folds,
        "inverse": _inverse,
        "jacobian": _jacobian,
        "overlap": _overlap,
        "regions": _regions,
    }
    failed = {}
    for name, measure in measures.items():
        try:
            summary |= measure(result)
        except Exception as error:  # whatever it is, the transforms must not be lost
            failed[name] = f"{type(error).__name__}: {error}"
    if failed:
        summary["not_measured"] = failed
    return summary


def _gaussians(result: Result) -> dict[str, Any]:
    length = result.registration.grid.length_mm
    mean = result.weights.reshape(len(result.weights), -1).mean(1)
    return {"sigma_mm": [sigma * length for sigma in result.settings.metric.sigma], "mean_weights": mean.tolist()}


def _folds(result: Result) -> dict[str, Any]:
    """Of the map as it is written."""
    certificate = {**asdict(result.certificate), "holds": result.certificate.holds}
    return {"folds": result.folds, "certificate": certificate}


def _before_repair(result: Result) -> dict[str, Any]:
    return {"before_repair": result.before_repair}


def _inverse(result: Result) -> dict[str, Any]:
    return {"inverse": result.inverse_facts}


def _jacobian(result: Result) -> dict[str, Any]:
    values = np.percentile(result.brain_jacobian, list(PERCENTILES.values()))
    return {"jacobian": dict(zip(PERCENTILES, values.tolist(), strict=True))}


def _overlap(result: Result) -> dict[str, Any]:
    """Before (affine) and after, where labels of both images came."""
    if not result.overlaps:
        return {}
    before = result.overlaps["before"]
    after = result.overlaps["after"]
    rows = [
        {
            "label": label,
            "name": result.label_names.get(label, ""),
            "target_overlap_before": before.target_overlap[i],
            "target_overlap_after": after.target_overlap[i],
            "dice_before": before.dice[i],
            "dice_after": after.dice[i],
        }
        for i, label in enumerate(after.labels)
    ]
    return {"overlap": {"before": before.means(), "after": after.means()}, "overlap_by_label": rows}


def _regions(result: Result) -> dict[str, Any]:
    """Regularity by label of the moving image, where its labels came."""
    if not result.regions:
        return {}
    return {"regions": [asdict(region) for region in result.regions]}
