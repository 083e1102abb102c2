"""`metreg train` on files, and `metreg register` with what it learned."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

import metreg
from conftest import bent_picture, centred, picture
from metreg.errors import MetregError
from metreg.io.image import standardise
from metreg.io.tables import PairFiles, find_pairs
from metreg.io.tensors import write_tensors
from metreg.learn.checkpoint import FORMAT as CHECKPOINT
from metreg.learn.checkpoint import check_checkpoint
from metreg.learn.run import prepare, train_metric
from metreg.metric.store import load_metric, metric_path
from metreg.prepare.intensity import match, quantile_function
from metreg.settings.model import Settings, make_settings

CPU = torch.device("cpu")


def short(**more: object) -> Settings:
    changes = {"train.epochs": [1, 2], "train.steps": 2, "flow.steps": 4, "learned.transport": 1.0, **more}
    return make_settings(changes=changes)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three small images of one thing, of different sizes, places and brightness."""
    folder = tmp_path / "images"
    folder.mkdir()
    for i, (shape, size) in enumerate((((22, 24, 20), 3.0), ((24, 22, 21), 3.2), ((20, 22, 22), 3.3))):
        affine = centred(np.diag([size] * 3), shape)
        values = (bent_picture if i == 1 else picture)(shape, affine) * (1 + i) + 100 * i
        affine[:3, 3] += 2 * i
        nib.save(nib.Nifti1Image(values.astype(np.float32), affine), folder / f"{i}.nii.gz")
    return folder


def test_a_metric_is_learned_from_a_folder_and_used(images: Path, tmp_path: Path) -> None:
    heard: list[dict[str, object]] = []
    files = find_pairs(images, choose="random:4")
    train_metric(files, tmp_path / "run", short(), device=CPU, licence="mine", credit="me", on_epoch=heard.append)
    assert [(r["stage"], r["epoch"]) for r in heard] == [(1, 1), (2, 1), (2, 2)]
    metric = load_metric(tmp_path / "run" / "metric.safetensors")
    assert (
        metric.licence == "mine"
        and metric.summary["credit"] == "me"
        and metric.summary["pairs"] == 4
        and metric.summary["images"] == 3
    )
    assert len(metric.intensity) == 101 and metric.intensity[-1] == pytest.approx(1, abs=0.01)
    assert metric.voxel_mm == pytest.approx((6.2, 6.2, 6.2), rel=0.1)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"metric.safetensors", "log.jsonl", "report.html", "settings.toml", "checkpoint.safetensors"}
    result = metreg.register(
        images / "0.nii.gz",
        images / "1.nii.gz",
        metric=str(tmp_path / "run" / "metric.safetensors"),
        changes={"solve.iterations": [4, 2, 2]},
    )
    assert result.metric_licence == "mine" and result.registration.metric.w.dim() == 5
    assert metric.used["preset"] == "default" and metric.used["solve"]["regularity"] == result.settings.solve.regularity
    assert result.settings.length_mm == metric.length_mm


def test_a_network_that_looks_at_the_momentum_is_used_too(images: Path, tmp_path: Path) -> None:
    settings = short(**{"learned.network.momentum_input": True})
    train_metric(find_pairs(images)[:2], tmp_path / "run", settings, device=CPU)
    result = metreg.register(
        images / "0.nii.gz",
        images / "1.nii.gz",
        metric=str(tmp_path / "run" / "metric.safetensors"),
        changes={"solve.iterations": [4, 2, 2]},
    )
    result.save(tmp_path / "out")
    assert nib.load(tmp_path / "out" / "weights.nii.gz").shape[-1] == 4


def test_images_are_aligned_to_one_template_and_matched_in_intensity(images: Path) -> None:
    files = find_pairs(images)
    prepared = prepare(files, images / "0.nii.gz", short())
    assert prepared.pairs.images.shape[0] == 3 and len(prepared.pairs) == 6
    correlation = np.corrcoef(prepared.pairs.images[:, 0, 4:-4, 4:-4, 4:-4].flatten(1).numpy())
    assert correlation.min() > 0.9
    with pytest.raises(MetregError, match=r"without an alignment .* got \(24, 22, 21\)"):
        prepare(files, images / "0.nii.gz", short(**{"affine.kind": "none"}))


