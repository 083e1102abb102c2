from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers import random_field, taylor_slope
from metreg.core.grid import Grid
from metreg.core.resample import downsample
from metreg.errors import MetregError
from metreg.experiments.rings.draw import ring_pair
from metreg.learn.checkpoint import load_checkpoint, under
from metreg.learn.curriculum import _Training, train
from metreg.learn.momenta import Momenta, choose_home
from metreg.learn.pairs import TrainingPairs
from metreg.learn.step import BatchStep, Common, solve_for_momentum
from metreg.metric.gaussian import make_gaussians
from metreg.metric.learned import LearnedMetric
from metreg.metric.multi_gaussian import MultiGaussian
from metreg.metric.simplex import to_simplex
from metreg.metric.store import MetricFile, load_metric, save_metric
from metreg.settings.model import LearnedSettings, MetricSettings, Settings, SimilaritySettings, changed, make_settings
from metreg.similarity import Similarity
from metreg.solve.energy import Objective, Scene
from metreg.solve.pyramid import map_grid_of
from metreg.solve.register import make_metric
from metreg.solve.sgd import MOMENTUM

CPU = torch.device("cpu")


def some_pairs(count: int = 5) -> TrainingPairs:
    """Rings at a quarter of their resolution."""
    pairs = [ring_pair(torch.Generator().manual_seed(seed)) for seed in range(count)]
    source, target = (torch.cat([getattr(pair, name)[..., ::4, ::4] for pair in pairs]) for name in ("source", "target"))
    return TrainingPairs.of(source, target, Grid.unit_cube((32, 32)))


def short(**more: object) -> Settings:
    changes = {"train.epochs": [2, 3], "train.batch": 2, "train.steps": 2, "flow.steps": 5, **more}
    return make_settings("paper2d", changes=changes)


def parameters(model: LearnedMetric) -> torch.Tensor:
    return torch.cat([tensor.flatten().float() for tensor in model.network.state_dict().values()])


def test_training_lowers_the_energy_and_leaves_a_log(tmp_path: Path) -> None:
    heard = []
    model, progress = train(some_pairs(), short(), tmp_path, device=CPU, on_epoch=heard.append)
    assert [(r["stage"], r["epoch"]) for r in heard] == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    assert heard[1]["similarity"] < heard[0]["similarity"]
    assert heard[-1]["transport"] > 0 and heard[-1]["variation"] > 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == heard == progress.history
    assert not model.training
    assert progress.best_energy == min(r["total"] for r in heard if r["stage"] == 2)


def test_the_three_homes_give_the_same_result(tmp_path: Path) -> None:
    found = []
    for home in ("device", "host", "disk"):
        (tmp_path / home).mkdir()
        found.append(parameters(train(some_pairs(), short(), tmp_path / home, device=CPU, home=home)[0]))  # type: ignore[arg-type]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_small_limit_sends_the_momenta_to_disk() -> None:
    assert choose_home(300, (2, 64, 64), CPU) == "host"
    assert choose_home(10**9, (2, 64, 64), CPU) == "disk"


def test_the_same_seed_gives_the_same_network_and_another_one_another(tmp_path: Path) -> None:
    runs = []
    for i, seed in enumerate((0, 0, 1)):
        (tmp_path / str(i)).mkdir()
        runs.append(parameters(train(some_pairs(), short(seed=seed), tmp_path / str(i), device=CPU)[0]))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


SCRIPT = """
import sys; sys.path[:0] = {paths!r}
import torch; torch.set_num_threads(1)
from test_curriculum import *
say = lambda r: print(r["stage"], r["epoch"], flush=True)
train(some_pairs(), short(), Path(sys.argv[1]), device=CPU, home=sys.argv[2], on_epoch=say)
"""


