"""Apply a transform file to an image, to labels or to points."""

from __future__ import annotations

import logging
from pathlib import Path

from metreg.errors import MetregError
from metreg.io.atomic import check_output, whole_file
from metreg.io.image import Image
from metreg.io.images import check_overlap, read_labels, read_reference, write_image
from metreg.io.points import Frame, read_points, write_points
from metreg.io.transforms import Transform, read_transform
from metreg.prepare.intensity import fill_value
from metreg.result.momentum import read_momentum

log = logging.getLogger(__name__)


def apply_to_image(
    transform: Path,
    image: Path,
    reference: Path,
    out: Path,
    *,
    labels: bool = False,
    fill: float | None = None,
    overwrite: bool = False,
) -> None:
    """The image on the grid of the reference, as a NIfTI file. Outside it is `fill`, by default its background."""
    if not out.name.endswith((".nii", ".nii.gz")):
        raise MetregError(f"output: wanted a name ending in .nii or .nii.gz, got {out}")
    if labels and fill is not None:
        raise MetregError("fill: labels are 0 outside their image; leave it out, or leave out --labels")
    check_output(out, overwrite=overwrite, folder=False)
    moving = read_labels(image) if labels else read_reference(image, "image")
    fixed = read_reference(reference)
    there = load_transform(transform)
    check_dimensions(there, transform, moving, fixed)
    check_reach(there, moving, fixed)
    if labels:
        values = there.resample(moving, fixed, mode="nearest")
    else:
        values = there.resample(moving, fixed, fill=fill_value(moving.values, fill))
    with whole_file(out, overwrite=overwrite) as path:
        write_image(path, values, fixed)


def check_dimensions(there: Transform, path: Path, moving: Image, fixed: Image) -> None:
    """Refuse a transform of another number of dimensions than the images."""
    file_dim = 3 if fixed.plane is not None and moving.plane is not None else fixed.dim
    if moving.dim != fixed.dim or there.dim not in (fixed.dim, file_dim):
        raise MetregError(
            f"transform is {there.dim}-D, image {moving.dim}-D, reference {fixed.dim}-D; wanted the same: {path}"
        )


def check_reach(there: Transform, moving: Image, fixed: Image) -> None:
    """Refuse a transform that brings no voxel of the fixed image onto the moving one."""
    check_overlap(
        moving,
        fixed,
        lambda voxels: there.at_voxels(voxels, moving),
        role="image",
        hint="is it the image this transform is for, and the right one of the two transforms?",
    )


def apply_to_points(transform: Path, points: Path, out: Path, *, frame: Frame, overwrite: bool = False) -> None:
    """The table with its points transformed, in the frame in which they came."""
    check_output(out, overwrite=overwrite, folder=False)
    there = load_transform(transform)
    x, header, rows = read_points(points, frame, there.dim)
    far = int(there.far_outside(x).sum())
    if far:
        log.warning(
            "points: %d of %d lie far outside the field of the transform, so they are moved by its affine part alone; "
            "are they in millimetres, in %s, and of the right image? %s",
            *(far, len(x), frame.upper(), points),
        )
    with whole_file(out, overwrite=overwrite) as path:
        write_points(path, there.apply(x), frame, header, rows)


def load_transform(path: Path) -> Transform:
    """The transform of an ITK file, or of the compact form (then the one that brings moving onto fixed)."""
    return read_momentum(path)[0] if path.suffix == ".safetensors" else read_transform(path)
