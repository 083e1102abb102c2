"""The paper's experiment in 3-D: learn on CUMC12, MGH10 and IBSR18, test on CUMC12. Or on any other set of brains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from metreg.errors import MetregError
from metreg.experiments.findings import Claim, Facts, facts_of, fold_claim, overlap_claims, result_table
from metreg.experiments.harness import PARTS, Experiment, Plan, Tell, begin_experiment
from metreg.experiments.klein2009 import published
from metreg.io.tables import TEST, TRAIN, PairFiles, Scan, has_images, pick, read_scans, scan_pairs
from metreg.kernels.heavy import heavy_work
from metreg.many.claim import files_of_pairs
from metreg.report.evaluation import Published, compare_overlaps
from metreg.settings.model import AS_TRAINED, Settings, changed

TESTED = "CUMC12"
TRAINED = ("CUMC12", "MGH10", "IBSR18")
"""Sets that the paper learns from: all 132 and 90 ordered pairs of the first two, 150 random ones of the third."""
MOST_PAIRS = 150
"""Of a larger set, so many random pairs are learned from."""
SOURCE = (
    f"wanted DIR/{TESTED}/Brains (or Heads) and DIR/{TESTED}/Atlases with m1.img, m1.hdr or m1.nii.gz and so on, beside it "
    "MGH10 and IBSR18 likewise: the data of Klein et al. 2009, https://www.synapse.org/#!Synapse:syn3251018; or any other "
    "set, DIR/img and DIR/label"
)
NEAR = 0.01
"""Overlaps that differ by less are called almost the same."""
NAMES = PARTS | {"test"}
"""What is written into the folder."""


FULL = Plan(MOST_PAIRS)
QUICK = Plan(training_pairs=2, test_pairs=2, epochs=(2, 2), iterations=10)


@dataclass(frozen=True)
class Protocol:
    """Which pairs to learn from, by the name of the metric, and which to test on."""

    training: Mapping[str, list[PairFiles]]
    test: list[PairFiles]
    chosen: list[int]
    """Which of all pairs of the test set these are."""
    count: int
    """How many pairs the test set has."""
    klein: bool
    """Whether these are the paper's data."""

    @property
    def files(self) -> dict[str, Path]:
        """All files by the pairs that they are in."""
        found = {f"test.{name}": path for name, path in files_of_pairs(self.test).items()}
        for metric, pairs in self.training.items():
            found |= {f"{metric}.{name}": path for name, path in files_of_pairs(pairs).items()}
        return found

    @property
    def reference(self) -> str:
        return next(iter(self.training))


def is_klein(data: Path) -> bool:
    """Whether a folder holds the paper's data, and not another set; refused if it holds neither."""
    if _set_in(data, TESTED) is not None:
        return True
    if any(_set_in(data, name) is not None for name in TRAINED) or not has_images(data):
        raise MetregError(f"--data: no {TESTED} in {data}; {SOURCE}")
    return False


def _set_in(data: Path, name: str) -> Path | None:
    there = {path.name.lower(): path for path in data.iterdir() if path.is_dir()} if data.is_dir() else {}
    return there.get(name.lower())


def protocol(data: Path, plan: Plan, seed: int, subjects: Path | None = None) -> Protocol:
    """The paper's, or for another set: learn from those who are there to train, test on those who are there to test."""
    klein = is_klein(data)
    if klein:
        if subjects is not None:
            raise MetregError(f"--subjects: for other data than the paper's, which {data} holds; leave it out")
        sets = {name: read_scans(path) for name in TRAINED if (path := _set_in(data, name)) is not None}
        training = {f"learned on {name}": _some(scans, plan.training_pairs, seed) for name, scans in sets.items()}
        people = sets[TESTED]
    else:
        scans = read_scans(data, subjects)
        training = {"learned": _some([scan for scan in scans if scan.part == TRAIN], plan.training_pairs, seed)}
        people = [scan for scan in scans if scan.part == TEST]
    every = scan_pairs(people)
    if not every or not all(training.values()):
        raise MetregError(
            f"data: wanted two subjects or more to train and two to test, got {len(people)} images to test and "
            f"{min(map(len, training.values()))} training pairs: {data}"
        )
    unlabelled = [scan.name for scan in people if scan.labels is None]
    if unlabelled:
        raise MetregError(f"data: no labels of {unlabelled[0]} to test with: {data}; wanted them in label or Atlases")
    test = every if plan.test_pairs is None else pick(every, plan.test_pairs, seed)
    return Protocol(training, test, [every.index(pair) for pair in test], len(every), klein)


def _some(scans: Sequence[Scan], most: int, seed: int) -> list[PairFiles]:
    """Pairs to learn from, which needs no labels."""
    return pick(scan_pairs([replace(scan, labels=None) for scan in scans]), most, seed)


