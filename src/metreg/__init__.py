"""metreg registers medical images with a learned, spatially varying metric."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metreg.core.grid import Grid as Grid
    from metreg.errors import MetregError as MetregError
    from metreg.io.transforms import read_transform as read_transform
    from metreg.pipeline.register import register as register
    from metreg.report import plots as plots
    from metreg.result.momentum import read_momentum as read_momentum
    from metreg.result.result import Result as Result
    from metreg.settings.model import Settings as Settings
    from metreg.settings.model import make_settings as make_settings
    from metreg.settings.process import own_process as own_process

# in the order in which data walks through the house; loaded when first asked for, so that `import metreg` is quick
_HOMES = {
    "MetregError": "errors",
    "own_process": "settings.process",
    "Settings": "settings.model",
    "make_settings": "settings.model",
    "Grid": "core.grid",
    "read_transform": "io.transforms",
    "plots": "report.plots",
    "Result": "result.result",
    "read_momentum": "result.momentum",
    "register": "pipeline.register",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'metreg' has no attribute '{name}'")
    home = import_module(f"metreg.{_HOMES[name]}")
    return getattr(home, name, home)  # plots is a module


def __dir__() -> list[str]:
    return sorted(_HOMES)
