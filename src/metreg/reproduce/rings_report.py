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

from metreg.checks import MetregError
from metreg.config import Settings, changed
from metreg.data.whole import whole_file, write_whole
from metreg.evaluate.rings import FoldCount, RingResult, sigma_of
from metreg.grid import Array
from metreg.interpolate import upsample
from metreg.pipeline import version_of
from metreg.report.boxes import error_boxes
from metreg.report.page import Section, png, render
from metreg.report.planes import Plane, cuts, plane_of_map
from metreg.report.plots import energy_curves, metric_panels, weight_maps
from metreg.report.tables import Table, markdown_table
from metreg.reproduce.synthetic2d import FULL, MAIN, QUICK, SAID, Outcome, Plan, Tell, experiment, pooled, summarise

COLUMNS = (
    "method",
    "disc",
    "ring",
    "disc, quartiles",
    "ring, quartiles",
    "correlation",
    "contrast",
    "folds before repair",
    "folds",
)
FIGURES = ("errors", "panels", "weights", "learning")
TABLES = ("table.csv", "table.md", "summary.json", "summary.md", "report.html")
NAMES = frozenset({*TABLES, *[f"{name}.png" for name in FIGURES], "runs"})
"""What is written into the folder."""


def reproduce(
    out: Path, settings: Settings, *, quick: bool, device: torch.device, resume: bool, tell: Tell = lambda line: None
) -> dict[str, Any]:
    """The whole experiment into the folder `out`. What is done is kept in `out/runs`, so that `resume` can go on there."""
    torch.set_flush_denormal(True)
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
    record, given = runs / "plan.json", f"{plan}\n{settings.model_dump_json()}\n"
    if resume and runs.exists():
        if not record.is_file() or record.read_text(encoding="utf-8") != given:
            raise MetregError(f"--resume: the runs in {runs} are of another plan or other settings; choose a new folder")
        return
    runs.mkdir(parents=True)
    record.write_text(given, encoding="utf-8")


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
    for name, figure in zip(FIGURES, figures.values(), strict=True):
        write_whole(out / f"{name}.png", png(figure))
    with whole_file(out / "table.csv", overwrite=True) as path, path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    write_whole(out / "table.md", markdown_table(COLUMNS, rows))
    write_whole(out / "summary.md", summary_page(plan, outcomes, rows))
    held = [(claim, "held" if ok else "did not hold", why) for claim, ok, why in claims(outcomes)]
    page = render(
        "metreg reproduce synthetic2d",
        said_of(plan),
        [
            Section("The paper's claims", [Table("", ("claim", "here", "measured"), held)]),
            Section("Displacement error in pixels, medians over test pairs", [Table("", COLUMNS, rows)]),
            *[Section(title, [figure]) for title, figure in figures.items()],
        ],
        settings=settings.to_toml(),
        versions=summary["versions"],
    )
    write_whole(out / "report.html", page)
    text = json.dumps(summary, indent=2) + "\n"
    write_whole(out / "summary.json", text)
    told: dict[str, Any] = json.loads(text)
    return told


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
    for name, median in summary["errors_px"].items():
        result = pooled(outcomes, name)
        quartiles = [result.errors[region].quantile(torch.tensor([0.25, 0.75])).tolist() for region in ("disc", "ring")]
        learned = name in summary["sigma_correlation"]
        rows.append(
            (
                SAID[name],
                *[f"{median[region]:.2f}" for region in ("disc", "ring")],
                *[f"{low:.2f} to {high:.2f}" for low, high in quartiles],
                f"{summary['sigma_correlation'][name]:.3f}" if learned else "",
                f"{summary['sigma_contrast'][name]:.4f}" if learned else "",
                say_folds_before(result.before),
                str(result.folds),
            )
        )
    return rows


def say_folds_before(count: FoldCount) -> str:
    """Voxels that folded before any repair, in how many pairs, and the smallest determinant."""
    if count.voxels == 0:
        return "0"
    return f"{count.voxels} in {count.pairs} ({count.smallest:.2f})"


