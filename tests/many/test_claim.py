"""What something was begun with is told by content, whatever files are called and dated."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from metreg.errors import MetregError
from metreg.many.claim import check_resume, content_of, contents_of, differences, write_record
from metreg.metric.store import load_metric, metric_path, save_metric
from metreg.pipeline.resolve import BRAIN


def test_content_counts_and_not_date_or_name(tmp_path: Path) -> None:
    one, copy = tmp_path / "one.nii.gz", tmp_path / "copy.nii.gz"
    one.write_bytes(b"image" * 1000)
    copy.write_bytes(b"image" * 1000)
    os.utime(copy, (0, 0))
    assert content_of(one) == content_of(copy)
    before = content_of(one)
    stamp = one.stat()
    one.write_bytes(b"emage" * 1000)  # of the same size, and made to look as old
    os.utime(one, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert content_of(one) != before
    assert contents_of([one, None, copy, one]) == {one: content_of(one), copy: content_of(copy)}
    with pytest.raises(MetregError, match=r"cannot read .*nowhere"):
        content_of(tmp_path / "nowhere")


def test_a_metric_that_is_written_again_is_the_same(tmp_path: Path) -> None:
    """Though safetensors writes its header in another order every time."""
    learned = load_metric(metric_path(BRAIN))
    path = tmp_path / "metric.safetensors"
    found = []
    written = []
    for _ in range(8):
        save_metric(path, learned)
        found.append(content_of(path))
        written.append(path.read_bytes())
    assert len(set(found)) == 1
    save_metric(path, replace(learned, licence="another"))
    assert content_of(path) != found[0]
    path.write_bytes(written[0][:-1] + b"?")
    assert content_of(path) != found[0]
    path.write_text("no metric")
    assert content_of(path) not in found


@pytest.mark.parametrize(
    ("image", "voxels", "header"),
    [
        ("m1.img", "m1.hdr", ""),
        ("m1.hdr", "m1.img", ""),
        ("m1.hdr.gz", "m1.img.gz", ""),
        ("m1.mhd", "other.raw", "NDims = 3\nElementDataFile = other.raw\n"),
        ("m1.nhdr", "other.raw", "NRRD0004\ndata file: other.raw\n"),
        ("series", "series/2.dcm", ""),
    ],
)
def test_all_files_of_an_image_count(image: str, voxels: str, header: str, tmp_path: Path) -> None:
    if header or "." in image:
        (tmp_path / image).write_text(header)
    else:
        (tmp_path / image).mkdir()
        (tmp_path / image / "1.dcm").write_text("1")
    (tmp_path / voxels).write_text("before")
    before = content_of(tmp_path / image)
    (tmp_path / voxels).write_text("afterwards")
    assert content_of(tmp_path / image) != before


def test_what_differs_is_named(tmp_path: Path) -> None:
    before = {"solve": {"iterations": [1, 2], "tolerance": 0.1}, "seed": 0}
    now = {"solve": {"iterations": (1, 2), "tolerance": 0.2}, "seed": 0, "new": 1}
    assert differences(before, now) == ["solve.tolerance", "new"]
    record = tmp_path / "plan.json"
    given = {"settings": before, "images": {"1.moving": "a", "1.fixed": "b"}, "template": "c"}
    write_record(record, given, form="test-1")
    stamp = record.stat().st_mtime_ns
    check_resume(record, given, form="test-1", folder=tmp_path)
    write_record(record, given, form="test-1")
    assert record.stat().st_mtime_ns == stamp
    other = {"settings": now, "images": {"1.moving": "a", "1.fixed": "x"}, "template": "d"}
    paths = {"1.fixed": Path("b.nii.gz")}
    said = (
        r"other settings \(solve.tolerance, new\) and other images \(1.fixed b.nii.gz\) and other template; "
        "use what it was begun with, or a new folder"
    )
    with pytest.raises(MetregError, match=said):
        check_resume(record, other, form="test-1", folder=tmp_path, paths=paths)
    for form, text in (("test-2", None), ("test-1", "{}"), ("test-1", "no JSON")):
        if text is not None:
            record.write_text(text)
        with pytest.raises(MetregError, match="was begun by another version of metreg"):
            check_resume(record, given, form=form, folder=tmp_path)
