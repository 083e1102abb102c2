"""Which metric and which settings a registration takes, where not all is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metreg
from metreg.errors import MetregError
from metreg.io.image import Image
from metreg.metric.learned import LearnedMetric
from metreg.metric.store import MetricFile, save_metric
from metreg.pipeline.resolve import BRAIN, Seen, choose, open_metric
from metreg.settings.model import LearnedSettings, MetricSettings, make_settings


def heads() -> Seen:
    """Two images that brain-t1 fits."""
    metric = open_metric(BRAIN)
    assert metric is not None and metric.template is not None
    head = Image(metric.template[0, 0].numpy(), metric.template_affine, "head")
    return [(head, None), (head, None)]


def others() -> Seen:
    """A head, and something else."""
    values = np.random.default_rng(0).random((60, 70, 60)).astype(np.float32)
    return [heads()[0], (Image(values, np.diag([2.0, 2.0, 2.0, 1.0]), "noise"), None)]


@pytest.mark.parametrize(
    ("images", "given", "metric", "preset"),
    [
        (heads, {}, "brain-t1", "brain"),
        (heads, {"preset": "brain"}, "brain-t1", "brain"),
        (heads, {"preset": "default"}, "global", "default"),
        (heads, {"preset": "brain-constant"}, "global", "brain-constant"),
        (heads, {"changes": ["metric.sigma=[0.02, 0.1]"]}, "global", "default"),
        (heads, {"changes": ["length_mm=150"]}, "global", "default"),
        (heads, {"weights": True}, "global", "default"),
        (heads, {"metric": "global"}, "global", "default"),
        (others, {}, "global", "default"),
        (others, {"metric": "brain-t1"}, "brain-t1", "brain"),
        (others, {"metric": "mean:brain-t1", "preset": "paper3d"}, "mean:brain-t1", "paper3d"),
    ],
)
def test_what_is_not_said_is_chosen(images: Any, given: dict[str, Any], metric: str, preset: str) -> None:
    choice = choose(**given, images=images)
    assert (choice.metric, choice.settings.preset) == (metric, preset)
    assert bool(choice.reason) == ("metric" not in given)


def test_the_choice_is_said_in_one_line_with_its_reason_and_licence() -> None:
    line = choose(images=heads).line
    assert line.startswith("metric: brain-t1, as both images look like T1 brains") and "not for commercial use" in line
    line = choose(images=others).line
    assert line.startswith("metric: global, as noise does not look like a T1 brain") and "Apache-2.0" in line


def test_images_are_looked_at_only_where_no_metric_is_named() -> None:
    def never() -> Seen:
        raise AssertionError

    choose("global", images=never)
    choose("brain-t1", images=never)


@pytest.mark.parametrize(
    "change",
    [
        "metric.weights=[0.25, 0.25, 0.25, 0.25]",
        "metric.sigma=[0.02, 0.1]",
        "metric.window=5",
        'metric.realisation="fourier"',
        "length_mm=150",
        "unit_cube=true",
    ],
)
def test_settings_that_a_learned_metric_would_not_heed_are_refused(change: str) -> None:
    key = change.partition("=")[0]
    with pytest.raises(MetregError, match=f"{key}: brain-t1 brings Gaussians"):
        choose("brain-t1", changes=[change])
    with pytest.raises(MetregError, match=f"{key}: mean:brain-t1 brings Gaussians"):
        choose("mean:brain-t1", settings=make_settings("brain", changes=[change]))


def test_settings_as_the_metric_has_them_may_be_said() -> None:
    choose("brain-t1", changes=["length_mm=200", "metric.window=3"])
    saved = choose("brain-t1").settings
    assert choose("brain-t1", settings=make_settings(changes=saved.model_dump(exclude_none=True))).settings == saved


def test_a_default_that_the_metric_does_not_have_is_refused_too(tmp_path: Path) -> None:
    model = LearnedMetric(2, MetricSettings(window=5), LearnedSettings())
    path = tmp_path / "metric.safetensors"
    save_metric(path, MetricFile(model.eval(), 150.0, (4.0, 4.0)))
    assert choose(str(path)).settings.metric.window == 5
    with pytest.raises(MetregError, match=r"metric\.window"):
        choose(str(path), changes=["metric.window=3"])


def test_python_is_told_in_the_log_and_the_result_keeps_it(
    pair_files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="metreg"):
        result = metreg.register(*pair_files, changes={"solve.iterations": [1, 1, 1]})
    assert "metric: global, as" in caplog.text
    assert "does not look like a T1 brain" in result.summary["metric_chosen"]