@pytest.mark.parametrize("home", ["host", "disk"])
def test_a_killed_training_goes_on_and_ends_with_the_same_network(home: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    expected = parameters(train(some_pairs(), short(), whole, device=CPU, home=home)[0])  # type: ignore[arg-type]
    here = Path(__file__).resolve().parent
    script = SCRIPT.format(paths=[str(here), str(here.parent)])
    process = subprocess.Popen([sys.executable, "-c", script, str(cut), home], stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == ["2", "1"]:
            break
    process.send_signal(signal.SIGKILL)  # somewhere in the next epoch
    process.wait()
    done = load_checkpoint(cut / "checkpoint.safetensors", short())[0]
    assert done.stage == 1 and 1 <= done.epoch < 3
    resumed = train(some_pairs(), short(), cut, device=CPU, home=home, resume=True)[0]  # type: ignore[arg-type]
    assert torch.equal(parameters(resumed), expected)


def taking_turns(**more: object) -> Settings:
    """L-BFGS on the momenta between steps of the network."""
    changes = {
        "train.epochs": [1, 4],
        "train.batch": 2,
        "train.steps": 3,
        "train.network_rate": 0.02,
        "learned.transport": 1.0,
        **more,
    }
    return make_settings(changes={**changes, "solve.shrink": [2, 1], "solve.iterations": [10, 5], "solve.regularity": 10.0})


def test_momenta_and_network_take_turns(tmp_path: Path) -> None:
    """Registered pairs first; then the energy falls on, though every step of the network disturbs the momenta."""
    heard: list[dict[str, float]] = []
    model, _ = train(some_pairs(), taking_turns(), tmp_path, device=CPU, on_epoch=heard.append)
    assert [r["stage"] for r in heard] == [1, 2, 2, 2, 2]
    assert heard[-1]["total"] < heard[1]["total"]
    weights = model.weights(some_pairs().source, Grid.unit_cube((32, 32))).w
    assert float(weights.detach().std((0, 2, 3)).max()) > 1e-3


def test_a_training_by_turns_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    expected = parameters(train(some_pairs(), taking_turns(), whole, device=CPU)[0])

    def stop(record: dict[str, int]) -> None:
        if (record["stage"], record["epoch"]) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(some_pairs(), taking_turns(), cut, device=CPU, on_epoch=stop)
    assert torch.equal(parameters(train(some_pairs(), taking_turns(), cut, device=CPU, resume=True)[0]), expected)


def test_a_resume_with_other_settings_is_refused(tmp_path: Path) -> None:
    train(some_pairs(2), short(**{"train.epochs": [1, 0]}), tmp_path, device=CPU)
    with pytest.raises(MetregError, match=r"made with other settings \(train\.momentum_rate\)"):
        train(
            some_pairs(2), short(**{"train.epochs": [1, 0], "train.momentum_rate": 0.5}), tmp_path, device=CPU, resume=True
        )
    with pytest.raises(MetregError, match="checkpoint: no such file"):
        train(some_pairs(2), short(), tmp_path / "elsewhere", device=CPU, resume=True)


def test_a_pyramid_that_ends_early_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetregError, match=r"solve\.shrink: to learn a metric the last level must be 1"):
        train(some_pairs(2), changed(taking_turns(), {"solve.shrink": [4, 2]}), tmp_path, device=CPU)


def test_prices_may_go_by_brightness() -> None:
    learned = LearnedSettings(transport=1.0, transport_by="brightness")
    model, grid = LearnedMetric(2, MetricSettings(), learned), Grid.unit_cube((8, 8))
    source = torch.zeros(1, 1, 8, 8)
    source[..., :4] = 0.5
    assert torch.equal(model.prices(source, grid).transport, source)
    dark, weights = torch.zeros_like(source), model.weights(source, grid)
    assert model.penalties(weights, model.prices(dark, grid), grid).transport.item() == 0
    everywhere = LearnedMetric(2, MetricSettings(), LearnedSettings(transport=1.0))
    assert everywhere.prices(source, grid).transport.unique().tolist() == [1]


def test_images_of_unlike_size_are_refused() -> None:
    pairs = some_pairs(2)
    with pytest.raises(MetregError, match="images of one size"):
        TrainingPairs.of(pairs.source, pairs.target[..., :20, :20], pairs.grid)


def test_momenta_are_read_and_written_pair_by_pair(tmp_path: Path) -> None:
    for home in ("host", "disk"):
        folder = tmp_path / home
        folder.mkdir()
        momenta = Momenta(folder, 4, (2, 3, 3), home=home, device=CPU)  # type: ignore[arg-type]
        for pairs in (torch.tensor([2, 0]), torch.tensor([1, 3])):
            m, buffer = momenta.take(pairs)
            momenta.put(pairs, m + pairs.view(-1, 1, 1, 1), buffer + 1)
        generation, write = momenta.finish_epoch()
        write()
        again = Momenta(folder, 4, (2, 3, 3), home=home, device=CPU)  # type: ignore[arg-type]
        again.load(generation)
        m, buffer = again.take(torch.tensor([3, 2]))
        assert m[:, 0, 0, 0].tolist() == [3, 2] and buffer.unique().tolist() == [1]
        again.reset_buffers()
        assert again.take(torch.tensor([3]))[1].abs().max() == 0
        with pytest.raises(MetregError, match="begin the training anew"):
            Momenta(folder, 4, (2, 3, 4), home=home, device=CPU).load(generation)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["network", "momenta"])
