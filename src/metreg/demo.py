"""What `metreg demo` does: learn a metric from rings, and register held-out rings with and without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from metreg.config import Settings
from metreg.data.whole import whole_folder
from metreg.evaluate.rings import RingBatch, RingResult, sigma_of
from metreg.fields import jacobian_determinant
from metreg.interpolate import sample
from metreg.metric.store import MetricFile, save_metric
from metreg.pipeline import version_of
from metreg.report.page import Table, png, render
from metreg.report.plots import energy_curves, error_boxes, middle_slice, panel, sigma_maps
from metreg.reproduce.synthetic2d import QUICK, Outcome, Plan, experiment, make_rings

NAMES = frozenset({"panel.png", "errors.png", "sigma.png", "metric.safetensors", "report.html"})
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
        summary = outcome.summary()
        errors = {SAID[name]: summary["errors_px"][name] for name in SAID if name in summary["errors_px"]}
        result = DemoResult(errors, summary["folds"], time.perf_counter() - start)
        _write(work, plan, settings, outcome, result)
    return result


def _write(work: Path, plan: Plan, settings: Settings, outcome: Outcome, result: DemoResult) -> None:
    import shutil

    _, test = make_rings(plan, settings.seed)
    figures = {
        "Errors of the test pairs": error_boxes(
            {SAID[name]: {k: v.numpy() for k, v in outcome.results[name].errors.items()} for name in SAID}
        ),
        "A test pair with the learned metric": _panel(test, outcome.results[LEARNED]),
        "The same pair with the global metric": _panel(test, outcome.results["global"]),
        "What was learned": _sigma(test, outcome, settings),
    }
    figures["Learning"] = energy_curves(outcome.histories[LEARNED])
    for name, title in (
        ("errors", "Errors of the test pairs"),
        ("panel", "A test pair with the learned metric"),
        ("sigma", "What was learned"),
    ):
        (work / f"{name}.png").write_bytes(png(figures[title]))
    grid = test.grid
    metric = MetricFile(outcome.models[LEARNED], grid.length_mm, grid.spacing, unit_cube=True, summary=outcome.summary())
    save_metric(work / "metric.safetensors", metric)
    rows = [(name, f"{row['disc']:.2f}", f"{row['ring']:.2f}") for name, row in result.errors.items()]
    agreement = outcome.agreement[LEARNED]
    page = render(
        "metreg demo: a metric learned from rings",
        f"A metric is learned from {plan.training_pairs} synthetic pairs; {plan.test_pairs} others, whose true maps are "
        "known, are registered with and without it, in equally many iterations. "
        f"{result.folds} folds, {result.seconds:.0f} s. "
        f"sigma(x) correlates with the truth by {agreement['correlation']:.2f}.",
        figures=figures,
        tables=[Table("Displacement error in pixels, median over pairs", ("method", "disc", "ring"), rows)],
        settings=settings.to_toml(),
        version=version_of("metreg"),
    )
    (work / "report.html").write_text(page, encoding="utf-8")
    shutil.rmtree(work / "runs")


def _panel(test: RingBatch, result: RingResult) -> Figure:
    """The first test pair under one method."""
    grid, source, phi_inv = test.grid, test.pairs.source[:1], result.phi_inv[:1]
    shift = ((phi_inv - grid.points(phi_inv)) / grid.steps(phi_inv))[0]
    images = (source, test.pairs.target[:1], sample(source, phi_inv, grid), jacobian_determinant(phi_inv, grid)[:, None])
    return panel(middle_slice(*[image[0, 0].numpy() for image in images], shift=shift.numpy(), affine=grid.affine))


def _sigma(test: RingBatch, outcome: Outcome, settings: Settings) -> Figure:
    sigma = settings.metric.sigma
    maps = {"learned": sigma_of(outcome.weights[LEARNED][:1], sigma), "true": sigma_of(test.weights[:1], sigma)}
    return sigma_maps(test.pairs.source[0, 0].numpy(), {name: f[0].numpy() for name, f in maps.items()}, "unit lengths")
