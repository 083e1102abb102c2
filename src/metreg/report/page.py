"""One self-contained HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def render(
    title: str, summary: str, *, figures: dict[str, Figure], tables: Sequence[Table], settings: str, version: str
) -> str:
    """The page as text: figures embedded, nothing fetched."""
    import jinja2

    environment = jinja2.Environment(autoescape=True)
    template = environment.from_string(files("metreg.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        summary=summary,
        figures=[{"title": name, "png": base64.b64encode(png(figure)).decode()} for name, figure in figures.items()],
        tables=tables,
        settings=settings,
        version=version,
    )


def png(figure: Figure, dpi: int = 110) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
