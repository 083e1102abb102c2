"""From files of pairs to a metric file, on one page: read, align to one template, standardise, learn, write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import downsample, upsample
from metreg.deformation.stationary import flow
from metreg.errors import MetregError, pick_device
from metreg.io.atomic import atomic_file, atomic_write, check_output, clear_folder
from metreg.io.image import Image
from metreg.io.images import match_planes, read_image, read_mask
from metreg.io.tables import PairFiles, find_pairs, stem
from metreg.kernels.heavy import heavy_work
from metreg.learn.checkpoint import check_checkpoint
from metreg.learn.curriculum import LOG, read_log
from metreg.learn.curriculum import train as learn
from metreg.learn.pairs import TrainingPairs
from metreg.many.claim import TRAINING_ROLES, check_resume, contents_of, files_of_pairs, read_record, write_record
from metreg.metric.learned import LearnedMetric
from metreg.metric.store import MetricFile, file_of_intensity, save_metric, standard_of, used_of
from metreg.pipeline.register import version_of
from metreg.prepare.affine import CPU, align
from metreg.prepare.intensity import quantile_function
from metreg.prepare.pair import bring, domain_of
from metreg.prepare.skull import hint_at_skull
from metreg.report.planes import Plane, plane_of_map
from metreg.report.training import training_page
from metreg.settings.model import Settings, changed, make_settings
from metreg.settings.process import command_line
from metreg.solve.energy import Energy
from metreg.solve.pyramid import map_grid_of
from metreg.solve.register import make_metric

NAMES = frozenset(
    {"metric.safetensors", "report.html", "settings.toml", "pairs.json", LOG, "checkpoint.safetensors"}
    | {"momenta-0.npy", "momenta-1.npy", "tensorboard"}
)
"""What a training writes into its folder."""
FORMAT = "metreg-training-2"
"""Of what `pairs.json` keeps of a training's inputs."""
EXAMPLES = 3
"""Pairs shown in the report."""
ANONYMOUS = 5
"""The mean of fewer images than this would show the people, and is not kept in the metric file."""
TEMPLATE_VOXELS = 50_000
"""At most so many of the mean image are kept in the metric file."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Images on the template's grid, and the quantile function to which their intensities were matched."""

    pairs: TrainingPairs
    standard: tuple[float, ...]


def train(
    pairs: str | Path | list[PairFiles],
    out: str | Path,
    *,
    choose: str | None = None,
    template: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    changes: Iterable[str] | Mapping[str, Any] = (),
    settings: Settings | None = None,
    licence: str | None = None,
    credit: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    tell: Callable[[str], None] = lambda line: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
) -> MetricFile:
    """Learn a metric from pairs of images: `metric.safetensors` in the folder `out`, and all that `resume` needs.

    Args:
        pairs: A table of pairs (CSV), a folder of images, or the files of each pair.
        out: The folder of the training.
        choose: Of a folder of images "all" ordered pairs, or "random:N" of them.
        template: The image to which all are aligned linearly; by default the first fixed one.
        preset: Settings to begin with, changed by a `config` file and by `changes`, as for `register`.
        config: A TOML file.
        changes: Single settings.
        settings: All of them, in place of these three.
        licence: What the metric file says of its licence.
        credit: To whom the images are owed.
        resume: Whether to go on with what was stopped.
        overwrite: Whether to replace what an earlier training wrote.
        device: auto, cpu, cuda or cuda:N.
        tell: Hears how far the preparation is.
        on_epoch: Hears of every epoch its energies by term, learning rate and time.

    Returns:
        The metric, as `load_metric` gives it.

    Raises:
        MetregError: Something that was given is wrong; a training that is there is left as it is then.

    Example:
        >>> metric = metreg.train("pairs.csv", "run", changes={"train.epochs": [1, 20]})  # doctest: +SKIP
    """
    if settings is None:
        settings = make_settings(preset, config=config, changes=changes)
    elif preset or config or changes:
        raise MetregError("settings: give either settings, or a preset, a config file and changes")
    if not resume:
        check_output(Path(out), overwrite=overwrite)
    files = pairs if isinstance(pairs, list) else find_pairs(Path(pairs), choose=choose, seed=settings.seed)
    return train_metric(
        files,
        Path(out),
        settings,
        device=pick_device(device),
        template=None if template is None else Path(template),
        licence=licence,
        credit=credit,
        resume=resume,
        overwrite=overwrite,
        tell=tell,
        on_epoch=on_epoch,
    )


