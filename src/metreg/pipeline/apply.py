"""Apply a transform file to an image, to labels or to points."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from metreg.errors import MetregError
from metreg.io.atomic import atomic_file, check_output
from metreg.io.image import Image
from metreg.io.images import check_overlap, read_labels, read_reference, to_nibabel, write_image
from metreg.io.points import Frame, read_points, write_points
from metreg.io.transforms import Transform, read_transform
from metreg.prepare.intensity import fill_value
from metreg.result.momentum import read_momentum

log = logging.getLogger(__name__)


def apply(
    transform: Transform | str | Path,
    image: Any,
    reference: Any,
    *,
    labels: bool = False,
    fill: float | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> Any:
    """Bring an image, or labels, onto the grid of a reference. Points are taken by `Transform.apply`.

    Args:
        transform: A transform, or the file of one: ITK's, or `momentum.safetensors`.
        image: What is brought: a path, a nibabel image, or an array and its affine.
        reference: Whose grid it comes onto, given likewise.
        labels: Whether the image holds labels: the nearest one is taken then.
        fill: What lies outside the image; by default its background, 0 for labels.
        out: A NIfTI file to write.
        overwrite: Whether to replace that file.

    Returns:
        A nibabel image.

    Raises:
        MetregError: Something that was given is wrong, or the transform brings the image elsewhere.

    Example:
        >>> import metreg
        >>> import numpy as np
        >>> from metreg.io.transforms import Affine
        >>> image = np.arange(60.0).reshape(10, 6), np.eye(3)
        >>> identity = metreg.Transform((Affine(np.eye(3)),))
        >>> bool(np.allclose(metreg.apply(identity, image, image).get_fdata().squeeze(), image[0]))
        True
    """
    out = None if out is None else Path(out)
    if out is not None:
        if not out.name.endswith((".nii", ".nii.gz")):
            raise MetregError(f"output: wanted a name ending in .nii or .nii.gz, got {out}")
        check_output(out, overwrite=overwrite, folder=False)
    if labels and fill is not None:
        raise MetregError("fill: labels are 0 outside their image; leave it out, or leave out --labels")
    moving = read_labels(image) if labels else read_reference(image, "image")
    fixed = read_reference(reference)
    there = transform if isinstance(transform, Transform) else load_transform(Path(transform))
    check_dimensions(there, "as given" if isinstance(transform, Transform) else transform, moving, fixed)
    check_reach(there, moving, fixed)
    if labels:
        values = there.resample(moving, fixed, mode="nearest")
    else:
        values = there.resample(moving, fixed, fill=fill_value(moving.values, fill))
    if out is not None:
        with atomic_file(out, overwrite=overwrite) as path:
            write_image(path, values, fixed)
    return to_nibabel(values, fixed)


def check_dimensions(there: Transform, path: str | Path, moving: Image, fixed: Image) -> None:
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
    with atomic_file(out, overwrite=overwrite) as path:
        write_points(path, there.apply(x), frame, header, rows)


def load_transform(path: Path) -> Transform:
    """The transform of an ITK file, or of the compact form (then the one that brings moving onto fixed)."""
    return read_momentum(path)[0] if path.suffix == ".safetensors" else read_transform(path)
