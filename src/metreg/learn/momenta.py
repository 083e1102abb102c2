"""The momenta of all pairs and their optimiser state, in one of three homes behind one interface."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from metreg.errors import MetregError

Home = Literal["device", "host", "disk"]


class Momenta:
    """m and its momentum buffer for every pair, (2, P, D, *S), with a copy on disk after every epoch.

    Files alternate: an epoch reads one and, at its end, has written the other; which of them counts is for the checkpoint
    to say. So a killed epoch leaves the momenta of the last whole one. `disk` reads and writes the files as it goes;
    `device` and `host` (pinned where there is a GPU) keep all in memory.
    """

    def __init__(self, folder: Path, pairs: int, shape: tuple[int, ...], *, home: Home, device: torch.device) -> None:
        self.folder, self.home, self.device = folder, home, device
        self.shape = (2, pairs, *shape)
        self.generation = 0
        self.copy: Tensor | None = None
        if home == "disk":
            self.here, self.next = self._open(0), self._open(1)
        else:
            pin = home == "host" and device.type == "cuda"
            self.memory = torch.zeros(self.shape, device=device if home == "device" else "cpu", pin_memory=pin)

    def take(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """m and buffer (B, D, *S) of some pairs, on the device, to be changed freely."""
        if self.home == "disk":
            found = torch.from_numpy(self.here[:, pairs.numpy()])
        else:
            found = self.memory[:, pairs.to(self.memory.device)]
        m, buffer = found.to(self.device, non_blocking=True)
        return m.clone(), buffer.clone()

    def put(self, pairs: Tensor, m: Tensor, buffer: Tensor) -> None:
        """Keep what became of them."""
        both = torch.stack([m.detach(), buffer])
        if self.home == "disk":
            self.next[:, pairs.numpy()] = both.cpu().numpy()
        else:
            self.memory[:, pairs.to(self.memory.device)] = both.to(self.memory.device)

    def reset_buffers(self) -> None:
        """Forget the optimiser's momentum, as a new stage does."""
        if self.home == "disk":
            self.here[1] = 0
        else:
            self.memory[1] = 0

    def finish_epoch(self) -> tuple[int, Callable[[], None]]:
        """Every pair was put once: the number of the file that will count, and what makes it whole.

        From a GPU's memory a copy is taken at once: the file may be written while the next epoch is under way.
        """
        self.generation = generation = 1 - self.generation
        if self.home == "disk":
            written = self.next
            self.here, self.next = self.next, self.here
            return generation, written.flush
        if self.home == "device":
            if self.copy is None:
                self.copy = torch.empty(self.shape, pin_memory=self.device.type == "cuda")
            self.copy.copy_(self.memory)
        values = self.memory if self.home == "host" else self.copy
        assert values is not None

        def write() -> None:
            file = self._open(generation)
            file[:] = values.numpy()
            file.flush()

        return generation, write

    def load(self, generation: int) -> None:
        """Go back to the file that a checkpoint names."""
        self.generation = generation
        if self.home == "disk":
            self.here, self.next = self._open(generation), self._open(1 - generation)
        else:
            self.memory.copy_(torch.from_numpy(np.array(self._open(generation))))

    def _open(self, generation: int) -> np.memmap:
        path = self.folder / f"momenta-{generation}.npy"
        if path.exists():
            found: np.memmap = np.load(path, mmap_mode="r+", allow_pickle=False)
            if found.shape != self.shape:
                raise MetregError(f"momenta: wanted {self.shape}, got {found.shape}: {path}; begin the training anew")
            return found
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=self.shape)


def choose_home(pairs: int, shape: tuple[int, ...], device: torch.device) -> Home:
    """Device memory while it is at most half of what is free there, then host memory likewise, then disk."""
    need = 2 * pairs * int(np.prod(shape)) * 4
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if need <= free / 2:
            return "device"
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "host" if need <= free / 2 else "disk"
