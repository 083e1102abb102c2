"""L-BFGS in the metric's inner product: the compact form is the two-loop recursion, and pairs do not see each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import curious_network
from metreg.core.grid import Grid
from metreg.settings.model import FlowSettings, MetricSettings, SimilaritySettings, SolveSettings
from metreg.similarity import Similarity
from metreg.solve import lbfgs
from metreg.solve.energy import Energy, Objective, Problem, Scene, Slope
from metreg.solve.lbfgs import MEMORY, Lbfgs
from metreg.solve.loop import minimise
from metreg.solve.register import make_metric
from metreg.solve.timesteps import TimeSteps


def problem(seeds: list[int]) -> Problem:
    """Small pairs of smooth noise, in double precision."""
    grid = Grid.unit_cube((21, 18))
    noise = [torch.rand(2, 1, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in seeds]
    images = [torch.nn.functional.interpolate(n, grid.shape, mode="bicubic", align_corners=True) for n in noise]
    source, target = (torch.stack([pair[i] for pair in images]) for i in range(2))
    similarity = Similarity(SimilaritySettings(name="ssd"))
    objective = Objective(similarity, FlowSettings(steps=20), SolveSettings(regularity=0.5, folding=0.0))
    metric = make_metric(grid, MetricSettings(weights=(0.1, 0.2, 0.3, 0.4)), like=source)
    return Problem(objective, metric, Scene(source, target, grid, grid))


def begin(seeds: list[int]) -> Lbfgs:
    given = problem(seeds)
    m = torch.zeros(len(seeds), 2, *given.scene.map_grid.shape, dtype=torch.float64)
    return Lbfgs(given, m, TimeSteps(given.flow, m))


def two_loops(search: Lbfgs) -> Tensor:
    """-H ascent of one pair by the textbook's recursion, inner products taken through the metric."""
    sharp = search.problem.metric.sharp
    count = int(search.count)
    slots = [k % MEMORY for k in range(max(0, count - MEMORY), count)]
    shape = search.m.shape
    kept = [search.memory[0, :, slot, : search.m.numel()].view(2, *shape) for slot in slots]
    q, shares = search.ascent.clone(), []
    for s, y in reversed(kept):
        share = (s * sharp(q)).sum() / (s * sharp(y)).sum()
        shares.append(share)
        q -= share * y
    if kept:
        s, y = kept[-1]
        q *= (s * sharp(y)).sum() / (y * sharp(y)).sum()
    for (s, y), share in zip(kept, reversed(shares), strict=True):
        q += (share - (y * sharp(q)).sum() / (s * sharp(y)).sum()) * s
    return -q


@pytest.mark.parametrize("iterations", [1, 2, 6, MEMORY + 8])
def test_the_direction_is_that_of_the_two_loop_recursion(iterations: int) -> None:
    search = begin([0])
    for _ in range(iterations):
        search.iterate()
    direction = (search.trial - search.m) / search.length
    torch.testing.assert_close(direction, two_loops(search), rtol=1e-6, atol=1e-6 * float(direction.abs().max()))


def test_the_slope_is_the_gradient_of_the_energy() -> None:
    given = problem([0, 1])
    m = 0.05 * torch.randn(
        2, 2, *given.scene.map_grid.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    found = given.slope(m, None)
    m.requires_grad_()
    energy = given.objective(m, given.metric, given.scene)
    (gradient,) = torch.autograd.grad(energy.total().sum(), m)
    torch.testing.assert_close(found.gradient, gradient)
    torch.testing.assert_close(found.energy.total(), energy.total().detach())


def test_energies_fall_and_get_further_than_gradient_descent() -> None:
    search = begin([3])
    energies = []
    for _ in range(40):
        search.iterate()
        energies.append(float(search.energy))
    assert energies == sorted(energies, reverse=True)
    plain, given = torch.zeros_like(search.m), search.problem
    for _ in range(40):
        found = given.slope(plain, None)
        plain = plain - 0.5 / float(found.gradient.abs().max()) * 0.02 * found.ascent
    assert energies[-1] < float(given.slope(plain, None).energy.total()) < energies[0]


def test_pairs_of_a_batch_do_not_see_each_other() -> None:
    together, apart = begin([0, 1, 2]), [begin([s]) for s in (0, 1, 2)]
    for _ in range(15):
        for search in (together, *apart):
            search.iterate()
    torch.testing.assert_close(together.m, torch.cat([search.m for search in apart]), rtol=1e-6, atol=1e-9)


def test_a_step_too_far_is_refused_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs, "FIRST_MOVE", 500.0)
    search = begin([0])
    search.iterate()
    first, length = float(search.energy), float(search.length)
    search.iterate()
    assert float(search.energy) == first and 0.1 * length <= float(search.length) <= 0.5 * length
    for _ in range(10):
        search.iterate()
    assert float(search.energy) < first


