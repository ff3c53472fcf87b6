"""Composing lives beside the Hydra of the surrounding program, and in threads."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase

from tokenloom.compose import compose_config
from tokenloom.compose.hydra_session import hydra_loader
from tokenloom.errors import ConfigError
from tokenloom.plugins import ConfigFolder

USER_PROGRAM = """
import hydra
from hydra.core.hydra_config import HydraConfig
from tokenloom.compose import compose_config

@hydra.main(version_base="1.2", config_path="conf", config_name="app")
def run(cfg):
    composed = compose_config(["cache=none", "scheduler.max_num_seqs=3"])
    assert HydraConfig.get().job.name == "program", HydraConfig.get().job.name
    print(cfg.greeting, composed.engine.cache.name, hydra.compose("app").greeting)

run()
"""


@pytest.fixture
def user_conf(tmp_path: Path) -> Path:
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "app.yaml").write_text("greeting: hello\n")
    return folder


def test_composing_inside_an_initialised_hydra_leaves_it_alone(user_conf: Path) -> None:
    with initialize_config_dir(str(user_conf), version_base="1.2"):
        before = (GlobalHydra.instance(), GlobalHydra.instance().hydra, VersionBase.instance().getbase())
        assert compose_config(["cache=none"]).engine.cache.name == "none"
        assert (GlobalHydra.instance(), GlobalHydra.instance().hydra, VersionBase.instance().getbase()) == before
        assert compose("app").greeting == "hello"


def test_composing_leaves_no_hydra_behind() -> None:
    GlobalHydra.instance().clear()
    compose_config()
    assert not GlobalHydra.instance().is_initialized()


def test_a_failed_composition_restores_the_outer_hydra(user_conf: Path) -> None:
    with initialize_config_dir(str(user_conf), version_base="1.2"):
        with pytest.raises(ConfigError):
            compose_config(["cache=nope"])
        assert compose("app").greeting == "hello"


def test_our_search_path_stays_out_of_other_hydra_sessions(user_conf: Path, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    (extra / "experiment").mkdir(parents=True)
    (extra / "experiment" / "mine.yaml").write_text("# @package _global_\nengine:\n  seed: 5\n")
    assert compose_config(["experiment=mine"], config_dir=extra).engine.engine.seed == 5
    assert Plugins.instance().discover(SearchPathPlugin)
    with initialize_config_dir(str(user_conf), version_base="1.2"):
        paths = [source.path for source in GlobalHydra.instance().config_loader().get_sources()]
    assert str(extra) not in paths


def test_composing_works_inside_hydra_main(user_conf: Path) -> None:
    program = user_conf.parent / "program.py"
    program.write_text(USER_PROGRAM)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=user_conf.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["hello", "none", "hello"]


def test_threads_compose_their_own_configuration() -> None:
    sizes = [8, 16, 32, 64] * 4

    def block_size(size: int) -> int:
        return int(compose_config([f"cache.block_size={size}"]).to_dict()["cache"]["block_size"])

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert list(pool.map(block_size, sizes)) == sizes


def test_the_loader_sees_every_folder_in_order(user_conf: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with hydra_loader([ConfigFolder("first", user_conf), ConfigFolder("second", other)]) as loader:
        paths = [source.path for source in loader.get_sources() if source.scheme() == "file"]
    assert paths == [str(user_conf), str(other)]
