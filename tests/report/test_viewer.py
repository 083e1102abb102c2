"""The viewer in a real browser, offline: what it shows, what its controls do, and that left is left."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from browser import Opened, browser, need_browser, opened

from conftest import bent_picture, centred, picture
from metreg.core.grid import world_points
from metreg.report import viewer
from metreg.report.viewer import Layer, viewer_html

SHAPE, COARSE = (40, 48, 36), (20, 24, 18)
RAS = centred(np.diag([2.0, 2.0, 2.5]), SHAPE)
TURN = nib.eulerangles.euler2mat(z=0.35, y=-0.2, x=0.25)
AFFINES = {
    "ras": RAS,
    "las": centred(np.diag([-2.0, 2.0, 2.5]), SHAPE),
    "oblique": centred(TURN @ np.diag([2.0, 2.0, 2.5]), SHAPE),
    "oblique-lps": centred(TURN @ np.diag([-2.0, -2.0, 2.5]), SHAPE),
    "sagittal-psr": centred(np.array([[0, 0, 2.5], [-2.0, 0, 0], [0, 2.0, 0]]), SHAPE),
}
MARK = np.array([-16.0, 12.0, 6.0])
"""Mm: to the patient's left, to the front and up."""
SETTLED = "() => window.metregViewer || document.getElementById('viewer-message').textContent.includes('cannot')"


def page_of(path: Path, layers: list[Layer]) -> Path:
    path.write_text(f"<!doctype html><meta charset='utf-8'><title>viewer</title>{viewer_html(layers)}", encoding="utf-8")
    return path


def five_layers() -> list[Layer]:
    coarse = centred(np.diag([4.0, 4.0, 5.0]), COARSE)
    fixed, warped, sigma = picture(SHAPE, RAS), bent_picture(SHAPE, RAS), 4 + picture(COARSE, coarse) / 100
    return [
        Layer("fixed", fixed, RAS, "gray", 0, 1200),
        Layer("warped", warped, RAS, "gray", 0, 1200, opacity=0),
        Layer("sigma (mm)", sigma, coarse, "viridis", 4, 16, opacity=0),
        Layer("log2 Jacobian", (warped - fixed) / 500, RAS, "PuOr", -1, 1, opacity=0),
        Layer("labels", np.digitize(fixed, [200, 600]) * 500, RAS, "labels", 0, 1, opacity=0.4),
    ]


def move_to(here: Opened, mm: np.ndarray) -> None:
    """Put the crosshair to a place, by the viewer's own means."""
    here.page.evaluate("mm => { metregViewer.scene.crosshairPos = metregViewer.mm2frac(mm, 0, true) }", mm.tolist())
    here.page.evaluate("() => { metregViewer.createOnLocationChange(); metregViewer.drawScene() }")


def place(here: Opened) -> np.ndarray:
    return np.array([float(x) for x in here.page.text_content("#viewer-place").removesuffix(" mm").split(",")])


def values(here: Opened) -> list[str]:
    return here.page.locator(".viewer-value").all_text_contents()


def differs(a: np.ndarray, b: np.ndarray) -> float:
    """The share of pixels that differ clearly."""
    return float((np.abs(a - b).max(-1) > 24).mean())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    need_browser()
    with browser() as found:
        yield found


@pytest.mark.browser
def test_the_page_opens_offline_and_its_controls_work(chromium: Any, tmp_path: Path) -> None:
    layers = five_layers()
    with opened(chromium, page_of(tmp_path / "page.html", layers)) as here:
        here.page.wait_for_function(SETTLED)
        assert not here.page.is_visible("#viewer-message")
        here.page.screenshot(path=here.folder / "viewer-page.png", full_page=True)
        first = here.picture("viewer-first")
        assert len(np.unique(first.reshape(-1, 3), axis=0)) > 200

        shown, opacity = here.page.locator(".viewer-shown"), here.page.locator(".viewer-opacity")
        assert [shown.nth(i).is_checked() for i in range(5)] == [True, False, False, False, True]
        shown.nth(4).uncheck()
        alone = here.picture("viewer-fixed")
        assert differs(first, alone) > 0.01
        shown.nth(2).check()
        sigma = here.picture("viewer-sigma")
        opacity.nth(2).fill("0.4")
        faint = here.picture("viewer-sigma-faint")
        assert differs(alone, sigma) > 0.1 and differs(faint, sigma) > 0.1 and differs(faint, alone) > 0.05
        here.page.locator(".viewer-colours").nth(2).select_option("inferno")
        assert differs(here.picture("viewer-sigma-inferno"), faint) > 0.05
        opacity.nth(2).fill("0")
        assert differs(here.picture("viewer-sigma-clear"), alone) == 0
        shown.nth(3).check()
        here.picture("viewer-jacobian")

        pictures = []
        for view in ("AXIAL", "CORONAL", "SAGITTAL", "RENDER", "MULTIPLANAR"):
            here.page.select_option("#viewer-slices", view)
            pictures.append(here.picture(f"viewer-{view.lower()}"))
        assert all(differs(a, b) > 0.01 for i, a in enumerate(pictures) for b in pictures[:i])
        assert here.errors == []


