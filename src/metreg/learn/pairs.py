"""What a metric is learned from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.errors import MetregError
from metreg.solve.energy import Scene


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """Images (I, 1, *S) on one grid, and which of them make pairs: `index` (P, 2), source and target.

    `masks` (I, 1, *S) say where an image counts; a pair is compared where both do.
    """

    images: Tensor
    index: Tensor
    grid: Grid
    masks: Tensor | None = None

    @classmethod
    def of(cls, source: Tensor, target: Tensor, grid: Grid) -> TrainingPairs:
        """Pairs whose images are all different ones, source and target (P, 1, *S)."""
        if source.shape != target.shape or tuple(source.shape[2:]) != grid.shape:
            raise MetregError(
                f"training pairs: wanted images of one size, {grid.shape}, "
                f"got {tuple(source.shape[2:])} and {tuple(target.shape[2:])}"
            )
        first = torch.arange(len(source))
        return cls(torch.cat([source, target]), torch.stack([first, first + len(source)], dim=1), grid)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def source(self) -> Tensor:
        return self.images[self.index[:, 0]]

    @property
    def target(self) -> Tensor:
        return self.images[self.index[:, 1]]

    def on(self, device: torch.device) -> TrainingPairs:
        """The same, the images on the device if they take at most a quarter of what is free there."""
        parts = [part for part in (self.images, self.masks) if part is not None]
        need = sum(part.numel() * part.element_size() for part in parts)
        if device.type != "cuda" or need > torch.cuda.mem_get_info(device)[0] / 4:
            return self
        masks = None if self.masks is None else self.masks.to(device)
        return TrainingPairs(self.images.to(device), self.index, self.grid, masks)

    def scene(self, pairs: Tensor, map_grid: Grid, device: torch.device) -> Scene:
        """Some of the pairs, on the device."""

        def pick(parts: Tensor, which: int) -> Tensor:
            return parts[self.index[pairs, which].to(parts.device)].to(device, non_blocking=True)

        mask = None if self.masks is None else pick(self.masks, 0) * pick(self.masks, 1)
        return Scene(pick(self.images, 0), pick(self.images, 1), self.grid, map_grid, mask)
