from __future__ import annotations

import torch

from metreg.core.resample import sample
from metreg.deformation.maps import count_folds
from metreg.experiments.rings.draw import DISC, RING, ring_pair
from metreg.measure.displacement import displacement_error


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_seed_gives_the_same_pair_bit_for_bit() -> None:
    a, b, other = ring_pair(generator(3)), ring_pair(generator(3)), ring_pair(generator(4))
    assert torch.equal(a.source, b.source) and torch.equal(a.phi_inv, b.phi_inv) and torch.equal(a.weights, b.weights)
    assert not torch.equal(a.source, other.source)


def test_the_truth_is_true() -> None:
    pair = ring_pair(generator(0))
    assert torch.equal(sample(pair.source, pair.phi_inv, pair.grid), pair.target)
    assert int(count_folds(pair.phi_inv, pair.grid)) == 0
    torch.testing.assert_close(pair.weights.sum(1), torch.ones(1, 128, 128))
    assert pair.weights.min() >= 0
    assert pair.target_labels.unique().tolist() == [0, DISC, RING]


def test_displacements_are_of_the_size_the_recipe_gives() -> None:
    pairs = [ring_pair(generator(seed)) for seed in range(12)]
    for label, low, high in ((DISC, 1.0, 5.0), (RING, 2.0, 6.0)):
        moved = [
            float(displacement_error(p.grid.points(p.source), p.phi_inv, (p.target_labels == label)[:, 0], p.grid))
            for p in pairs
        ]
        assert low < torch.tensor(moved).median() < high
