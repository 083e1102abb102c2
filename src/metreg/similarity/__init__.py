"""Image similarities. Each is a callable `similarity(warped, target, mask) -> (B,)`, smaller is better, never negative."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from metreg.config import SimilaritySettings
from metreg.similarity.lncc import Lncc
from metreg.similarity.mi import mutual_information
from metreg.similarity.ncc import ncc
from metreg.similarity.ssd import ssd


class Similarity(Protocol):
    def __call__(self, warped: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Dissimilarity of each pair.  warped, target (B, C, *S), mask (B, 1, *S) of weights in [0, 1] -> (B,)."""


def make_similarity(settings: SimilaritySettings) -> Similarity:
    """The similarity that the settings name, times its weight."""
    local = Lncc(settings.window, settings.kernel)

    def similarity(warped: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        match settings.name:
            case "ssd":
                value = ssd(warped, target, mask)
            case "ncc":
                value = ncc(warped, target, mask)
            case "lncc":
                value = local(warped, target, mask)
            case "mi":
                value = mutual_information(warped, target, mask, bins=settings.bins)
        return settings.weight * value

    return similarity
