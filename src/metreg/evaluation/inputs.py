"""What every row of an evaluation is made of, by content: `--resume` keeps a row only while that is the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metreg.errors import MetregError
from metreg.evaluation.methods import AFFINE, Method, facts_beside, inverse_beside
from metreg.io.points import Frame
from metreg.io.tables import NEEDED, PairFiles
from metreg.many.claim import ROLES, contents_of, differences, files_of_pairs, hash_of, read_record
from metreg.metric.store import file_of_intensity, metric_path
from metreg.pipeline.resolve import GLOBAL, MEAN
from metreg.settings.model import Settings

FORMAT = "metreg-evaluation-3"
"""Of what is kept in `runs`; to be raised when rows get another meaning, as those of old would be taken for the same."""


def record_of(out: Path, method: Method, number: int) -> Path:
    """Where the row of a pair is kept."""
    return out / "runs" / method.name / f"{number:04d}.json"


@dataclass(eq=False)
class Inputs:
    """All files of an evaluation, each read once at its beginning. One that changes later has another content at the next
    resume, so its rows are not taken for results of the new one, whichever they are of.
    """

    files: Sequence[PairFiles]
    methods: Sequence[Method]
    transforms: Mapping[str, Sequence[Path]]
    """By method the file of every pair, where they are read."""
    names: Mapping[int, str]
    """Of labels."""
    frame: Frame | None
    settings: Settings
    contents: dict[Path, str] = field(init=False)
    label_names: str = field(init=False)

    def __post_init__(self) -> None:
        self.label_names = hash_of(json.dumps(dict(self.names)))
        paths = list(files_of_pairs(self.files).values())
        for method in self.methods:
            paths += self._metric_files(method).values()
            for path in self.transforms.get(method.name, ()):
                paths += _transform_files(path).values()
        self.contents = contents_of(paths)

    def of(self, method: Method, number: int) -> dict[str, str]:
        """What a row is made of, by name."""
        found = {name: self.contents[path] for name, path in self._paths(method, number).items()}
        pair = self.files[number - 1]
        if pair.moving_labels is not None or pair.fixed_labels is not None:
            found["table of label names"] = self.label_names
        if pair.moving_points is not None and pair.fixed_points is not None:
            found["frame of the landmarks"] = self.frame or ""
        found["settings of the method"] = json.dumps(dict(method.changes), sort_keys=True)
        found["kind of the method"] = _kind(method)
        return found

    def _paths(self, method: Method, number: int) -> dict[str, Path]:
        pair = self.files[number - 1]
        paths = {}
        for role in ROLES:
            path = getattr(pair, role)
            if path is not None:
                paths[f"{role} image" if role in NEEDED else role.replace("_", " ")] = path
        paths |= self._metric_files(method)
        if method.name in self.transforms:
            paths |= _transform_files(self.transforms[method.name][number - 1])
        return paths

    def _metric_files(self, method: Method) -> dict[str, Path]:
        """The metric of a method, and the one whose intensities it sees."""
        if method.metric is None:
            return {}
        found = {}
        if method.metric != GLOBAL:
            found["metric"] = metric_path(method.metric.removeprefix(MEAN))
        intensities = file_of_intensity(self.settings.intensity)
        if intensities is not None:
            found["metric of the intensities"] = intensities
        return found

    def check(self, out: Path) -> None:
        """Refuse rows in `out` that were made of something else; say of what, and what to do. Changes nothing."""
        stale: dict[str, list[int]] = {}  # pairs by method
        why = ""
        for method in self.methods:
            for number in range(1, len(self.files) + 1):
                record = record_of(out, method, number)
                if not record.is_file():
                    continue
                cause = self._what_changed(record, method, number)
                if cause:
                    stale.setdefault(method.name, []).append(number)
                    why = why or cause
        if stale:
            count = sum(len(numbers) for numbers in stale.values())
            raise MetregError(
                f"--resume: {why}; so it is with {count} result{'s' if count > 1 else ''} in {out / 'runs'}; to have them "
                f"made again delete {self._where(out, stale)}, or use a new folder"
            )

    def _what_changed(self, record: Path, method: Method, number: int) -> str:
        """Why a row does not count any more, or nothing."""
        kept = read_record(record, FORMAT)
        if kept is None:
            return f"{record} was written by another version of metreg"
        names = differences(kept["made_of"], self.of(method, number))
        if not names:
            return ""
        path = self._paths(method, number).get(names[0])
        named = "" if path is None else f" {path}"
        return f"the {names[0]}{named} is not what it was when {record} was made"

    def _where(self, out: Path, stale: Mapping[str, Sequence[int]]) -> str:
        """What to delete: whole methods where all of their rows are meant, else pairs."""
        runs = out / "runs"
        methods = [method for method in self.methods if method.name in stale]
        if all(len(stale[method.name]) == len(list((runs / method.name).glob("*.json"))) for method in methods):
            return " ".join(shlex.quote(str(runs / method.name)) for method in methods)
        numbers = [f"{number:04d}" for number in sorted({number for found in stale.values() for number in found})]
        pairs = numbers[0] if len(numbers) == 1 else f"{{{','.join(numbers)}}}"  # as shells expand it
        return f"{shlex.quote(str(runs))}/*/{pairs}.json"


def _kind(method: Method) -> str:
    """What is done, beside the files that it is done with."""
    if method.metric is None:
        return "transforms" if method.folder is not None else AFFINE
    learned = f"{MEAN}FILE" if method.metric.startswith(MEAN) else "FILE"
    return method.metric if method.metric == GLOBAL else learned


def _transform_files(path: Path) -> dict[str, Path]:
    """A transform and what lies beside it."""
    beside = {"transform": path, "inverse transform": inverse_beside(path), "file of costs": facts_beside(path)}
    return {name: found for name, found in beside.items() if found.is_file()}
