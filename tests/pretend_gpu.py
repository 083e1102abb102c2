"""A GPU for machines that have none: tensors that say they are on it, lie in the CPU's memory, and cannot be mixed with
tensors that do not. What runs there takes the paths of a GPU, kernels and recorded graphs aside; numbers are the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("cuda", 0)
MOVES = (torch.ops.aten.copy_.default, torch.ops.aten.index_put_.default, torch.ops.aten.index.Tensor)
"""Operations that take tensors of the CPU beside those of a GPU: copies, and indices from the CPU."""


class OnGpu(Tensor):
    """A tensor on the pretended GPU. `inside` holds its numbers."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> OnGpu:
        made = Tensor._make_wrapper_subclass(
            cls,
            inside.shape,
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            requires_grad=inside.requires_grad,
        )
        made.inside = inside.detach()
        return cast(OnGpu, made)

    device = GPU  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]
    is_cpu = False  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnGpu({self.inside})"

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu() first")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.inside.tolist()

    def data_ptr(self) -> int:
        raise RuntimeError("a kernel for CPUs was given a tensor on a GPU")

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given, _ = tree_flatten((args, kwargs or {}))
        tensors = [x for x in given if isinstance(x, Tensor)]
        if func not in MOVES and any(x.dim() and not isinstance(x, OnGpu) for x in tensors):
            places = [f"{tuple(x.shape)} on {x.device}" for x in tensors]
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, got {', '.join(places)}")
        found = func(*tree_map(_inside, args), **tree_map(_inside, kwargs or {}))
        known = {id(x.inside): x for x in tensors if isinstance(x, OnGpu)}  # what was changed in place stays itself
        on_gpu = isinstance(args[0], OnGpu) if func in MOVES and args else True
        return tree_map(lambda x: known[id(x)] if id(x) in known else _on_gpu(x), found) if on_gpu else found


def _inside(x: Any) -> Any:
    return x.inside if isinstance(x, OnGpu) else torch.device("cpu") if x == GPU and isinstance(x, torch.device) else x


def _on_gpu(x: Any) -> Any:
    return OnGpu(x) if isinstance(x, Tensor) and not isinstance(x, OnGpu) else x


class _Move(torch.autograd.Function):
    """From the CPU to the GPU or back, and the gradient the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: bool) -> Tensor:
        ctx.there = there
        return OnGpu(x.detach().clone()) if there else cast(OnGpu, x).inside.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return (g.inside if isinstance(g, OnGpu) else OnGpu(g)), None


def _made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.zeros` and its like, for the pretended GPU too."""

    def anywhere(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type == "cpu":
            return make(*args, device=device, **kwargs)
        return cast(Tensor, _on_gpu(make(*args, **kwargs)))

    return anywhere


def _moved(move: Callable[..., Tensor], place: torch.device | None = None) -> Callable[..., Tensor]:
    """`x.to(...)`, `x.cpu()`, `x.cuda()`: dtype first, then the place."""

    def anywhere(x: Tensor, *args: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
        wanted, others = place, []
        for value in (*args, device):
            if isinstance(value, Tensor):
                wanted, value = value.device, value.dtype
            if isinstance(value, (str, torch.device)):
                wanted = torch.device(value)
            elif isinstance(value, torch.dtype):
                others.append(value)
        if others or kwargs:
            x = move(x, *others, **kwargs)
        there = wanted is not None and wanted.type == "cuda"
        return x if wanted is None or there == isinstance(x, OnGpu) else cast(Tensor, _Move.apply(x, there))

    return anywhere


@contextmanager
def pretended_gpu() -> Iterator[torch.device]:
    """Within it there is a GPU. Kernels are as if Triton were not there, and work is done again instead of replayed."""
    from metreg.kernels import _has
    from metreg.kernels.replay import Replay

    cuda: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "get_device_name": lambda device: "pretended",
        "reset_peak_memory_stats": lambda device: None,
        "max_memory_allocated": lambda device: 0,
        "mem_get_info": lambda device: (2**30, 2**30),
        "synchronize": lambda *device: None,
    }
    with ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch("torch.__future__.get_overwrite_module_params_on_conversion", lambda: True))
        stack.enter_context(patch.object(Replay, "__call__", lambda self: self.work()))
        stack.enter_context(patch("metreg.kernels._has", lambda package: package != "triton" and _has(package)))
        for name in ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"):
            stack.enter_context(patch.object(torch, name, _made(getattr(torch, name))))
        for name, place in (("to", None), ("cpu", torch.device("cpu")), ("cuda", GPU)):
            stack.enter_context(patch.object(Tensor, name, _moved(Tensor.to, place)))
        yield GPU
