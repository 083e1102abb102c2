"""All that a training needs to go on as if it had never stopped, in one file that is replaced as a whole."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from metreg.checks import MetregError
from metreg.config import Settings
from metreg.data.tensors import read_tensors, write_tensors

FORMAT = "metreg-checkpoint-1"


@dataclass
class Progress:
    """Where a training stands, after a whole epoch. Plain numbers; tensors go beside it."""

    stage: int = 0
    epoch: int = 0
    """Epochs of this stage that are done."""
    rate_scale: float = 1.0
    """What the plateau schedule left of the learning rates in this stage."""
    plateau_best: float = float("inf")
    plateau_waited: int = 0
    best_energy: float = float("inf")
    """Lowest mean energy of an epoch of stage 2: that of the network kept."""
    time_steps: int | None = None
    """Steps of the flow on a GPU, where they are raised when a velocity asks for more."""
    generation: int = 0
    """Which file of momenta counts."""
    history: list[dict[str, Any]] = field(default_factory=list)

    def plateau(self, energy: float, *, factor: float, patience: int) -> None:
        """Once an epoch: lower the learning rates after `patience` epochs without progress."""
        if energy < self.plateau_best * (1 - 1e-4):
            self.plateau_best, self.plateau_waited = energy, 0
        else:
            self.plateau_waited += 1
        if self.plateau_waited > patience:
            self.rate_scale, self.plateau_waited = self.rate_scale * factor, 0

    def next_stage(self) -> None:
        self.stage, self.epoch = self.stage + 1, 0
        self.rate_scale, self.plateau_best, self.plateau_waited = 1.0, float("inf"), 0


def save_checkpoint(path: Path, progress: Progress, tensors: dict[str, Tensor], settings: Settings) -> None:
    header = {"progress": json.dumps(asdict(progress)), "settings": settings.model_dump_json()}
    temporary = path.with_suffix(".part")
    write_tensors(temporary, tensors, form=FORMAT, header=header)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_checkpoint(path: Path, settings: Settings) -> tuple[Progress, dict[str, Tensor]]:
    """What `save_checkpoint` kept; the settings must be those of the run that is to go on."""
    progress, tensors, before = _read(path)
    changed = _differences(before.model_dump(), settings.model_dump())
    if changed:
        raise MetregError(
            f"checkpoint: made with other settings ({', '.join(changed)}): {path}; use those, or a new folder"
        )
    return progress, tensors


def read_checkpoint(path: Path) -> tuple[Progress, Settings]:
    """Where a training stands, and the settings it was made with."""
    progress, _, settings = _read(path)
    return progress, settings


def _read(path: Path) -> tuple[Progress, dict[str, Tensor], Settings]:
    tensors, about = read_tensors(path, form=FORMAT, role="checkpoint")
    return Progress(**json.loads(about["progress"])), tensors, Settings.model_validate_json(about["settings"])


def _differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in a:
        if isinstance(a[key], dict):
            found += _differences(a[key], b[key], f"{prefix}{key}.")
        elif a[key] != b[key]:
            found.append(f"{prefix}{key}")
    return found


def named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under a common first name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
