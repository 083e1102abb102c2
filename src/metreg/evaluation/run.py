"""From pairs and methods to tables, on one page: register or read, measure, compare, draw, write."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from metreg.core.grid import Array
from metreg.core.resample import downsample
from metreg.errors import MetregError, pick_device
from metreg.evaluation.inputs import FORMAT, Inputs, record_of
from metreg.evaluation.methods import (
    Method,
    choose_methods,
    facts_beside,
    find_transforms,
    intensities_of,
    inverse_beside,
    methods_of,
    with_one_intensity,
)
from metreg.io.atomic import atomic_write, check_output, clear_folder
from metreg.io.formats import open_image
from metreg.io.images import read_mask
from metreg.io.points import Frame
from metreg.io.tables import PairFiles, read_pairs
from metreg.io.transforms import Affine, Transform
from metreg.many.claim import check_resume, write_record
from metreg.many.executor import workers
from metreg.measure.pair import Case, measure, open_case, read_landmarks
from metreg.measure.regularity import FoldCount
from metreg.pipeline.apply import check_dimensions, check_reach, load_transform
from metreg.pipeline.register import read_label_names, register, version_of
from metreg.prepare.affine import align
from metreg.prepare.intensity import BACKGROUND
from metreg.report.evaluation import NAMES, Published, badness, write_evaluation
from metreg.result.result import Result
from metreg.settings.model import Settings, changed, make_settings
from metreg.settings.process import command_line

log = logging.getLogger(__name__)

WORST = 5
"""Pairs of every method whose pages are kept."""


Rows = list[dict[str, Any]]


def begin(out: Path, settings: Settings) -> None:
    """Make the folder, or see that what lies there was made with the same settings."""
    record, given = out / "runs" / "plan.json", {"settings": settings.model_dump(mode="json")}
    if record.is_file():
        check_resume(record, given, form=FORMAT, folder=out)
    write_record(record, given, form=FORMAT)


def evaluate(
    pairs: str | Path | Sequence[PairFiles],
    out: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    transforms: Mapping[str, str | Path] | Sequence[str] = (),
    reference: str | None = None,
    label_names: str | Path | None = None,
    frame: Frame | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    changes: Iterable[str] | Mapping[str, Any] = (),
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    jobs: int = 1,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compare methods on many pairs: overlap, folds, Jacobians, costs; tables, box plot and statistics in the folder `out`.

    Args:
        pairs: A table of pairs (CSV), or the files of each pair.
        out: The folder of the results.
        metrics: M or "NAME=M": "global", "brain-t1", a metric file, or "mean:FILE" for the mean of its weights. None: what
            the images of the first pair ask for, or nothing where there are transforms.
        transforms: By name a folder with another tool's transforms, or a list of "NAME=FOLDER".
        reference: The method that is tested against the others; the best by default.
        label_names: A CSV file with the number and the name of every label.
        frame: Whether landmarks are in "ras" or "lps" millimetres.
        preset: Settings to begin with, changed by a `config` file and by `changes`, as for `register`.
        config: A TOML file.
        changes: Single settings.
        resume: Whether to go on with what was stopped.
        overwrite: Whether to replace what an earlier evaluation wrote.
        device: auto, cpu, cuda or cuda:N.
        jobs: Processes that work side by side.
        tell: Hears a line for every row that is done.

    Returns:
        What `summary.json` holds.

    Raises:
        MetregError: Something that was given is wrong; nothing is written then.

    Example:
        >>> summary = metreg.evaluate("pairs.csv", "table", metrics=["global"])  # doctest: +SKIP
        >>> summary["methods"]["global"]["folds"]  # doctest: +SKIP
        0
    """
    out = Path(out)
    config = None if config is None else Path(config)
    changes = dict(changes) if isinstance(changes, Mapping) else list(changes)
    make_settings(preset, config=config, changes=changes)  # what is wrong with them should not wait for the rest
    if not resume:
        check_output(out, overwrite=overwrite)
    files = read_pairs(Path(pairs)) if isinstance(pairs, (str, Path)) else list(pairs)
    pick_device(device)
    folders = list(transforms)
    if isinstance(transforms, Mapping):
        folders = [f"{name}={folder}" for name, folder in transforms.items()]
    named = None if metrics is None and not folders else list(metrics or [])
    chosen, settings = choose_methods(files, named, preset=preset, config=config, changes=changes)
    methods = methods_of(chosen, folders, reference)
    transforms_of(methods, files)  # refused before anything is taken away
    check_landmarks(files, frame)
    if not resume:
        clear_folder(out, NAMES)
    begin(out, settings)
    rows = evaluate_methods(
        files,
        methods,
        out,
        settings,
        device=device,
        frame=frame,
        label_names=None if label_names is None else Path(label_names),
        jobs=jobs,
        tell=tell,
    )
    return write_report(out, rows, settings, reference=reference)


