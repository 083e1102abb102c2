from __future__ import annotations

import numpy as np
import pytest
import torch

from metreg.core.grid import Grid
from metreg.measure.displacement import displacement_error
from metreg.measure.overlap import common_labels, labels_in, overlap, ranks


def test_overlap_by_hand() -> None:
    warped = np.array([[1, 1, 0], [2, 5, 0]])
    target = np.array([[1, 0, 0], [1, 2, 7]])
    labels = common_labels(warped, target)
    assert labels.tolist() == [1, 2]
    found = overlap(warped, target, labels)
    assert found.target_overlap == (0.5, 0.0)
    assert found.dice == (0.5, 0.0)
    assert found.means() == {"target_overlap": 0.25, "dice": 0.25}


def test_a_label_that_warping_lost_counts_as_zero() -> None:
    found = overlap(np.zeros((2, 2), dtype=int), np.array([[3, 3], [0, 0]]), np.array([3]))
    assert found.target_overlap == (0.0,)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "float64"])
@pytest.mark.parametrize("labels", [[1, 4], [0, 4, 127], [127], []])
def test_ranks_are_found_for_values_of_every_kind(labels: list[int], kind: str) -> None:
    values = np.array([0, 1, 2, 4, 126, 127, *([] if kind == "uint8" else [-1, -5])]).astype(kind)
    expected = [labels.index(value) if value in labels else len(labels) for value in values.tolist()]
    assert ranks(values, np.array(labels, dtype=int)).tolist() == expected


def test_there_may_be_very_many_labels() -> None:
    many = np.arange(60_000)
    assert overlap(many, many, many[1:]).means() == {"target_overlap": 1.0, "dice": 1.0}


@pytest.mark.parametrize("values", [[3, 0, 3, 7], [-2, 5, 0], [2**25, 1], [], [1.0, 0.0]])
def test_counted_labels_are_the_sorted_ones(values: list[float]) -> None:
    image = np.array(values, dtype=None if values else int)
    np.testing.assert_array_equal(labels_in(image), np.unique(image))


def test_displacement_error_is_in_voxels() -> None:
    grid = Grid((4, 4), (0.5, 0.25))
    truth = grid.points(torch.empty(0))
    moved = truth + torch.tensor([1.5, 1.0]).view(1, 2, 1, 1)  # 3 and 4 voxels
    region = torch.zeros(1, 4, 4, dtype=torch.bool)
    region[:, 1:3] = True
    assert displacement_error(moved, truth, region, grid).item() == pytest.approx(5)
