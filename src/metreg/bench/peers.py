"""metreg beside other tools: the same images, affine, cores and measures; every registration in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metreg.bench.environment import wanted
from metreg.bench.process import Run, available_cores, run_fresh
from metreg.bench.tools import Tool
from metreg.errors import MetregError
from metreg.evaluation.methods import AFFINE, Method
from metreg.evaluation.run import Rows, begin, evaluate_methods
from metreg.io.atomic import atomic_file, atomic_write
from metreg.io.image import Image
from metreg.io.images import read_image, write_image
from metreg.io.points import Frame
from metreg.io.tables import PairFiles, stem
from metreg.io.transforms import Field, write_transform
from metreg.many.claim import content_of, contents_of, differences, hash_of
from metreg.measure.regularity import FoldCount
from metreg.metric.store import file_of_intensity, metric_path, shipped_names
from metreg.pipeline.apply import load_transform
from metreg.pipeline.register import version_of
from metreg.pipeline.resolve import MEAN
from metreg.report.evaluation import BEFORE_REPAIR, compare_overlaps, write_evaluation
from metreg.report.evaluation import NAMES as EVALUATION
from metreg.report.tables import Table, difference_table
from metreg.settings.model import Settings
from metreg.settings.process import command_line

NAMES = EVALUATION | {"transforms", "images", "logs", "peers.md"}
"""What the comparison writes into its folder."""
THERE, BACK = ".h5", "_inverse.h5"
"""How the names of transforms end."""
FILES = (Path("MOVING"), Path("FIXED"), Path("AFFINE.json"), Path("PREFIX"))
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """Where everything lies, and on how many cores it runs."""

    out: Path
    files: Sequence[PairFiles]
    cores: int
    images: Mapping[Path, str] = field(default_factory=dict)
    """What is in every image: a hash."""
    intensities: str = ""
    """What is in the metric file whose intensities metreg's methods see, if there is one."""

    @property
    def config(self) -> Path:
        return (self.out / "settings.toml").absolute()

    def name(self, number: int) -> str:
        """A pair's name in the folders of transforms: MOVING_to_FIXED, or 0001 where a file could be of two pairs."""
        names = [pair.name for pair in self.files]
        own = names[number - 1]
        inverse = BACK.removesuffix(THERE)
        clear = names.count(own) == 1 and f"{own}{inverse}" not in names and not own.endswith(inverse)
        return own if clear else f"{number:04d}"

    def prefix(self, method: str, number: int) -> Path:
        return self.out.absolute() / "transforms" / method / self.name(number)

    def record(self, method: str, number: int) -> Path:
        """What is known of a run: costs, command, and why it failed if it did."""
        prefix = self.prefix(method, number)
        return prefix.with_name(f"{prefix.name}.json")

    def done(self, method: str, number: int) -> bool:
        record = self.record(method, number)
        return record.is_file() and "failed" not in json.loads(record.read_text(encoding="utf-8"))

    def made_of(self, tool: Tool, number: int) -> dict[str, str]:
        """What a run is made of, by content: images, options and the files named by them, versions of the peers."""
        pair = self.files[number - 1]
        options = [_content_of_word(word) for word in tool.after]
        return {
            "moving image": self.images[pair.moving],
            "fixed image": self.images[pair.fixed],
            "set of options": hash_of(json.dumps(options)),
            "set of pinned versions": hash_of(wanted()),
            "metric of the intensities": self.intensities,
        }

    def check(self, tools: Sequence[Tool]) -> None:
        """Refuse what is done already with other images, metrics or versions than those of now."""
        for tool in tools:
            for number in range(1, len(self.files) + 1):
                if not self.done(tool.name, number):
                    continue
                record = self.record(tool.name, number)
                before = json.loads(record.read_text(encoding="utf-8")).get("made_of", {})
                names = differences(before, self.made_of(tool, number))
                if names:
                    of_pair = self.out / "transforms" / "*" / record.name
                    stale = of_pair if names[0].endswith("image") else record.parent
                    raise MetregError(
                        f"--resume: {record} was made with another {names[0]} than that of now; to have it made again "
                        f"delete {stale}, or use a new folder"
                    )


def _content_of_word(word: str) -> str:
    """A word of a command; where it names a file or a metric, what is in that."""
    name = word.removeprefix(MEAN)
    path = metric_path(name) if name in shipped_names() else Path(name)
    return word.removesuffix(name) + content_of(path) if path.is_file() else word


def check_bench(files: Sequence[PairFiles], cores: int | None) -> int:
    """Refuse, before any work is done, pairs that the peers cannot take and cores that are not here. Gives the cores."""
    cores = min(2, available_cores()) if cores is None else cores
    if cores > available_cores():
        raise MetregError(f"--cores: {cores} were asked for, but {available_cores()} are here")
    for pair in files:
        for path, role in ((pair.moving, "moving image"), (pair.fixed, "fixed image")):
            dim = read_image(path, role).dim
            if dim != 3:
                raise MetregError(f"{role}: wanted a 3-D image, got a {dim}-D one: {path}; the peers are run in 3-D only")
    return cores


