"""Where config files are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

import tokenloom
from tokenloom.compose import builtin_conf_dir, compose_config
from tokenloom.compose.conf_folders import conf_folders, display_path, group_options
from tokenloom.errors import ConfigError
from tokenloom.plugins import ConfigFolder, Registry


def fake_package(folder: Path, monkeypatch: pytest.MonkeyPatch, conf: Path | None) -> None:
    package = folder / "core" / "tokenloom"
    package.mkdir(parents=True)
    if conf is not None:
        conf.mkdir(parents=True)
        (conf / "config.yaml").touch()
    monkeypatch.setattr(tokenloom, "__file__", str(package / "__init__.py"))


@pytest.mark.parametrize("place", ["conf", "core/tokenloom/conf"])
def test_builtin_conf_is_found_in_a_checkout_and_in_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    fake_package(tmp_path, monkeypatch, tmp_path / place)
    assert builtin_conf_dir() == tmp_path / place


def test_a_missing_builtin_conf_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_package(tmp_path, monkeypatch, None)
    with pytest.raises(ConfigError, match=r"the built-in configuration is missing: .*reinstall"):
        builtin_conf_dir()


def test_one_folder_given_twice_is_searched_once() -> None:
    folders = conf_folders(Registry.from_modules([]), builtin_conf_dir())
    assert folders == (ConfigFolder("tokenloom", builtin_conf_dir()),)


def test_group_options_are_the_yaml_files_below_a_group(tmp_path: Path) -> None:
    for path in ("a/x.yaml", "a/y.yaml", "a/b/z.yaml", "a/notes.txt", "top.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert group_options([ConfigFolder("me", tmp_path)]) == {"a": ["x", "y"], "a.b": ["z"]}


@pytest.mark.parametrize(
    ("owner", "shown"),
    [("tokenloom", "conf/a/x.yaml"), ("other", "other:a/x.yaml"), ("--config-dir", "/mine/a/x.yaml")],
)
def test_display_path_names_the_owner(owner: str, shown: str) -> None:
    assert display_path(ConfigFolder(owner, Path("/mine")), "a/x") == shown


def test_a_foreign_hydra_plugin_that_shadows_the_root_config_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("surprise: 1\n")

    class Intruder(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.prepend(provider="intruder", path=f"file://{tmp_path}")

    plugins = Plugins.instance()
    plugins.register(Intruder)
    try:
        with pytest.raises(ConfigError, match=r"a Hydra plugin \(intruder\) puts its own config\.yaml in front"):
            compose_config()
    finally:
        for registered in plugins.plugin_type_to_subclass_list.values():
            if Intruder in registered:
                registered.remove(Intruder)
    assert compose_config().engine.cache.name == "hash"