def evaluate_methods(
    files: Sequence[PairFiles],
    methods: Sequence[Method],
    out: Path,
    settings: Settings,
    *,
    device: str = "auto",
    frame: Frame | None = None,
    label_names: Path | None = None,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda line: None,
) -> Rows:
    """Every method on every pair; what is done is kept in `out/runs`, and not done again. Gives a row for each.

    What was made of other files than those given now is refused, and left as it is.

    `jobs` processes each take a pair at a time; they share the cores, and the GPU if there is one.
    """
    names = read_label_names(label_names)
    settings = with_one_intensity([method.metric for method in methods if method.metric is not None], settings)
    transforms = transforms_of(methods, files)
    inputs = Inputs(files, methods, transforms, names, frame, settings)
    inputs.check(out)
    run = _Evaluation(files, methods, out, settings, names, device, frame, transforms, inputs)
    rows = []
    with workers(run.rows_of, min(jobs, len(files))) as each:
        for found in each(range(1, len(files) + 1)):
            rows += found
            for row in found:
                told = f"target overlap {row['target_overlap']:.4f}, " if "target_overlap" in row else ""
                tell(f"pair {row['pair']} of {len(files)}, {row['method']}: {told}{row['folds']} folds")
    _keep_worst(out / "pages", rows)
    return rows


def check_landmarks(files: Sequence[PairFiles], frame: Frame | None) -> None:
    """Refuse, before anything is written, landmarks that cannot be measured."""
    for pair in files:
        if pair.fixed_points is None:
            continue
        moving = open_image(pair.moving, "moving image", unpacked=False)
        fixed = open_image(pair.fixed, "fixed image", unpacked=False)
        read_landmarks(pair, frame, moving, fixed)


def transforms_of(methods: Sequence[Method], files: Sequence[PairFiles]) -> dict[str, list[Path]]:
    """The transform of every pair, by the names of methods that read them; what is missing or unclear is refused."""
    return {method.name: find_transforms(method.folder, files) for method in methods if method.folder is not None}


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """All that is asked for."""

    files: Sequence[PairFiles]
    methods: Sequence[Method]
    out: Path
    settings: Settings
    names: dict[int, str]
    device: str
    frame: Frame | None
    transforms: dict[str, list[Path]]
    """By method the file of every pair, where they are read."""
    inputs: Inputs
    seen: Rows = field(default_factory=list)
    """Of pairs that this process has been through."""

    def rows_of(self, number: int) -> Rows:
        """Every method on one pair, unless that is done already."""
        pair = self.files[number - 1]
        rows: Rows = []
        opened: _PairMethods | None = None
        about = {"pair": number, "moving": str(pair.moving), "fixed": str(pair.fixed), "subjects": list(pair.subjects)}
        for method in self.methods:
            record = record_of(self.out, method, number)
            if not record.is_file():
                if opened is None:
                    case = open_case(pair, self.frame)
                    opened = _PairMethods(number, pair, case, self.settings, self.names, self.device)
                own = self.transforms.get(method.name)
                row, result = opened.row(method, None if own is None else own[number - 1])
                if result is not None and row in _worst([*self.seen, row], method.name):
                    page = replace(result, label_names=self.names).report(viewer=False)
                    atomic_write(_page_of(self.out / "pages", row), page)
                made_of = self.inputs.of(method, number)
                atomic_write(record, json.dumps({"format": FORMAT, "made_of": made_of, "row": row}, indent=1))
            kept = json.loads(record.read_text(encoding="utf-8"))["row"]
            rows.append(kept | about)  # files of the same content may have moved, and people may be named now
        self.seen.extend(rows)
        return rows