def prepare(out: Path, files: Sequence[PairFiles], settings: Settings, cores: int) -> Bench:
    """The folder, or one of an earlier run of the same pairs, settings and machine."""
    begin(out, settings)
    place, here = out / "runs" / "machine.json", json.dumps({"cpu": cpu_model(), "cores": cores})
    before = place.read_text(encoding="utf-8") if place.is_file() else here
    if before != here:
        raise MetregError(f"--resume: {out} was begun on {before}, this is {here}; use that, or a new folder")
    atomic_write(place, here)
    atomic_write(out / "settings.toml", settings.to_toml())
    images = contents_of([path for pair in files for path in (pair.moving, pair.fixed)])
    intensities = file_of_intensity(settings.intensity)
    return Bench(out, files, cores, images, "" if intensities is None else content_of(intensities))


def run_all(bench: Bench, tools: Sequence[Tool], tell: Tell = lambda line: None) -> None:
    """Every tool on every pair. Results and costs go to OUT/transforms, what tools print to OUT/logs."""
    affine = Tool(AFFINE, "", (sys.executable, "-P", "-m", "metreg.bench.alignment"))
    bench.check([affine, *tools])
    numbers = range(1, len(bench.files) + 1)
    _warm_up(bench, [tool for tool in tools if not all(bench.done(tool.name, number) for number in numbers)], tell)
    for number, pair in enumerate(bench.files, start=1):
        images = _images(bench, pair, number)
        where = f"pair {number} of {len(bench.files)}"
        if not bench.done(AFFINE, number):
            failed = _run_one(bench, affine, number, [*images, bench.config])
            if failed:
                raise MetregError(f"affine: {where} could not be aligned: {failed}")
        for tool in tools:
            if not bench.done(tool.name, number):
                failed = _run_one(bench, tool, number, [*images, bench.record(AFFINE, number)])
                tell(f"{where}, {tool.name}: {f'FAILED: {failed}' if failed else 'done'}")


def _images(bench: Bench, pair: PairFiles, number: int) -> list[Path]:
    """Both images as NIfTI files whose two forms agree, so that all tools see them in the same place."""
    paths = []
    for source, role in ((pair.moving, "moving"), (pair.fixed, "fixed")):
        content = bench.images[source][:8]  # a copy of what another file held is not taken for it
        path = bench.out.absolute() / "images" / f"{number:04d}_{role}_{content}_{stem(source)}.nii.gz"
        if not path.is_file():
            image = read_image(source, f"{role} image")
            with atomic_file(path, overwrite=False) as temporary:
                write_image(temporary, image.values, Image(image.values, image.affine, image.name))
        paths.append(path)
    return paths


def _run_one(bench: Bench, tool: Tool, number: int, files: list[Path]) -> str:
    """One run; gives why it failed, or nothing. A run that failed counts as the affine alone, and says so."""
    prefix, record = bench.prefix(tool.name, number), bench.record(tool.name, number)
    row, inverse = bench.out / "runs" / tool.name / f"{number:04d}.json", prefix.with_name(f"{prefix.name}{BACK}")
    for path in (record, row, inverse):
        path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "out"
        command = tool.command(*files, made)
        run = run_fresh(command, cores=bench.cores, log=bench.out / "logs" / tool.name / f"{prefix.name}.txt")
        failed = _why_failed(run, [Path(f"{made}{end}") for end in _ends(tool)])
        if failed and tool.name == AFFINE:
            return failed
        found = bench.prefix(AFFINE, number).with_name(prefix.name) if failed else made
        for end in _ends(tool):
            source = Path(f"{found}{end}")
            with atomic_file(prefix.with_name(f"{prefix.name}{end}"), overwrite=True) as path:
                write_transform(path, load_transform(source))
        told = Path(f"{made}.json")
        facts = json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {}
    costs = {"seconds": run.seconds, "cpu_seconds": run.cpu_seconds, "peak_memory_mb": run.peak_memory_mb}
    # what a failure cost would make the mean look cheap
    facts |= {"failed": failed, "cost_of_failure": costs} if failed else costs
    facts["command"] = shlex.join(command)
    facts["made_of"] = bench.made_of(tool, number)
    atomic_write(record, json.dumps(facts, indent=1))
    return failed


def _why_failed(run: Run, made: list[Path]) -> str:
    """Why a run is no result: its exit, or transforms that are missing, damaged or not finite."""
    if run.code:
        return f"exit {run.code}: {run.said}"
    try:
        transforms = [load_transform(path) for path in made]
    except MetregError as error:
        return str(error)
    parts = [part for transform in transforms for part in transform.parts]
    whole = all(np.isfinite(part.displacement if isinstance(part, Field) else part.matrix).all() for part in parts)
    return "" if whole else "its transform is not finite"