@pytest.mark.browser
@pytest.mark.parametrize("name", ["ras", "las", "oblique", "sagittal-psr"])
def test_left_is_left_and_the_crosshair_tells_the_truth(name: str, chromium: Any, tmp_path: Path) -> None:
    affine, other = AFFINES[name], centred(np.diag([3.0, -2.0, 3.0]), SHAPE)
    marked, coded = marked_head(affine), np.random.default_rng(0).integers(0, 256, SHAPE)
    layers = [
        Layer("marked", marked, affine, "gray", 0, 255),
        Layer("marked, another grid", marked_head(other), other, "gray", 0, 255, opacity=0),
        Layer("coded", coded, affine, "gray", 0, 255, opacity=0),
        Layer("labels", 7000 + coded, affine, "labels", 0, 1, opacity=0),
    ]
    with opened(chromium, page_of(tmp_path / "page.html", layers)) as here:
        here.page.wait_for_function(SETTLED)
        for voxel in ((3, 40, 5), (30, 7, 30), (20, 24, 18)):
            mm = affine[:3, :3] @ voxel + affine[:3, 3]
            move_to(here, mm)
            assert place(here) == pytest.approx(mm, abs=0.06)
            found = values(here)
            assert (found[0], found[2], found[3]) == (str(marked[voxel]), str(coded[voxel]), str(7000 + coded[voxel]))

        here.page.evaluate("metregViewer.setCrosshairWidth(0)")
        for view in ("AXIAL", "CORONAL"):
            move_to(here, MARK)
            assert values(here)[:2] == ["255", "255"]
            here.page.select_option("#viewer-slices", view)
            lettered = here.picture(f"left-{name}-{view.lower()}")
            here.page.evaluate("metregViewer.setIsOrientationTextVisible(false)")
            bare = here.picture(f"left-{name}-{view.lower()}-bare")
            here.page.locator(".viewer-shown").nth(1).check()
            covered = here.picture(f"left-{name}-{view.lower()}-another-grid")
            here.page.locator(".viewer-shown").nth(1).uncheck()
            here.page.evaluate("metregViewer.setIsOrientationTextVisible(true)")

            assert letter_at(lettered, bare, right=True) == "L" and letter_at(lettered, bare, right=False) == "R"
            (x, y), (height, width, _) = bright_at(bare), bare.shape
            assert x > 0.52 * width and y < 0.48 * height  # on the side of the L, and to the front or up
            assert bright_at(covered) == pytest.approx((x, y), abs=8)  # pixels, some five to a mm
            here.page.locator("#viewer-canvas").click(position={"x": x, "y": y})
            assert place(here) == pytest.approx(MARK, abs=3)
        assert here.errors == []


def marked_head(affine: np.ndarray) -> np.ndarray:
    """A grey ball with a bright mark in it."""
    points = world_points(SHAPE, affine)
    grey, bright = np.linalg.norm(points, axis=1) < 34, np.linalg.norm(points - MARK, axis=1) < 5
    return np.where(bright, 255, 90 * grey).reshape(SHAPE)


def bright_at(seen: np.ndarray) -> tuple[float, float]:
    """The middle of what is nearly white, from the left and from the top, in pixels."""
    rows, columns = np.nonzero(seen.min(-1) > 220)
    assert len(rows) > 50
    return float(columns.mean()), float(rows.mean())