@dataclass(eq=False)
class _PairMethods:
    """One pair, and what its methods share."""

    number: int
    files: PairFiles
    case: Case
    settings: Settings
    names: dict[int, str]
    device: str

    @cached_property
    def alignment(self) -> tuple[Array, float]:
        """Fixed to moving points, and the seconds it took to find."""
        start, masks = time.perf_counter(), (self.files.moving_mask, self.files.fixed_mask)
        moving_mask, fixed_mask = (
            None if path is None else read_mask(path, image)
            for path, image in zip(masks, (self.case.moving, self.case.fixed), strict=True)
        )
        matrix = align(
            self.case.moving,
            self.case.fixed,
            self.settings.affine,
            moving_mask=moving_mask,
            fixed_mask=fixed_mask,
            length_mm=self.settings.length_mm,
            device=pick_device(self.device),
        )
        return matrix, time.perf_counter() - start

    def row(self, method: Method, path: Path | None) -> tuple[dict[str, Any], Result | None]:
        """What is measured of this pair under one method, and the registration if that is what was done.

        `path` is the file of its transform, where that is read.
        """
        result = None
        if path is not None:
            transform, inverse, facts = _read_transform(path)
            check_dimensions(transform, path, self.case.moving, self.case.fixed)
            try:
                check_reach(transform, self.case.moving, self.case.fixed)
            except MetregError as error:  # it is measured all the same: a tool may have gone astray
                log.warning("pair %d, %s: %s: %s", self.number, method.name, error, path)
        elif method.metric is None:
            matrix, seconds = self.alignment
            parts = Transform((Affine(matrix),)), Transform((Affine(np.linalg.inv(matrix)),))
            transform, inverse, facts = *parts, {"seconds": seconds}
        else:
            result = self._register(method.metric, changed(self.settings, method.changes))
            transform, inverse, facts = result.transform, result.inverse, self._facts(result)
        measured, overlaps = measure(self.case, transform, inverse)
        by_label = [] if overlaps is None else overlaps.rows(self.names)
        row = {
            "pair": self.number,
            "moving": str(self.files.moving),
            "fixed": str(self.files.fixed),
            "subjects": self.files.subjects,
            "method": method.name,
            **measured,
            **facts,
            "by_label": by_label,
        }
        return row, result

    def _register(self, metric: str, settings: Settings) -> Result:
        return register(
            self.case.moving,
            self.case.fixed,
            metric=metric,
            settings=settings,
            moving_mask=self.files.moving_mask,
            fixed_mask=self.files.fixed_mask,
            moving_labels=self.case.moving_labels,
            fixed_labels=self.case.fixed_labels,
            alignment=self.alignment[0],
            device=self.device,
        )

    def _facts(self, result: Result) -> dict[str, Any]:
        """Costs, and what the metric was: its mean weights over what the source shows, sigma(x) region by region."""
        metric, grid = result.registration.metric, result.registration.grid
        shown = downsample(result.pair.source, grid)[0] > BACKGROUND
        regions = {region.label: region.sigma_mm for region in result.regions} if metric.w.dim() > 1 else {}
        return {
            "seconds": self.alignment[1] + sum(result.facts["seconds"].values()),
            **{name: value for name, value in result.facts.items() if "memory" in name},
            **FoldCount.of(result.registration.repair).row(),
            "metric_licence": result.metric_licence,
            "intensities": intensities_of(result.metric, result.settings),
            "mean_weights": [float(w[shown[0]].mean()) for w in metric.local_weights()[0]],
            "sigma_mm_by_label": regions,
        }


def _read_transform(path: Path) -> tuple[Transform, Transform | None, dict[str, Any]]:
    """Another tool's transform, its inverse where it lies beside it, and the costs that a JSON file beside it tells."""
    inverse = inverse_beside(path)
    costs = facts_beside(path)
    facts = json.loads(costs.read_text(encoding="utf-8")) if costs.is_file() else {}
    facts.pop("made_of", None)  # what peers were given is for their own resume
    return load_transform(path), load_transform(inverse) if inverse.is_file() else None, facts


def _worst(rows: Rows, method: str) -> Rows:
    """Those whose pages are kept."""
    return sorted((row for row in rows if row["method"] == method), key=badness)[:WORST]


def _keep_worst(pages: Path, rows: Rows) -> None:
    """Take away pages of pairs that were among the worst only for a while."""
    for method in {row["method"] for row in rows}:
        kept = {_page_of(pages, row) for row in _worst(rows, method)}
        for page in (pages / method).glob("*.html"):
            if page not in kept:
                page.unlink()


def _page_of(pages: Path, row: dict[str, Any]) -> Path:
    return pages / row["method"] / f"{row['pair']:04d}.html"


def write_report(
    out: Path, rows: Rows, settings: Settings, *, reference: str | None = None, published: Published | None = None
) -> dict[str, Any]:
    """Tables, figures and the page of what `evaluate` found, beside what others published. Gives the summary."""
    return write_evaluation(
        out,
        rows,
        settings,
        command=command_line(),
        versions={name: version_of(name) for name in ("metreg", "torch", "numpy", "scipy")},
        reference=reference,
        published=published,
    )
