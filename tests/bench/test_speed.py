"""`metreg bench pair` and `bench train` run, and say what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

from metreg.bench.iteration import Case, Iteration, bench_protocol
from metreg.cli.main import app
from metreg.kernels import is_compiled, plain_torch
from metreg.settings.model import make_settings


def test_one_iteration(tmp_path: Path) -> None:
    out = tmp_path / "pair.json"
    words = [
        "bench",
        "pair",
        "--size",
        "17",
        "16",
        "15",
        "--no-growth",
        "--repeats",
        "3",
        "--device",
        "cpu",
        "-o",
        str(out),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "| ncc |" in done.output and "| lncc |" in done.output
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["versions"]["torch"] and found["iterations"]["ncc"]["plain_over_fast"] > 0
    assert found["iterations"]["lncc"]["whole"]["low"] <= found["iterations"]["lncc"]["whole"]["high"]
    again = CliRunner().invoke(app, words)
    assert "--overwrite" in str(again.exception)
    even = CliRunner().invoke(app, ["bench", "pair", "--window", "4"])
    assert "--window: must be odd" in str(even.exception)


def test_the_protocol_of_a_pair() -> None:
    few = make_settings("paper2d", changes={"solve.iterations": [2], "solve.local_iterations": [3]})
    found = bench_protocol(Case(shape=(16, 14), map_factor=0.5), few, torch.device("cpu"), repeats=2)
    assert found["iterations"] == [2, 3] and 0 < found["seconds"]["median"] < 60


def test_a_training(tmp_path: Path) -> None:
    out = tmp_path / "train.json"
    words = ["bench", "train", "--size", "17", "16", "15", "--pairs", "2", "--device", "cpu", "-o", str(out), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["protocol_epochs"] == [25, 50] and len(found["seconds_by_epoch"][1]) == 1
    assert found["protocol_seconds_expected"] > 0


def test_plain_torch_means_plain_torch() -> None:
    f = torch.zeros(1)
    fast = is_compiled(f)
    with plain_torch():
        assert not is_compiled(f)
    assert is_compiled(f) == fast


def test_the_works_of_an_iteration_agree_with_plain_torch() -> None:
    for name in ("ncc", "lncc"):
        iteration = Iteration(Case(shape=(15, 14, 13), map_factor=0.5, similarity=name, steps=3), torch.device("cpu"))

        def gradients(of: Iteration = iteration) -> tuple[torch.Tensor, ...]:
            energy = of.objective.at(of.m, of.metric, of.scene, steps=3).energy
            return torch.autograd.grad(energy.total().sum(), (of.m, of.w))

        fast = gradients()
        with plain_torch():
            plain = gradients()
        for f, p in zip(fast, plain, strict=True):
            assert float((f - p).norm() / p.norm()) < 1e-3
