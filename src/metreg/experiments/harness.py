"""What experiments on images share: learn a metric, test methods, draw a pair, say which claims held. Each part once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import torch

from metreg.evaluation.methods import AFFINE, Method
from metreg.evaluation.run import Rows, begin, evaluate_methods, write_report
from metreg.experiments.findings import CONSTANT, GLOBAL, LONG, Claim
from metreg.io.atomic import atomic_write
from metreg.io.tables import PairFiles
from metreg.learn.curriculum import train
from metreg.learn.run import Prepared, prepare, train_metric
from metreg.many.claim import check_resume, contents_of, write_record
from metreg.metric.store import load_metric
from metreg.pipeline.register import register, version_of
from metreg.pipeline.resolve import MEAN
from metreg.report.evaluation import Published
from metreg.report.page import Html, Section, data_uri, png, render
from metreg.report.plots import metric_panels, weight_maps
from metreg.report.tables import Table, markdown_table
from metreg.settings.model import Settings, changed

FORMAT = "metreg-experiment-2"
"""Of what `plan.json` keeps of an experiment's inputs."""
Tell = Callable[[str], None]
SAID = (
    f"{GLOBAL} is the hand-set mixture of Gaussians; {LONG} likewise, with as many iterations as learned metrics take in "
    f"both their passes. {CONSTANT} has everywhere the mean, over the image, of the learned weights: what a learned metric "
    "adds to it is owed to its varying in space."
)
FIGURES = {
    "panels.png": "One test pair with the learned metrics",
    "weights.png": "Weights of the Gaussians for the same pair",
}
TABLES = ("table.md", "summary.json", "summary.md", "report.html")
PARTS = frozenset({*TABLES, *FIGURES, "metrics", "plan.json"})
"""What every such experiment writes into its folder."""


@dataclass(frozen=True)
class Plan:
    """How much of everything; none: all pairs, and what the settings say."""

    training_pairs: int
    test_pairs: int | None = None
    epochs: tuple[int, int] | None = None
    """Most of each stage."""
    iterations: int | None = None
    """Most at a level of a pass."""

    def at_most(self, pairs: int | None) -> Plan:
        """The same, but learning from no more pairs than these."""
        return self if pairs is None else replace(self, training_pairs=min(pairs, self.training_pairs))

    def settings_of(self, settings: Settings) -> Settings:
        """The settings, shortened to this plan."""
        epochs, solve = settings.train.epochs, settings.solve
        most = self.epochs or epochs
        return changed(
            settings,
            {
                "train.epochs": (min(epochs[0], most[0]), min(epochs[1], most[1])),
                "train.batch": min(settings.train.batch, self.training_pairs),
                "solve.iterations": self._cap(solve.iterations, self.iterations),
                "solve.local_iterations": solve.local_iterations and self._cap(solve.local_iterations, self.iterations),
            },
        )

    @staticmethod
    def _cap(counts: tuple[int, ...], most: int | None) -> tuple[int, ...]:
        return counts if most is None else tuple(min(count, most) for count in counts)


