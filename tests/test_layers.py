"""The house has an order: a file imports only from what stands above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "metreg"
WALK = """
    checks processes workers nested
    presets config grid kernels.compile_cpu kernels.share_cpu kernels.transport_cpu kernels.trilinear_cpu kernels.sample_cpu
    kernels.splines_cpu kernels.affine_cpu kernels.warp_cpu kernels.lncc_cpu kernels.folding_cpu kernels.bernstein_cpu
    kernels.memory kernels.tiles_gpu kernels.early_gpu kernels.speed_gpu kernels.transport_gpu kernels.convolve
    kernels.sampling_gpu kernels.gather_gpu kernels.warp_gpu kernels.ncc_gpu kernels.lncc_gpu kernels.folding_gpu
    kernels.smooth_gpu kernels.replay kernels
    fields interpolate splines data.whole data.integrity data.tensors data.datasets data.resume data.intensity data.formats
    data.points data.io data.transforms data.skull data.pair metric.base metric.gaussian metric.multi_gaussian
    metric.simplex metric.penalties metric.network metric.learned metric.store flow.steps flow.stationary flow.maps
    similarity.ssd similarity.ncc similarity.lncc similarity.mi similarity energy synthetic
    solve.result solve.timesteps solve.lbfgs solve.optimise solve.multiscale solve.affine likeness choice solve.repair
    solve.register solve.momentum learn.pairs learn.momenta learn.checkpoint learn.work
    learn.train
    evaluate.overlap evaluate.displacement evaluate.statistics evaluate.regions evaluate.regularity evaluate.rings
    evaluate.measure report.tables report.planes report.sheet report.plots report.boxes report.viewer report.layers
    report.page report.pair report.evaluation report.training report.metric folder results methods inputs pipeline apply
    synth training evaluation inspection reproduce.ring_runs reproduce.converged reproduce.synthetic2d
    reproduce.ring_claims reproduce.rings_report reproduce.findings reproduce.parts
    reproduce.slices2d reproduce.klein2009 reproduce.klein3d demo bench.iteration bench.speed bench.stopwatch bench.process
    bench.environment
    bench.peer_greedy bench.peer_ants bench.peer_fireants bench.peer_metreg bench.alignment bench.tools bench.peers
    terminal options verbs.pair verbs.many verbs.experiments verbs.bench cli __main__
"""
ORDER = WALK.split()
FILES = sorted(
    path for path in SRC.rglob("*.py") if path.read_text(encoding="utf-8").strip() and path != SRC / "__init__.py"
)


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> set[str]:
    """Modules of metreg that a file imports anywhere, also inside functions; those for type checking aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    aside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in aside and (node.module or "").startswith("metreg"):
            module = (node.module or "").removeprefix("metreg").removeprefix(".")
            found |= {module} if module else {alias.name for alias in node.names}
    return found


def test_every_file_has_its_place() -> None:
    assert {module_of(path) for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_file_imports_only_from_what_stands_above_it(path: Path) -> None:
    place = ORDER.index(module_of(path))
    for module in imports_of(path):
        assert module in ORDER, f"{module_of(path)} imports {module}, which has no place"
        assert ORDER.index(module) < place, f"{module_of(path)} imports {module}, which stands below it"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_files_stay_readable_over_a_coffee(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350
