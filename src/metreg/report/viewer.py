"""The interactive 3-D viewer of a report: NiiVue and the volumes, embedded in the page."""

from __future__ import annotations

import base64
import colorsys
import gzip
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from metreg.core.grid import Array
from metreg.measure.overlap import labels_in, ranks

COLOURS = ("gray", "viridis", "inferno", "PuOr", "RdBu", "hot", "cool")
"""The colour maps on offer, matplotlib's, as in the figures; PuOr and RdBu diverge from the middle of the window."""
NODES = 33


@dataclass(frozen=True, eq=False)
class Layer:
    """One volume of the viewer. Values outside the window are shown, and read out, as its ends."""

    name: str
    values: Array
    """(*S), 3-D."""
    affine: Array
    """(4, 4), index to RAS mm."""
    colours: str
    """One of COLOURS, or "labels" for a label map: nearest neighbour, a fixed colour for every label, 0 is clear."""
    low: float
    high: float
    opacity: float = 1.0
    """As it is first shown; 0 is hidden."""


def viewer_html(layers: Sequence[Layer]) -> str | None:
    """The viewer as a piece of HTML, one to a page, or None where the NiiVue bundle is not installed.

    The first layer is the base: its grid is what the slices show, the others are resampled to it and drawn over it.
    """
    import jinja2
    from markupsafe import Markup

    vendor = files("metreg.report").joinpath("vendor")
    bundle, licence = vendor.joinpath("niivue.umd.js.gz"), vendor.joinpath("niivue.LICENSE")
    if not (bundle.is_file() and licence.is_file()):
        return None
    with ThreadPoolExecutor() as pool:
        packed = list(pool.map(_packed, layers))
    environment = jinja2.Environment(autoescape=True)
    template = environment.from_string(files("metreg.report").joinpath("viewer.html").read_text(encoding="utf-8"))
    return template.render(
        layers=layers,
        colours=COLOURS,
        volumes=[Markup(layer.pop("nifti")) for layer in packed],
        data={"layers": packed, "colours": {name: _table(name) for name in COLOURS}},
        bundle=Markup(base64.b64encode(bundle.read_bytes()).decode()),
        licence=licence.read_text(encoding="utf-8"),
    )


def _packed(layer: Layer) -> dict[str, Any]:
    """What the page needs of a layer beside its controls: a small NIfTI file and how to read its numbers."""
    if layer.values.ndim != 3:
        raise ValueError(f"layer {layer.name!r}: the viewer shows 3-D volumes, not {layer.values.ndim}-D")
    if layer.colours == "labels":
        return _packed_labels(layer)
    if layer.colours not in COLOURS:
        raise ValueError(f"layer {layer.name!r}: no colours {layer.colours!r}; there are {', '.join(COLOURS)}, labels")
    low, high = float(layer.low), float(layer.high)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        low, high = (low, low + 1) if np.isfinite(low) else (0.0, 1.0)
    step = (high - low) / 255
    values = np.nan_to_num(layer.values, nan=low, posinf=high, neginf=low)
    indices = np.rint((np.clip(values, low, high) - low) / step).astype(np.uint8)
    return {
        "nifti": _nifti(indices, layer.affine, slope=step, low=low, high=high),
        "low": low + step / 2 if (values < low).any() else None,  # what reads as less may lie below the window
        "high": high - step / 2 if (values > high).any() else None,
    }


def _packed_labels(layer: Layer) -> dict[str, Any]:
    """Labels as their rank among those present, 0 first."""
    values = np.rint(layer.values).astype(np.int32)
    present = np.union1d(labels_in(values), [0])
    order = np.argsort(present != 0, kind="stable")  # which of them is shown as the first, the second, ...
    labels = present[order]
    indices = np.argsort(order).astype(np.uint8 if len(labels) <= 256 else np.uint16)[ranks(values, present)]
    red, green, blue = zip(*(_label_colour(int(label)) for label in labels), strict=True)
    return {
        "nifti": _nifti(indices, layer.affine, slope=1.0, low=0.0, high=float(max(1, len(labels) - 1)), intent="label"),
        "labels": labels.tolist(),
        "table": {"R": red, "G": green, "B": blue, "A": [0] + [255] * (len(labels) - 1), "I": list(range(len(labels)))},
    }


def _label_colour(label: int) -> tuple[int, ...]:
    """A bright colour that depends on the label alone; the golden ratio sets neighbouring labels far apart."""
    hue, lightness, saturation = label * 0.618034 % 1, (0.55, 0.42, 0.7)[label % 3], (0.9, 0.75)[label // 3 % 2]
    return tuple(round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, saturation))


def _nifti(indices: Array, affine: Array, *, slope: float, low: float, high: float, intent: str = "none") -> str:
    """A NIfTI file whose values are low + slope * indices, its axes turned to run nearest right, front and up; base64."""
    import nibabel as nib

    image = nib.as_closest_canonical(nib.Nifti1Image(indices, affine))
    image.header.set_slope_inter(slope, low)
    image.header["cal_min"], image.header["cal_max"] = low, high
    image.header.set_intent(intent)
    return base64.b64encode(gzip.compress(image.to_bytes(), 6, mtime=0)).decode()


def _table(name: str) -> dict[str, list[int]]:
    """A colour map as NiiVue wants it. Opacity matters in the 3-D view alone, where what is high is dense."""
    import matplotlib

    places = np.linspace(0, 1, NODES)
    colours = np.rint(255 * matplotlib.colormaps[name](places)).astype(int)
    table = {channel: colours[:, i].tolist() for i, channel in enumerate("RGB")}
    return table | {"A": np.rint(1 + 127 * places).astype(int).tolist(), "I": np.rint(255 * places).astype(int).tolist()}
