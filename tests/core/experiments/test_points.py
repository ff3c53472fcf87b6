"""The points of an experiment: sweeps of the user, of a preset, and both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom.cli.experiment import ExperimentSettings
from tokenloom.errors import ConfigError
from tokenloom.experiments.points import ExperimentPoint, merge_sweep, plan_points

PRESET = """# @package _global_
defaults:
  - override /executor: simulated
sweep:
  cache.block_size: 8,16
  scheduler: fcfs,sjf
limit: 5
"""


def plan(*overrides: str, config_dir: Path | None = None) -> list[ExperimentPoint]:
    return plan_points(overrides, config_dir=config_dir, command=ExperimentSettings, text_keys=("workload",))


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(PRESET)
    (tmp_path / "experiment" / "other.yaml").write_text(PRESET.replace("fcfs,sjf", "priority,deadline"))
    return tmp_path


def test_sweeps_of_the_user_multiply_the_last_one_fastest() -> None:
    points = plan("scheduler=fcfs,priority", "cache=hash,radix", "limit=3")
    assert [point.name for point in points] == [
        f"scheduler={scheduler} cache={cache}" for scheduler in ("fcfs", "priority") for cache in ("hash", "radix")
    ]
    assert [point.index for point in points] == [0, 1, 2, 3]
    assert points[1].changes == {"scheduler": "fcfs", "cache": "radix"}
    assert points[1].config.engine.cache.name == "radix"
    assert points[1].config.engine.scheduler.name == "fcfs"


def test_one_configuration_is_an_experiment_too() -> None:
    (point,) = plan("scheduler=fcfs")
    assert (point.name, point.changes) == ("all", {})


def test_a_preset_brings_its_sweep(presets: Path) -> None:
    points = plan("experiment=mine", config_dir=presets)
    assert [point.name for point in points] == [
        f"cache.block_size={size} scheduler={scheduler}" for size in (8, 16) for scheduler in ("fcfs", "sjf")
    ]
    assert {point.config.engine.executor.name for point in points} == {"simulated"}


def test_the_users_value_replaces_a_presets_sweep_of_that_key(presets: Path) -> None:
    points = plan("experiment=mine", "scheduler=priority", "limit=1,2", config_dir=presets)
    assert [point.name for point in points] == [
        f"cache.block_size={size} limit={limit}" for limit in (1, 2) for size in (8, 16)
    ]
    assert {point.config.engine.scheduler.name for point in points} == {"priority"}
    assert [point.config.extras_of(ExperimentSettings).limit for point in points] == [1, 1, 2, 2]


def test_presets_may_be_swept_themselves(presets: Path) -> None:
    points = plan("experiment=mine,other", "cache.block_size=32", config_dir=presets)
    assert [point.name for point in points] == [
        "scheduler=fcfs experiment=mine",
        "scheduler=sjf experiment=mine",
        "scheduler=priority experiment=other",
        "scheduler=deadline experiment=other",
    ]


def test_merge_sweep_knows_a_key_however_it_is_written() -> None:
    sweep = {"cache.eviction": "lru,fifo", "rate": "1,2"}
    assert merge_sweep(sweep, ["cache/eviction=lfu", "+x=1"]) == ["rate=1,2", "cache/eviction=lfu", "+x=1"]


def test_a_value_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="scheduler=fcfs is given twice"):
        plan("scheduler=fcfs,sjf,fcfs")


def test_a_mistake_in_the_last_point_is_found_before_any_runs() -> None:
    with pytest.raises(ConfigError, match="nope"):
        plan("scheduler=fcfs,nope")
