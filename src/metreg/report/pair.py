"""The page of one registered pair."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from metreg.core.grid import Array
from metreg.measure.regions import Region
from metreg.report.page import Card, Html, Section, data_uri, render, template
from metreg.report.planes import Plane
from metreg.report.plots import Registered, energy_curves, jacobian_histogram, metric_maps, panel
from metreg.report.tables import Table
from metreg.settings.model import Settings
from metreg.solve.registration import Record

NO_VIEWER = "The interactive viewer is not part of this installation (its script comes with the wheel, or by make viewer)."


class Reported(Registered, Protocol):
    """What the page wants of a result."""

    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def history(self) -> list[Record]: ...
    @property
    def regions(self) -> list[Region]: ...
    @property
    def viewer(self) -> str | None: ...


def pair_page(result: Reported, *, viewer: bool = True) -> str:
    """`report.html` of one pair; with a `viewer`, in 3-D, the volumes are embedded."""
    facts = result.summary
    sections = [
        Section(
            "Before and after",
            [Html(compare_html(result.planes))],
            "Drag the slider: fixed image on its left, moving image on its right.",
        ),
        Section("The deformation", [panel(result)], _say_views(result.planes)),
    ]
    if viewer and len(facts["affine"]) == 4:
        shown = result.viewer
        sections.append(Section("In three dimensions", [Html(shown)] if shown else [], "" if shown else NO_VIEWER))
    sections.append(_metric_section(result, facts))
    sections.append(Section("Jacobian determinant", [jacobian_histogram(result)], say_certificate(facts)))
    if result.overlaps:
        rows = sorted(facts["overlap_by_label"], key=lambda row: row["target_overlap_after"])
        parts: list[Html | Table] = [Html(template("bars.html").render(rows=rows[::-1])), _overlap_table(rows)]
        sections.append(Section("Overlap by structure", parts, "Bars: target overlap after. Marks: before, affine alone."))
    if result.regions:
        sections.append(Section("Regularity by region", [region_table(result.regions)], REGIONS_NOTE))
    curves = energy_curves([(record.level, record.terms) for record in result.history])
    sections.append(Section("Energy", [curves, _energy_table(facts)], "Dashed lines part the levels of the pyramid."))
    return render(
        "Registration report",
        f"{Path(facts['moving']).name} onto {Path(facts['fixed']).name}, metric {facts['metric']}.",
        sections,
        cards=_cards(facts),
        settings=result.settings.to_toml(),
        command=facts.get("command", ""),
        versions=facts.get("versions"),
    )


REGIONS_NOTE = (
    "Regions are those of the moving labels: sigma(x) where they lie after the affine, the deformation where they lie in "
    "the end. A log determinant spread of 0.3 means that volumes change by some 30 %, unevenly."
)


def say_certificate(facts: dict[str, Any]) -> str:
    """What is proven of the map, and what was repaired."""
    smallest = facts["certificate"]["smallest"]
    folds = f"{facts['folds']} folds by the strict test."
    before = facts.get("before_repair", {})
    if before.get("repaired"):
        folds += f" Before the repair there were {before['folds']}, and the determinant reached {before['smallest']:.2g}."
    if facts["certificate"]["holds"]:
        return f"{folds} The written map is invertible everywhere: its determinant is at least {smallest:.3g}."
    if smallest > 0:
        return f"{folds} The map is locally invertible, its determinant at least {smallest:.3g}; but the border moves."
    return f"{folds} No certificate: the determinant may reach {smallest:.3g}."


def compare_html(planes: Sequence[Plane]) -> str:
    """Fixed and moving image under a slider, plane by plane."""
    shown = [
        {
            "name": plane.cut.name,
            "letters": plane.cut.letters,
            "width": round(plane.fixed.shape[1] * plane.pixel_mm[1], 3),
            "height": round(plane.fixed.shape[0] * plane.pixel_mm[0], 3),
            **{role: _picture(getattr(plane, role)) for role in ("fixed", "before", "after")},
        }
        for plane in planes
    ]
    text: str = template("compare.html").render(planes=shown)
    return text


def _picture(image: Array) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, image.clip(0, 1), cmap="gray", vmin=0, vmax=1, format="png")
    return data_uri(buffer.getvalue(), "image/png")


def _cards(facts: dict[str, Any]) -> list[Card]:
    cards = []
    if "overlap" in facts:
        before, after = (facts["overlap"][when]["target_overlap"] for when in ("before", "after"))
        cards.append(Card("mean target overlap", f"{before:.3f} → {after:.3f}", after > before))
    certified = facts["certificate"]["holds"]
    cards.append(Card("folds", f"{facts['folds']}{', certified' if certified else ''}", facts["folds"] == 0))
    cards.append(Card("determinant, 1 % to 99 %", f"{facts['jacobian']['p1']:.2f} to {facts['jacobian']['p99']:.2f}"))
    home = facts["inverse"]["round_trip_mm"]
    cards.append(Card("there and back, mean (largest)", f"{home['mean']:.2g} ({home['max']:.2g}) mm"))
    seconds = facts.get("seconds", {})
    cards.append(Card("time", f"{sum(seconds.values()):.1f} s"))
    return cards


def _say_views(planes: Sequence[Plane]) -> str:
    if not any(planes[0].cut.letters):
        return "The grid is that of the moving image, bent by the map."
    return (
        "Radiological views: the patient's right is on the left. The grid is that of the moving image, bent by the map. "
        "The determinant is that of the map from fixed to moving points: purple tissue was pressed together, orange grew."
    )


def _metric_section(result: Reported, facts: dict[str, Any]) -> Section:
    """Maps of a local metric; of a constant one its numbers."""
    licence = f" Licence of the metric: {facts['metric_licence']}." if facts["metric_licence"] != "Apache-2.0" else ""
    widths, weights = facts["gaussians"]["sigma_mm"], facts["gaussians"]["mean_weights"]
    if result.planes[0].sigma is None:
        table = Table(
            "", ("Gaussian (mm)", "weight"), [(f"{s:.3g}", f"{w:.4f}") for s, w in zip(widths, weights, strict=True)]
        )
        return Section("The metric", [table], f"One mixture of Gaussians everywhere.{licence}")
    note = (
        "The regulariser over the anatomy it belongs to, the moving image after the affine: the local standard deviation "
        f"sigma(x), small where the deformation is free, and the weights of the Gaussians.{licence}"
    )
    return Section("The metric", [metric_maps(result, [f"weight of {s:.3g} mm" for s in widths])], note)


def _overlap_table(rows: Sequence[dict[str, Any]]) -> Table:
    keys = ("target_overlap_before", "target_overlap_after", "dice_before", "dice_after")
    lines = [(str(row["label"]), row["name"], *[f"{row[key]:.3f}" for key in keys]) for row in rows]
    return Table("", ("label", "name", "overlap before", "overlap after", "Dice before", "Dice after"), lines)


def region_table(regions: Sequence[Region], title: str = "") -> Table:
    header = (
        "label",
        "name",
        "volume (ml)",
        "mean sigma (mm)",
        "mean displacement (mm)",
        "mean determinant",
        "spread of its log",
    )
    rows = [
        (
            str(region.label),
            region.name,
            f"{region.volume_ml:.2f}",
            f"{region.sigma_mm:.2f}",
            f"{region.displacement_mm:.2f}",
            f"{region.determinant:.2f}",
            f"{region.log_spread:.3f}",
        )
        for region in regions
    ]
    return Table(title, header, rows)


def _energy_table(facts: dict[str, Any]) -> Table:
    rows = [(name, f"{value:.5g}") for name, value in facts["energy"].items() if value]
    rows += [(f"seconds, {name}", f"{value:.1f}") for name, value in facts.get("seconds", {}).items()]
    return Table("At the end", ("what", "value"), rows)