@heavy_work()
def reproduce(
    data: Path,
    out: Path,
    settings: Settings,
    *,
    quick: bool,
    device: torch.device,
    resume: bool,
    subjects: Path | None = None,
    label_names: Path | None = None,
    pairs: int | None = None,
    jobs: int = 1,
    results: Path | None = None,
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """The whole experiment into the folder `out`. Every part that is done is a file there, and is not done again.

    `results` is a folder of what other methods reached pair by pair, by default the data's klein2009 where it is there.
    """
    plan = (QUICK if quick else FULL).at_most(pairs)
    settings, data = plan.settings_of(settings), data.resolve()
    todo = protocol(data, plan, settings.seed, subjects)
    if results is not None and not todo.klein:
        raise MetregError(f"--published: these are results on {TESTED}, and {data} holds other images; leave it out")
    folder = results or (data / "klein2009" if (data / "klein2009").is_dir() else None)
    beside = published(folder, todo.chosen, todo.count) if todo.klein else Published()
    begin_experiment(out, plan, settings, todo.files, label_names, resume=resume)
    experiment = Experiment(out, settings, device, label_names, jobs, tell)
    if len(todo.training) > 1 and settings.intensity == AS_TRAINED:
        # intensities are matched to the average over all data sets, for all metrics and in the test
        every = [pair for pairs in todo.training.values() for pair in pairs]
        average = experiment.learn("average", every, {"train.epochs": (0, 0)})
        settings = changed(settings, {"intensity": str(average)})
        experiment = replace(experiment, settings=settings)

    metrics = {name: experiment.learn(name.replace(" ", "_"), pairs) for name, pairs in todo.training.items()}
    rows, summary = experiment.test("test", todo.test, metrics, reference=todo.reference, published=beside)
    experiment.draw(todo.test[0], metrics)
    found = facts_of(rows)

    tables = [
        result_table(f"{len(todo.test)} test pairs", rows, settings.metric.sigma),
        compare_overlaps(rows, todo.reference, beside).table,
    ]
    return experiment.write(
        "The paper's experiment in 3-D" if todo.klein else "The paper's 3-D experiment on other data",
        said_of(todo, settings, beside),
        [*claims(found, todo, beside), fold_claim("test", found)],
        tables,
        {
            "overlap": {name: facts.overlap for name, facts in found.items()},
            "published_overlap": {name: float(values.mean()) for name, values in beside.overlaps.items()},
            "methods": {name: asdict(facts) for name, facts in found.items()},
            "comparisons": summary["comparisons"],
            "folds": sum(facts.folds for facts in found.values()),
            "pairs": {"test": len(todo.test), **{name: len(pairs) for name, pairs in todo.training.items()}},
            "plan": asdict(plan),
        },
    )


def said_of(todo: Protocol, settings: Settings, beside: Published) -> str:
    learned = ", ".join(f"{name} from {len(pairs)} pairs" for name, pairs in todo.training.items())
    epochs, solve = settings.train.epochs, settings.solve
    then = "" if solve.local_iterations is None else f" and {sum(solve.local_iterations)} with the learned one"
    return (
        f"{learned}; tested on {len(todo.test)} of {todo.count} pairs. {epochs[0]} + {epochs[1]} epochs, lambda_OMT "
        f"{settings.learned.transport:g}, lambda_TV {settings.learned.variation:g}; at most {sum(solve.iterations)} "
        f"iterations with the global metric{then}.{f' {beside.note}' if beside.note else ''}"
    )


def claims(found: Mapping[str, Facts], todo: Protocol, beside: Published) -> list[Claim]:
    """What the paper says of this experiment, whether it held here, and the numbers."""
    claimed = overlap_claims("test", found, list(todo.training), todo.reference)
    overlaps = {name: facts.overlap for name, facts in found.items() if facts.overlap is not None}
    own, others = overlaps[todo.reference], [name for name in todo.training if name != todo.reference]
    if others:
        claimed.append(
            (
                f"test: metrics learned on other sets do almost as well, within {NEAR:g}",
                all(abs(own - overlaps[name]) < NEAR for name in others),
                "; ".join(f"{name} {overlaps[name]:.3f}" for name in todo.training),
            )
        )
    klein = {name: float(values.mean()) for name, values in beside.overlaps.items() if name not in LATER}
    if klein:
        best = max(klein, key=lambda name: klein[name])
        claimed.append(
            (
                "test: the highest mean overlap of all methods of Klein et al. 2009",
                own > klein[best],
                f"{todo.reference} {own:.3f}; best of the others {best} {klein[best]:.3f}",
            )
        )
    return claimed


LATER = ("LDDMM", "Quicksilver", "Quicksilver, corrected")
"""Methods of Yang et al. 2017, with which the paper does not compare."""