def _ends(tool: Tool) -> list[str]:
    return [THERE, BACK] if tool.inverse else [THERE]


def _warm_up(bench: Bench, tools: Sequence[Tool], tell: Tell) -> None:
    """Every tool once on a small pair, not counted: what is compiled and read on first use should not be in the times."""
    x = np.stack(np.meshgrid(*[np.arange(32.0) - 15.5] * 3, indexing="ij"))
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.nii.gz" for name in ("moving", "fixed")]
        for path, width in zip(paths, (7.0, 7.5), strict=True):
            values = (100 * np.exp(-((x / width) ** 2).sum(0) / 2)).astype(np.float32)
            write_image(path, values, Image(values, affine, path.name))
        start = Path(folder) / "affine.json"
        start.write_text(json.dumps({"matrix": np.eye(4).tolist()}), encoding="ascii")
        for tool in tools:
            tell(f"warming up {tool.name}")
            log = bench.out / "logs" / tool.name / "warm_up.txt"
            command = [*tool.command(*paths, start, Path(folder) / "out"), *tool.short]
            run_fresh(command, cores=bench.cores, log=log)


def measure_all(
    bench: Bench,
    tools: Sequence[Tool],
    settings: Settings,
    *,
    versions: dict[str, str],
    frame: Frame | None = None,
    label_names: Path | None = None,
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """Tables, page and summary of what `run_all` left, by the same code as `metreg evaluate`. Gives the summary."""
    out = bench.out
    methods = [Method(name, folder=out / "transforms" / name) for name in (AFFINE, *[tool.name for tool in tools])]
    found = evaluate_methods(
        bench.files, methods, out, settings, device="cpu", frame=frame, label_names=label_names, tell=tell
    )
    keys = ("method", "pair", "moving", "fixed", "failed")
    failures = [{key: row[key] for key in keys} for row in found if "failed" in row]
    rows = _marked(found)
    own = {name: version_of(name) for name in ("metreg", "torch", "numpy", "scipy")}
    summary = write_evaluation(out, rows, settings, command=command_line(), versions={**own, **versions})
    summary |= {
        "machine": _machine(bench.cores),
        "tools": {tool.name: {"what": tool.what, "command": shlex.join(tool.command(*FILES))} for tool in tools},
        "failures": failures,
    }
    atomic_write(out / "peers.md", peers_summary(rows))
    atomic_write(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def _marked(rows: Rows) -> Rows:
    """The rows; a method that failed somewhere says so in its name."""
    names = {}
    for name in {row["method"] for row in rows}:
        own = ["failed" in row for row in rows if row["method"] == name]
        names[name] = f"{name} (failed on {sum(own)} of {len(own)}: affine there)" if any(own) else name
    return [{**row, "method": names[row["method"]]} for row in rows]


def peers_table(rows: Rows) -> Table:
    """A line for every method: how well, how regular, how costly. Folds are summed; costs are of what did not fail."""
    columns = {
        "target_overlap": ("target overlap", ".4f"),
        "dice": ("Dice", ".4f"),
        "folds": ("folds", ".0f"),
        "jacobian_log_std": ("std of log determinant", ".3f"),
        "cpu_seconds": ("CPU seconds", ".1f"),
        "seconds": ("seconds", ".1f"),
        "peak_memory_mb": ("memory (MiB)", ".0f"),
    }
    present = {key: column for key, column in columns.items() if any(key in row for row in rows)}
    lines = []
    for name in dict.fromkeys(row["method"] for row in rows):
        before = FoldCount.of_rows([row for row in rows if row["method"] == name])
        cells = [name, str(before or "")]
        for key, (_, form) in present.items():
            values = [row[key] for row in rows if row["method"] == name and key in row]
            cells.append(format(float((np.sum if key == "folds" else np.mean)(values)), form) if values else "")
        lines.append(cells)
    return Table("", ("method", BEFORE_REPAIR, *[title for title, _ in present.values()]), lines)


def peers_summary(rows: Rows) -> str:
    """The table of methods; where there are labels and pairs enough, what the best has over the others in overlap."""
    table = peers_table(rows).markdown()
    if not all("target_overlap" in row for row in rows):
        return table
    found = compare_overlaps(rows)
    return f"{table}\n{difference_table(found.best, found.compared).markdown()}" if found.compared else table


def _machine(cores: int) -> dict[str, Any]:
    """What ran all this, and how busy it was lately: more than the cores in use means that times were disturbed."""
    load = [round(value, 2) for value in os.getloadavg()]
    system = {"python": platform.python_version(), "system": platform.platform()}
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "cores_used": cores, "load_average": load, **system}


def cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
