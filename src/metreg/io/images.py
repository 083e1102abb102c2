"""Images, masks, labels and weights, checked as they come in; and images written as NIfTI."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from metreg.core.grid import Array, transform_points, voxel_size, world_points
from metreg.errors import MetregError
from metreg.io.formats import open_image
from metreg.io.image import Image

log = logging.getLogger(__name__)
LOOKED_AT = 100_000
"""Voxels, evenly spread, that say how much of one image lies in another."""
LITTLE = 0.1
"""The share of what could overlap below which that is worth a warning."""
SFORM = ("sform_code", "srow_x", "srow_y", "srow_z")
QFORM = ("qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z")
"""Fields of a NIfTI header that say where voxels lie; with the voxel size, `pixdim`."""


def read_image(source: Any, role: str = "image") -> Image:
    """An image from a path, a nibabel image or an (array, affine) pair; its intensities must be finite and not constant."""
    image = open_image(source, role)
    values = np.asarray(image.values, dtype=np.float32)
    if values.size == 0:
        raise MetregError(f"{role}: no voxels: {image.name}")
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise MetregError(f"{role}: {bad} voxels are NaN or infinite; replace them first: {image.name}")
    if values.min() == values.max():
        raise MetregError(f"{role}: no finite intensity range (all {values.min():g}). Is this the right file? {image.name}")
    return image if values is image.values else replace(image, values=values)


def read_reference(source: Any, role: str = "reference") -> Image:
    """An image of which only the grid matters."""
    return open_image(source, role)


def read_labels(source: Any, role: str = "labels") -> Image:
    """A label image: integers, whatever type they are stored in."""
    image = open_image(source, role)
    values = np.asarray(image.values)
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) >= 2**31:
        raise MetregError(f"{role}: wanted integer labels below 2^31, got NaN, infinite or larger values: {image.name}")
    rounded = values.astype(np.int32)
    if values.dtype.kind == "f" and not np.array_equal(rounded, values):
        raise MetregError(f"{role}: wanted integer labels, got values such as {_first_odd(values):g}: {image.name}")
    return replace(image, values=rounded)


def read_labels_on(source: Any, like: Image, role: str) -> Image:
    """Labels that lie voxel on voxel on `like`."""
    labels = read_labels(source, role)
    check_same_grid(labels, like, role)
    return replace(labels, affine=like.affine, plane=like.plane)


def read_mask(source: Any, like: Image, role: str = "mask") -> Image:
    """A mask on the voxels of `like`: one where the file is not zero."""
    mask = open_image(source, role)
    check_same_grid(mask, like, role)
    values = np.nan_to_num(np.asarray(mask.values)) != 0
    if not values.any():
        raise MetregError(f"{role}: empty, no voxel is set: {mask.name}")
    if np.ptp(like.values[values]) == 0:
        raise MetregError(f"{role}: inside it {like.name} is constant; is this the right mask? {mask.name}")
    return replace(mask, values=values.astype(np.float32))


def read_weights(source: Any, like: Image, count: int, role: str = "weights") -> Image:
    """Local weights (*S, N) in the space of `like`, on a grid of their own: N of them, none negative, of sum one."""
    image = open_image(source, role)
    values = np.asarray(image.values, dtype=np.float32)
    if image.dim != like.dim or values.shape[-1] != count:
        raise MetregError(
            f"{role}: wanted {like.dim}-D with {count} weights as last axis, got {values.shape}: {image.name}"
        )
    if not np.isfinite(values).all() or values.min() < 0 or np.abs(values.sum(-1) - 1).max() > 1e-2:
        raise MetregError(f"{role}: wanted numbers of 0 or more whose sum is one at every voxel: {image.name}")
    placed = match_planes(image, like)
    check_overlap(
        placed,
        like,
        lambda voxels: world_points(voxels.shape, voxels.affine),
        role=role,
        hint="they lie in the space of the moving image",
    )
    return replace(image, values=values)


def check_overlap(image: Image, reference: Image, place: Callable[[Image], Array], *, role: str, hint: str) -> None:
    """Refuse an image on which no voxel of the reference comes to lie; warn where only few of those do that could.

    `place` says where the voxels of an image come to lie, the reference or fewer voxels in its place: (P, D), world points.
    """
    looked_at = _thinned(reference)
    inside = count_inside(image, place(looked_at))
    if inside == 0 and looked_at is not reference:  # there may be some between those looked at
        looked_at = reference
        inside = count_inside(image, place(looked_at))
    if inside == 0:
        raise MetregError(f"{role}: no voxel of {reference.name} comes to lie on {image.name}; {hint}")
    share = inside / math.prod(looked_at.shape)
    smaller = min(1.0, _volume(image) / _volume(reference))  # a small image may well lie in a large reference
    if share < LITTLE * smaller:
        few = f"only {100 * share:.2g} % of the voxels of {reference.name} come to lie on {image.name}"
        log.warning("%s: %s; %s", role, few, hint)


def count_inside(image: Image, points: Array) -> int:
    """How many world points lie on the voxels of the image."""
    index = transform_points(np.linalg.inv(image.affine), points)
    return int(((index >= -0.5) & (index <= np.array(image.shape) - 0.5)).all(1).sum())


def _thinned(image: Image) -> Image:
    """A place for fewer voxels over the same image, evenly spread: each in the middle of those it stands for."""
    every = max(1.0, (math.prod(image.shape) / LOOKED_AT) ** (1 / image.dim))
    shape = tuple(math.ceil(n / every) for n in image.shape)
    if shape == image.shape:
        return image
    affine = np.eye(image.dim + 1)
    for axis, (n, fewer) in enumerate(zip(image.shape, shape, strict=True)):
        affine[axis, axis] = n / fewer
        affine[axis, -1] = (n / fewer - 1) / 2
    return replace(image, values=np.broadcast_to(np.uint8(0), shape), affine=image.affine @ affine)


def _volume(image: Image) -> float:
    return abs(float(np.linalg.det(image.affine[:-1, :-1]))) * math.prod(image.shape)


def check_same_grid(image: Image, like: Image, role: str) -> None:
    """Refuse an image that does not lie voxel on voxel on another."""
    if image.shape != like.shape:
        raise MetregError(
            f"{role}: wanted the grid of {like.name}, {like.shape}, got {image.shape}: {image.name}; resample it first"
        )
    gap = float(np.abs(_corners(image) - _corners(like)).max()) if image.dim == like.dim else np.inf
    if gap > 0.05 * voxel_size(like.affine).min():
        raise MetregError(
            f"{role}: lies elsewhere than {like.name}, up to {gap:.3g} mm off: {image.name}; give it the same header"
        )


def _corners(image: Image) -> Array:
    """World positions of the corner voxels; of a slice, in the 3-D world of its file."""
    index = np.array(np.meshgrid(*[(0, n - 1) for n in image.shape])).reshape(image.dim, -1).T.astype(float)
    points = transform_points(image.affine, index)
    return points if image.plane is None else transform_points(image.plane, points)


def match_planes(moving: Image, fixed: Image) -> Image:
    """A single slice with the axes of its 2-D world turned, or mirrored, to those of a slice nearly parallel to it."""
    if moving.plane is None or fixed.plane is None:
        return moving
    left, along, right = np.linalg.svd(moving.plane[:3, :2].T @ fixed.plane[:3, :2])
    if along.min() < 0.7:  # more than 45 degrees apart: each keeps its own
        return moving
    turn = np.eye(3)
    turn[:2, :2] = left @ right
    return replace(moving, affine=turn.T @ moving.affine, plane=moving.plane @ turn)


def write_image(path: Path, values: Array, like: Image) -> None:
    """Values (*S) or (*S, N) on the voxels of `like` as a NIfTI file."""
    import nibabel as nib

    nib.save(to_nibabel(values, like), path)


def to_nibabel(values: Array, like: Image) -> Any:
    """Values (*S) or (*S, N) on the voxels of `like` as a NIfTI image, which lies where its header says, where it has one.

    Nothing else is taken from that header: what it tells of other values and of a person is not true of these.
    """
    import nibabel as nib

    shape, extra = values.shape[: like.dim], values.shape[like.dim :]
    if like.header is not None:
        shape = like.header.get_data_shape()[:3]
    elif like.plane is not None or (extra and like.dim == 2):
        shape = (*shape, 1)
    header = nib.Nifti1Header()
    header.set_data_shape((*shape, *extra))
    header["descrip"] = _maker().encode()
    if like.header is None:
        affine = _file_affine(like)
        header.set_qform(affine, code="aligned")
        header.set_sform(affine, code="aligned")
        header.set_xyzt_units("mm")
    else:
        for name in (*SFORM, *QFORM, "xyzt_units"):
            header[name] = like.header[name]
        header["pixdim"][:4] = like.header["pixdim"][:4]
    # the header's own affine, rounded as it is there: given another one, nibabel would change both forms
    return nib.Nifti1Image(values.reshape(*shape, *extra), header.get_best_affine(), header, dtype=values.dtype)


def _maker() -> str:
    """What is said of where an image comes from."""
    with suppress(PackageNotFoundError):
        return f"metreg {version('metreg')}"
    return "metreg"


def _file_affine(image: Image) -> Array:
    """The 4 x 4 affine of the file that an image without a header would come from."""
    affine = np.eye(4)
    if image.plane is not None:
        affine[:, (0, 1, 3)] = image.plane @ image.affine
        affine[:3, 2] = np.cross(*image.plane[:3, :2].T)
    elif image.dim == 2:
        affine[np.ix_((0, 1, 3), (0, 1, 3))] = image.affine
    else:
        affine = image.affine
    return affine


def _first_odd(values: Array) -> float:
    return float(values[np.rint(values) != values].flat[0])
