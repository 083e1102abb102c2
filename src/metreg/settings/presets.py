"""Settings by name: what differs from the defaults."""

from __future__ import annotations

from typing import Any


def _paper(
    *, steps: int, map_factor: float, rates: tuple[float, float], iterations: tuple[int, int], train: dict[str, Any]
) -> dict[str, Any]:
    """The paper's settings. Where they are others than it says, as the rates of the momenta, docs/explanation/paper.md says
    why, and which settings have its own.
    """
    momentum_rate, network_rate = rates
    return {
        "unit_cube": True,
        "metric": {"realisation": "fourier", "window": 0},
        "flow": {"steps": steps, "map_factor": map_factor},
        "similarity": {"name": "ncc"},
        "solve": {
            "optimiser": "sgd",
            "learning_rate": momentum_rate,
            "clip": 1.0,
            "regularity": 1.0,
            "folding": 0.0,
            "repair": False,
            "shrink": [1],
            "iterations": [iterations[0]],
            "local_iterations": [iterations[1]],
            "tolerance": 0.0,
        },
        "train": {**train, "optimiser": "sgd", "momentum_rate": momentum_rate, "network_rate": network_rate},
    }


BRAIN = {
    "length_mm": 200.0,
    "flow": {"steps": 5},
    "similarity": {"window": 0.065, "noise": 0.15},
    "solve": {
        "regularity": 4500.0,
        "folding": 1000.0,
        "iterations": [60, 60, 100],
        "tolerance": 0.0003,
    },
}
"""T1 brains without skulls, for the metric brain-t1: chosen on pairs of three people, with each other and three others."""

BRAIN_CONSTANT = {**BRAIN, "metric": {"weights": [0.033, 0.6, 0.27, 0.097]}}
"""Likewise, with one mixture everywhere, the set point of brain-t1: no licence of any scan comes with it."""

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "brain": BRAIN,
    "brain-constant": BRAIN_CONSTANT,
    "paper2d": _paper(
        steps=20,
        map_factor=0.5,
        rates=(0.02, 0.025),  # the paper: 0.1 for momenta that are clipped together, 100 pairs at a time
        iterations=(250, 500),
        train={"epochs": [50, 100], "batch": 100},
    ),
    "paper3d": _paper(
        steps=10,
        map_factor=0.4,
        rates=(0.7, 0.25),  # the paper: 1.0, two pairs at a time
        iterations=(150, 300),
        train={"epochs": [25, 50], "batch": 2},
    ),
}
