"""What is written of the synthetic experiment: figures, tables, a summary, and which of the paper's claims held."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from metreg.core.grid import Array
from metreg.core.resample import upsample
from metreg.experiments.rings.batch import RingBatch, RingResult, sigma_of
from metreg.experiments.rings.claims import claims
from metreg.experiments.rings.converged import KINDS, NONE
from metreg.experiments.rings.experiment import (
    FULL,
    MAIN,
    QUICK,
    SAID,
    Outcome,
    Plan,
    Tell,
    experiment,
    pooled,
    summarise,
    together,
)
from metreg.io.atomic import atomic_file, atomic_write
from metreg.kernels.heavy import heavy_work
from metreg.many.claim import check_resume, write_record
from metreg.pipeline.register import version_of
from metreg.report.boxes import error_boxes
from metreg.report.evaluation import BEFORE_REPAIR
from metreg.report.page import Section, png, render
from metreg.report.planes import Plane, cuts, plane_of_map
from metreg.report.plots import energy_curves, metric_panels, weight_maps
from metreg.report.tables import Table, markdown_table
from metreg.settings.model import Settings, changed

COLUMNS = (
    "method",
    "disc",
    "ring",
    "disc, quartiles",
    "ring, quartiles",
    "correlation",
    "contrast",
    "energy",
    BEFORE_REPAIR,
    "folds",
)
END_COLUMNS = ("method", "lambda", "disc", "ring", "disc, quartiles", "ring, quartiles", "energy", BEFORE_REPAIR)
FIGURES = ("errors", "panels", "weights", "learning", "silent")
TABLES = ("table.csv", "table.md", "summary.json", "summary.md", "report.html")
FORMAT = "metreg-rings-experiment-1"
"""Of what `plan.json` keeps of an experiment."""
NAMES = frozenset({*TABLES, *[f"{name}.png" for name in FIGURES], "runs"})
"""What is written into the folder."""


@heavy_work()
def reproduce(
    out: Path, settings: Settings, *, quick: bool, device: torch.device, resume: bool, tell: Tell = lambda line: None
) -> dict[str, Any]:
    """The whole experiment into the folder `out`. What is done is kept in `out/runs`, so that `resume` can go on there."""
    plan = QUICK if quick else FULL
    _begin(out / "runs", plan, settings, resume=resume)
    outcomes = []
    for seed in range(settings.seed, settings.seed + plan.seeds):
        tell(f"seed {seed}")
        runs = out / "runs" / f"seed{seed}"
        outcomes.append(experiment(plan, changed(settings, {"seed": seed}), runs, device=device, tell=tell))
    return write_report(out, plan, settings, outcomes)


def _begin(runs: Path, plan: Plan, settings: Settings, *, resume: bool) -> None:
    """Make the folder, or see that what lies there is of the same experiment."""
    record = runs / "plan.json"
    given = {"plan": asdict(plan), "settings": settings.model_dump(mode="json")}
    if resume and runs.exists():
        check_resume(record, given, form=FORMAT, folder=runs)
    write_record(record, given, form=FORMAT)


def write_report(out: Path, plan: Plan, settings: Settings, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """table.csv, table.md, summary.json, summary.md, the figures and report.html. Gives the summary."""
    summary = {
        **summarise(outcomes),
        "seeds": [outcome.summary()["errors_px"] for outcome in outcomes],
        "claims": {claim: held for claim, held, _ in claims(outcomes)},
        "plan": asdict(plan),
        "versions": {name: version_of(name) for name in ("metreg", "torch")},
        "settings": settings.model_dump(mode="json"),
    }
    rows = table_rows(outcomes)
    figures = make_figures(outcomes, settings)
    for name, figure in zip(FIGURES, figures.values(), strict=False):
        atomic_write(out / f"{name}.png", png(figure))
    with atomic_file(out / "table.csv", overwrite=True) as path, path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    atomic_write(out / "table.md", markdown_table(COLUMNS, rows))
    atomic_write(out / "summary.md", summary_page(plan, outcomes, rows))
    held = [(claim, "held" if ok else "did not hold", why) for claim, ok, why in claims(outcomes)]
    page = render(
        "metreg reproduce synthetic2d",
        said_of(plan),
        [
            Section("The paper's claims", [Table("", ("claim", "here", "measured"), held)]),
            Section(FIRST, [Table("", COLUMNS, rows)], ERRORS),
            *[Section(title, [Table("", END_COLUMNS, lines)], ERRORS) for title, lines in end_tables(outcomes).items()],
            *[Section(title, [figure]) for title, figure in figures.items()],
        ],
        settings=settings.to_toml(),
        versions=summary["versions"],
    )
    atomic_write(out / "report.html", page)
    text = json.dumps(summary, indent=2) + "\n"
    atomic_write(out / "summary.json", text)
    told: dict[str, Any] = json.loads(text)
    return told


FIRST = "1. The paper's protocol: stochastic gradient descent"
SECOND = "2. The same pairs and the same energy, converged"
THIRD = "3. Converged, where images say little"
ERRORS = "Displacement error in pixels, medians over test pairs."


def end_tables(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[str, ...]]]:
    """The second and the third part: rows of END_COLUMNS by title."""
    first = outcomes[0]
    tables: dict[str, list[tuple[str, ...]]] = {}
    if first.converged:
        tables[SECOND] = [
            _end_row(name, "as in the paper", together([outcome.converged[name] for outcome in outcomes]))
            for name in first.converged
        ]
    for kind, methods in first.silent.items():
        lines = []
        for name in methods:
            tuned = [outcome.silent[kind][name] for outcome in outcomes]
            chosen = ", ".join(f"{regularity:g}" for regularity in sorted({found.regularity for found in tuned}))
            lines.append(_end_row(name, chosen, together([found.result for found in tuned])))
        tables[f"{THIRD}: {KINDS[kind].said}"] = lines
    return tables


def _end_row(name: str, regularity: str, result: RingResult) -> tuple[str, ...]:
    registered = name != NONE
    return (
        SAID[name],
        regularity if registered else "",
        *_errors(result),
        f"{result.energy:.4g}" if registered else "",
        str(result.before) if registered else "",
    )


def _errors(result: RingResult) -> list[str]:
    """Median errors in disc and ring, and their quartiles."""
    medians = result.medians()
    cells = [f"{medians[region]:.2f}" for region in ("disc", "ring")]
    for region in ("disc", "ring"):
        low, high = result.errors[region].quantile(torch.tensor([0.25, 0.75])).tolist()
        cells.append(f"{low:.2f} to {high:.2f}")
    return cells


def said_of(plan: Plan) -> str:
    return (
        f"{plan.training_pairs} training and {plan.test_pairs} test pairs for each of {plan.seeds} "
        f"seed{'s' if plan.seeds > 1 else ''}, {plan.epochs[0]} + {plan.epochs[1]} epochs. Registration takes "
        f"{plan.iterations[0]} iterations with the global and {plan.iterations[1]} with the local metric; "
        f"the global metric alone gets all {sum(plan.iterations)}."
    )


def table_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row for every method, in COLUMNS."""
    summary = summarise(outcomes)
    rows = []
    for name in summary["errors_px"]:
        result = pooled(outcomes, name)
        learned = name in summary["sigma_correlation"]
        registered = name != NONE
        rows.append(
            (
                SAID[name],
                *_errors(result),
                f"{summary['sigma_correlation'][name]:.3f}" if learned else "",
                f"{summary['sigma_contrast'][name]:.4f}" if learned else "",
                f"{result.energy:.4g}" if registered else "",
                str(result.before) if registered else "",
                str(result.folds),
            )
        )
    return rows


