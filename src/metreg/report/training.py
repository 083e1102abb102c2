"""The page of a training: curves, how the weights spread over epochs, a few of the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from metreg.report.page import Card, Section, render
from metreg.report.planes import Plane
from metreg.report.plots import energy_curves, panel
from metreg.report.tables import Table
from metreg.settings.model import Settings
from metreg.solve.energy import Energy


def training_page(
    facts: dict[str, Any],
    history: Sequence[dict[str, Any]],
    examples: dict[str, Plane],
    widths_mm: Sequence[float],
    settings: Settings,
    command: str,
) -> str:
    """`report.html` of a training. `facts` are those of the metric file, `examples` training pairs by number and name."""
    curves = [(record["stage"], {term: record[term] for term in Energy._fields}) for record in history]
    learned = [record["weights"] for record in history if "weights" in record]
    rows = [(name, str(value)) for name, value in facts.items() if name not in ("energy", "versions")]
    energy = [(name, f"{value:.4g}") for name, value in facts["energy"].items() if value]
    note = "Mean over pairs and steps, by term. The first stage moves the momenta alone, the second learns the metric too."
    sections = [
        Section("Energy", [energy_curves(curves, unit="epoch"), Table("At the end", ("term", "mean"), energy)], note)
    ]
    if learned:
        spread = (
            "How the weights of the Gaussians spread over points, epoch by epoch of the second stage; bright is frequent."
        )
        sections.append(Section("Weights", [weight_histories(np.array(learned), widths_mm)], spread))
    if examples:
        sections += [Section(f"Training pair {name}", [panel(plane)]) for name, plane in examples.items()]
    sections.append(Section("Facts", [Table("", ("what", "value"), rows)]))
    return render(
        "A learned metric",
        f"Learned from {facts['pairs']} pairs of {facts['images']} images.",
        sections,
        cards=[
            Card("pairs", str(facts["pairs"])),
            Card("epochs", " + ".join(str(count) for count in facts["epochs"])),
            Card("time", f"{facts['seconds']:.0f} s"),
            Card("energy at the end", f"{sum(facts['energy'].values()):.4g}"),
        ],
        settings=settings.to_toml(),
        command=command,
        versions=facts["versions"],
    )


def weight_histories(shares: np.ndarray[Any, Any], widths_mm: Sequence[float]) -> Figure:
    """For every Gaussian, the share of points by weight (up) and epoch (to the right).  shares (epochs, N, bins)."""
    count = shares.shape[1]
    figure = Figure(figsize=(3.4 * count, 3), layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axis, part, width in zip(axes, shares.swapaxes(0, 1), widths_mm, strict=True):
        log = np.log10(part.T.clip(1e-4))
        extent = (0.5, len(shares) + 0.5, 0.0, 1.0)
        shown = axis.imshow(log, origin="lower", aspect="auto", extent=extent, cmap="viridis", vmin=-4, vmax=0)
        axis.set_title(f"Gaussian of {width:.3g} mm")
        axis.set_xlabel("epoch")
    axes[0].set_ylabel("weight")
    figure.colorbar(shown, ax=axes, label="log10 of the share of points")
    return figure
