"""Checks at the public doors, with one wording: what is wrong where, what was wanted, what came, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from metreg.core.grid import Grid


class MetregError(Exception):
    """Bad input or an impossible request. Its message is one line a user can act on; the command line exits with 2."""


def check_field(name: str, f: Tensor, grid: Grid, *, channels: int | None = None) -> None:
    """Refuse `f` unless it is (B, C, *grid.shape), with C = `channels` where that is given."""
    wanted = f"(B, {'C' if channels is None else channels}, {', '.join(map(str, grid.shape))})"
    fits = f.dim() == grid.dim + 2 and tuple(f.shape[2:]) == grid.shape
    if not fits or (channels is not None and f.shape[1] != channels):
        raise MetregError(f"{name}: wanted shape {wanted}, got {tuple(f.shape)}")


def pick_device(name: str) -> torch.device:
    """The torch device that `auto`, `cpu`, `cuda` or `cuda:N` stands for; a GPU by its number, for threads of their own.

    It becomes the one on which kernels are launched from this thread.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise MetregError(f"device: '{name}' is not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise MetregError(f"device: '{name}' is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise MetregError(
            f"device: '{name}' was asked for, but {torch.cuda.device_count()} CUDA devices are here; use --device cpu"
        )
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.set_device(device)
    return device
