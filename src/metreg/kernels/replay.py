"""Work that is done again and again on tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

WARM_UP = 2
"""Times the work is done plainly before it is recorded: libraries allocate and choose their algorithms then."""


class Replay:
    """On a GPU the work is recorded as one CUDA graph and replayed; on a CPU it is just done.

    The work must not read values back, and all that it keeps must be tensors that are changed in place.
    """

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self.work, self.device = work, device
        self.done = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.device.type != "cuda":
            self.work()
        elif self.graph is not None:
            self.graph.replay()
        elif self.done < WARM_UP:
            self._aside(self.work)
        else:
            graph = torch.cuda.CUDAGraph()
            # other threads may meanwhile load kernels
            with torch.cuda.graph(graph, stream=side_stream(self.device), capture_error_mode="thread_local"):
                self.work()
            self.graph = graph
            graph.replay()
        self.done += 1

    def _aside(self, work: Callable[[], None]) -> None:
        """On a stream of its own, as recording wants it."""
        stream = side_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream(self.device).wait_stream(stream)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: libraries keep a workspace for every stream that they have seen."""
    return torch.cuda.Stream(device)
