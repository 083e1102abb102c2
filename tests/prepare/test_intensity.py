from __future__ import annotations

import numpy as np
import pytest

from metreg.errors import MetregError
from metreg.prepare.intensity import border_value, fill_value

SHAPE = (40, 42, 30)
RNG = np.random.default_rng(0)


def ball(radius: float = 12.0) -> np.ndarray:
    centre = (np.array(SHAPE) - 1) / 2
    away = np.indices(SHAPE) - centre[:, None, None, None]
    return (away**2).sum(0) < radius**2


def test_the_background_of_an_image_is_what_its_border_is() -> None:
    inside = ball()
    body = RNG.normal(40, 20, SHAPE)
    air = RNG.normal(-1000, 10, SHAPE).round()
    assert border_value(np.where(inside, body, 0)) == 0
    assert border_value(np.where(inside, body, -1024)) == -1024
    assert -1030 < border_value(np.where(inside, body, air)) < -1000
    assert border_value(np.where(inside, 100 - body, 255)) == 255

    # padding beyond the scanner's circle, and a body that runs through the first and the last slice
    ring = ((np.indices(SHAPE)[:2] - 20) ** 2).sum(0) > 19**2
    scan = np.where(ring, -2048, air)
    scan[12:28, 12:28] = body[12:28, 12:28]
    assert border_value(scan) == -2048

    holes = np.where(inside, body, np.nan)
    assert border_value(holes) == 0
    holes[0] = -7
    assert border_value(holes) == -7


def test_masks_are_zero_outside() -> None:
    assert border_value(np.ones(SHAPE)) == 0
    assert border_value(1.0 - ball()) == 0
    assert border_value(~ball()) == 0


def test_what_is_asked_for_is_taken() -> None:
    image = np.where(ball(), RNG.normal(size=SHAPE), -3.0)
    assert fill_value(image, None) == -3
    assert fill_value(image, 7) == 7
    for number in (np.nan, np.inf, 1e300):
        with pytest.raises(MetregError, match="fill: wanted a finite number"):
            fill_value(image, number)