@heavy_work()
def train_metric(
    files: list[PairFiles],
    run: Path,
    settings: Settings,
    *,
    device: torch.device,
    template: Path | None = None,
    licence: str | None = None,
    credit: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    prepared: Prepared | None = None,
    first_stage: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
) -> MetricFile:
    """Learn a metric from pairs of files into the folder `run`: metric.safetensors, and all that `resume` needs.

    All images are aligned linearly to the template, the first fixed image if none is given. A run that goes on keeps the
    licence and the credit with which it was begun, where nothing else is said. Several trainings on the same pairs may
    share what was `prepared`, and the `first_stage`, the folder of a run of that alone.
    """
    template = template or files[0].fixed
    given = _inputs(files, template, settings)
    said = {"licence": licence, "credit": credit}
    going_on = False
    if resume and run.exists():
        said = _check_run(run, files, given, said)
        going_on = (run / "checkpoint.safetensors").exists()
    if going_on:
        check_checkpoint(run / "checkpoint.safetensors", settings)
    else:
        check_output(run, overwrite=overwrite or resume)
    prepared = prepared or prepare(files, template, settings, device=device, tell=tell)
    grid = prepared.pairs.grid
    settings = changed(settings, {"length_mm": grid.length_mm})
    curves = _TensorBoard(run / "tensorboard")

    def begin() -> None:
        """Nothing can be refused from here on, so a run that goes on may be written into."""
        write_record(run / "pairs.json", {**given, **said}, form=FORMAT)
        atomic_write(run / "settings.toml", settings.to_toml())

    def heard(record: dict[str, Any]) -> None:
        curves.add(record)
        on_epoch(record)

    if not going_on:
        clear_folder(run, NAMES)
        run.mkdir(parents=True, exist_ok=True)
    over = going_on and not any(run.glob("momenta-*.npy"))  # it had ended, and its momenta are gone
    try:
        model, progress = learn(
            prepared.pairs,
            settings,
            run,
            device=device,
            resume=going_on,
            first_stage=first_stage,
            on_begin=begin,
            on_epoch=heard,
        )
    finally:
        curves.close()
    history = [*([] if first_stage is None else read_log(first_stage)), *progress.history]
    last = history[-1] if history else {}
    map_grid = map_grid_of(grid, settings.flow.map_factor)
    mean_image, mean_grid = _template(prepared.pairs, map_grid)
    metric = MetricFile(
        model,
        length_mm=grid.length_mm,
        voxel_mm=map_grid.voxel_mm,
        unit_cube=settings.unit_cube,
        intensity=prepared.standard,
        summary={
            "pairs": len(files),
            "images": len(prepared.pairs.images),
            "template_shape": grid.shape,
            "epochs": settings.train.epochs,
            "energy": {term: last[term] for term in Energy._fields if term in last},
            "seconds": round(sum(record["seconds"] for record in history), 1),
            "seed": settings.seed,
            "versions": {name: version_of(name) for name in ("metreg", "torch")},
            **({} if said["credit"] is None else {"credit": said["credit"]}),
        },
        licence=said["licence"] or "not stated",
        used=used_of(settings),
        template=mean_image if len(prepared.pairs.images) >= ANONYMOUS else None,
        template_mm=mean_grid.voxel_mm,
        template_affine=mean_grid.affine,
    )
    with atomic_file(run / "metric.safetensors", overwrite=True) as path:
        save_metric(path, metric)
    if history and not over:  # without an epoch there is only the average of the intensities
        examples = _examples(model, prepared, files, settings, run, progress.generation)
        widths = [sigma * grid.length_mm for sigma in settings.metric.sigma]
        page = training_page(metric.summary, history, examples, widths, settings, command_line())
        atomic_write(run / "report.html", page)
    for path in run.glob("momenta-*.npy"):
        path.unlink()
    return metric


def prepare(
    files: list[PairFiles],
    template: Path,
    settings: Settings,
    *,
    device: torch.device = CPU,
    tell: Callable[[str], None] = lambda line: None,
) -> Prepared:
    """Every image once, aligned to the template, its intensities matched to the average quantile function of all."""
    standard_of(settings.intensity, ())  # an unknown one is told before any work
    target = read_image(template, "template")
    grid = domain_of(target, settings)
    wanted = sorted({(p.moving, p.moving_mask) for p in files} | {(p.fixed, p.fixed_mask) for p in files}, key=str)
    number = {key: i for i, key in enumerate(wanted)}
    opened = [_read(path, mask, target, settings) for path, mask in wanted]
    quantiles = [quantile_function(image.scaled_in(m), None if m is None else m.values) for image, m in opened]
    standard = standard_of(settings.intensity, np.mean(quantiles, axis=0).tolist())
    images, masks = [], []
    while opened:
        image, mask = opened.pop(0)
        affine = align(image, target, settings.affine, moving_mask=mask, length_mm=grid.length_mm, device=device)
        f, known = bring(image, mask, affine, grid, torch.device("cpu"), standard)
        images.append(f)
        masks.append(known)
        tell(f"aligned {len(images)} of {len(wanted)} images")
    known = torch.cat(masks)
    index = torch.tensor([[number[p.moving, p.moving_mask], number[p.fixed, p.fixed_mask]] for p in files])
    everywhere = bool((known == 1).all())
    return Prepared(TrainingPairs(torch.cat(images), index, grid, None if everywhere else known), standard)


