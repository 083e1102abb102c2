"""A known motion between images with all kinds of headers is found, in millimetres."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import centred, picture
from metreg.core.grid import transform_points
from metreg.io.image import Image
from metreg.kernels import plain_torch
from metreg.prepare.affine import _make_level, align
from metreg.settings.model import AffineSettings
from metreg.similarity.ncc import ncc


def rotation(dim: int, angle: float) -> np.ndarray:
    turn = np.eye(dim)
    c, s = np.cos(angle), np.sin(angle)
    turn[:2, :2] = [[c, -s], [s, c]]
    if dim == 3:
        tilt = np.array([[1, 0, 0], [0, np.cos(0.15), -np.sin(0.15)], [0, np.sin(0.15), np.cos(0.15)]])
        turn = tilt @ turn
    return turn


HEADERS = {
    "plain": np.diag([2.0, 2.0, 2.0]),
    "flipped": np.diag([-2.0, 2.0, -2.0]),
    "permuted": np.array([[0.0, 0, 2], [2, 0, 0], [0, 2, 0]]),
    "oblique": rotation(3, 0.6) * 2.0,
    "anisotropic": np.diag([1.5, 2.0, 4.0]),
    "sheared": np.array([[2.0, 0.6, 0], [0, 2.0, 0.4], [0.2, 0, 2.0]]),
}


def make_image(header: np.ndarray, dim: int, move: np.ndarray | None = None) -> Image:
    matrix = header[:dim, :dim] if dim == 3 else header[:2, :2]
    extent = np.linalg.norm(matrix, axis=0)
    shape = tuple(int(np.ceil(110 / size)) for size in extent)
    affine = centred(matrix, shape)
    return Image(picture(shape, affine, move), affine)


@pytest.mark.parametrize("header", list(HEADERS))
@pytest.mark.parametrize("similarity", ["mi", "ncc"])
def test_a_rigid_motion_is_found_whatever_the_headers(similarity: str, header: str) -> None:
    move = np.eye(4)
    move[:3, :3] = rotation(3, 0.3)
    move[:3, 3] = [9.0, -6.0, 5.0]
    fixed = make_image(HEADERS[header], 3, move)  # fixed(x) = moving(move x)
    moving = make_image(HEADERS["plain" if header != "plain" else "oblique"], 3)
    found = align(moving, fixed, AffineSettings(kind="rigid", similarity=similarity))  # type: ignore[arg-type]
    points = np.random.default_rng(0).uniform(-20, 20, size=(100, 3))
    gap = np.linalg.norm(transform_points(found, points) - transform_points(move, points), axis=1)
    assert gap.max() < (0.2 if similarity == "ncc" else 0.5)


@pytest.mark.parametrize("dim", [2, 3])
def test_an_affine_motion_is_found(dim: int) -> None:
    move = np.eye(dim + 1)
    move[:dim, :dim] = rotation(dim, -0.2) @ (np.eye(dim) + 0.08 * np.triu(np.ones((dim, dim))))
    move[:dim, dim] = np.array([4.0, -7.0, 3.0])[:dim]
    fixed, moving = make_image(HEADERS["flipped"], dim, move), make_image(HEADERS["plain"], dim)
    found = align(moving, fixed, AffineSettings(kind="affine"))
    points = np.random.default_rng(0).uniform(-20, 20, size=(100, dim))
    gap = np.linalg.norm(transform_points(found, points) - transform_points(move, points), axis=1)
    assert gap.max() < 0.2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_fits_nearly_is_brought_to_fit_well(seed: int) -> None:
    """A ball with fine texture: its turn and shear matter little to the correlation, which is high from the start."""
    rng, shape = np.random.default_rng(seed), (36, 36, 36)
    affine = centred(np.eye(3), shape)
    waves, phases = rng.normal(0, 0.35, size=(40, 3)), rng.uniform(0, 2 * np.pi, size=40)

    def ball(x: np.ndarray) -> np.ndarray:
        texture = np.cos(x @ waves.T + phases).mean(-1)
        return (np.exp(-(((x**2).sum(-1) / 140) ** 2)) * (1 + texture)).astype(np.float32)

    move = np.eye(4)
    move[:3, :3] += rng.normal(0, 0.05, size=(3, 3))
    move[:3, 3] = rng.normal(0, 1, size=3)
    points = transform_points(affine, np.indices(shape).reshape(3, -1).T.astype(float))
    moving, fixed = (Image(ball(x).reshape(shape), affine) for x in (points, transform_points(move, points)))
    found = align(moving, fixed, AffineSettings(kind="affine"))
    inside = points[np.linalg.norm(points, axis=1) < 10]
    gap = np.linalg.norm(transform_points(found, inside) - transform_points(move, inside), axis=1)
    assert gap.mean() < 0.15


@pytest.mark.parametrize("scale", [1.0, 0.02])
@pytest.mark.parametrize("side", [110, 55])
def test_a_small_field_of_view_and_small_things_are_no_matter(side: float, scale: float) -> None:
    """The moving image shows less than the fixed one; and a mouse is aligned like a man."""
    move = np.eye(4)
    move[:3, :3] = rotation(3, 0.15)
    move[:3, 3] = [4.0, -3.0, 2.0]
    size = np.diag([2.0, 2.0, 2.0])
    shapes = ((int(side / 2),) * 3, (80, 80, 80))
    moving, fixed = (
        Image(picture(shape, centred(size, shape), how), np.diag([scale, scale, scale, 1.0]) @ centred(size, shape))
        for shape, how in zip(shapes, (None, move), strict=True)
    )
    found = align(moving, fixed, AffineSettings(kind="rigid"))
    points = np.random.default_rng(0).uniform(-15, 15, size=(100, 3))
    gap = np.linalg.norm(transform_points(found, points * scale) / scale - transform_points(move, points), axis=1)
    assert gap.max() < 0.5


def test_none_leaves_the_headers_alone() -> None:
    image = make_image(HEADERS["plain"], 2)
    np.testing.assert_array_equal(align(image, image, AffineSettings(kind="none")), np.eye(3))


def test_a_rigid_alignment_is_rigid_and_deterministic() -> None:
    move = np.diag([1.1, 0.9, 1.0])
    fixed, moving = make_image(HEADERS["plain"], 2, move), make_image(HEADERS["plain"], 2)
    found = align(moving, fixed, AffineSettings(kind="rigid"))
    np.testing.assert_allclose(found[:2, :2] @ found[:2, :2].T, np.eye(2), atol=1e-9)
    np.testing.assert_array_equal(found, align(moving, fixed, AffineSettings(kind="rigid")))


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("masked", [(False, False), (True, False), (False, True), (True, True)])
def test_the_compiled_comparison_equals_the_plain_one(dim: int, masked: tuple[bool, bool]) -> None:
    generator = torch.Generator().manual_seed(dim)
    shapes, spacing = ((31, 27, 22)[:dim], (24, 30, 29)[:dim]), np.diag([*[1.5, 2.0, 1.0][:dim], 1.0])
    moving, fixed = (Image(torch.rand(shape, generator=generator).numpy(), spacing) for shape in shapes)
    (source, target) = (
        (torch.from_numpy(image.values)[None, None], torch.rand(1, 1, *image.shape, generator=generator) if known else None)
        for image, known in zip((moving, fixed), masked, strict=True)
    )
    level = _make_level(source, target, moving, fixed, 2.0, np.full(dim, 20.0), np.full(dim, 22.0))
    start = torch.eye(dim, dim + 1, dtype=torch.float64)
    for size, apart in ((0.02, False), (1e4, True)):
        matrix = start + size * torch.randn(dim, dim + 1, dtype=torch.float64, generator=generator)
        fast = level.compare(matrix.clone(), ncc)
        with plain_torch():
            plain = level.compare(matrix.clone(), ncc)
        torch.testing.assert_close(fast[0].double(), plain[0].double(), rtol=0, atol=1e-6)
        torch.testing.assert_close(fast[1], plain[1], rtol=0, atol=1e-5 * float(plain[1].abs().max()))
        assert (float(fast[0]) > 1) == apart
