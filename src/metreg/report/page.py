"""One self-contained HTML page, made of sections of figures, tables and pieces of HTML."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from metreg.core.grid import Array
from metreg.report.tables import Table

DPI = 110
"""Of figures."""


@dataclass(frozen=True)
class Html:
    """A piece of a page that is HTML already."""

    text: str


@dataclass(frozen=True)
class Section:
    """A heading, a sentence or two, and what is shown below them."""

    title: str
    parts: Sequence[Figure | Table | Html]
    note: str = ""


@dataclass(frozen=True)
class Card:
    """One number at the top of a page. `good` colours it."""

    name: str
    value: str
    good: bool | None = None


def render(
    title: str,
    summary: str,
    sections: Sequence[Section],
    *,
    cards: Sequence[Card] = (),
    settings: str = "",
    command: str = "",
    versions: dict[str, str] | None = None,
) -> str:
    """The page as text: figures and scripts embedded, nothing fetched."""
    with ThreadPoolExecutor() as pool:
        shown = [
            {
                "title": section.title,
                "anchor": f"section-{number}",
                "note": section.note,
                "parts": [_part(part, section.title, pool) for part in section.parts],
            }
            for number, section in enumerate(sections, start=1)
        ]
    return template("page.html").render(
        title=title,
        summary=summary,
        cards=cards,
        sections=shown,
        settings=settings,
        command=command,
        versions=versions or {},
    )


def template(name: str) -> Any:
    """A jinja2 template of this folder; what is put into it is escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("metreg.report").joinpath(name).read_text(encoding="utf-8"))


def _part(part: Figure | Table | Html, title: str, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """As the template wants it. Figures are packed while others are drawn."""
    if isinstance(part, Html):
        return {"html": part.text}
    if isinstance(part, Table):
        return {"table": part}
    return {"picture": pool.submit(_source, _draw(part)), "alt": part.get_label() or title}


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _source(pixels: Array) -> str:
    return data_uri(_packed(pixels), "image/png")


def png(figure: Figure) -> bytes:
    return _packed(_draw(figure))


def _draw(figure: Figure) -> Array:
    """Pixels (rows, columns, 3)."""
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    if (layout := figure.get_layout_engine()) is not None:  # else the figure would be drawn once for its layout alone
        layout.execute(figure)
        figure.set_layout_engine(None)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: Array = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(pixels[..., :3])


def _packed(pixels: Array) -> bytes:
    """As a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png", compress_level=1, dpi=(DPI, DPI))
    return buffer.getvalue()
