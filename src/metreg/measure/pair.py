"""What is measured of one pair under one transform, whatever tool it came from."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from metreg.core.grid import Array
from metreg.errors import MetregError
from metreg.io.image import Image
from metreg.io.images import count_inside, match_planes, read_image, read_labels_on, read_mask
from metreg.io.points import Frame, read_points
from metreg.io.tables import PairFiles
from metreg.io.transforms import Transform
from metreg.measure.overlap import Overlap, common_labels, overlap
from metreg.measure.regularity import check_written, determinants, jacobian_facts, round_trip
from metreg.prepare.intensity import BACKGROUND

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Case:
    """A pair of images and what is known of it."""

    moving: Image
    fixed: Image
    moving_labels: Image | None
    fixed_labels: Image | None
    inside: Array
    """The voxels of the fixed image (*S) that are measured: its mask, or all that is not background."""
    landmarks: tuple[Array, Array] | None
    """Points (P, D) of the moving image and the same ones of the fixed image, RAS millimetres."""


def open_case(files: PairFiles, frame: Frame | None = None) -> Case:
    fixed = read_image(files.fixed, "fixed image")
    moving = match_planes(read_image(files.moving, "moving image"), fixed)
    seen = fixed.scaled > BACKGROUND
    if files.fixed_mask is not None:
        seen = read_mask(files.fixed_mask, fixed, "fixed mask").values > 0
    labels = [
        None if path is None else read_labels_on(path, image, role)
        for path, image, role in (
            (files.moving_labels, moving, "moving labels"),
            (files.fixed_labels, fixed, "fixed labels"),
        )
    ]
    return Case(moving, fixed, labels[0], labels[1], seen, read_landmarks(files, frame, moving, fixed))


def read_landmarks(files: PairFiles, frame: Frame | None, moving: Image, fixed: Image) -> tuple[Array, Array] | None:
    """Points (P, D) of the moving and of the fixed image. Those that lie elsewhere are refused: their frame is another."""
    if files.moving_points is None or files.fixed_points is None:
        return None
    if frame is None:
        raise MetregError("--frame: say whether the landmarks are in ras or lps millimetres")
    in_moving = read_points(files.moving_points, frame, moving.dim)[0]
    in_fixed = read_points(files.fixed_points, frame, fixed.dim)[0]
    if len(in_moving) != len(in_fixed):
        raise MetregError(f"landmarks: {len(in_moving)} in {files.moving_points}, {len(in_fixed)} in {files.fixed_points}")
    for points, path, image in ((in_moving, files.moving_points, moving), (in_fixed, files.fixed_points, fixed)):
        outside = len(points) - count_inside(image, points)
        said = f"landmarks: {outside} of {len(points)} points of {path} lie outside {image.name}; is --frame {frame} right?"
        if outside == len(points):
            raise MetregError(said)
        if outside:
            log.warning(said)
    return in_moving, in_fixed


def measure(case: Case, transform: Transform, inverse: Transform | None = None) -> tuple[dict[str, Any], Overlap | None]:
    """One row of facts, in millimetres where they have a length, and the overlap label by label."""
    folds, smallest, certified = check_written(transform)
    det = determinants(transform, case.fixed, case.moving)[case.inside]
    row: dict[str, Any] = {"folds": folds, "certified": certified, "smallest": smallest if np.isfinite(smallest) else 1.0}
    row |= {f"jacobian_{name}": value for name, value in jacobian_facts(det).items()}
    if inverse is not None:
        error = round_trip(transform, inverse, case.fixed, case.inside)
        row |= {"inverse_mean_mm": float(error.mean()), "inverse_max_mm": float(error.max())}
    if case.landmarks is not None:
        moving, fixed = case.landmarks
        row["landmarks_mm"] = float(np.linalg.norm(transform.apply(fixed) - moving, axis=1).mean())
    if case.moving_labels is None or case.fixed_labels is None:
        return row, None
    labels = common_labels(case.moving_labels.values, case.fixed_labels.values)
    warped = transform.resample(case.moving_labels, case.fixed, mode="nearest")
    found = overlap(warped, case.fixed_labels.values, labels)
    return {"labels": len(labels), **found.means(), **row}, found
