"""What `metreg demo` does: learn a metric from rings, and register held-out rings with and without it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from metreg.config import Settings
from metreg.data.whole import whole_folder
from metreg.metric.store import MetricFile, save_metric
from metreg.pipeline import version_of
from metreg.report.page import Card, Html, Section, png, render
from metreg.report.pair import compare_html
from metreg.report.plots import panel
from metreg.report.tables import Table
from metreg.reproduce.rings_report import FIGURES, make_figures, plane_shown
from metreg.reproduce.synthetic2d import QUICK, Outcome, Plan, experiment
from metreg.solve.multiscale import map_grid_of

NAMES = frozenset({"panel.png", *[f"{name}.png" for name in FIGURES], "metric.safetensors", "report.html"})
LEARNED = "omt50"
PLAN = replace(QUICK, variants=(LEARNED,))
"""24 pairs to learn from, 8 to test on."""
SAID = {
    "none": "no registration",
    "global": "global metric",
    "constant": "mean of the learned one",
    LEARNED: "learned metric",
}


@dataclass(frozen=True)
class DemoResult:
    """Median displacement errors in pixels over the test pairs, by method and region."""

    errors: dict[str, dict[str, float]]
    folds: int
    seconds: float


def run_demo(
    out: Path,
    settings: Settings,
    *,
    device: torch.device,
    overwrite: bool,
    plan: Plan = PLAN,
    tell: Callable[[str], None] = lambda line: None,
) -> DemoResult:
    """Learn, register, measure; write the figures, the metric and `report.html`."""
    torch.set_flush_denormal(True)
    start = time.perf_counter()
    with whole_folder(out, names=NAMES, overwrite=overwrite) as work:
        outcome = experiment(plan, settings, work / "runs", device=device, tell=tell)
        shutil.rmtree(work / "runs")
        summary = outcome.summary()
        errors = {SAID[name]: summary["errors_px"][name] for name in SAID if name in summary["errors_px"]}
        folds = sum(summary["folds_by_method"][name] for name in SAID)
        result = DemoResult(errors, folds, time.perf_counter() - start)
        _write(work, out, plan, settings, outcome, result)
    return result


def _write(work: Path, out: Path, plan: Plan, settings: Settings, outcome: Outcome, result: DemoResult) -> None:
    figures = make_figures([outcome], settings)
    for name, figure in zip(FIGURES, figures.values(), strict=True):
        (work / f"{name}.png").write_bytes(png(figure))
    planes = {method: plane_shown(outcome, outcome.results[method]) for method in (LEARNED, "global")}
    pictures = {method: panel(plane) for method, plane in planes.items()}
    (work / "panel.png").write_bytes(png(pictures[LEARNED]))
    seen = map_grid_of(outcome.test.grid, settings.flow.map_factor)
    metric = MetricFile(outcome.models[LEARNED], seen.length_mm, seen.voxel_mm, unit_cube=True, summary=outcome.summary())
    save_metric(work / "metric.safetensors", metric)
    rows = [(name, f"{row['disc']:.2f}", f"{row['ring']:.2f}") for name, row in result.errors.items()]
    agreement = outcome.results[LEARNED].agreement
    learned, fixed = result.errors[SAID[LEARNED]], result.errors[SAID["global"]]
    page = render(
        "metreg demo: a metric learned from rings",
        f"A metric is learned from {plan.training_pairs} synthetic pairs; {plan.test_pairs} others, whose true maps are "
        "known, are registered with and without it, in equally many iterations.",
        [
            Section("Errors", [Table("Displacement error in pixels, median over pairs", ("method", "disc", "ring"), rows)]),
            Section("A test pair under the learned metric", [Html(compare_html([planes[LEARNED]])), pictures[LEARNED]]),
            Section("The same pair with the global metric", [pictures["global"]]),
            *[Section(title, [figure]) for title, figure in figures.items()],
        ],
        cards=[
            Card("error in the ring, global to learned", f"{fixed['ring']:.2f} → {learned['ring']:.2f} px", True),
            Card("error in the disc", f"{fixed['disc']:.2f} → {learned['disc']:.2f} px", True),
            Card("folds", str(result.folds), result.folds == 0),
            Card("sigma(x) correlates with the truth", f"{agreement['correlation']:.2f}"),
            Card("time", f"{result.seconds:.0f} s"),
        ],
        settings=settings.to_toml(),
        command=f"metreg demo -o {out.name} --seed {settings.seed}",
        versions={name: version_of(name) for name in ("metreg", "torch")},
    )
    (work / "report.html").write_text(page, encoding="utf-8")
