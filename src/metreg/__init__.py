"""metreg registers medical images with a learned, spatially varying metric."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metreg.checks import MetregError as MetregError
    from metreg.config import Settings as Settings
    from metreg.config import make_settings as make_settings
    from metreg.data.transforms import read_transform as read_transform
    from metreg.grid import Grid as Grid
    from metreg.pipeline import register as register
    from metreg.report import plots as plots
    from metreg.results import Result as Result
    from metreg.solve.momentum import read_momentum as read_momentum

# torch's threads wait for their next work a few microseconds at full speed instead of milliseconds: meanwhile others have
# some (kernels.share_cpu). This is read when torch is first imported; what the user has set stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# in the order in which data walks through the house; loaded when first asked for, so that `import metreg` is quick
_HOMES = {
    "MetregError": "checks",
    "Settings": "config",
    "make_settings": "config",
    "Grid": "grid",
    "read_transform": "data.transforms",
    "plots": "report.plots",
    "Result": "results",
    "read_momentum": "solve.momentum",
    "register": "pipeline",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'metreg' has no attribute '{name}'")
    home = import_module(f"metreg.{_HOMES[name]}")
    return home if _HOMES[name].endswith(f".{name}") else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