def test_images_of_a_training_are_matched_to_another_average_on_request(images: Path) -> None:
    files = find_pairs(images)[:1]
    own = prepare(files, images / "0.nii.gz", short(intensity="own"))
    assert own.standard == ()
    given = metric_path("brain-t1")
    other = prepare(files, images / "0.nii.gz", short(intensity=str(given)))
    assert other.standard == load_metric(given).intensity
    assert not torch.allclose(own.pairs.images, other.pairs.images)


def test_a_training_of_no_epochs_gives_the_average_of_the_intensities(images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    metric = train_metric(find_pairs(images), run, short(**{"train.epochs": [0, 0]}), device=CPU)
    assert len(metric.intensity) == 101 and load_metric(run / "metric.safetensors").intensity == metric.intensity
    assert not (run / "report.html").exists()
    other = prepare(find_pairs(images)[:1], images / "0.nii.gz", short(intensity=str(run / "metric.safetensors")))
    assert other.standard == metric.intensity


def test_a_training_knows_whose_intensities_it_sees(images: Path, tmp_path: Path) -> None:
    average, run = tmp_path / "average", tmp_path / "run"
    train_metric(find_pairs(images)[:1], average, short(**{"train.epochs": [0, 0]}), device=CPU)
    settings = short(intensity=str(average / "metric.safetensors"))
    train_metric(find_pairs(images)[:2], run, settings, device=CPU)
    before = (run / "metric.safetensors").read_bytes()
    train_metric(find_pairs(images)[1:3], average, short(**{"train.epochs": [0, 0]}), device=CPU, overwrite=True)
    with pytest.raises(MetregError, match="other metric of the intensities"):
        train_metric(find_pairs(images)[:2], run, settings, device=CPU, resume=True)
    assert (run / "metric.safetensors").read_bytes() == before


def test_intensities_are_matched_to_a_standard() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.gamma(2.0, size=20000).astype(np.float32), rng.normal(5, 1, size=20000).astype(np.float32)
    standard = quantile_function(standardise(a))
    found = match(standardise(b), standard.tolist())
    assert found.min() >= 0 and found.max() <= 1
    np.testing.assert_allclose(quantile_function(found)[5:95], standard[5:95], atol=0.05)
    assert (np.diff(found[np.argsort(b)]) >= 0).all()


def test_examples_of_pairs_that_share_a_name_are_all_shown(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1, 2):
        folder = tmp_path / f"sub-{number}"
        folder.mkdir()
        (images / f"{number}.nii.gz").rename(folder / "T1.nii.gz")
    people = [tmp_path / f"sub-{number}" / "T1.nii.gz" for number in (0, 1, 2)]
    files = [PairFiles(people[0], people[1]), PairFiles(people[1], people[2])]
    shown: list[str] = []

    def page(about: object, history: object, examples: dict[str, object], *rest: object) -> str:
        shown.extend(examples)
        return ""

    monkeypatch.setattr("metreg.learn.run.training_page", page)
    train_metric(files, tmp_path / "run", short(), device=CPU)
    assert shown == ["1: T1 to T1", "2: T1 to T1"]


def test_masks_say_where_pairs_count(images: Path, tmp_path: Path) -> None:
    image = nib.load(images / "0.nii.gz")
    half = np.zeros(image.shape, dtype=np.uint8)
    half[: image.shape[0] // 2] = 1
    nib.save(nib.Nifti1Image(half, image.affine), tmp_path / "mask.nii.gz")
    pair = PairFiles(images / "0.nii.gz", images / "1.nii.gz", moving_mask=tmp_path / "mask.nii.gz")
    prepared = prepare([pair], images / "0.nii.gz", short())
    assert prepared.pairs.masks is not None
    scene = prepared.pairs.scene(torch.tensor([0]), prepared.pairs.grid, CPU)
    assert scene.mask is not None and 0.1 < float(scene.mask.mean()) < 0.6


def test_a_stopped_training_goes_on_with_the_same_files_only(images: Path, tmp_path: Path) -> None:
    files, run = find_pairs(images)[:2], tmp_path / "run"

    def stop(record: dict[str, object]) -> None:
        if record["stage"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_metric(files, run, short(), device=CPU, licence="mine", credit="me", on_epoch=stop)
    with pytest.raises(MetregError, match="exists"):
        train_metric(files, run, short(), device=CPU)
    with pytest.raises(MetregError, match="other pairs"):
        train_metric(find_pairs(images)[2:], run, short(), device=CPU, resume=True)
    gone_on = train_metric(files, run, short(), device=CPU, resume=True)
    assert gone_on.licence == "mine" and gone_on.summary["credit"] == "me"
    train_metric(files, tmp_path / "whole", short(), device=CPU)
    found = [load_metric(folder / "metric.safetensors").model.state_dict() for folder in (run, tmp_path / "whole")]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    epochs = [json.loads(line)["epoch"] for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert epochs == [1, 1, 2]


def state_of(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """All files with what is in them and when it was written."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_refused_resume_leaves_the_run_as_it_was(images: Path, tmp_path: Path) -> None:
    files, run = find_pairs(images)[:2], tmp_path / "run"

    def stop(record: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_metric(files, run, short(), device=CPU, on_epoch=stop)
    before = state_of(run)

    def refused(said: str, settings: Settings, **more: object) -> None:
        with pytest.raises(MetregError, match=said):
            train_metric(files, run, settings, device=CPU, resume=True, licence="another", **more)  # type: ignore[arg-type]
        assert state_of(run) == before

    refused(r"other settings \(train.steps\)", short(**{"train.steps": 3}))
    refused(r"other settings \(length_mm\)", short(length_mm=150.0))
    refused("other template;", short(), template=images / "0.nii.gz")
    image = images / "1.nii.gz"
    kept = image.read_bytes()
    image.write_bytes((images / "2.nii.gz").read_bytes())
    refused(rf"other template and other pairs \(1\.fixed {image}\)", short())
    image.write_bytes(kept)
    momenta = next(run.glob("momenta-*.npy"))
    kept = momenta.read_bytes()
    np.save(momenta, np.zeros((2, 1, 3, 4, 4, 4), dtype=np.float32))
    before = state_of(run)
    refused("begin the training anew", short())
    momenta.write_bytes(kept)
    train_metric(files, run, short(), device=CPU, resume=True)
    assert (run / "metric.safetensors").is_file()


def test_a_checkpoint_of_another_version_is_told(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    header = {"progress": json.dumps({"stage": 0, "mood": "good"}), "settings": short().model_dump_json()}
    write_tensors(path, {"a": torch.zeros(1)}, form=CHECKPOINT, header=header)
    with pytest.raises(MetregError, match="written by another version of metreg"):
        check_checkpoint(path, short())


def test_tensorboard_gets_the_curves_where_it_is_installed(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train_metric(find_pairs(images)[:1], tmp_path / "run", short(), device=CPU)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    seen.Reload()
    assert len(seen.Scalars("stage 2/similarity")) == 2


def test_synthetic_pairs_are_a_table_to_train_on(tmp_path: Path) -> None:
    from metreg.experiments.rings.write import write_rings

    write_rings(tmp_path / "rings", pairs=2, seed=0, overwrite=False)
    files = find_pairs(tmp_path / "rings" / "pairs.csv")
    assert len(files) == len(list(csv.DictReader((tmp_path / "rings" / "pairs.csv").open()))) == 2
    changes = {"train.epochs": [1, 1], "train.steps": 1, "flow.steps": 4, "affine.kind": "none"}
    metric = train_metric(files, tmp_path / "run", make_settings("paper2d", changes=changes), device=CPU)
    assert metric.model.dim == 2 and metric.unit_cube
