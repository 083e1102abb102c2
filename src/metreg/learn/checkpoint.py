"""All that a training needs to go on as if it had never stopped, in one file that is replaced as a whole."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metreg.errors import MetregError
from metreg.io.tensors import read_tensors, write_tensors
from metreg.many.claim import differences
from metreg.settings.model import Settings
from metreg.solve.sgd import Plateau

FORMAT = "metreg-checkpoint-2"


@dataclass
class Progress:
    """Where a training stands, after a whole epoch. Plain numbers; tensors go beside it."""

    stage: int = 0
    epoch: int = 0
    """Epochs of this stage that are done."""
    plateau: tuple[float, float, float] = (1.0, float("inf"), 0.0)
    """The state of the schedule in this stage: what it left of the learning rates, the best energy, epochs since then."""
    best_energy: float = float("inf")
    """Lowest mean energy of an epoch of stage 2: that of the network kept."""
    time_steps: int | None = None
    """Steps of the flow on a GPU, where they are raised when a velocity asks for more."""
    generation: int = 0
    """Which file of momenta counts."""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rate_scale(self) -> float:
        """What the schedule left of the learning rates."""
        return self.plateau[0]

    def see_energy(self, energy: float) -> None:
        """Once an epoch, the mean energy: learning rates fall where it makes no progress."""
        schedule = Plateau(torch.empty(1, dtype=torch.float64))
        for tensor, value in zip(schedule.state, self.plateau, strict=True):
            tensor.fill_(value)
        schedule.see(torch.tensor([energy], dtype=torch.float64))
        self.plateau = tuple(float(tensor) for tensor in schedule.state)  # type: ignore[assignment]

    def next_stage(self) -> None:
        self.stage, self.epoch = self.stage + 1, 0
        self.plateau = Progress.plateau


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
    _check_settings(path, before, settings)
    return progress, tensors


def check_checkpoint(path: Path, settings: Settings) -> None:
    """Refuse, before any work is done, a checkpoint that is damaged or was made with other settings.

    The reference length is left out, as it may depend on the template.
    """
    _, _, before = _read(path)
    _check_settings(path, before, settings.model_copy(update={"length_mm": before.length_mm}))


def _check_settings(path: Path, before: Settings, settings: Settings) -> None:
    changed = differences(before.model_dump(mode="json"), settings.model_dump(mode="json"))
    if changed:
        raise MetregError(
            f"checkpoint: made with other settings ({', '.join(changed)}): {path}; use those, or a new folder"
        )


def read_checkpoint(path: Path) -> tuple[Progress, Settings]:
    """Where a training stands, and the settings it was made with."""
    progress, _, settings = _read(path)
    return progress, settings


def _read(path: Path) -> tuple[Progress, dict[str, Tensor], Settings]:
    tensors, about = read_tensors(path, form=FORMAT, role="checkpoint")
    try:
        progress = Progress(**json.loads(about["progress"]))
        settings = Settings.model_validate_json(about["settings"])
    except (KeyError, TypeError, ValueError):
        raise MetregError(
            f"checkpoint: written by another version of metreg: {path}; go on with that, or begin in a new folder"
        ) from None
    return progress, tensors, settings


def named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under a common first name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
