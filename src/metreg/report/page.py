"""One self-contained HTML page, made of sections of figures, tables and pieces of HTML."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from matplotlib.figure import Figure

from metreg.report.tables import Table


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
    shown = [
        {
            "title": section.title,
            "anchor": f"section-{number}",
            "note": section.note,
            "parts": [_part(part, section.title) for part in section.parts],
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
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("metreg.report").joinpath(name).read_text(encoding="utf-8"))


def _part(part: Figure | Table | Html, title: str) -> dict[str, Any]:
    if isinstance(part, Html):
        return {"html": part.text}
    if isinstance(part, Table):
        return {"table": part}
    return {"src": data_uri(png(part), "image/png"), "alt": part.get_label() or title}


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png(figure: Figure, dpi: int = 110) -> bytes:
    if (layout := figure.get_layout_engine()) is not None:  # else the figure would be drawn once for its layout alone
        figure.set_dpi(dpi)
        layout.execute(figure)
        figure.set_layout_engine(None)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"compress_level": 1})
    return buffer.getvalue()
