"""A head with a skull is told from a brain without one."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from conftest import centred
from metreg.core.grid import world_points
from metreg.io.image import Image
from metreg.io.images import read_image
from metreg.prepare.skull import hint_at_skull, seems_to_have_skull

SHAPE = (46, 52, 44)


def head(layers: list[tuple[float, float]], axes: np.ndarray) -> Image:
    """Ellipsoids of so many millimetres beyond the brain, outermost first, each with its intensity."""
    affine = centred(axes, SHAPE)
    points = world_points(SHAPE, affine)
    values = np.zeros(len(points), np.float32)
    for beyond, bright in layers:
        values[((points / (np.array([65.0, 80.0, 60.0]) + beyond)) ** 2).sum(1) < 1] = bright
    waves = 1 + 0.1 * np.cos(points[:, 0] / 7) * np.cos(points[:, 1] / 9)
    return Image((values * waves).reshape(SHAPE), affine, "head")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_shell_over_a_dark_gap_is_a_skull(sign: int) -> None:
    axes = np.diag([sign * 4.0, 4.0, 4.0])
    brain = [(0.0, 600.0)]
    with_skull = [(14.0, 900.0), (8.0, 30.0), *brain]
    assert seems_to_have_skull(head(with_skull, axes)) and not seems_to_have_skull(head(brain, axes))
    assert not seems_to_have_skull(head([(8.0, 300.0), *brain], axes)), "a rim without a gap is none"


def test_a_small_part_of_anything_is_no_head() -> None:
    image = head([(14.0, 900.0), (8.0, 30.0), (0.0, 600.0)], np.diag([1.0, 1.0, 1.0]))
    assert not seems_to_have_skull(image)


def test_the_hint_names_the_file_and_a_mask_silences_it(caplog: pytest.LogCaptureFixture) -> None:
    image = head([(14.0, 900.0), (8.0, 30.0), (0.0, 600.0)], np.diag([4.0, 4.0, 4.0]))
    with caplog.at_level(logging.WARNING):
        hint_at_skull(image, image, "moving image")
        assert not caplog.records
        hint_at_skull(image, None, "moving image")
    assert "moving image" in caplog.text and "mask" in caplog.text and "head" in caplog.text


@pytest.mark.data
def test_real_brains_without_skulls(data: Path) -> None:
    for path in [*sorted((data / "malc" / "2mm" / "img").iterdir())[:3], data / "malc" / "native" / "img" / "1000.nii.gz"]:
        assert not seems_to_have_skull(read_image(path))
