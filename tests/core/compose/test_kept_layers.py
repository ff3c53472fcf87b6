"""Layers that are kept from one composition to the next: the same values as anew, and never of older files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom.compose import compose_config
from tokenloom.compose import kept_layers as module
from tokenloom.compose.layers import stack
from tokenloom.errors import ConfigError

WriteConfigDir = Callable[[dict[str, str]], Path]


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The choices that files were read for."""
    calls: list[tuple[str, ...]] = []
    real = stack

    def counted(loader: object, folders: object, chosen: list[object]) -> object:
        calls.append(tuple(str(setting) for setting in chosen))
        return real(loader, folders, chosen)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "stack", counted)
    monkeypatch.setattr(module, "_kept", type(module._kept)())
    return calls


def test_the_same_choices_are_stacked_once(stacked: list[tuple[str, ...]]) -> None:
    first = compose_config(["cache=radix", "cache.block_size=4", "engine.seed=3"])
    second = compose_config(["cache=radix", "scheduler.max_num_seqs=7"])
    third = compose_config(["cache=hash"])
    assert len(stacked) == 2
    assert first.to_dict()["cache"]["block_size"] == 4
    assert second.to_dict()["cache"] == compose_config(["cache=radix"]).to_dict()["cache"]
    assert second.to_dict()["cache"]["block_size"] == 16, "what one composition sets is not in the next one"
    assert second.sources["scheduler.max_num_seqs"] == "override scheduler.max_num_seqs=7"
    assert first.sources["cache.block_size"] == "override cache.block_size=4"
    assert second.sources["cache.block_size"] == "conf/cache/radix.yaml"
    assert third.choices["cache"] == "hash"


@pytest.mark.parametrize("keeps_time", [False, True])
def test_a_file_that_changed_is_read_again(
    stacked: list[tuple[str, ...]], config_dir: WriteConfigDir, keeps_time: bool
) -> None:
    folder = config_dir({"scheduler/mine.yaml": "name: fcfs\nmax_num_seqs: 3\n"})
    path = folder / "scheduler" / "mine.yaml"
    compose_config(["scheduler=mine"], config_dir=folder)
    before = path.stat()
    path.write_text("name: fcfs\nmax_num_seqs: 12\n")
    if keeps_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    values = compose_config(["scheduler=mine"], config_dir=folder).to_dict()
    assert values["scheduler"]["max_num_seqs"] == 12
    assert len(stacked) == 2


def test_a_file_that_came_or_went_counts(stacked: list[tuple[str, ...]], config_dir: WriteConfigDir) -> None:
    folder = config_dir({"scheduler/mine.yaml": "name: fcfs\n"})
    compose_config(["scheduler=mine"], config_dir=folder)
    (folder / "scheduler" / "mine.yaml").unlink()
    with pytest.raises(ConfigError):
        compose_config(["scheduler=mine"], config_dir=folder)


def test_a_file_that_asks_the_environment_is_read_again(
    config_dir: WriteConfigDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("# @package _global_", "defaults:", "  - override /scheduler: ${oc.env:MY_SCHEDULER}")
    folder = config_dir({"experiment/mine.yaml": "\n".join(lines)})
    (folder / "experiment" / "gone.yaml").symlink_to("nowhere")
    for name in ("fcfs", "priority"):
        monkeypatch.setenv("MY_SCHEDULER", name)
        assert compose_config(["experiment=mine"], config_dir=folder).choices["scheduler"] == name


def test_a_failure_is_not_kept(stacked: list[tuple[str, ...]], config_dir: WriteConfigDir) -> None:
    folder = config_dir({"scheduler/mine.yaml": "name: [\n"})
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"mine\.yaml|fit together"):
            compose_config(["scheduler=mine"], config_dir=folder)
    assert len(stacked) == 2


def test_the_last_used_are_kept(stacked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    for cache in ("hash", "none", "hash", "radix", "hash", "none"):
        compose_config([f"cache={cache}"])
    assert len(stacked) == 4