def claims(outcomes: Sequence[Outcome]) -> list[tuple[str, bool, str]]:
    """What the paper says of this experiment, whether it held here, and the numbers."""
    summary = summarise(outcomes)
    errors, main = summary["errors_px"], [name for name in MAIN if name in summary["errors_px"]]
    regions = ("disc", "ring")

    def listed(values: Sequence[float], digits: int = 2) -> str:
        return ", ".join(f"{value:.{digits}f}" for value in values)

    def below(others: Sequence[str]) -> bool:
        return all(errors[name][r] < errors[other][r] for name in main for other in others for r in regions)

    shares = [errors[name][r] / errors["global"][r] for name in main for r in regions]
    learned = [name for name in errors if name.startswith("omt")]
    sigmas = [summary["sigma_mean"][name] for name in main]
    found = [
        (
            "Median errors are below one pixel for all penalties",
            all(errors[name][r] < 1 for name in learned for r in regions),
            f"largest: {max(errors[name][r] for name in learned for r in regions):.2f} px over {len(learned)} settings",
        ),
        (
            "At most 0.6 px in the disc and 0.4 px in the ring for every OMT penalty",
            all(errors[name]["disc"] <= 0.6 and errors[name]["ring"] <= 0.4 for name in main),
            f"disc {listed([errors[n]['disc'] for n in main])}; ring {listed([errors[n]['ring'] for n in main])}",
        ),
        (
            "At most half the error of the global metric at equally many iterations",
            max(shares) <= 0.5,
            f"shares of it: {listed(shares)}",
        ),
        (
            "sigma(x) follows the truth: large in background and disc, small in the ring",
            all(summary["sigma_correlation"][n] >= 0.95 and summary["sigma_contrast"][n] >= 0.01 for n in main),
            f"correlation {listed([summary['sigma_correlation'][n] for n in main], 3)}; background minus ring "
            f"{listed([summary['sigma_contrast'][n] for n in main], 4)} (true {summary['sigma_contrast_true']:.4f})",
        ),
        (
            "sigma(x) is stable and rises slightly with the OMT penalty",
            sigmas == sorted(sigmas),
            f"mean sigma {listed(sigmas, 4)} for OMT {', '.join(name.removeprefix('omt') for name in main)}",
        ),
    ]
    controls = [name for name in ("constant", "constant_learned") if name in errors]
    if controls:
        numbers = "; ".join(f"{SAID[n]} {listed([errors[n][r] for r in regions])}" for n in controls)
        found.append(("The local metric beats constant weights, also learned ones", below(controls), numbers))
    maps = len(pooled(outcomes, learned[0]).errors["disc"]) * len(learned)
    counts = [pooled(outcomes, name).before for name in learned]
    before = counts[0].and_of(counts[1:])
    found.append(("No folds, before any repair", before.voxels == 0, f"{say_folds_before(before)} of {maps} maps"))
    return found


def summary_page(plan: Plan, outcomes: Sequence[Outcome], rows: Sequence[Sequence[str]]) -> str:
    """One page in Markdown."""
    seconds = sum(summarise(outcomes)["seconds"].values())
    held = [(claim, "yes" if ok else "**no**", why) for claim, ok, why in claims(outcomes)]
    return (
        f"# The paper's synthetic experiment\n\n{said_of(plan)} "
        f"Training and registration took {seconds / 60:.1f} minutes.\n\n"
        f"## Which claims held\n\n{markdown_table(('claim', 'held', 'measured'), held)}\n"
        f"## Displacement error in pixels, medians over test pairs\n\n{markdown_table(COLUMNS, rows)}"
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

    return {
        "Displacement errors over the test pairs": error_boxes(
            {SAID[name]: {region: values.numpy() for region, values in found.items()} for name, found in errors.items()}
        ),
        "One test pair with the learned metrics": metric_panels(
            {name: plane_shown(first, result) for name, result in shown.items()},
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


def plane_shown(outcome: Outcome, result: RingResult) -> Plane:
    """The first test pair under one method."""
    pairs = outcome.test.pairs
    return plane_of_map(pairs.source[:1], pairs.target[:1], result.phi_inv[:1], outcome.test.grid)


def _view_weights(outcome: Outcome, result: RingResult) -> Array:
    assert result.weights is not None
    fine = upsample(result.weights[:1], outcome.test.grid)[0]
    return _turned(outcome, fine.numpy())


def _turned(outcome: Outcome, f: Array) -> Array:
    """Arrays (N, *S) as pictures."""
    grid = outcome.test.grid
    return cuts(grid.shape, grid.affine, at=(0, 0), lost=True)[0].take(f)
