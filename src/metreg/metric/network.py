"""The small CNN that looks at the source and says by how much the weights leave their set point."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from metreg.kernels import is_fast
from metreg.settings.model import NetworkSettings

CONVOLUTION = {2: nn.Conv2d, 3: nn.Conv3d}
WIDTH = 20
"""Channels between two convolutions."""
KERNEL = 5
"""Width of every convolution in voxels."""
FIRST_SLOPE = 0.025
"""Slope of the last normalisation at the start: weights begin near their set point."""


class WeightNetwork(nn.Module):
    """Convolution, BatchNorm, LeakyReLU, ..., convolution, BatchNorm.  (B, c, *S) -> (B, N, *S), c = 1, or 1 + D."""

    def __init__(self, dim: int, count: int, settings: NetworkSettings, generator: torch.Generator | None = None) -> None:
        super().__init__()
        generator = generator or torch.Generator()  # of its own seed: the caller's random state is left alone
        channels = 1 + (dim if settings.momentum_input else 0)
        layers: list[nn.Module] = []
        for i in range(settings.depth):
            last = i == settings.depth - 1
            width = count if last else WIDTH
            # what its constructor would draw takes from the caller's random state, and is drawn again below
            convolution = skip_init(CONVOLUTION[dim], channels, width, KERNEL, padding=KERNEL // 2, bias=False)
            nn.init.kaiming_normal_(convolution.weight, a=0.01, generator=generator)
            norm = nn.BatchNorm1d(width, eps=1e-4, momentum=0.75)
            layers += [convolution, norm] if last else [convolution, norm, nn.LeakyReLU(0.01)]
            channels = width
        if layers:
            nn.init.constant_(layers[-1].weight, FIRST_SLOPE)  # type: ignore[arg-type]
        else:
            self.constant = nn.Parameter(torch.zeros(count))
        self.layers = nn.Sequential(*layers)
        self.momentum_input = settings.momentum_input

    def forward(self, source: Tensor, m: Tensor | None = None) -> Tensor:
        if not self.layers:
            shape = source.shape[2:]
            return self.constant.view(1, -1, *[1] * len(shape)).expand(len(source), -1, *shape)
        x = (source - 0.5) / 2
        if self.momentum_input:
            assert m is not None, "this network looks at the momentum too"
            x = torch.cat([x, m], dim=1)
        for layer in self.layers:
            if isinstance(layer, nn.BatchNorm1d):
                x = _normalise(layer, x)
            elif isinstance(layer, nn.LeakyReLU):
                x = layer(x)
            else:
                x = _convolve(layer, x)
        return x


def _convolve(layer: nn.Module, x: Tensor) -> Tensor:
    """On a GPU by a kernel that leaves its result channels-last in memory."""
    if not is_fast(x):
        return layer(x)
    from metreg.kernels.triton.convolve import convolve

    return convolve(x, layer.weight)  # type: ignore[arg-type]


def _normalise(layer: nn.BatchNorm1d, x: Tensor) -> Tensor:
    """Over all points of all images, in the order in which they lie in memory."""
    if x.is_contiguous():
        return layer(x.flatten(2)).view_as(x)
    rows = x.movedim(1, -1)
    return layer(rows.flatten(0, -2)).view(rows.shape).movedim(-1, 1)
