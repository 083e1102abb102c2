"""Tables as text: Markdown for people, LaTeX for papers; and those of an evaluation, shaped like the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from metreg.evaluate.statistics import PERCENTILES, Comparison, describe
from metreg.grid import Array

SHARES = tuple(f"p{share}" for share in PERCENTILES)


@dataclass(frozen=True)
class Table:
    """Cells as text. `best` are (row, column) of those to be set in bold, `links` where the cells of some text lead."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        return markdown_table(self.header, [self._marked(i, "**", "**") for i in range(len(self.rows))])

    def latex(self) -> str:
        lines = [
            [_escape(cell) for cell in self.header],
            *[self._marked(i, r"\textbf{", "}") for i in range(len(self.rows))],
        ]
        body = [" & ".join(line) + r" \\" for line in lines]
        columns = "l" + "c" * (len(self.header) - 1)
        parts = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", body[0], r"\hline", *body[1:], r"\hline", r"\end{tabular}"]
        return f"% {self.title}\n" + "\n".join(parts) + "\n"

    def _marked(self, i: int, before: str, after: str) -> list[str]:
        cells = [_escape(cell) for cell in self.rows[i]] if before.startswith("\\") else list(self.rows[i])
        return [f"{before}{cell}{after}" if (i, j) in self.best else cell for j, cell in enumerate(cells)]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escape(cell: str) -> str:
    for sign in "%&_#":
        cell = cell.replace(sign, f"\\{sign}")
    return cell.replace("<", r"$<$")


def say_p(p: float) -> str:
    """A p-value the way the paper prints it."""
    for limit in (1e-10, 1e-4):
        if p < limit:
            return f"<{limit:g}"
    return f"{p:.3f}"


def overlap_table(title: str, values: Mapping[str, Array], compared: Mapping[str, Comparison]) -> Table:
    """The paper's first table: the mean overlap of every pair, method by method, and the tests against the reference."""
    described = {name: describe(found) for name, found in values.items()}
    header = (
        "method",
        "mean",
        "std",
        *[f"{share}%" for share in PERCENTILES],
        "p",
        "MW-stat",
        "sig?",
        "Wilcoxon p",
        "by subject p",
    )
    rows = []
    for name, facts in described.items():
        test = compared.get(name)
        tested = ("-",) * 5
        if test is not None:
            marks = "yes" if test.significant else "no"
            tested = (say_p(test.p), f"{test.u:.1f}", marks, say_p(test.wilcoxon_p), say_p(test.subject_p))
        rows.append((name, *[f"{facts[key]:.3f}" for key in ("mean", "std", *SHARES)], *tested))
    best = set()
    for column, key in enumerate(("mean", "std", *SHARES), start=1):
        shown = [float(row[column]) for row in rows]
        wanted = min(shown) if key == "std" else max(shown)
        best |= {(i, column) for i, value in enumerate(shown) if value == wanted}
    return Table(title, header, rows, frozenset(best))


def jacobian_table(title: str, facts: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """The paper's second table: facts of every pair's determinants, mean (standard deviation) over pairs."""
    keys = ("mean", *SHARES, "log_std")
    header = ("method", "mean", *[f"{share}%" for share in PERCENTILES], "std of log")
    rows = []
    for name, pairs in facts.items():
        columns = [np.array([pair[key] for pair in pairs]) for key in keys]
        rows.append((name, *[f"{values.mean():.2f}({values.std():.2f})" for values in columns]))
    return Table(title, header, rows)
