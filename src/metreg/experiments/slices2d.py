"""The paper's experiment on real slices: learn from pairs of axial slices with three OMT penalties, and test.

Once as in the paper, on the pairs that were learned from; once on people of whom nothing was learned from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from metreg.errors import MetregError
from metreg.experiments.findings import Claim, Facts, facts_of, fold_claim, overlap_claims, result_table, ventricles_among
from metreg.experiments.harness import PARTS, Experiment, Plan, Tell, begin_experiment
from metreg.io.atomic import atomic_file
from metreg.io.image import Image
from metreg.io.images import check_same_grid, read_image, read_labels
from metreg.io.tables import TEST, TRAIN, Scan, pick, read_scans, scan_pairs
from metreg.kernels.heavy import heavy_work
from metreg.pipeline.register import read_label_names
from metreg.prepare.pair import content_box
from metreg.settings.model import Settings

PENALTIES = (15, 50, 100)
"""lambda_OMT."""
REFERENCE = "omt50"
INSAMPLE, HELDOUT = "insample", "heldout"
WHERE = {INSAMPLE: "in-sample", HELDOUT: "held-out"}
NAMES = PARTS | {INSAMPLE, HELDOUT, "slices"}
"""What is written into the folder."""
MINDBOGGLE = frozenset({4, 14, 15, 43})
"""The ventricles in labels of Mindboggle, whose files have DKT in their names: lateral, third and fourth."""


FULL = Plan(training_pairs=300)
QUICK = Plan(training_pairs=6, test_pairs=4, epochs=(8, 18), iterations=60)


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
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """The whole experiment into the folder `out`. Every part that is done is a file there, and is not done again."""
    plan = (QUICK if quick else FULL).at_most(pairs)
    settings = plan.settings_of(settings)
    scans = read_scans(data.resolve(), subjects)
    people = {part: {scan.subject for scan in scans if scan.part == part} for part in (TRAIN, TEST)}
    if min(map(len, people.values())) < 2:
        got = " and ".join(str(len(found)) for found in people.values())
        raise MetregError(f"data: wanted two subjects or more to train and two to test, got {got}: {data}")
    begin_experiment(out, plan, settings, _files_of(scans), label_names, resume=resume)
    slices = axial_slices(scans, out / "slices")
    experiment = Experiment(out, settings, device, label_names, jobs, tell)

    among = {part: scan_pairs([scan for scan in slices if scan.part == part]) for part in (TRAIN, TEST)}
    seed = settings.seed
    every = pick(scan_pairs(slices), plan.training_pairs, seed)
    held = among[TEST] if plan.test_pairs is None else pick(among[TEST], plan.test_pairs, seed)
    parts = {INSAMPLE: (every, every), HELDOUT: (pick(among[TRAIN], plan.training_pairs, seed), held)}
    ventricles = _ventricles(slices, label_names)
    rows, found, metrics = {}, {}, {}
    for part, (training, test) in parts.items():
        variants = {f"omt{penalty}": {"learned.transport": float(penalty)} for penalty in PENALTIES}
        metrics = experiment.learn_each(part, training, variants)
        rows[part], _ = experiment.test(part, test, metrics, reference=REFERENCE)
        found[part] = facts_of(rows[part], ventricles)
    experiment.draw(held[0], metrics)

    counts = {part: (len(training), len(test)) for part, (training, test) in parts.items()}
    return experiment.write(
        "The paper's experiment on real slices",
        said_of(slices, counts, settings),
        [claim for part, facts in found.items() for claim in claims(WHERE[part], facts)],
        [
            result_table(f"{WHERE[part].capitalize()}, {counts[part][1]} pairs", rows[part], settings.metric.sigma)
            for part in parts
        ],
        {
            "overlap": {part: {name: f.overlap for name, f in facts.items()} for part, facts in found.items()},
            "largest_weight": {
                part: {name: f.weights[-1] for name, f in facts.items() if f.weights} for part, facts in found.items()
            },
            "methods": {part: {name: asdict(f) for name, f in facts.items()} for part, facts in found.items()},
            "folds": sum(f.folds for facts in found.values() for f in facts.values()),
            "pairs": {part: {"training": training, "test": test} for part, (training, test) in counts.items()},
            "plan": asdict(plan),
        },
    )


def _files_of(scans: Sequence[Scan]) -> dict[str, Path]:
    """All files by what they are there for: whose they are decides on the pairs."""
    found = {}
    for number, scan in enumerate(scans, start=1):
        about = f"{number}.{scan.part} {scan.subject}"
        found[f"{about}.image"] = scan.image
        if scan.labels is not None:
            found[f"{about}.labels"] = scan.labels
    return found


def said_of(slices: Sequence[Scan], counts: Mapping[str, tuple[int, int]], settings: Settings) -> str:
    solve, epochs = settings.solve, settings.train.epochs
    then = "" if solve.local_iterations is None else f", then {sum(solve.local_iterations)} with the learned one"
    return (
        f"{len(slices)} slices. In-sample: learned from {counts[INSAMPLE][0]} pairs and tested on the same. Held-out: "
        f"learned from {counts[HELDOUT][0]} pairs of some people, tested on {counts[HELDOUT][1]} pairs of others. "
        f"{epochs[0]} + {epochs[1]} epochs; registration takes at most {sum(solve.iterations)} iterations with the global "
        f"metric{then}. lambda_TV is {settings.learned.variation:g}."
    )


def axial_slices(scans: Sequence[Scan], folder: Path) -> list[Scan]:
    """Slices as they are; of a volume the axial slice in the middle of what it shows, written into the folder.

    It lies across the voxel axis nearest to the world's from foot to head, half way between the lowest and the highest
    voxel that are not background.
    """
    return [_slice_of(scan, folder) for scan in scans]


def _slice_of(scan: Scan, folder: Path) -> Scan:
    path = folder / "img" / f"{scan.name}.nii.gz"
    labels = None if scan.labels is None else folder / "label" / f"{scan.name}.nii.gz"
    if not path.is_file():
        import nibabel as nib

        image = read_image(scan.image)
        if image.dim == 2:
            return scan
        worlds, signs = nib.io_orientation(image.affine).T
        axis = worlds.tolist().index(2)
        first, last = content_box(image)
        at = int(first[axis] + last[axis] + (signs[axis] < 0)) // 2  # of two in the middle, the lower one in the world
        if labels is not None:
            regions = read_labels(scan.labels)
            check_same_grid(regions, image, "labels")
            _write_slice(labels, image.with_values(regions.values), axis, at)
        _write_slice(path, image, axis, at)
    return replace(scan, image=path, labels=labels)


def _write_slice(path: Path, image: Image, axis: int, at: int) -> None:
    import nibabel as nib

    affine = image.affine.copy()
    affine[:3, 3] += at * affine[:3, axis]
    with atomic_file(path, overwrite=True) as temporary:
        nib.save(nib.Nifti1Image(image.values.take([at], axis=axis), affine), temporary)


def _ventricles(slices: Sequence[Scan], label_names: Path | None) -> frozenset[int]:
    """Their labels by name, or by the numbers of a data set that is known; else none."""
    if label_names is not None:
        return ventricles_among(read_label_names(label_names))
    known = all(scan.labels is not None and "DKT" in scan.labels.name for scan in slices)
    return MINDBOGGLE if known else frozenset()


def claims(where: str, found: Mapping[str, Facts]) -> list[Claim]:
    """What the paper says of this experiment, whether it held here, and the numbers."""
    learned = [name for name in found if name.startswith("omt")]
    smallest, largest = ([found[name].weights[i] for name in learned] for i in (0, -1))
    spreads = [found[name].spread for name in learned]

    def listed(values: Sequence[float]) -> str:
        return ", ".join(f"{value:.3f}" for value in values)

    shift = f"for lambda_OMT {', '.join(map(str, PENALTIES))}"
    claimed = [
        *overlap_claims(where, found, learned, REFERENCE),
        (
            f"{where}: weight shifts from the smallest to the largest Gaussian as lambda_OMT grows",
            largest == sorted(largest) and smallest == sorted(smallest, reverse=True),
            f"smallest {listed(smallest)}; largest {listed(largest)} {shift}",
        ),
        (
            f"{where}: almost all weight (0.9 or more) is on the smallest and the largest Gaussian",
            all(a + b >= 0.9 for a, b in zip(smallest, largest, strict=True)),
            f"{listed([a + b for a, b in zip(smallest, largest, strict=True)])} {shift}",
        ),
        (
            f"{where}: deformations get more regular as lambda_OMT grows",
            spreads == sorted(spreads, reverse=True),
            f"spread of the determinant's logarithm {listed(spreads)} {shift}",
        ),
    ]
    sigma = [found[name].sigma_mm for name in learned]
    if all(sigma):
        claimed.append(
            (
                f"{where}: sigma(x) is smaller in the ventricles than elsewhere",
                all(pair is not None and pair[0] < pair[1] for pair in sigma),
                "; ".join(f"{pair[0]:.2f} and {pair[1]:.2f} mm" for pair in sigma if pair is not None),
            )
        )
    return [*claimed, fold_claim(where, found)]
