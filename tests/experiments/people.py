"""Small images of several people, with labels."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from conftest import centred, picture
from metreg.evaluation import run as evaluation
from metreg.learn import run as training

TINY = {
    "train.epochs": [1, 1],
    "train.steps": 1,
    "flow.steps": 4,
    "affine.iterations": 3,
    "solve.shrink": [2],
    "solve.iterations": [2],
    "solve.local_iterations": [2],
}
"""Settings for runs that are over at once."""


def leave_out_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of single pairs and trainings, which take longer here than what they tell of."""
    monkeypatch.setattr(evaluation, "WORST", 0)
    monkeypatch.setattr(training, "training_page", lambda *told: "")


def write_people(
    images: Path, labels: Path | None, names: dict[str, str], shape: tuple[int, ...], size: float, ending: str = ".nii.gz"
) -> None:
    """One thing seen in many people, each a little larger and turned a little more; `names` are those of both files."""
    for number, (image, label) in enumerate(names.items()):
        dim = len(shape)
        affine = centred(np.diag([size] * dim), shape)
        move, angle = np.eye(dim + 1), 0.05 * number
        move[:2, :2] = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * (1 + 0.04 * number)
        values = picture(shape, affine, move)
        regions = (values > 150).astype(np.uint8) + 3 * (values > 600).astype(np.uint8)  # 1 outside, 4 inside
        world = np.eye(4)
        world[:dim, :dim], world[:dim, 3] = affine[:dim, :dim], affine[:dim, dim]
        for folder, name, array in ((images, image, values), (labels, label, regions)):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                kind = nib.Nifti1Pair if ending == ".img" else nib.Nifti1Image
                nib.save(kind(array, world), folder / f"{name}{ending}")
