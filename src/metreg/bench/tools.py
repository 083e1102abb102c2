"""The tools that are compared, and how each is called: COMMAND MOVING FIXED AFFINE.json PREFIX OPTIONS."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metreg.bench.environment import packages_of
from metreg.errors import MetregError
from metreg.evaluation.methods import AFFINE, methods_of, split_name

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """A tool of others: a script of this folder and its options, the package it needs, and its settings in words."""

    script: str
    options: tuple[str, ...]
    package: str
    what: str
    with_torch: bool = False
    """Whether metreg's Python runs it, for its torch."""
    inverse: bool = True


PEERS = {
    "greedy": Peer("peer_greedy.py", (), "picsl_greedy", "Greedy: NCC of radius 2, 100x50x10 iterations"),
    "syn": Peer(
        "peer_ants.py",
        ("--kind", "SyNOnly"),
        "antspyx",
        "ANTs: the deformable stage of antspyx's SyN (mutual information, 40x20x0 iterations)",
    ),
    "syncc": Peer(
        "peer_ants.py",
        ("--kind", "antsRegistrationSyN[so]"),
        "antspyx",
        "ANTs: the deformable stage of antsRegistrationSyN (CC of radius 2, 100x70x50x20 iterations)",
    ),
    "fireants": Peer(
        "peer_fireants.py",
        (),
        "fireants",
        "FireANTs: CC in windows of 5 voxels, 200x100x25 iterations, on the CPU",
        with_torch=True,
        inverse=False,
    ),
}


@dataclass(frozen=True)
class Tool:
    """A method in the tables, and the words before and after the files in its command."""

    name: str
    what: str
    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    """What makes a run short where only its first use of everything matters."""
    inverse: bool = True
    """Whether it writes the way back too."""

    def command(self, *files: Path) -> list[str]:
        return [*self.before, *map(str, files), *self.after]


def tools_of(peers: Sequence[str], metrics: Sequence[str], python: Path, config: Path) -> list[Tool]:
    """Peers, run by the Python of their environment, then metreg with every metric (M, or NAME=M)."""
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise MetregError(f"--peer: unknown '{unknown[0]}'; there are {', '.join(PEERS)}")
    found = [_tool(name, PEERS[name], python) for name in peers]
    for given, method in zip(metrics, methods_of(metrics, [])[1:], strict=True):
        assert method.metric is not None
        name = split_name(given)[0] or f"metreg {method.name}"
        before = (sys.executable, "-P", "-m", "metreg.bench.peer_metreg")
        after = ("--metric", method.metric, "--config", str(config))
        found.append(Tool(name, f"metreg: metric {method.metric}, settings of {config.name}", before, after, ("--short",)))
    names = [AFFINE, *[tool.name for tool in found]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MetregError(f"methods: two are called '{twice[0]}'; name metrics: --metric NAME=M")
    return found


def _tool(name: str, peer: Peer, python: Path) -> Tool:
    script = str(HERE / peer.script)
    if not peer.with_torch:
        return Tool(name, peer.what, (str(python), "-I", script), peer.options, inverse=peer.inverse)
    own = ("--packages", str(packages_of(python.parents[1])))
    return Tool(name, peer.what, (sys.executable, "-P", script), (*peer.options, *own), inverse=peer.inverse)
