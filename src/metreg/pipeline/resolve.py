"""Which metric a registration takes, and which settings, where not all is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from metreg.errors import MetregError
from metreg.io.image import Image
from metreg.metric.store import MetricFile, load_metric, metric_path
from metreg.prepare.likeness import likeness
from metreg.settings.model import Settings, is_set, make_settings

GLOBAL, BRAIN = "global", "brain-t1"
"""The same mixture of Gaussians everywhere; and the learned metric that is taken for what it was learned from."""
MEAN = "mean:"
"""Before the name of a learned metric: the mean of its weights."""
GLOBAL_LICENCE = "Apache-2.0"

Seen = list[tuple[Image, Image | None]]
"""Images, each with its mask."""


class Choice(NamedTuple):
    """A metric by name, opened where it is a learned one, the settings that go with it, and why it was taken."""

    metric: str
    learned: MetricFile | None
    settings: Settings
    reason: str = ""
    """In words; nothing where the user named the metric."""

    @property
    def licence(self) -> str:
        return GLOBAL_LICENCE if self.learned is None else self.learned.licence

    @property
    def line(self) -> str:
        """What was chosen, why, and its licence."""
        return f"metric: {self.metric}, as {self.reason} (licence: {self.licence})"


def choose(
    metric: str | None = None,
    *,
    preset: str | None = None,
    config: Path | None = None,
    changes: Iterable[str] | Mapping[str, Any] = (),
    settings: Settings | None = None,
    weights: bool = False,
    images: Callable[[], Seen] = list,
) -> Choice:
    """The metric and the settings of a registration. `images` are looked at only where no metric is named.

    A learned metric brings along the settings of its training, unless a preset is named, or `settings` are given whole.
    """
    reason = ""
    if metric is None:
        usual = load_metric(metric_path(BRAIN))
        given = settings or make_settings(preset, config=config, changes=changes, usual=usual.used)
        metric, reason = _usual_metric(given, usual, weights=weights, images=images)
    learned = open_metric(metric)
    if settings is None:
        settings = make_settings(preset, config=config, changes=changes, usual=None if learned is None else learned.used)
    if learned is not None:
        if weights:
            raise MetregError("weights: the metric file predicts them; give one or the other")
        refuse_others(settings, learned, metric)
        settings = settings.model_copy(
            update={"metric": learned.model.metric, "length_mm": learned.length_mm, "unit_cube": learned.unit_cube}
        )
    return Choice(metric, learned, settings, reason)


def _usual_metric(settings: Settings, usual: MetricFile, *, weights: bool, images: Callable[[], Seen]) -> tuple[str, str]:
    """What is taken where no metric is named, and why: `usual` where all images show what it was learned from."""
    if weights:
        return GLOBAL, "local weights are given"
    if settings.preset != usual.used["preset"]:
        return GLOBAL, f"preset {settings.preset} is not that of {BRAIN}"
    other = _differs(settings, usual)
    if other is not None:
        return GLOBAL, f"{other} is not that of {BRAIN}"
    for image, mask in images():
        found = likeness(image, mask, usual)
        if not found.holds:
            return GLOBAL, f"{image.name} does not look like a T1 brain without its skull: {found.difference}"
    return BRAIN, "both images look like T1 brains without skulls"


def refuse_others(settings: Settings, learned: MetricFile, name: str) -> None:
    """A learned metric comes with its kernel and its unit of length: to ask for others would do nothing."""
    other = _differs(settings, learned)
    if other is not None:
        raise MetregError(f"{other}: {name} brings Gaussians, weights and reference length of its own; leave it out")


def _differs(settings: Settings, learned: MetricFile) -> str | None:
    """The first setting that was asked for and is not as a learned metric has it."""
    own: dict[str, Any] = {"length_mm": learned.length_mm, "unit_cube": learned.unit_cube}
    for field in type(settings.metric).model_fields:
        own[f"metric.{field}"] = getattr(learned.model.metric, field)
    for key, value in own.items():
        if is_set(settings, key, otherwise=value):
            return key
    return None


def open_metric(name: str) -> MetricFile | None:
    """The learned metric of that name or file, or none for the global one."""
    return None if name == GLOBAL else load_metric(metric_path(name.removeprefix(MEAN)))