def letter_at(lettered: np.ndarray, bare: np.ndarray, *, right: bool) -> str:
    """L or R, read from the pixels of the letter at the left or right edge: an L has no ink at its upper right."""
    ink = np.abs(lettered - bare).max(-1) > 60
    height, width = ink.shape
    ink[: height // 4] = ink[-height // 4 :] = False  # the letters on top and below
    ink[:, : width // 2] &= not right
    ink[:, width // 2 :] &= right
    rows, columns = np.nonzero(ink)
    letter = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert 6 < letter.shape[0] < 40 and 4 < letter.shape[1] < 40
    corner = letter[: letter.shape[0] // 2, letter.shape[1] // 2 + 1 :]
    return "R" if corner.any() else "L"


@pytest.mark.browser
def test_without_webgl_the_page_says_so(chromium: Any, tmp_path: Path) -> None:
    path = page_of(tmp_path / "page.html", five_layers()[:1])
    with opened(chromium, path, before="HTMLCanvasElement.prototype.getContext = () => null") as here:
        here.page.wait_for_function(SETTLED)
        assert (
            here.page.text_content("#viewer-message") == "The 3-D viewer cannot be shown here: this browser has no WebGL 2."
        )
        assert here.page.is_visible("#viewer-message") and not here.page.is_visible("#viewer-body")
        assert here.errors == []


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the NiiVue bundle, for what needs no browser."""
    template = Path(viewer.__file__).with_name("viewer.html").read_text(encoding="utf-8")
    (tmp_path / "viewer.html").write_text(template, encoding="utf-8")
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "niivue.LICENSE").write_text("the licence <of 2021>", encoding="utf-8")
    path = tmp_path / "vendor" / "niivue.umd.js.gz"
    path.write_bytes(gzip.compress(b"code"))
    monkeypatch.setattr(viewer, "files", lambda package: tmp_path)
    return path


def embedded(html: str | None) -> list[dict[str, Any]]:
    found = re.search(r'id="viewer-data">(.*?)</script>', html or "", re.S)
    assert found
    volumes = re.findall(r'id="viewer-volume-\d+">(.*?)</script>', html or "", re.S)
    return [{**layer, "nifti": volume} for layer, volume in zip(json.loads(found[1])["layers"], volumes, strict=True)]


def image_of(layer: dict[str, Any]) -> nib.Nifti1Image:
    return nib.Nifti1Image.from_bytes(gzip.decompress(base64.b64decode(layer["nifti"])))


def test_without_the_bundle_there_is_no_viewer(bundle: Path) -> None:
    layers = five_layers()[:1]
    html = viewer_html(layers)
    assert html and base64.b64encode(bundle.read_bytes()).decode() in html and "the licence &lt;of 2021&gt;" in html
    bundle.unlink()
    assert viewer_html(layers) is None


@pytest.mark.parametrize("name", AFFINES)
def test_values_survive_at_their_places(name: str, bundle: Path) -> None:
    truth = np.random.default_rng(1).uniform(-3, 5, SHAPE)
    (layer,) = embedded(viewer_html([Layer("</script>", truth, AFFINES[name], "viridis", -2, 4)]))
    image = image_of(layer)
    assert image.get_data_dtype() == np.uint8 and nib.aff2axcodes(image.affine) == ("R", "A", "S")
    voxel = np.array([3, 41, 30])
    there = np.rint(np.linalg.inv(image.affine) @ AFFINES[name] @ [*voxel, 1])[:3].astype(int)
    assert image.dataobj[tuple(there)] == pytest.approx(np.clip(truth[tuple(voxel)], -2, 4), abs=3.01 / 255)
    assert image.header["cal_min"] == -2 and image.header["cal_max"] == 4
    assert layer["low"] is not None and layer["high"] is not None


@pytest.mark.parametrize("count", [3, 255, 256, 700])
def test_labels_keep_their_numbers(count: int, bundle: Path) -> None:
    labels = np.arange(-2, count - 2).repeat(2).reshape(-1, 2, 1) * 10
    (layer,) = embedded(viewer_html([Layer("labels", labels, np.eye(4), "labels", 0, 1)]))
    ranks = np.asarray(image_of(layer).dataobj)
    assert np.array_equal(np.array(layer["labels"])[ranks], labels) and layer["labels"][0] == 0
    assert layer["table"]["A"][:2] == [0, 255] and len(layer["table"]["R"]) == count
    colours = set(zip(*(layer["table"][channel] for channel in "RGB"), strict=True))
    assert len(colours) > 0.95 * count


def test_odd_layers(bundle: Path) -> None:
    flat = Layer("flat", np.full(SHAPE, np.nan), RAS, "gray", 3, 3)
    (layer,) = embedded(viewer_html([flat]))
    assert np.all(np.asarray(image_of(layer).dataobj) == 3) and layer["low"] is None and layer["high"] is None
    with pytest.raises(ValueError, match="no colours 'rainbow'; there are gray"):
        viewer_html([Layer("sigma", np.zeros(SHAPE), RAS, "rainbow", 0, 1)])
    with pytest.raises(ValueError, match="3-D volumes, not 2-D"):
        viewer_html([Layer("slice", np.zeros((4, 4)), RAS, "gray", 0, 1)])
