"""Does an image show what a metric was learned from? A coarse linear alignment to the mean of its training images tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import binary_erosion

from metreg.core.grid import Array, Grid, voxel_size
from metreg.core.resample import downsample
from metreg.io.image import Image
from metreg.metric.store import MetricFile
from metreg.prepare.affine import CPU, align, grid_at
from metreg.prepare.intensity import match
from metreg.prepare.pair import bring, content_length
from metreg.settings.model import AffineSettings

FOREGROUND = 0.1
"""Intensities of the mean image above this are tissue: it is blurred, and standardised ones end later."""
LEAST_OVERLAP = 0.8
"""Dice of the foregrounds: 0.89 or more on heads without skulls of two scanners, 0.57 at most on livers and hearts."""
DEPTH = 3
"""Voxels of the mean image by which its foreground is eroded before intensities are compared: at the blurred border of a
brain anything that is bright inside correlates with it."""
LEAST_CORRELATION = 0.3
"""Of the intensities there: 0.40 or more on T1 brains of two scanners; at most 0.20 on their masks, 0.04 on noise inside
these, less than 0 with the contrast inverted or like that of FLAIR."""
MOST_STRETCH = 1.25
"""Along any axis, either way: 1.15 at most on T1 brains; half a head fits a whole one when stretched, by 1.36 or more."""
SMALLEST = 0.5
"""An image that shows less than this share of the mean image's length is of something else: no need to look closer."""


@dataclass(frozen=True)
class Likeness:
    """How an image compares with the mean of a metric's training images, both brought together linearly."""

    overlap: float = 0.0
    correlation: float = 0.0
    stretch: float = 1.0

    @property
    def holds(self) -> bool:
        """Whether the image shows what the metric was learned from."""
        return self.difference == ""

    @property
    def difference(self) -> str:
        """What speaks against it, in words; nothing if it holds."""
        if self.overlap < LEAST_OVERLAP:
            return f"another shape (overlap {self.overlap:.2f}, wanted {LEAST_OVERLAP})"
        if self.stretch > MOST_STRETCH:
            return f"another size or a part of it (stretched {self.stretch:.2f} times, wanted {MOST_STRETCH} at most)"
        if self.correlation < LEAST_CORRELATION:
            return f"another contrast (correlation {self.correlation:.2f}, wanted {LEAST_CORRELATION})"
        return ""


def likeness(image: Image, mask: Image | None, metric: MetricFile) -> Likeness:
    """Of an image, where a mask leaves it visible, to what a metric was learned from; its file must keep a mean image."""
    assert metric.template is not None, "this metric file keeps no mean image"
    if image.dim != metric.model.dim:
        return Likeness()
    template = Image(metric.template[0, 0].numpy(), metric.template_affine, "the mean of the training images")
    if content_length(image) < SMALLEST * content_length(template):
        return Likeness()
    coarse = _at_resolution_of(template, image, mask, metric)
    settings = AffineSettings(resolution=AffineSettings().resolution[:1])
    matrix = align(coarse, template, settings, length_mm=metric.length_mm)
    grid = Grid.of_image(template.shape, template.affine, metric.length_mm)
    aligned, _ = bring(coarse, None, matrix, grid, CPU)
    stretches = np.linalg.svd(matrix[:-1, :-1], compute_uv=False)
    return Likeness(
        overlap=_dice(aligned[0, 0].numpy(), template.values),
        correlation=_correlation_inside(aligned[0, 0].numpy(), template.values),
        stretch=float(max(stretches.max(), 1 / stretches.min())),
    )


def _at_resolution_of(template: Image, image: Image, mask: Image | None, metric: MetricFile) -> Image:
    """The image with voxels like the template's, its intensities matched to those of the training."""
    seen = image.scaled_in(mask)
    if mask is not None:
        seen = seen * mask.values
    grid = grid_at(image, float(voxel_size(template.affine).max()))
    values = downsample(torch.from_numpy(seen)[None, None], grid)[0, 0].numpy()
    coarse = Image(values, grid.affine, image.name)
    return coarse.with_values(match(coarse.scaled, metric.intensity))


def _dice(a: Array, b: Array) -> float:
    """Of the foregrounds."""
    in_a = a > FOREGROUND
    in_b = b > FOREGROUND
    return 2 * float((in_a & in_b).sum()) / max(1.0, float(in_a.sum() + in_b.sum()))


def _correlation_inside(image: Array, template: Array) -> float:
    """Of the intensities deep inside the foreground of the template, where the image shows something; 0 if constant."""
    inside = binary_erosion(template > FOREGROUND, iterations=DEPTH) & (image > FOREGROUND)
    if inside.sum() < 2 or np.ptp(image[inside]) == 0 or np.ptp(template[inside]) == 0:
        return 0.0
    return float(np.corrcoef(image[inside], template[inside])[0, 1])
