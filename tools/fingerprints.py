"""What must not change when code is only moved: some twenty small runs of the command line, and a hash of all they give.

python tools/fingerprints.py write before.json      runs all cases and keeps the hashes
python tools/fingerprints.py compare before.json    runs them again and names what differs

Hashes are of arrays and of tables without times and memory. They are compared on one machine: another processor rounds
otherwise. Every case is a process of its own with one thread.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
from safetensors.numpy import load_file

FEW = ["--set", "solve.iterations=[6,5,4]"]
SGD_2D = ["--preset", "paper2d", "--set", "solve.iterations=[8]", "--set", "solve.local_iterations=[8]"]
SGD_3D = ["--preset", "paper3d", "--set", "solve.iterations=[4]", "--set", "solve.local_iterations=[4]"]
TIMED = ("second", "memory")
"""Columns and entries with these words in their names differ from run to run."""


def blobs(shape: tuple[int, ...], shift: float) -> np.ndarray:
    """A lopsided picture; with a `shift` it is bent."""
    axes = np.meshgrid(*[np.linspace(-1, 1, n) for n in shape], indexing="ij")
    bent = [x + shift * np.sin(2.5 * axes[(i + 1) % len(axes)] + i) for i, x in enumerate(axes)]
    picture = np.zeros(shape)
    for k, width in enumerate((0.6, 0.35, 0.2)):
        centre = [0.25 * np.cos(2.1 * k + i) for i in range(len(shape))]
        square = sum((x - c) ** 2 for x, c in zip(bent, centre, strict=True))
        picture += (1 + k) * np.exp(-square / width**2)
    return picture


def save(path: Path, values: np.ndarray, spacing: tuple[float, ...], kind: type = np.float32) -> None:
    affine = np.diag([*spacing, *[1.0] * (3 - len(spacing)), 1.0])
    nib.save(nib.Nifti1Image(values.astype(kind), affine), path)


def make_inputs(folder: Path) -> None:
    """Images, masks, labels, weights and tables of pairs."""
    cases = {
        "flat": ((48, 44), (2.0, 2.5)),
        "solid": ((30, 28, 26), (3.0, 3.0, 3.5)),
        "thick": ((36, 34, 10), (2.0, 2.0, 8.0)),
    }
    for name, (shape, spacing) in cases.items():
        for who, shift in (("a", 0.0), ("b", 0.12), ("c", -0.1)):
            picture = blobs(shape, shift)
            save(folder / f"{name}_{who}.nii.gz", 200 * picture, spacing)
            save(folder / f"{name}_{who}_labels.nii.gz", np.digitize(picture, [0.8, 2.0]), spacing, np.int16)
            save(folder / f"{name}_{who}_mask.nii.gz", picture > 0.05, spacing, np.uint8)
    shape, spacing = cases["solid"]
    left = 1 / (1 + np.exp(-np.linspace(-6, 6, shape[0])))[:, None, None, None]
    stiff = np.array([0.0, 0.0, 0.0, 1.0])
    free = np.array([0.1, 0.3, 0.3, 0.3])
    weights = np.broadcast_to(left * stiff + (1 - left) * free, (*shape, 4))
    save(folder / "weights.nii.gz", weights, spacing)
    for name in ("flat", "solid"):
        rows = ["moving,fixed,moving_labels,fixed_labels,moving_subject,fixed_subject"]
        for moving, fixed in (("a", "b"), ("b", "c"), ("c", "a")):
            files = [f"{name}_{who}{end}.nii.gz" for end in ("", "_labels") for who in (moving, fixed)]
            rows.append(",".join([*files, moving, fixed]))
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")


def cases() -> dict[str, list[str]]:
    """Command lines, run in the folder of the inputs; every one writes into a folder of its name."""
    flat = ["register", "flat_a.nii.gz", "flat_b.nii.gz"]
    solid = ["register", "solid_a.nii.gz", "solid_b.nii.gz"]
    trained = "train_lbfgs/metric.safetensors"
    short = ["--set", "train.epochs=[2,3]", "--set", "train.batch=2"]
    return {
        "flat": [*flat, *FEW],
        "flat_paper": [*flat, *SGD_2D],
        "flat_labels": [*flat, *FEW, "--moving-labels", "flat_a_labels.nii.gz", "--fixed-labels", "flat_b_labels.nii.gz"],
        "flat_ssd": [*flat, *FEW, "--set", "similarity.name=ssd", "--set", "flow.integrator=squaring"],
        "flat_ncc": [*flat, *FEW, "--set", "similarity.name=ncc", "--no-affine"],
        "flat_mi": [*flat, *FEW, "--set", "similarity.name=mi", "--set", "affine.similarity=mi"],
        "flat_folds": [*flat, "--set", "solve.regularity=0.01", "--set", "solve.folding=0"],
        "solid": [*solid, *FEW],
        "solid_paper": [*solid, *SGD_3D],
        "solid_masks": [*solid, *FEW, "--moving-mask", "solid_a_mask.nii.gz", "--fixed-mask", "solid_b_mask.nii.gz"],
        "solid_labels": [
            *solid,
            *FEW,
            "--moving-labels",
            "solid_a_labels.nii.gz",
            "--fixed-labels",
            "solid_b_labels.nii.gz",
        ],
        "solid_weights": [*solid, *FEW, "--weights", "weights.nii.gz"],
        "solid_fourier": [*solid, *FEW, "--set", "metric.realisation=fourier"],
        "solid_brain": [*solid, "--metric", "brain-t1", "--set", "solve.iterations=[4,4,4]"],
        "solid_rigid": [*solid, *FEW, "--set", "affine.kind=rigid", "--fill", "-7"],
        "thick": ["register", "thick_a.nii.gz", "thick_b.nii.gz", *FEW],
        "train_lbfgs": ["train", "flat.csv", *short],
        "train_paper": ["train", "flat.csv", "--preset", "paper2d", *short],
        "train_h1": ["train", "flat.csv", "--preset", "paper2d", *short, "--set", "learned.variation_kind=h1"],
        "train_momentum": [
            "train",
            "flat.csv",
            "--preset",
            "paper2d",
            *short,
            "--set",
            "learned.network.momentum_input=true",
        ],
        "train_solid": ["train", "solid.csv", "--set", "train.epochs=[1,2]", "--set", "train.batch=2"],
        "learned": [*flat, *FEW, "--metric", trained],
        "learned_mean": [*flat, *FEW, "--metric", f"mean:{trained}"],
        "learned_momentum": [*flat, "--metric", "train_momentum/metric.safetensors", *SGD_2D],
        "learned_solid": [*solid, *FEW, "--metric", "train_solid/metric.safetensors"],
        "evaluate": ["evaluate", "flat.csv", "--metric", "global", "--metric", f"learned={trained}", *FEW],
        "evaluate_solid": ["evaluate", "solid.csv", "--metric", "global", *FEW],
        "synth": ["synth", "SYNTH", "--pairs", "2"],
        "demo": ["demo"],
    }


def run(case: str, words: list[str], folder: Path) -> None:
    out = folder / case
    where = [str(out) if word == "SYNTH" else word for word in words]
    if "SYNTH" not in words:
        where += ["-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "metreg", *where, "-q", "--device", "cpu"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{case}: exit {done.returncode}\n{done.stderr}")


def hash_array(values: np.ndarray) -> str:
    values = np.ascontiguousarray(values)
    return hashlib.sha256(f"{values.dtype}{values.shape}".encode() + values.tobytes()).hexdigest()[:16]


def of_image(path: Path) -> dict[str, str]:
    return {"": hash_array(np.asarray(nib.load(path).dataobj))}


def of_transform(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, part: (
                found.update({name: hash_array(part[()])})
                if isinstance(part, h5py.Dataset) and part.dtype.kind == "f"
                else None
            )
        )
    return found


def of_tensors(path: Path) -> dict[str, str]:
    return {name: hash_array(values) for name, values in load_file(path).items()}


def of_table(path: Path) -> dict[str, str]:
    """Column by column."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if not any(word in name for word in TIMED)]
    return {name: hashlib.sha256(json.dumps([row[name] for row in rows]).encode()).hexdigest()[:16] for name in names}


