"""What an image shows decides which metric is taken where none is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metreg.io.image import Image
from metreg.io.images import read_image
from metreg.metric.store import MetricFile
from metreg.pipeline.resolve import BRAIN, open_metric
from metreg.prepare.likeness import likeness


@pytest.fixture(scope="module")
def metric() -> MetricFile:
    found = open_metric(BRAIN)
    assert found is not None
    return found


@pytest.fixture
def head(metric: MetricFile) -> Image:
    """The mean of the images that brain-t1 was learned from: a blurred head without its skull."""
    assert metric.template is not None
    return Image(metric.template[0, 0].numpy(), metric.template_affine, "head")


def inverted(head: Image) -> Image:
    """Fluid bright and white matter dark, as in T2."""
    shown = head.values > 0.05
    return head.with_values(np.where(shown, 1.05 * head.values.max() - head.values, 0).astype(np.float32))


def like_flair(head: Image) -> Image:
    """Fluid dark, grey matter brighter than white matter."""
    shown = head.values > 0.05
    bright = head.values / np.percentile(head.values[shown], 95)
    curve = np.interp(bright, [0, 0.25, 0.6, 0.75, 1], [0, 0.15, 0.85, 0.8, 0.6])
    return head.with_values(np.where(shown, curve, 0).astype(np.float32))


def filled(head: Image, values: np.ndarray) -> Image:
    """Something else in the shape of the head."""
    return head.with_values(np.where(head.values > 0.05, values, 0).astype(np.float32))


def halved(head: Image, axis: int) -> Image:
    values = head.values.copy()
    np.moveaxis(values, axis, 0)[: head.shape[axis] // 2] = 0
    return head.with_values(values)


def test_a_head_is_known_whatever_its_axes_and_intensities(head: Image, metric: MetricFile) -> None:
    assert likeness(head, None, metric).holds
    turned = Image(head.values[::-1].transpose(1, 0, 2) * 700 + 20, head.affine.copy(), "turned")
    turned.affine[:3, :3] = head.affine[:3, :3] @ np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]])
    turned.affine[0, 3] = -head.affine[0, 3]
    assert likeness(turned, None, metric).holds


def test_what_is_no_whole_t1_brain_is_told_apart(head: Image, metric: MetricFile) -> None:
    assert "contrast" in likeness(inverted(head), None, metric).difference
    for axis in range(3):
        assert not likeness(halved(head, axis), None, metric).holds
    cropped = Image(head.values[:, :, head.shape[2] // 2 :], head.affine, "cropped")
    assert not likeness(cropped, None, metric).holds
    small = Image(head.values, head.affine @ np.diag([0.4, 0.4, 0.4, 1]), "of a mouse")
    assert not likeness(small, None, metric).holds
    flat = Image(head.values[:, :, 15], np.eye(3), "a slice")
    assert not likeness(flat, None, metric).holds


def test_a_mask_says_where_the_brain_is(head: Image, metric: MetricFile) -> None:
    mask = head.with_values((head.values > 0.05).astype(np.float32))
    noise = np.random.default_rng(0).uniform(0.4, 1.0, head.shape).astype(np.float32)
    covered = head.with_values(np.where(mask.values > 0, head.values, noise))
    assert not likeness(covered, None, metric).holds
    assert likeness(covered, mask, metric).holds


BRAINS = [
    "malc/1mm/img/1000.nii.gz",
    "malc/2mm/img/1019.nii.gz",
    "malc/native/img/1013.nii.gz",
    "lpba40/img/S05.nii.gz",
    "lpba40/img/S09.nii.gz",
]
OTHERS = [
    "liver/s18_exh.nii.gz",
    "liver/s19_exh.nii.gz",
    "liver/s23_inh1.nii.gz",
    "acdc/patient001_ed_img.nii.gz",
    "hippocampus/img/hippocampus_001.nii.gz",
]


@pytest.mark.data
@pytest.mark.parametrize("name", BRAINS)
def test_brains_of_two_scanners_are_known_halves_and_other_contrasts_are_not(
    name: str, data: Path, metric: MetricFile
) -> None:
    image = read_image(data / name)
    assert likeness(image, None, metric).holds
    noise = np.random.default_rng(0).random(image.shape)
    for other in (inverted(image), like_flair(image), filled(image, np.ones(image.shape)), filled(image, noise)):
        assert "contrast" in likeness(other, None, metric).difference
    for axis in range(3):
        assert not likeness(halved(image, axis), None, metric).holds


@pytest.mark.data
@pytest.mark.parametrize("name", OTHERS)
def test_livers_hearts_and_hippocampi_are_not_brains(name: str, data: Path, metric: MetricFile) -> None:
    assert not likeness(read_image(data / name), None, metric).holds
