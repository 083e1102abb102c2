from __future__ import annotations

from pathlib import Path

import pytest

from metreg.errors import MetregError, pick_device
from metreg.settings.model import PRESETS, make_settings


@pytest.mark.parametrize("preset", list(PRESETS))
def test_settings_survive_the_trip_through_a_file(preset: str, tmp_path: Path) -> None:
    settings = make_settings(preset, changes={"metric.sigma": [0.02, 0.05, 0.1, 0.3], "seed": 7})
    path = tmp_path / "settings.toml"
    path.write_text(settings.to_toml())
    assert make_settings(config=path) == settings


def test_the_command_line_wins_over_the_file_which_wins_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "paper2d"\n[flow]\nsteps = 7\n[solve]\nregularity = 0.5\n')
    settings = make_settings(config=path, changes=["flow.steps=9"])
    assert settings.flow.steps == 9
    assert settings.solve.regularity == 0.5
    assert settings.flow.map_factor == 0.5 and settings.unit_cube


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("solve.regularty=1", "solve.regularty: unknown setting; did you mean 'regularity'?"),
        ("flw.steps=1", "flw: unknown setting; did you mean 'flow'?"),
        ("metric.sigma=[0.1, 0.0]", "metric.sigma.1: input should be greater than 0, got 0.0"),
        ("metric.sigma=[0.2, 0.1]", "metric: sigma must increase"),
        ("metric.weights=[0.5, 0.5]", "metric: weights: wanted 4 numbers of sum one"),
        ("flow.steps=0", "flow.steps: input should be greater than or equal to 1, got 0"),
        ("flow.map_factor=1.5", "flow.map_factor: input should be less than or equal to 1, got 1.5"),
        ("similarity.window=4", "similarity.window: must be odd, 3 or more, or less than 1, got 4"),
        ("similarity.name=psnr", "similarity.name: input should be"),
        ("solve.iterations=[3]", "solve: shrink names 3 levels, iterations 1"),
        ("metric.sigma=[1e9]", "metric.sigma.0: input should be less than or equal to 100"),
        ("solve.regularity=inf", "solve.regularity: input should be a finite number"),
        ("flow={integrator='squaring', steps=160}", "flow: steps: more than 30 squarings"),
        ("seed=99999999999999999999999", "seed: "),
        ("preset=nonsense", "preset: unknown 'nonsense'"),
        ("nothing", "--set: wanted key=value, got 'nothing'"),
        ("flow=3", "flow: "),
    ],
)
def test_wrong_settings_are_named(change: str, message: str) -> None:
    with pytest.raises(MetregError) as error:
        make_settings(changes=[change])
    assert str(error.value).startswith(message)


def test_a_preset_may_come_as_a_change() -> None:
    assert make_settings(changes=["preset=paper2d"]) == make_settings("paper2d")


def test_wrong_files_and_presets_are_named(tmp_path: Path) -> None:
    with pytest.raises(MetregError, match="cannot read"):
        make_settings(config=tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("steps = = 3")
    with pytest.raises(MetregError, match="not a TOML file"):
        make_settings(config=bad)
    with pytest.raises(MetregError, match="unknown 'papr2d'; use one of default, brain, brain-constant, paper2d"):
        make_settings("papr2d")


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta"])
def test_absent_devices_are_named(name: str) -> None:
    with pytest.raises(MetregError, match=f"device: '{name}'"):
        pick_device(name)


def test_what_is_no_setting_any_more_is_read_from_old_files_but_has_one_value() -> None:
    assert make_settings(changes={"solve.both_ways": "coarse", "train.memory_gb": None, "model": "vsvf"}) == make_settings()
    with pytest.raises(MetregError, match="solve: both_ways is no setting any more, it is always 'coarse'; got 'never'"):
        make_settings(changes={"solve.both_ways": "never"})
