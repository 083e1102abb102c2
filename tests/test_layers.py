"""The house has an order: a package imports only from packages above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "metreg"
WALK = """
    errors settings kernels core io metric deformation similarity prepare measure solve report result many pipeline learn
    evaluation experiments bench cli __main__
"""
ORDER = WALK.split()


def imports_of(path: Path) -> set[str]:
    """Packages of metreg that a file imports anywhere, also inside functions; those for type checking aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found |= {name.split(".")[1] for name in names if name.startswith("metreg.")}
        nodes.extend(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_packages_above_it(package: str) -> None:
    above = set(ORDER[: ORDER.index(package) + 1])
    files = [SRC / f"{package}.py"] if (SRC / f"{package}.py").is_file() else list((SRC / package).rglob("*.py"))
    assert files
    for path in files:
        assert imports_of(path) <= above, path


def test_every_file_stands_in_a_package_of_the_order() -> None:
    names = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in SRC.rglob("*.py")}
    assert names - {"__init__"} == set(ORDER)
