"""Compile every Triton kernel for a GPU that need not be there, as its own caller would launch it. A script: the tests that
run the kernels do so in Triton's interpreter where there is no GPU, and that takes more than the compiler does."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from metreg.core.grid import Grid
from metreg.kernels.triton import advection as advection_gpu
from metreg.kernels.triton import ncc as ncc_gpu
from metreg.kernels.triton import smooth as smooth_gpu
from metreg.kernels.triton import warp as warp_gpu
from metreg.kernels.triton.convolve import convolve
from metreg.kernels.triton.folding import FoldingOnGpu
from metreg.kernels.triton.lncc import LnccOnGpu
from metreg.kernels.triton.ncc import WarpedNcc
from metreg.kernels.triton.smooth import Sharp
from metreg.kernels.triton.speed import fastest
from metreg.kernels.triton.warp import Warp
from metreg.metric.gaussian import SeparableGaussians


def compile_only(
    self: JITFunction[Any],
    *args: Any,
    grid: Any,
    warmup: bool,
    num_warps: int = 4,
    launch_pdl: bool = False,
    **constants: Any,
) -> None:
    """In the place of a launch."""
    del grid, warmup
    given = dict(zip(self.arg_names, args, strict=False)) | constants
    signature, fixed = {}, {}
    for place, (name, parameter) in enumerate(zip(self.arg_names, self.params, strict=True)):
        value = given[name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):  # Triton makes a constant of every 1
            signature[name], fixed[(place,)] = "constexpr", value
        else:
            signature[name] = "*fp32" if isinstance(value, torch.Tensor) else "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(fn=self, signature=signature, constexprs=fixed)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps, "launch_pdl": launch_pdl})


def main() -> None:
    JITFunction.run = compile_only  # type: ignore[method-assign, assignment]
    for module in (ncc_gpu, smooth_gpu, advection_gpu, warp_gpu):
        module.early = lambda device, wanted=True: {"EARLY": True, "launch_pdl": True}  # type: ignore[assignment]
    for shape in ((9, 12), (9, 12, 14)):
        dim = len(shape)
        grid = Grid(shape, (0.1,) * dim)
        image, phi = torch.rand(2, 1, *shape), torch.rand(2, dim, *[5] * dim, requires_grad=True)
        v = torch.rand(2, dim, *shape, requires_grad=True)
        for order in (1, 4):
            _, kept = advection_gpu.forward(v, v, [0.1] * dim, 2, order)
            advection_gpu.backward(kept, v, [0.1] * dim, v, order)
        for mask in (None, image):
            WarpedNcc.apply(image, phi, image, mask, grid, 1e-6).sum().backward()
            for noise in (0.0, 0.15):
                LnccOnGpu.apply(image.requires_grad_(), image, mask, 5, 1e-6, 1e-3, noise, 1.0).sum().backward()
        Warp.apply(image.detach(), phi, grid).sum().backward()
        FoldingOnGpu.apply(v, grid, 0.3).sum().backward()
        matrices = SeparableGaussians(grid, torch.tensor([0.1, 0.2])).matrices
        for w in (torch.rand(2), torch.rand(2, 2, *shape)):
            Sharp.apply(v, w.requires_grad_(), None, matrices, grid.spacing)[0].sum().backward()
        fastest(v.detach(), grid.spacing)
        kernel = torch.rand(4, 1, *[5] * dim, requires_grad=True)
        convolve(image.requires_grad_(), kernel).sum().backward()


if __name__ == "__main__":
    main()
