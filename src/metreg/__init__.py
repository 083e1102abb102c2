"""metreg registers medical images with a learned, spatially varying metric."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metreg.core.grid import Grid as Grid
    from metreg.deformation.stationary import flow as flow
    from metreg.errors import MetregError as MetregError
    from metreg.evaluation.run import evaluate as evaluate
    from metreg.io.transforms import Transform as Transform
    from metreg.io.transforms import read_transform as read_transform
    from metreg.learn.run import train as train
    from metreg.metric.store import load_metric as load_metric
    from metreg.pipeline.apply import apply as apply
    from metreg.pipeline.inspect import inspect as inspect
    from metreg.pipeline.register import register as register
    from metreg.report import plots as plots
    from metreg.result.momentum import read_momentum as read_momentum
    from metreg.result.result import Result as Result
    from metreg.settings.model import Settings as Settings
    from metreg.settings.model import make_settings as make_settings
    from metreg.settings.process import own_process as own_process
    from metreg.solve.register import register_tensors as register_tensors

# in the order in which data walks through the house; loaded when first asked for, so that `import metreg` is quick
_HOMES = {
    "MetregError": "errors",
    "own_process": "settings.process",
    "Settings": "settings.model",
    "make_settings": "settings.model",
    "Grid": "core.grid",
    "Transform": "io.transforms",
    "read_transform": "io.transforms",
    "load_metric": "metric.store",
    "flow": "deformation.stationary",
    "plots": "report.plots",
    "Result": "result.result",
    "read_momentum": "result.momentum",
    "register_tensors": "solve.register",
    "register": "pipeline.register",
    "apply": "pipeline.apply",
    "inspect": "pipeline.inspect",
    "train": "learn.run",
    "evaluate": "evaluation.run",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'metreg' has no attribute '{name}'")
    home = import_module(f"metreg.{_HOMES[name]}")
    return getattr(home, name, home)  # plots is a module


def __dir__() -> list[str]:
    return sorted(_HOMES)