def test_the_whole_energy_passes_the_taylor_test_in_network_and_momenta(what: str) -> None:
    grid = Grid.unit_cube((18, 16))
    map_grid = grid.coarsen(0.5)
    x = grid.points(torch.empty(0, dtype=torch.float64))
    source = torch.cat([torch.exp(-((x - c) ** 2).sum(1, keepdim=True) / 0.05) for c in (0.45, 0.5)])
    scene = Scene(source, source.flip(2), grid, map_grid)
    metric = MetricSettings(realisation="fourier", window=0)
    model = LearnedMetric(2, metric, LearnedSettings(), torch.Generator().manual_seed(0)).double().train()
    small = downsample(source, map_grid)
    prices = model.prices(small, map_grid)
    gaussians = make_gaussians(map_grid, torch.tensor(metric.sigma, dtype=torch.float64), "fourier")
    objective = Objective(
        Similarity(SimilaritySettings(name="ncc")), make_settings("paper2d").flow, make_settings("paper2d").solve
    )
    names = [name for name, _ in model.network.named_parameters()]
    sizes = [p.numel() for p in model.network.parameters()]
    theta = torch.cat([p.detach().flatten() for p in model.network.parameters()])
    m = 0.3 * random_field(2, 2, *map_grid.shape)

    def energy(theta: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        shapes = [p.shape for p in model.network.parameters()]
        parts = {n: t.view(s) for n, t, s in zip(names, theta.split(sizes), shapes, strict=True)}
        with nn.utils.stateless._reparametrize_module(model.network, parts):
            weights = model.weights(small, map_grid)
        kernel = MultiGaussian(gaussians, weights.w)
        return objective(m, kernel, scene, model.penalties(weights, prices, map_grid)).total().sum()

    if what == "network":
        slope = taylor_slope(lambda t: energy(t, m), theta, 0.1 * random_field(len(theta), seed=3), (1e-5, 1e-6))
    else:
        slope = taylor_slope(lambda k: energy(theta, k), m, 0.3 * random_field(*m.shape, seed=4), (1e-4, 1e-5))
    assert slope == pytest.approx(2, abs=0.15)


def test_together_the_momenta_go_down_the_whole_slope_where_the_network_looks_at_them() -> None:
    """The gradient of a batch in training, statistics of the batch and costs of the weights included."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        settings = short(**{"learned.network.momentum_input": True})
        pairs = some_pairs(2)
        map_grid = map_grid_of(pairs.grid, settings.flow.map_factor)
        common = Common.of(settings, map_grid, CPU, torch.Generator().manual_seed(0))
        scene = pairs.scene(torch.tensor([0, 1]), map_grid, CPU)
        scene = replace(scene, source=scene.source.double(), target=scene.target.double())
        work = BatchStep(common, scene, local=True)
        m = 0.2 * random_field(*work.m.shape, seed=1)
        slope = taylor_slope(
            lambda m: work._energy(m).energy.total().sum(), m, random_field(*m.shape, seed=2), (1e-4, 1e-5)
        )
    finally:
        torch.set_default_dtype(before)
    assert slope == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("over", ["pair", "batch"])
def test_gradients_of_momenta_are_clipped_pair_by_pair_or_all_together(over: str, tmp_path: Path) -> None:
    """After one step from zero a momentum is as long as the learning rate and Nesterov's momentum make one of norm one."""
    settings = short(**{"train.clip_over": over, "train.epochs": [1, 0], "train.batch": 4, "train.steps": 1})
    train(some_pairs(4), settings, tmp_path, device=CPU)
    momenta = torch.from_numpy(np.load(tmp_path / "momenta-1.npy")[0])
    step = settings.train.momentum_rate * (1 + MOMENTUM)
    lengths = momenta.flatten(1).norm(dim=1)
    if over == "pair":
        torch.testing.assert_close(lengths, torch.full((4,), step))
    else:
        assert float(lengths.norm()) == pytest.approx(step, rel=1e-4) and float(lengths.max()) < step


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_network_kept_is_the_best_or_the_last(keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = _Training.epoch

    def worse_each_time(training: _Training, stage: int) -> dict[str, object]:
        return {**epoch(training, stage), "total": float(training.progress.epoch)}

    monkeypatch.setattr(_Training, "epoch", worse_each_time)
    settings = short(**{"train.keep": keep, "train.epochs": [1, 3]})
    model, _ = train(some_pairs(), settings, tmp_path, device=CPU)
    _, tensors = load_checkpoint(tmp_path / "checkpoint.safetensors", settings)
    wanted = under("best" if keep == "best" else "network", tensors)
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, wanted[name])
    assert any(not torch.equal(under("best", tensors)[name], under("network", tensors)[name]) for name in wanted)


def test_metric_files_keep_all(tmp_path: Path) -> None:
    grid = Grid.unit_cube((12, 12))
    model = LearnedMetric(2, MetricSettings(sigma=(0.02, 0.1)), LearnedSettings(transport=15.0))
    model.weights(torch.rand(3, 1, 12, 12), grid)  # moves the running statistics
    path = tmp_path / "metric.safetensors"
    save_metric(path, MetricFile(model.eval(), 200.0, (2.0, 2.0), summary={"pairs": 7}, licence="CC BY-NC"))
    again = load_metric(path)
    assert again.model.learned.transport == 15 and again.model.metric.sigma == (0.02, 0.1)
    assert (again.length_mm, again.voxel_mm, again.summary, again.licence) == (200.0, (2.0, 2.0), {"pairs": 7}, "CC BY-NC")
    image = torch.rand(1, 1, 12, 12)
    torch.testing.assert_close(again.model.weights(image, grid).w, model.weights(image, grid).w)


def test_damaged_metric_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metric.safetensors"
    with pytest.raises(MetregError, match="no such file"):
        load_metric(path)
    path.write_text("hello")
    with pytest.raises(MetregError, match="damaged, or not a metric file"):
        load_metric(path)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(MetregError, match="wanted a file of format metreg-metric-1, got None"):
        load_metric(path)
    save_file({"x": torch.zeros(1)}, path, metadata={"format": "metreg-metric-1", "about": "{}"})
    with pytest.raises(MetregError, match="do not fit"):
        load_metric(path)


def test_a_velocity_is_carried_over_to_other_weights() -> None:
    grid = Grid.unit_cube((20, 18))
    m = torch.randn(2, 2, *grid.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = (
        make_metric(grid, MetricSettings(weights=weights), like=m)
        for weights in ((0.1, 0.2, 0.3, 0.4), (0.2, 0.2, 0.3, 0.3))
    )
    v = one.sharp(m)
    found = solve_for_momentum(other.sharp, v, m)
    assert float((other.sharp(found) - v).norm()) < 0.1 * float((other.sharp(m) - v).norm())


def test_the_gradient_of_a_turn_is_that_of_the_energy_at_fixed_velocity() -> None:
    """d <v, K_w^-1 v> / dw = -<m, dK m>, against a difference quotient through a dense inverse."""
    grid = Grid.unit_cube((5, 4))
    gaussians = make_gaussians(grid, torch.tensor([0.2, 0.5], dtype=torch.float64), "separable")
    generator = torch.Generator().manual_seed(0)
    w = to_simplex(torch.rand(1, 2, *grid.shape, dtype=torch.float64, generator=generator) + 0.5)
    dw = 1e-6 * torch.randn(w.shape, dtype=torch.float64, generator=generator)
    v = torch.randn(1, 1, *grid.shape, dtype=torch.float64, generator=generator)

    def dense(weights: torch.Tensor) -> torch.Tensor:
        units = torch.eye(20, dtype=torch.float64).view(20, 1, *grid.shape)
        return torch.cat([MultiGaussian(gaussians, weights, None).sharp(unit[None]).flatten()[None] for unit in units])

    def energy(weights: torch.Tensor) -> torch.Tensor:
        return v.flatten() @ torch.linalg.solve(dense(weights), v.flatten())

    m = torch.linalg.solve(dense(w), v.flatten()).view_as(v)
    w.requires_grad_()
    (by_w,) = torch.autograd.grad(-(m * MultiGaussian(gaussians, w, None).sharp(m)).sum(), w)
    w = w.detach()
    quotient = (energy(w + dw) - energy(w - dw)) / 2
    assert float((by_w * dw).sum()) == pytest.approx(float(quotient), rel=1e-4)