def summary_page(plan: Plan, outcomes: Sequence[Outcome], rows: Sequence[Sequence[str]]) -> str:
    """One page in Markdown."""
    seconds = sum(summarise(outcomes)["seconds"].values())
    held = [(claim, "yes" if ok else "**no**", why) for claim, ok, why in claims(outcomes)]
    return (
        f"# The paper's synthetic experiment\n\n{said_of(plan)} "
        f"Training and registration took {seconds / 60:.1f} minutes.\n\n"
        f"## Which claims held\n\n{markdown_table(('claim', 'held', 'measured'), held)}\n"
        f"## {FIRST}\n\n{ERRORS}\n\n{markdown_table(COLUMNS, rows)}"
        + "".join(f"\n## {title}\n\n{markdown_table(END_COLUMNS, lines)}" for title, lines in end_tables(outcomes).items())
    )


def make_figures(outcomes: Sequence[Outcome], settings: Settings) -> dict[str, Figure]:
    """By title, in the order of FIGURES."""
    first = outcomes[0]
    shown = {SAID[name]: first.results[name] for name in MAIN if name in first.results}
    errors = {name: pooled(outcomes, name).errors for name in SAID if name in first.results}
    sigma = settings.metric.sigma
    weights = {name: _view_weights(first, result) for name, result in shown.items()}
    truth = _turned(first, first.test.weights[0].numpy())
    label = next(name for name in (*MAIN, *first.histories) if name in first.histories)

    def spread(w: Array) -> Array:
        return sigma_of(torch.from_numpy(w)[None], sigma)[0].numpy()

    figures = {
        "Displacement errors over the test pairs": error_boxes(
            {SAID[name]: {region: values.numpy() for region, values in found.items()} for name, found in errors.items()}
        ),
        "One test pair with the learned metrics": metric_panels(
            {name: plane_shown(first.test, result) for name, result in shown.items()},
            {name: spread(w) for name, w in weights.items()},
            "unit lengths",
            truth=spread(truth),
        ),
        "Weights of the Gaussians for the same pair, and the true ones": weight_maps(
            {**weights, "true": truth}, [f"sigma = {s:g}" for s in sigma]
        ),
        f"Learning ({SAID[label]}): mean energy over the training pairs": energy_curves(
            first.histories[label], unit="epoch"
        ),
    }
    if "silent" in first.silent:
        figures["Displacement errors where images have no texture, converged"] = error_boxes(
            {
                SAID[name]: {
                    region: torch.cat(
                        [outcome.silent["silent"][name].result.errors[region] for outcome in outcomes]
                    ).numpy()
                    for region in ("disc", "ring")
                }
                for name in first.silent["silent"]
            }
        )
    return figures


def plane_shown(batch: RingBatch, result: RingResult) -> Plane:
    """The first pair of a batch under one method."""
    pairs = batch.pairs
    return plane_of_map(pairs.source[:1], pairs.target[:1], result.phi_inv[:1], batch.grid)


def _view_weights(outcome: Outcome, result: RingResult) -> Array:
    assert result.weights is not None
    fine = upsample(result.weights[:1], outcome.test.grid)[0]
    return _turned(outcome, fine.numpy())


def _turned(outcome: Outcome, f: Array) -> Array:
    """Arrays (N, *S) as pictures."""
    grid = outcome.test.grid
    return cuts(grid.shape, grid.affine, at=(0, 0), lost=True)[0].take(f)
