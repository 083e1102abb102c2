"""What the viewer shows as black and as white."""

from __future__ import annotations

import numpy as np
import pytest

from metreg.report.layers import shown_range


@pytest.mark.parametrize("shape", [(720, 720, 24), (100, 90, 80), (7, 5)])
def test_white_is_found_whatever_the_shape(shape: tuple[int, ...]) -> None:
    """With slices that show nothing, and few voxels looked at of many."""
    values = np.zeros(shape, dtype=np.uint8)
    values[..., 1:4] = 100
    assert shown_range(values) == (0.0, 100.0)


def test_a_single_bright_voxel_is_not_missed() -> None:
    values = np.zeros((120, 110, 100), dtype=np.float32)
    values[3, 4, 5] = 7
    assert shown_range(values) == (0.0, 7.0)
    assert shown_range(np.ones((4, 4))) == (1.0, 2.0)
