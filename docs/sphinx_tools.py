"""What the build of the pages needs beside Sphinx: generated pages, formulas as MathML, figures of the gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import generated

PAGES = {"reference/verbs": generated.verbs_page, "reference/settings": generated.settings_page}
MARK = "<!-- generated -->"


def fill_generated_pages(app: Any, name: str, source: list[str]) -> None:
    if name in PAGES:
        source[0] = source[0].replace(MARK, PAGES[name]())


def refresh_generated_pages(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    return list(PAGES)


def escape_shapes(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """`(B, *S)` is a shape, not the beginning of emphasis."""
    lines[:] = [line.replace("*S", r"\*S").replace("*T", r"\*T") for line in lines]


def add_mathml(app: Any) -> None:
    """Formulas as MathML, which browsers draw by themselves: no script, no network."""
    from docutils.nodes import SkipNode
    from docutils.utils.math.latex2mathml import tex2mathml

    def inline(self: Any, node: Any) -> None:
        self.body.append(tex2mathml(node.astext()))
        raise SkipNode

    def block(self: Any, node: Any) -> None:
        formula = tex2mathml(node.astext(), as_block=True)
        self.body.append(f'<div class="formula">{formula}</div>')
        raise SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (block, None))


def keep_figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The figure that a block of an example has called `figure`: those of `metreg.plots` are unknown to pyplot."""
    from matplotlib.figure import Figure
    from sphinx_gallery.scrapers import figure_rst

    figure = block_vars["example_globals"].pop("figure", None)
    if not isinstance(figure, Figure):
        return ""
    path = next(block_vars["image_path_iterator"])
    figure.savefig(path, dpi=100)
    return figure_rst([path], gallery_conf["src_dir"], str(Path(path).stem))
