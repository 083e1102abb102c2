"""Our files, read by SimpleITK, give our points and our images."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import SimpleITK as sitk

from conftest import centred, picture
from metreg.errors import MetregError
from metreg.io.image import Image
from metreg.io.images import read_image, write_image
from metreg.io.transforms import Affine, Field, Transform, read_transform, write_transform

FLIP = np.diag([-1.0, -1.0, 1.0])


def some_transform(dim: int) -> Transform:
    """A smooth field that is zero at its border, then an affine, in a rotated, flipped and anisotropic frame."""
    rng = np.random.default_rng(0)
    shape = (11, 12, 13)[:dim]
    matrix = np.linalg.qr(rng.normal(size=(dim, dim)))[0] * np.array([4.0, 5.0, 6.0])[:dim]
    t = np.meshgrid(*[np.sin(np.linspace(0, np.pi, n)) ** 2 for n in shape], indexing="ij")
    u = np.stack([3 * (d + 1) * np.prod(t, axis=0) for d in range(dim)]).astype(np.float32)
    affine = np.eye(dim + 1)
    affine[:dim] += 0.05 * rng.normal(size=(dim, dim + 1))
    affine[:dim, dim] *= 100
    return Transform((Field(u, centred(matrix, shape)), Affine(affine)))


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("order", ["field first", "affine first"])
def test_simpleitk_reads_our_files_and_takes_points_where_we_do(order: str, dim: int, tmp_path: Path) -> None:
    transform = some_transform(dim)
    if order == "affine first":
        transform = Transform(transform.parts[::-1])
    write_transform(tmp_path / "t.h5", transform)
    theirs = sitk.ReadTransform(str(tmp_path / "t.h5"))
    points = np.random.default_rng(1).uniform(-40, 40, size=(200, dim))  # some outside the field
    flip = FLIP[:dim, :dim]
    expected = np.array([theirs.TransformPoint((flip @ p).tolist()) for p in points]) @ flip
    np.testing.assert_allclose(transform.apply(points), expected, atol=1e-4)
    np.testing.assert_allclose(read_transform(tmp_path / "t.h5").apply(points), expected, atol=1e-4)


def test_fields_are_stored_in_float32_and_compressed(tmp_path: Path) -> None:
    write_transform(tmp_path / "t.h5", some_transform(3))
    with h5py.File(tmp_path / "t.h5") as file:
        field = file["TransformGroup/2/TransformParameters"]
        assert field.dtype == np.float32 or file["TransformGroup/1/TransformParameters"].size > 100
        assert file["TransformGroup/0/TransformType"][0] == b"CompositeTransform_double_3_3"
        assert field.compression == "gzip"


@pytest.mark.parametrize("dim", [2, 3])
def test_simpleitk_resamples_as_we_do(dim: int, tmp_path: Path) -> None:
    transform = some_transform(dim)
    shapes = (20, 22, 24)[:dim], (26, 25, 23)[:dim]
    affines = centred(np.diag([3.0, -3.5, 4.0][:dim]), shapes[0]), centred(np.diag([-3.0, 3.0, 3.5][:dim]), shapes[1])
    images = []
    for name, shape, affine in zip(("moving", "fixed"), shapes, affines, strict=True):
        write_image(tmp_path / f"{name}.nii.gz", picture(shape, affine), Image(np.empty(shape), affine))
        images.append(read_image(tmp_path / f"{name}.nii.gz"))
    write_transform(tmp_path / "t.h5", transform)
    moving, fixed = (sitk.ReadImage(str(tmp_path / f"{name}.nii.gz")) for name in ("moving", "fixed"))
    theirs = sitk.GetArrayFromImage(
        sitk.Resample(moving, fixed, sitk.ReadTransform(str(tmp_path / "t.h5")), sitk.sitkLinear, 0.0)
    ).T
    ours = transform.resample(*images)
    assert ours.max() > 500
    differing = np.abs(ours - theirs) > 1  # out of 1000; where the edge of the image falls, either may be right
    assert differing.mean() < 1e-3


def test_other_tools_files(tmp_path: Path) -> None:
    euler = sitk.Euler3DTransform((1.0, 2.0, 3.0), 0.1, 0.2, 0.3, (4.0, 5.0, 6.0))
    sitk.WriteTransform(euler, str(tmp_path / "euler.tfm"))
    p = np.array([[7.0, 8.0, 9.0]])
    expected = np.array([euler.TransformPoint((-7.0, -8.0, 9.0))]) @ FLIP
    np.testing.assert_allclose(read_transform(tmp_path / "euler.tfm").apply(p), expected, atol=1e-6)
    spline = sitk.BSplineTransformInitializer(sitk.Image(10, 10, 10, sitk.sitkFloat32), [2, 2, 2])
    sitk.WriteTransform(spline, str(tmp_path / "spline.tfm"))
    with pytest.raises(MetregError, match="BSplineTransform cannot be read"):
        read_transform(tmp_path / "spline.tfm")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(MetregError, match="not an ITK transform file, or damaged"):
        read_transform(tmp_path / "text.h5")
    with pytest.raises(MetregError, match="no such file"):
        read_transform(tmp_path / "none.h5")


def test_a_transform_between_slices_of_3d_files_is_3d(tmp_path: Path) -> None:
    """A coronal and an oblique slice: 2-D points through the planes are 3-D points."""
    rng = np.random.default_rng(3)
    planes = []
    for seed, axis in ((0, 1), (1, 2)):
        matrix = np.linalg.qr(np.eye(3) + 0.2 * np.random.default_rng(seed).normal(size=(3, 3)))[0]
        affine = centred(matrix * 2, (30, 30, 30))
        shape = tuple(1 if d == axis else 30 for d in range(3))
        planes.append(read_image((rng.random(shape), affine)))
    fixed, moving = planes
    flat = some_transform(2)
    solid = flat.between_planes(fixed.plane, moving.plane)
    points = rng.uniform(-20, 20, size=(50, 2))
    lift = lambda image, x: x @ image.plane[:3, :2].T + image.plane[:3, 2]  # noqa: E731
    np.testing.assert_allclose(solid.apply(lift(fixed, points)), lift(moving, flat.apply(points)), atol=1e-4)
    np.testing.assert_allclose(solid.resample(moving, fixed), flat.resample(moving, fixed), atol=1e-3)
    write_transform(tmp_path / "t.h5", solid)
    theirs = sitk.ReadTransform(str(tmp_path / "t.h5"))
    point = lift(fixed, points)[0]
    np.testing.assert_allclose(
        np.array(theirs.TransformPoint((FLIP @ point).tolist())) @ FLIP, solid.apply(point[None])[0], atol=1e-4
    )


def test_points_of_the_wrong_dimension_are_refused() -> None:
    with pytest.raises(MetregError, match=r"wanted shape \(P, 3\), got \(4, 2\)"):
        some_transform(3).apply(np.zeros((4, 2)))


def test_the_identity_changes_nothing() -> None:
    values = (1000 * np.random.default_rng(0).random((61, 47, 53))).astype(np.float32)
    image = Image(values, np.array([[0.9, 0.1, 0, 3], [-0.1, 0.9, 0, 7.3], [0, 0, 1.1, -5], [0, 0, 0, 1]]))
    np.testing.assert_allclose(Transform((Affine(np.eye(4)),)).resample(image, image), values, rtol=1e-6)


@pytest.mark.parametrize("fill", [0.0, -1024.0, 37.5])
@pytest.mark.parametrize("dim", [2, 3])
def test_outside_the_image_is_the_default_value_of_simpleitk(dim: int, fill: float) -> None:
    shape = (14, 15, 13)[:dim]
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    image = Image(values, np.eye(dim + 1))
    reference = Image(np.empty((30, 31, 29)[:dim]), centred(np.diag([0.9, 1.1, 1.3][:dim]), (30, 31, 29)[:dim]))
    ours = Transform((Affine(np.eye(dim + 1)),)).resample(image, reference, fill=fill)

    grid = sitk.Image([31 if d == 1 else 30 - d // 2 for d in range(dim)], sitk.sitkFloat32)
    grid.SetSpacing([0.9, 1.1, 1.3][:dim])
    grid.SetOrigin(reference.affine[:dim, dim].tolist())
    theirs = sitk.Resample(sitk.GetImageFromArray(values.T), grid, sitk.Transform(), sitk.sitkLinear, fill)
    np.testing.assert_allclose(ours, sitk.GetArrayFromImage(theirs).T, atol=1e-4)
    assert (ours == np.float32(fill)).mean() > 0.5


def test_slices_are_filled_too() -> None:
    flat = Image(np.ones((8, 9)), np.eye(3), plane=np.eye(4)[:, (0, 1, 3)])
    wide = Image(np.empty((12, 13)), np.eye(3), plane=flat.plane)
    values = Transform((Affine(np.eye(4)),)).resample(flat, wide, fill=-5)
    assert (values[:8, :9] == 1).all() and (values[9:] == -5).all() and (values[:, 10:] == -5).all()


@pytest.mark.parametrize("ending", ["mat", "h5"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_matrices_that_are_not_finite_are_refused(number: float, ending: str, tmp_path: Path) -> None:
    for place in (0, 10):  # of the matrix and of the translation
        numbers = [*np.eye(3).ravel().tolist(), 0.0, 0.0, 0.0]
        numbers[place] = number
        affine = sitk.AffineTransform(3)
        affine.SetParameters(numbers)
        sitk.WriteTransform(affine, str(tmp_path / f"a.{ending}"))
        with pytest.raises(MetregError, match="transform: its matrix is not finite"):
            read_transform(tmp_path / f"a.{ending}")


@pytest.mark.parametrize("ending", ["tfm", "txt", "mat", "h5"])
def test_matrices_without_an_inverse_are_refused(ending: str, tmp_path: Path) -> None:
    affine = sitk.AffineTransform(3)
    affine.SetMatrix([1.0, 2, 3, 2, 4, 6, 0, 0, 1])
    sitk.WriteTransform(affine, str(tmp_path / f"a.{ending}"))
    with pytest.raises(MetregError, match="transform: its matrix is singular"):
        read_transform(tmp_path / f"a.{ending}")


@pytest.mark.parametrize("row", ["2 4 6 0", "nan 4 5 0", "2 4 inf 0", "2 4 5"])
def test_matrices_of_mni_that_make_no_sense_are_refused(row: str, tmp_path: Path) -> None:
    text = "MNI Transform File\n\nTransform_Type = Linear;\nLinear_Transform =\n 1 2 3 10\n {row}\n 0 0 1 0;\n"
    (tmp_path / "a.xfm").write_text(text.format(row="2 5 5 0"))
    assert len(read_transform(tmp_path / "a.xfm").parts) == 1
    (tmp_path / "a.xfm").write_text(text.format(row=row))
    with pytest.raises(MetregError, match=r"transform: .*a\.xfm"):
        read_transform(tmp_path / "a.xfm")


def test_fields_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    transform = some_transform(3)
    transform.parts[0].displacement[1, 3, 4, 5] = np.nan
    transform.parts[0].displacement[:, 6, 4, 5] = np.inf
    write_transform(tmp_path / "a.h5", transform)
    with pytest.raises(MetregError, match="transform: its field is NaN or infinite at 2 points"):
        read_transform(tmp_path / "a.h5")


@pytest.mark.parametrize("order", ["field first", "affine first"])
def test_points_far_outside_a_field_are_known(order: str) -> None:
    affine = np.eye(4)
    affine[0, 3] = 1000
    moved = Affine(affine)
    middle = np.zeros((1, 3))
    field = Field(np.ones((3, 11, 11, 11), np.float32), centred(np.diag([10.0, 10.0, 10.0]), (11, 11, 11)))
    parts = (field, moved) if order == "field first" else (moved, field)
    here = middle if order == "field first" else middle - affine[:3, 3]
    away = np.array([[0.0, 0, 0], [59, -59, 0], [70, 0, 0], [0, 0, -500]])
    assert Transform(parts).far_outside(here + away).tolist() == [False, False, True, True]
    assert not Transform((moved,)).far_outside(away).any()