def of_log(path: Path) -> dict[str, str]:
    """Numbers of every epoch."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = [name for name in records[0] if not any(word in name for word in TIMED)]
    return {
        name: hashlib.sha256(json.dumps([record[name] for record in records]).encode()).hexdigest()[:16] for name in names
    }


READERS: dict[str, Callable[[Path], dict[str, str]]] = {
    ".nii.gz": of_image,
    ".h5": of_transform,
    ".safetensors": of_tensors,
    ".csv": of_table,
    ".jsonl": of_log,
}


def fingerprints(out: Path) -> dict[str, str]:
    """By file and what is in it."""
    found = {}
    for path in sorted(out.rglob("*")):
        for end, reader in READERS.items():
            if path.name.endswith(end) and path.name not in ("checkpoint.safetensors", "pairs.csv"):
                for name, value in reader(path).items():
                    found[f"{path.relative_to(out.parent)} {name}".strip()] = value
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    lines = [f"gone: {name}" for name in before if name not in after]
    lines += [f"new: {name}" for name in after if name not in before]
    lines += [f"differs: {name}" for name in before if name in after and before[name] != after[name]]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", help="cases to run; others that these need are run too if named")
    given = parser.parse_args()
    chosen = {name: words for name, words in cases().items() if not given.only or name in given.only}
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder)
        for case, words in chosen.items():
            run(case, words, folder)
            found |= fingerprints(folder / case)
    if given.what == "write":
        given.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} hashes of {len(chosen)} cases")  # noqa: T201
        return 0
    before = json.loads(given.file.read_text(encoding="utf-8"))
    kept = {name: value for name, value in before.items() if name.split("/")[0] in chosen}
    lines = differences(kept, found)
    print("\n".join(lines) or f"all {len(found)} hashes of {len(chosen)} cases are the same")  # noqa: T201
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
