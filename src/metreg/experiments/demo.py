"""What `metreg demo` does: learn a metric from rings, and register held-out rings with and without it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from metreg.experiments.rings.converged import CONSTANT, GLOBAL, NONE
from metreg.experiments.rings.experiment import LEARNED, QUICK, Outcome, Plan, experiment
from metreg.experiments.rings.report import FIGURES, make_figures, plane_shown
from metreg.io.atomic import atomic_folder
from metreg.kernels.heavy import heavy_work
from metreg.metric.store import MetricFile, save_metric
from metreg.pipeline.register import version_of
from metreg.report.page import Card, Html, Section, png, render
from metreg.report.pair import compare_html
from metreg.report.plots import panel
from metreg.report.tables import Table
from metreg.settings.model import Settings
from metreg.solve.pyramid import map_grid_of

NAMES = frozenset({"panel.png", *[f"{name}.png" for name in FIGURES], "metric.safetensors", "report.html"})
PLAN = replace(
    QUICK, variants=(LEARNED,), silent_pairs=(0, QUICK.test_pairs), regularities=(1.0,), kinds=("silent",), truth=False
)
"""24 pairs to learn from, 8 to test on, and 8 without texture."""
CALLED = {NONE: "no registration", GLOBAL: "global metric", CONSTANT: "mean of the learned one", LEARNED: "learned metric"}
SILENT = "rings without texture, search to the end"
CONVERGED = "rings with texture, search to the end"
PAPER = "rings with texture, the paper's search"
"""The three parts, the headline first."""

Errors = dict[str, dict[str, float]]
"""Median displacement errors in pixels over the test pairs, by method and region."""


@dataclass(frozen=True)
class DemoResult:
    """What came out."""

    errors: dict[str, Errors]
    """By part."""
    folds: int
    """Voxels of all maps; nothing was repaired."""
    seconds: float


@heavy_work()
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
    start = time.perf_counter()
    with atomic_folder(out, names=NAMES, overwrite=overwrite) as work:
        outcome = experiment(plan, settings, work / "runs", device=device, tell=tell)
        shutil.rmtree(work / "runs")
        parts = {
            SILENT: {name: tuned.result for name, tuned in outcome.silent["silent"].items()},
            CONVERGED: outcome.converged,
            PAPER: outcome.results,
        }
        errors = {
            part: {called: results[name].medians() for name, called in CALLED.items()} for part, results in parts.items()
        }
        folds = sum(results[name].folds for results in parts.values() for name in CALLED)
        result = DemoResult(errors, folds, time.perf_counter() - start)
        _write(work, out, plan, settings, outcome, result)
    return result


def _write(work: Path, out: Path, plan: Plan, settings: Settings, outcome: Outcome, result: DemoResult) -> None:
    figures = make_figures([outcome], settings)
    for name, figure in zip(FIGURES, figures.values(), strict=False):
        (work / f"{name}.png").write_bytes(png(figure))
    silent = outcome.silent["silent"]
    planes = {name: plane_shown(silent[name].batch, silent[name].result) for name in (LEARNED, GLOBAL)}
    pictures = {name: panel(plane) for name, plane in planes.items()}
    (work / "panel.png").write_bytes(png(pictures[LEARNED]))
    seen = map_grid_of(outcome.test.grid, settings.flow.map_factor)
    metric = MetricFile(outcome.models[LEARNED], seen.length_mm, seen.voxel_mm, unit_cube=True, summary=outcome.summary())
    save_metric(work / "metric.safetensors", metric)
    tables = []
    for part, errors in result.errors.items():
        rows = [(name, f"{row['disc']:.2f}", f"{row['ring']:.2f}") for name, row in errors.items()]
        tables.append(Table(part, ("method", "disc", "ring"), rows))
    agreement = outcome.results[LEARNED].agreement
    learned = result.errors[SILENT][CALLED[LEARNED]]
    fixed = result.errors[SILENT][CALLED[GLOBAL]]
    slider = Html(compare_html([planes[LEARNED]]))
    page = render(
        "metreg demo: a metric learned from rings",
        f"A metric is learned from {plan.training_pairs} synthetic pairs. Others, whose true maps are known, are "
        "registered with and without it. Where images have no texture, only the metric says how the inside of a ring "
        "moves: there a learned one pays. Where texture says it, and the search goes to the end, the global metric is "
        "nearly as good.",
        [
            Section("Displacement errors in pixels, medians over test pairs", [*tables]),
            Section("A test pair without texture under the learned metric", [slider, pictures[LEARNED]]),
            Section("The same pair with the global metric", [pictures[GLOBAL]]),
            *[Section(title, [figure]) for title, figure in figures.items()],
        ],
        cards=[
            Card("error in the ring, global to learned", f"{fixed['ring']:.2f} → {learned['ring']:.2f} px", True),
            Card("error in the disc", f"{fixed['disc']:.2f} → {learned['disc']:.2f} px", True),
            Card("folds, nothing repaired", str(result.folds), result.folds == 0),
            Card("sigma(x) correlates with the truth", f"{agreement['correlation']:.2f}"),
            Card("time", f"{result.seconds:.0f} s"),
        ],
        settings=settings.to_toml(),
        command=f"metreg demo -o {out.name} --seed {settings.seed}",
        versions={name: version_of(name) for name in ("metreg", "torch")},
    )
    (work / "report.html").write_text(page, encoding="utf-8")
