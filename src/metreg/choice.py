"""Which metric a registration takes, and which settings, where not all is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from metreg.checks import MetregError
from metreg.config import MetricSettings, Settings, make_settings
from metreg.data.formats import open_image
from metreg.metric.store import MetricFile, load_metric, metric_path

GLOBAL, USUAL = "global", "brain-t1"
"""The same mixture of Gaussians everywhere; and the learned metric that is taken in 3-D where none is named."""
HEAD_MM = 100.0
"""An image of less than this is not of a head, and `global` does better there."""
MEAN = "mean:"
"""Before the name of a learned metric: the mean of its weights."""


def choose(
    fixed: Any,
    metric: str | None = None,
    *,
    preset: str | None = None,
    config: Path | None = None,
    changes: Iterable[str] | Mapping[str, Any] = (),
    weights: bool = False,
) -> tuple[str, Settings]:
    """The metric and the settings of a registration, where not all is said.

    A learned metric brings along the settings of its training, unless a preset is named.
    """
    if metric is None:
        used = load_metric(metric_path(USUAL)).used
        given = make_settings(preset, config=config, changes=changes, usual=used)
        metric = usual_metric(fixed, given, weights=weights)
    learned = open_metric(metric)
    settings = make_settings(preset, config=config, changes=changes, usual=None if learned is None else learned.used)
    if learned is not None and not _has_no_others(settings, learned):
        raise MetregError(f"metric.*: {metric} has Gaussians and weights of its own; leave these settings out")
    return metric, settings


def usual_metric(fixed: Any, settings: Settings, *, weights: bool = False) -> str:
    """What is taken where no metric is named: in 3-D brain-t1, unless there are weights, other Gaussians, a preset that is
    not the one it was trained with, or a fixed image too small to show a head.
    """
    usual = load_metric(metric_path(USUAL))
    if weights or settings.preset != usual.used["preset"] or not _has_no_others(settings, usual):
        return GLOBAL
    extent = open_image(fixed, "fixed image", unpacked=False).extent_mm
    return USUAL if len(extent) == 3 and max(extent) >= HEAD_MM else GLOBAL


def _has_no_others(settings: Settings, learned: MetricFile) -> bool:
    """Whether the settings name no Gaussians or weights, or just those that the metric has."""
    asked, *fitting = (
        (metric.sigma, metric.weights) for metric in (settings.metric, MetricSettings(), learned.model.metric)
    )
    return asked in fitting


def open_metric(name: str) -> MetricFile | None:
    """The learned metric of that name or file, or none for the global one."""
    return None if name == GLOBAL else load_metric(metric_path(name.removeprefix(MEAN)))