def _read(path: Path, mask: Path | None, template: Image, settings: Settings) -> tuple[Image, Image | None]:
    image = read_image(path)
    if image.dim != template.dim:
        raise MetregError(f"image: wanted {template.dim}-D like the template {template.name}, got {image.dim}-D: {path}")
    if settings.affine.kind == "none" and image.shape != template.shape:
        raise MetregError(
            f"image: without an alignment all must have the size of {template.name}, {template.shape}, "
            f"got {image.shape}: {path}; leave out --no-affine, or resample it"
        )
    image = match_planes(image, template)
    inside = None if mask is None else read_mask(mask, image)
    hint_at_skull(image, inside, "image")
    return image, inside


def _inputs(files: list[PairFiles], template: Path, settings: Settings) -> dict[str, Any]:
    """What a training is made of, by content."""
    paths = files_of_pairs(files, TRAINING_ROLES)
    intensities = file_of_intensity(settings.intensity)
    contents = contents_of([template, intensities, *paths.values()])
    return {
        "template": contents[template],
        "metric of the intensities": contents[intensities] if intensities else None,
        "pairs": {name: contents[path] for name, path in paths.items()},
    }


def _check_run(
    run: Path, files: list[PairFiles], given: dict[str, Any], said: dict[str, str | None]
) -> dict[str, str | None]:
    """Refuse to go on with other images than those of the run. Where nothing is `said` of its licence or credit, what was
    said before is given back.
    """
    record = run / "pairs.json"
    if not record.is_file():
        raise MetregError(f"--resume: no training was begun in {run}; leave it out to begin one")
    check_resume(record, given, form=FORMAT, folder=run, paths=files_of_pairs(files, TRAINING_ROLES))
    before = read_record(record, FORMAT) or {}
    return {name: before.get(name) if text is None else text for name, text in said.items()}


class _TensorBoard:
    """Curves for TensorBoard, where it is installed. Its files are opened with the first epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None
        self.installed = find_spec("tensorboard") is not None

    def add(self, record: dict[str, Any]) -> None:
        if not self.installed:
            return
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder))
        for name in (*Energy._fields, "total", "rate_scale", "pairs_per_second"):
            self.writer.add_scalar(f"stage {record['stage']}/{name}", record[name], record["epoch"])
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _examples(
    model: LearnedMetric, prepared: Prepared, files: list[PairFiles], settings: Settings, run: Path, generation: int
) -> dict[str, Plane]:
    """The first few pairs with the momenta with which the training ended, by number and name."""
    pairs, grid = prepared.pairs, prepared.pairs.grid
    map_grid = map_grid_of(grid, settings.flow.map_factor)
    stored = np.load(run / f"momenta-{generation}.npy", mmap_mode="r", allow_pickle=False)
    shown, model = {}, model.cpu()
    for i in range(min(EXAMPLES, len(files))):
        m = torch.from_numpy(np.array(stored[0, i : i + 1]))
        source, target = pairs.source[i : i + 1], pairs.target[i : i + 1]
        with torch.no_grad():
            w = model.weights(downsample(source, map_grid), map_grid, m).w
        metric = make_metric(map_grid, settings.metric, like=source, weights=w)
        phi_inv = flow(metric.sharp(m), map_grid, integrator=settings.flow.integrator, steps=settings.flow.steps)
        sigma = upsample(metric.local_sigma()[:, None] * grid.length_mm, grid)
        name = f"{i + 1}: {stem(files[i].moving)} to {stem(files[i].fixed)}"
        shown[name] = plane_of_map(source, target, upsample(phi_inv, grid), grid, sigma)
    return shown


def _template(pairs: TrainingPairs, map_grid: Grid) -> tuple[Tensor, Grid]:
    """The mean of all images, on a coarse grid."""
    factor = min(1.0, (TEMPLATE_VOXELS / math.prod(map_grid.shape)) ** (1 / map_grid.dim))
    coarse = map_grid.coarsen(factor)
    mean = downsample(pairs.images.mean(0, keepdim=True), coarse)
    return mean.clamp(0, 1), coarse
