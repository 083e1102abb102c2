"""The page about a metric."""

from __future__ import annotations

from typing import Any, Protocol

from metreg.report.page import Section, render
from metreg.report.planes import Shown
from metreg.report.plots import metric_maps
from metreg.report.tables import Table


class Inspected(Shown, Protocol):
    @property
    def facts(self) -> dict[str, Any]: ...


def metric_page(view: Inspected, version: str) -> str:
    """Maps over an image where there is one, numbers by tissue class, the card."""
    facts = view.facts
    widths = facts["gaussians"]["sigma_mm"]
    sections = []
    if view.planes:
        figure = metric_maps(view, [f"weight of {s:.3g} mm" for s in widths])
        sections.append(Section(f"Over {facts['over']}", [figure, class_table(facts)]))
    sections.append(Section("Card", [card_table(facts)]))
    return render("A metric", f"{facts['metric']}, licence {facts['licence']}.", sections, versions={"metreg": version})


def class_table(facts: dict[str, Any]) -> Table:
    """sigma and weights by tissue class."""
    widths = facts["gaussians"]["sigma_mm"]
    rows = [
        (row["class"], f"{100 * row['share']:.0f} %", f"{row['sigma_mm']:.2f}", *[f"{w:.3f}" for w in row["weights"]])
        for row in facts["classes"]
    ]
    set_point = ("set point", "", "", *[f"{w:.3f}" for w in facts["gaussians"]["set_point"]])
    return Table("", ("tissue", "share", "sigma (mm)", *[f"w of {s:.3g} mm" for s in widths]), [*rows, set_point])


def card_table(facts: dict[str, Any]) -> Table:
    """Everything else that a metric file says of itself."""
    learned = {name: value for name, value in facts["learned"].items() if not isinstance(value, dict)}
    training = {name: value for name, value in facts["training"].items() if name not in ("energy", "settings")}
    told = {name: facts[name] for name in ("dim", "parameters", "length_mm", "voxel_mm", "licence")}
    rows = [(name, _say(value)) for name, value in {**told, **learned, **training}.items()]
    return Table("", ("what", "value"), rows)


def _say(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_say(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)
