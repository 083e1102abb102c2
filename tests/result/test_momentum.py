"""The compact form of a result is refused where it makes no sense. That it gives the transforms again: test_pipeline.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from metreg.errors import MetregError
from metreg.io.tensors import write_tensors
from metreg.result.momentum import FORMAT, read_momentum
from metreg.settings.model import make_settings

SHAPE = (8, 9)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("m", torch.full((1, 2, *SHAPE), torch.nan), "m is NaN or infinite"),
        ("affine", torch.diag(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)), "its matrix is singular"),
        ("affine", torch.full((3, 3), torch.inf, dtype=torch.float64), "affine is NaN or infinite"),
        ("grid_affine", None, "damaged"),
        ("m", None, "damaged"),
        ("settings", "{", "damaged"),
        ("grid", None, "damaged"),
    ],
)
def test_what_makes_no_sense_is_refused(part: str, value: torch.Tensor | str | None, message: str, tmp_path: Path) -> None:
    grid = {"shape": SHAPE, "spacing": (0.1, 0.1), "length_mm": 100}
    eye = torch.from_numpy(np.eye(3))
    contents = {"m": torch.zeros(1, 2, *SHAPE), "affine": eye, "grid_affine": eye.clone()}
    contents |= {"grid": json.dumps(grid), "settings": make_settings().model_dump_json()}
    contents.pop(part)
    if value is not None:
        contents[part] = value
    tensors = {name: content for name, content in contents.items() if isinstance(content, torch.Tensor)}
    header = {name: content for name, content in contents.items() if isinstance(content, str)}
    write_tensors(tmp_path / "a.safetensors", tensors, form=FORMAT, header=header)
    with pytest.raises(MetregError, match=f"momentum: {message}"):
        read_momentum(tmp_path / "a.safetensors")
