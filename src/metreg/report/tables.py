"""Tables as text: Markdown for people, LaTeX for papers; and those of an evaluation, shaped like the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from metreg.core.grid import Array
from metreg.measure.statistics import FEW_PEOPLE, PERCENTILES, Comparison, describe

SHARES = tuple(f"p{share}" for share in PERCENTILES)


@dataclass(frozen=True)
class Table:
    """Cells as text. `best` are (row, column) of those to be set in bold, `links` where the cells of some text lead; the
    note stands below in Markdown.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def markdown(self) -> str:
        table = markdown_table(self.header, [self._marked(i, "**", "**") for i in range(len(self.rows))])
        return f"{table}\n{self.note}\n" if self.note else table

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


BY_PERSON = ("difference", "95% interval by person", "p by person")
AS_IN_THE_PAPER = ("paper's p", "MW-stat", "sig?")
"""Headers of tests; the latter are unpaired and count pairs as independent."""


def overlap_table(title: str, values: Mapping[str, Array], compared: Mapping[str, Comparison], best: str = "") -> Table:
    """The paper's first table, the mean overlap of every pair, method by method; with the tests of the `best` against
    each by person, and then those of the paper.
    """
    described = {name: describe(found) for name, found in values.items()}
    header = ("method", "mean", "std", *[f"{share}%" for share in PERCENTILES], *BY_PERSON, *AS_IN_THE_PAPER, "Wilcoxon p")
    rows = []
    for name, facts in described.items():
        test = compared.get(name)
        tested = ["-"] * (len(header) - 3 - len(PERCENTILES))
        if test is not None:
            marks = "yes" if test.paper_significant else "no"
            tested = [*_by_person(test), say_p(test.paper_p), f"{test.paper_u:.1f}", marks, say_p(test.wilcoxon_p)]
        rows.append((name, *[f"{facts[key]:.3f}" for key in ("mean", "std", *SHARES)], *tested))
    bold = set()
    for column, key in enumerate(("mean", "std", *SHARES), start=1):
        shown = [float(row[column]) for row in rows]
        wanted = min(shown) if key == "std" else max(shown)
        bold |= {(i, column) for i, value in enumerate(shown) if value == wanted}
    return Table(title, header, rows, frozenset(bold), note=say_tests(best, compared) if compared else "")


def published_row(row: Sequence[str]) -> tuple[str, ...]:
    """A row of the paper's own first table in the columns of ours: it has no tests by person."""
    first = 3 + len(PERCENTILES)
    return (*row[:first], *["-"] * len(BY_PERSON), *row[first:])


def difference_table(best: str, compared: Mapping[str, Comparison]) -> Table:
    """What one method has over the others, with its interval and test by person; the paper's test beside it."""
    rows = [(name, *_by_person(test), say_p(test.paper_p)) for name, test in compared.items()]
    header = (f"{best} against", *BY_PERSON, AS_IN_THE_PAPER[0])
    return Table("", header, rows, note=say_tests(best, compared) if compared else "")


def _by_person(test: Comparison) -> tuple[str, str, str]:
    interval = "-" if test.low is None or test.high is None else f"{test.low:+.4f} to {test.high:+.4f}"
    return f"{test.difference:+.4f}", interval, f"{test.person_p:.2g}"  # never 0: it is a share of countable flips


def say_tests(best: str, compared: Mapping[str, Comparison]) -> str:
    """What the columns of tests mean, and what they cannot show with few people."""
    test = next(iter(compared.values()))
    few = ""
    if test.people < FEW_PEOPLE:
        few = f" With {test.people} people who vary, a p by person cannot be below {test.smallest_p:.3g}."
    return (
        f"Differences are of {best} less the method in the row; every p is of {best} being no better. Interval and p by "
        "person take people for independent, not pairs, which share people on both sides; they are of each row by itself."
        f"{few} The paper's p (Mann and Whitney's test, adjusted by Benjamini and Hochberg) is as in the paper, unpaired, "
        "pairs counted as independent; Wilcoxon's is paired, but counts pairs as independent too."
    )


def jacobian_table(title: str, facts: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """The paper's second table: facts of every pair's determinants, mean (standard deviation) over pairs."""
    keys = ("mean", *SHARES, "log_std")
    header = ("method", "mean", *[f"{share}%" for share in PERCENTILES], "std of log")
    rows = []
    for name, pairs in facts.items():
        columns = [np.array([pair[key] for pair in pairs]) for key in keys]
        rows.append((name, *[f"{values.mean():.2f}({values.std():.2f})" for values in columns]))
    return Table(title, header, rows)
