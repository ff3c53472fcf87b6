"""`tokenloom plugins check`: what a name selects, what is run on it, and what is said of it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plugin_packages import install_package, plugin_source
from tests.testing.planted_victim import victim_info
from tests.testing.suite_runner import test_names
from tokenloom import testing
from tokenloom.cli import main
from tokenloom.cli.plugin_package import TEMPLATED_KINDS, write_plugin_package
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError, PluginError
from tokenloom.interfaces.contract import CONTRACT_VERSIONS
from tokenloom.plugins import RegisteredPlugin, Registry, default_registry
from tokenloom.testing import SUITES, EvictionSuite, VictimSuite, check, suite_run
from tokenloom.testing.check import Checked, check_plugins, parse_settings, select_plugins
from tokenloom.testing.outcome import SuiteOutcome
from tokenloom.testing.suite import build_choice

Run = Callable[..., tuple[int, str, str]]

VICTIM = 'PluginInfo("scheduler.victim", "{}", "{}:Config", (1, 0), "")'
VICTIM_MODULE = """
from typing import final
from tokenloom.interfaces.scheduling_policy import VictimConfig, VictimPolicy

class Config(VictimConfig):
    place: int = -1

    def build(self, context):
        return Victim(self.place)

@final
class Victim(VictimPolicy):
    def __init__(self, place):
        if place == 3:
            raise RuntimeError("there is no place 3")
        self._place = place

    def select(self, request, candidates, view):
        if self._place == 2:
            raise KeyboardInterrupt
        return candidates[self._place] if self._place < 1 else "somebody"
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_words(*words: str) -> tuple[int, str, str]:
        code = main(["plugins", "check", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution `check-me` with the module `check_me`: a victim policy, and an executor."""
    victim, executor = VICTIM.format("whoever", "check_me"), VICTIM.format("none", "check_me")
    source = plugin_source(victim, executor.replace("scheduler.victim", "executor").replace('"none"', '"mine"'))
    install_package(tmp_path, monkeypatch, "check_me", VICTIM_MODULE + source.replace("class Config(", "class Other("))
    default_registry.cache_clear()
    return "check-me"


@pytest.fixture(autouse=True)
def _fresh_registry() -> Iterator[None]:
    yield
    default_registry.cache_clear()


def labels(plugins: list[RegisteredPlugin]) -> set[str]:
    return {plugin.label for plugin in plugins}


@pytest.mark.parametrize("name", ["check-me", "check_me", "Check.Me", "scheduler.victim=whoever"])
def test_a_package_is_named_by_distribution_or_module_or_one_plugin(package: str, name: str) -> None:
    found = labels(select_plugins(default_registry(), name))
    assert found == ({"scheduler.victim=whoever"} if "=" in name else {"scheduler.victim=whoever", "executor=mine"})


def test_a_module_of_a_distribution_selects_its_plugins_alone() -> None:
    assert labels(select_plugins(default_registry(), "tokenloom_schedulers")) >= {"scheduler=fcfs"}
    assert "cache=hash" not in labels(select_plugins(default_registry(), "tokenloom_schedulers"))
    assert labels(select_plugins(default_registry(), "tokenloom")) >= {"scheduler=fcfs", "cache=hash"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tokenlom", "Did you mean 'tokenloom'"),
        ("fcfs", "Did you mean scheduler=fcfs?"),
        ("schedular=fcfs", "Did you mean 'scheduler'"),
        ("scheduler=fcsf", "Did you mean 'fcfs'?"),
        ("nothing_like_it", "packages with plugins are tokenloom"),
    ],
)
def test_a_wrong_name_is_refused_with_near_matches(run: Run, name: str, hint: str) -> None:
    code, _, err = run(name)
    assert code == 2
    assert hint in err


def test_a_package_that_fails_to_load_is_not_called_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path, monkeypatch, "check_broken", "import no_module_of_this_name")
    for name in ("check-broken", "check_broken"):
        with pytest.raises(PluginError, match="no_module_of_this_name"):
            select_plugins(Registry.discover(), name)


def test_a_right_plugin_passes_and_a_kind_without_suite_is_listed(run: Run, package: str) -> None:
    code, out, _ = run(package)
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines() if "=" in line}
    num_passed, num_skipped, num_failed = map(int, rows["scheduler.victim=whoever"][3:])
    assert num_passed >= len(test_names(VictimSuite))
    assert (num_skipped, num_failed) == (0, 0)
    assert out.count("no suite for kind executor") == 1
    assert "FAILED" not in out


def test_a_failure_is_shown_with_its_meaning_and_its_message(run: Run, package: str) -> None:
    code, out, _ = run("scheduler.victim=whoever", "--settings", "place=1")
    assert code == 1
    assert "FAILED scheduler.victim=whoever test_the_victim_is_a_candidate[2]" in out
    assert "`select` returned something that is not among the candidates, nor None." in out
    assert "'somebody' is not one of ['r0', 'r1']" in out


def test_an_interrupt_ends_the_command(run: Run, package: str) -> None:
    code, _, err = run("scheduler.victim=whoever", "--settings", "place=2")
    assert (code, err.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["place"], "key=value"),
        (["=1"], "key=value"),
        (["place=soon"], "scheduler.victim=whoever: place: must be a valid integer, got 'soon'"),
        (["depth=1"], "there is no setting 'depth', only place."),
        (["plac=1"], "Did you mean 'place'?"),
        (["place=["], "place=[: cannot be parsed"),
        (["place={"], "place={: cannot be parsed"),
        (["place=1,2"], "this is a sweep"),
        (["place=off"], "place: must be a valid integer, got 'off'"),
        (["place.deep=1"], "there is no setting 'place.deep'"),
        (["plac=1", "place=soon"], "got 'soon'; there is no setting 'plac'"),
    ],
)
def test_wrong_settings_are_refused(run: Run, package: str, words: list[str], reason: str) -> None:
    code, _, err = run("scheduler.victim=whoever", *(part for word in words for part in ("--settings", word)))
    assert code == 2
    assert reason in err


def test_settings_are_for_one_plugin(run: Run, package: str) -> None:
    code, _, err = run(package, "--settings", "place=1")
    assert code == 2
    assert "check-me has 2; name one as kind=name" in err


def test_settings_name_nested_plugins() -> None:
    registry = default_registry()
    fcfs = registry.get("scheduler", "fcfs")
    settings = parse_settings(fcfs, ["victim=last_in", "max_chunk_tokens=64"], registry)
    assert (settings["victim"].name, settings["max_chunk_tokens"]) == ("last_in", 64)
    with pytest.raises(ConfigError, match=r"no such scheduler\.victim"):
        parse_settings(fcfs, ["victim=nobody"], registry)
    with pytest.raises(ConfigError, match="victim: must be a nested plugin, got 3"):
        parse_settings(fcfs, ["victim=3"], registry)


@pytest.mark.parametrize(
    ("label", "word", "key", "value"),
    [
        ("quant=int8", "skip=[model.layers.0,lm_head]", "skip", ("model.layers.0", "lm_head")),
        ("scheduler=priority", "ageing_s=null", "ageing_s", None),
        ("scheduler=priority", "ageing_s=1e1", "ageing_s", 10.0),
    ],
)
def test_settings_read_as_in_a_config(label: str, word: str, key: str, value: object) -> None:
    registry = default_registry()
    kind, _, name = label.partition("=")
    plugin = registry.get(kind, name)
    config = build_choice(plugin.info, parse_settings(plugin, [word], registry)).config
    composed = dict(compose_config([label, f"{kind}.{word}"]).engine)[kind].config
    assert getattr(config, key) == getattr(composed, key) == value


def test_a_plugin_for_another_contract_fails() -> None:
    plugin = RegisteredPlugin(victim_info(), "some-package", "1.0", "it was written for scheduler.victim contract 9.0")
    (checked,) = check_plugins([plugin], {})
    assert [failure.message for failure in checked.outcome.failures] == [
        "it was written for scheduler.victim contract 9.0"
    ]


def test_a_config_that_cannot_be_imported_is_told_once() -> None:
    info = victim_info()
    broken = RegisteredPlugin(type(info)(info.kind, "gone", "no_such_module:Config", (1, 0), ""), "some-package", "1.0")
    (checked,) = check_plugins([broken], {})
    (failure,) = checked.outcome.failures
    assert checked.outcome.num_passed == 0
    assert "cannot be loaded" in failure.message


def test_what_cannot_be_built_fails_every_test_and_is_told_once(run: Run, package: str) -> None:
    code, out, _ = run("scheduler.victim=whoever", "--settings", "place=3")
    assert code == 1
    assert out.count("there is no place 3") == out.count("FAILED") == 1
    num_passed, _, num_failed = map(int, next(line for line in out.splitlines() if "=whoever" in line).split()[3:])
    assert num_passed == 0
    assert f"and {num_failed - 1} more with the same message" in out


def test_skips_are_counted_by_reason_and_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    plugin = default_registry().get("cache.eviction", "lru")
    (checked,) = check_plugins([plugin], {}, lambda *step: told.append(step))
    (num_skipped,) = checked.outcome.skipped.values()
    total = checked.outcome.num_passed + num_skipped
    assert total >= len(test_names(EvictionSuite))
    assert checked == Checked(plugin, SuiteOutcome(total - num_skipped, {"retention is not declared": num_skipped}))
    assert told == [("cache.eviction=lru", number, total) for number in range(1, total + 1)]


def test_options_of_the_project_around_do_not_matter(
    run: Run, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\npython_classes = Nothing\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('must not be read')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    assert run("scheduler.victim=whoever")[0] == 0
    assert os.environ["PYTEST_ADDOPTS"] == "--no-such-option"
    assert not (tmp_path / ".pytest_cache").exists()


def test_a_run_that_collects_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_run, "chosen_suite", lambda: object)
    (checked,) = check_plugins([default_registry().get("scheduler.victim", "last_in")], {})
    assert "NO_TESTS_COLLECTED" in checked.outcome.failures[0].message


@pytest.mark.parametrize("missing", [["pytest"], ["pytest", "hypothesis"]])
def test_missing_libraries_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch, missing: list[str]) -> None:
    found = check.find_spec
    monkeypatch.setattr(check, "find_spec", lambda name: None if name in missing else found(name))
    with pytest.raises(ConfigError, match=rf"needs {' and '.join(missing)}; try pip install 'tokenloom\[testing\]'"):
        check_plugins([], {})


def test_every_kind_but_the_executor_has_a_suite() -> None:
    assert set(SUITES) == set(CONTRACT_VERSIONS) - {"executor"}
    for kind, target in SUITES.items():
        assert getattr(testing, target.partition(":")[2]).kind == kind


def test_type_checkers_see_the_suites_that_there_are() -> None:
    tree = ast.parse(Path(testing.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {f"{node.module}:{alias.name}" for node in imports for alias in node.names}
    assert seen == set(SUITES.values())
    assert set(testing.__all__) == {"SUITES", "PluginSuite", *(target.partition(":")[2] for target in SUITES.values())}


def test_a_suite_that_there_is_not_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuite'"):
        testing.NoSuite  # noqa: B018


@pytest.mark.parametrize("kind", SUITES)
def test_the_document_has_every_kind_in_its_tables(kind: str) -> None:
    document = (Path(__file__).parents[2] / "docs" / "writing_a_plugin.md").read_text(encoding="utf-8")
    asked, suites = document.partition("## What each kind is asked")[2].split("| kind | suite |")
    row = rf"^\|[^|]*`{re.escape(kind)}`[^|]*\|"
    assert f"`{kind}`" in document.partition("## The four parts")[0]
    assert re.search(row, asked, re.MULTILINE)
    assert re.search(rf"{row} `{SUITES[kind].partition(':')[2]}` \|", suites, re.MULTILINE)


@pytest.mark.parametrize("kind", TEMPLATED_KINDS)
def test_the_readme_of_a_new_package_names_the_command(kind: str, tmp_path: Path) -> None:
    write_plugin_package(kind, "mine", tmp_path)
    (readme,) = tmp_path.rglob("README.md")
    assert re.search(r"^tokenloom plugins check [\w-]*mine[\w-]*$", readme.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_help_says_how_a_setting_is_written(run: Run) -> None:
    code, out, _ = run("--help")
    text = " ".join(out.split())
    assert code == 0
    assert "max_chunk_tokens=64" in text
    assert "victim=last_in" in text
    assert "kind=name" in text


def test_listing_plugins_imports_no_pytest() -> None:
    program = "import sys; from tokenloom.cli import main; main(['plugins']); sys.exit('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