@dataclass(frozen=True)
class Experiment:
    """What all parts of an experiment are done with."""

    out: Path
    settings: Settings
    device: torch.device
    label_names: Path | None = None
    jobs: int = 1
    """Processes that test."""
    tell: Tell = field(default=lambda line: None)

    def learn(
        self,
        name: str,
        pairs: list[PairFiles],
        changes: Mapping[str, Any] | None = None,
        *,
        prepared: Prepared | None = None,
        first_stage: Path | None = None,
    ) -> Path:
        """The metric file of a training in `out/metrics/name`."""
        run = self.out / "metrics" / name
        path = run / "metric.safetensors"
        if path.is_file():
            return path
        self.tell(f"learning {name} from {len(pairs)} pairs")
        train_metric(
            pairs,
            run,
            changed(self.settings, changes or {}),
            device=self.device,
            resume=(run / "pairs.json").is_file(),
            overwrite=True,
            prepared=prepared,
            first_stage=first_stage,
            on_epoch=self._heard(name),
        )
        return path

    def learn_each(self, part: str, pairs: list[PairFiles], variants: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        """Metric files of trainings that differ in what weights cost, in `out/metrics/part`, by name.

        The first stage knows nothing of that: all begin with the momenta of the same one.
        """
        folder, epochs = self.out / "metrics" / part, self.settings.train.epochs[0]
        paths, first = {name: folder / name / "metric.safetensors" for name in variants}, folder / "first_stage"
        if not all(path.is_file() for path in paths.values()):
            prepared = prepare(pairs, pairs[0].fixed, self.settings, device=self.device)
            if epochs:
                first.mkdir(parents=True, exist_ok=True)
                train(
                    prepared.pairs,
                    changed(self.settings, {"train.epochs": (epochs, 0)}),
                    first,
                    device=self.device,
                    resume=(first / "checkpoint.safetensors").is_file(),
                    on_epoch=self._heard(f"{part}, first stage"),
                )
            for name, changes in variants.items():
                self.learn(f"{part}/{name}", pairs, changes, prepared=prepared, first_stage=first if epochs else None)
        shutil.rmtree(first, ignore_errors=True)
        return paths

    def _heard(self, name: str) -> Callable[[dict[str, Any]], None]:
        def heard(record: dict[str, Any]) -> None:
            if record["epoch"] % 10 == 0:
                self.tell(f"learning {name}: stage {record['stage']}, epoch {record['epoch']}: {record['total']:.4g}")

        return heard

    def test(
        self,
        name: str,
        pairs: list[PairFiles],
        metrics: Mapping[str, Path],
        *,
        reference: str,
        published: Published | None = None,
    ) -> tuple[Rows, dict[str, Any]]:
        """Every method on every pair, in `out/name`: rows and summary. The reference's mean weights are the control."""
        folder = self.out / name
        begin(folder, self.settings)
        rows = evaluate_methods(
            pairs,
            methods(metrics, self.settings, reference),
            folder,
            self.settings,
            device=str(self.device),
            label_names=self.label_names,
            jobs=self.jobs,
            tell=lambda line: self.tell(f"{name}: {line}"),
        )
        return rows, write_report(folder, rows, self.settings, reference=reference, published=published)

    def draw(self, pair: PairFiles, metrics: Mapping[str, Path]) -> None:
        """panels.png and weights.png: a pair under every metric."""
        if all((self.out / name).is_file() for name in FIGURES):
            return
        planes = {
            name: register(
                pair.moving, pair.fixed, metric=str(path), settings=self.settings, device=str(self.device)
            ).planes[0]
            for name, path in metrics.items()
        }
        sigma = {name: plane.sigma for name, plane in planes.items() if plane.sigma is not None}
        weights = {name: plane.weights for name, plane in planes.items() if plane.weights is not None}
        titles = [f"sigma = {width:g}" for width in self.settings.metric.sigma]
        atomic_write(self.out / "panels.png", png(metric_panels(planes, sigma, "mm")))
        atomic_write(self.out / "weights.png", png(weight_maps(weights, titles)))

    def write(
        self, title: str, said: str, claims: Sequence[Claim], tables: Sequence[Table], facts: dict[str, Any]
    ) -> dict[str, Any]:
        """table.md, summary.md, summary.json and report.html. Gives the summary."""
        summary = {
            **facts,
            "claims": {claim: held for claim, held, _ in claims},
            "versions": {name: version_of(name) for name in ("metreg", "torch")},
            "settings": self.settings.model_dump(mode="json"),
        }
        shown = "\n".join(f"{table.title}\n\n{table.markdown()}" for table in tables)
        held = [(claim, "yes" if ok else "**no**", why) for claim, ok, why in claims]
        claimed = markdown_table(("claim", "held", "measured"), held)
        atomic_write(self.out / "table.md", shown)
        atomic_write(
            self.out / "summary.md",
            f"# {title}\n\n{said} {SAID}\n\n## Which claims held\n\n{claimed}\n## Results\n\n{shown}",
        )
        lines = [(claim, "held" if ok else "did not hold", why) for claim, ok, why in claims]
        page = render(
            title,
            said,
            [
                Section("The paper's claims", [Table("", ("claim", "here", "measured"), lines)]),
                Section("Results", tables, SAID),
                *[Section(about, [_picture(self.out / name, about)]) for name, about in FIGURES.items()],
            ],
            settings=self.settings.to_toml(),
            versions=summary["versions"],
        )
        atomic_write(self.out / "report.html", page)
        text = json.dumps(summary, indent=2) + "\n"
        atomic_write(self.out / "summary.json", text)
        told: dict[str, Any] = json.loads(text)
        return told


def _picture(path: Path, about: str) -> Html:
    return Html(f'<figure><img alt="{escape(about)}" src="{data_uri(path.read_bytes(), "image/png")}"></figure>')


def begin_experiment(
    out: Path,
    plan: Plan,
    settings: Settings,
    files: Mapping[str, Path],
    label_names: Path | None,
    *,
    resume: bool,
) -> None:
    """Make the folder, or see that what lies there is of the same plan and settings and of files of the same content,
    which are given by names that say what each is there for.
    """
    record = out / "plan.json"
    contents = contents_of([*files.values(), label_names])
    given = {
        "plan": asdict(plan),
        "settings": settings.model_dump(mode="json"),
        "images": {name: contents[path] for name, path in files.items()},
        "label names": None if label_names is None else contents[label_names],
    }
    if resume and record.is_file():
        check_resume(record, given, form=FORMAT, folder=out, paths=files)
    write_record(record, given, form=FORMAT)


def methods(metrics: Mapping[str, Path], settings: Settings, reference: str) -> list[Method]:
    """Affine, global, learned, and the mean of one that was learned. The global ones have the learned ones' length."""
    solve = settings.solve
    same = {"length_mm": load_metric(next(iter(metrics.values()))).length_mm}
    found = [Method(AFFINE), Method(GLOBAL, "global", changes=same)]
    if solve.local_iterations is not None:
        both = tuple(a + b for a, b in zip(solve.iterations, solve.local_iterations, strict=True))
        found.append(Method(LONG, "global", changes={**same, "solve.iterations": both}))
    found += [Method(name, str(path)) for name, path in metrics.items()]
    return [*found, Method(CONSTANT, f"{MEAN}{metrics[reference]}")]