def test_a_step_into_nowhere_is_refused_too() -> None:
    """Energies and gradients that are no numbers, and velocities beyond all bounds, leave no trace."""
    search = begin([0, 1])
    for _ in range(4):
        search.iterate()
    before = search.energy.clone()
    search.trial[0] = float("nan")
    search.iterate()
    assert float(search.energy[0]) == float(before[0]) and bool(search.trial.isfinite().all())
    search.trial[0] *= 1e6
    search.iterate()
    for _ in range(6):
        search.iterate()
    assert bool((search.energy < before).all()) and bool(search.m.isfinite().all())


@pytest.mark.parametrize("too_far", [1e4, 1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("steps", [None, 10])
def test_a_step_beyond_all_measure_is_refused_and_the_search_goes_on(
    too_far: float, steps: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a GPU time steps are fixed (10) while the search runs: it must not end there with an error either."""
    given = problem([0, 1])
    m = torch.zeros(2, 2, *given.scene.map_grid.shape, dtype=torch.float64)
    monkeypatch.setattr(lbfgs, "FIRST_MOVE", too_far)
    init = TimeSteps.__init__

    def fixed(self: TimeSteps, *rest: object) -> None:
        init(self, *rest)  # type: ignore[arg-type]
        self.count = steps

    monkeypatch.setattr(TimeSteps, "__init__", fixed)
    settings = SolveSettings(regularity=0.5, folding=0.0, tolerance=0.0)
    totals: list[float] = []
    found = minimise(given, m, settings, iterations=40, on_iteration=lambda i, terms: totals.append(sum(terms.values())))
    assert totals == sorted(totals, reverse=True) and found.isfinite().all()
    if math.isfinite(too_far):  # shortened until it fits
        assert totals[-1] < 0.9 * totals[0] and not caplog.text
    else:
        assert "the best map before is taken" in caplog.text


def test_velocities_that_a_finer_grid_cannot_follow_are_shortened(caplog: pytest.LogCaptureFixture) -> None:
    given = problem([0])
    m = 1e9 * torch.randn(1, 2, *given.scene.map_grid.shape, dtype=torch.float64)
    totals: list[float] = []
    settings = SolveSettings(regularity=0.5, folding=0.0)
    minimise(given, m, settings, iterations=5, on_iteration=lambda i, terms: totals.append(sum(terms.values())))
    assert "were shortened" in caplog.text and all(map(math.isfinite, totals))


def test_time_steps_grow_with_the_speed_at_most_twofold_at_a_time() -> None:
    steps = TimeSteps(FlowSettings(steps=10), torch.zeros(1))
    steps.count = 10
    steps.see(torch.tensor([1999.0]))
    assert steps.were_too_few() and steps.count == 20
    steps.see(torch.tensor([25.0]))
    assert not steps.were_too_few() and steps.count == 20
    steps.begin_at(torch.tensor([1999.0]))
    assert steps.count is not None and steps.count > 900


class Blind:
    """The energy of a metric that looks at the momentum, with the slope that takes the weights as they are."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.map_grid = problem, problem.map_grid

    def slope(self, m: Tensor, steps: int | None) -> Slope:
        still = self.problem.metric.at(m)
        found = Problem(self.problem.objective, still, self.problem.scene).slope(m, steps)
        assert still.penalties is not None
        return found._replace(energy=Energy(*found.energy[:2], *still.penalties, found.energy.folding))


def test_weights_that_look_at_the_momentum_are_searched_down_the_whole_slope() -> None:
    """Every step lowers the energy, and it ends lower than where half of the slope leads."""
    given = problem([3])
    weights_of = curious_network(2).weights_of(given.scene.source, given.map_grid)
    metric = make_metric(given.map_grid, MetricSettings(), like=given.scene.source, weights=weights_of)
    whole = Problem(given.objective, metric, given.scene)
    ends = {}
    for name, descent in (("whole", whole), ("blind", Blind(whole))):
        m = torch.zeros(1, 2, *given.map_grid.shape, dtype=torch.float64)
        search = Lbfgs(descent, m, TimeSteps(given.flow, m))
        energies = []
        for _ in range(60):
            search.iterate()
            energies.append(float(search.energy))
            assert float(search.slope) < 0
        assert energies == sorted(energies, reverse=True)
        ends[name] = energies[-1]
    assert ends["whole"] < 0.98 * ends["blind"]
