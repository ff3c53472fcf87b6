"""The command line as a whole: help, versions, errors and exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import click
import pytest

from tokenloom.cli import main as entry_point
from tokenloom.cli.config_arguments import split_words
from tokenloom.cli.lazy_group import LazyCommand, LazyGroup, load_target
from tokenloom.cli.main import COMMANDS
from tokenloom.errors import ConfigError, EngineDeadError, TokenloomError

RunCli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_lists_every_command(run_cli: RunCli, word: str) -> None:
    code, out, _ = run_cli(word)
    assert code == 0
    for name, command in COMMANDS.items():
        assert f"  {name} " in out
        assert command.summary.split()[0] in out


def test_every_command_has_help(run_cli: RunCli) -> None:
    for name in COMMANDS:
        code, out, _ = run_cli(name, "-h")
        assert code == 0
        assert out.startswith(f"Usage: tokenloom {name}")


def all_groups() -> list[tuple[str, ...]]:
    """Words of every command that has commands of its own."""
    found: list[tuple[str, ...]] = [()]
    waiting = [((name,), load_target(command.target)) for name, command in COMMANDS.items()]
    while waiting:
        words, command = waiting.pop()
        if isinstance(command, click.Group):
            found.append(words)
            waiting += [((*words, name), part) for name, part in command.commands.items()]
    return found


@pytest.mark.parametrize("words", all_groups(), ids=" ".join)
def test_lists_of_commands_cut_no_summary(run_cli: RunCli, words: tuple[str, ...]) -> None:
    code, out, _ = run_cli(*words, "--help")
    assert code == 0
    assert [line for line in out.partition("Commands:")[2].splitlines() if line.endswith("...")] == []


def test_every_command_of_the_table_exists() -> None:
    for name, command in COMMANDS.items():
        found = load_target(command.target)
        assert isinstance(found, click.Command)
        assert found.name == name
        if command.schema is not None:
            assert load_target(command.schema).model_fields


def test_version_is_the_installed_one(run_cli: RunCli) -> None:
    assert run_cli("--version") == (0, f"tokenloom {version('tokenloom')}\n", "")


def test_an_unknown_command_names_near_matches(run_cli: RunCli) -> None:
    code, _, err = run_cli("confg")
    assert code == 2
    assert "Did you mean 'config'?" in err


def test_an_unknown_option_is_a_mistake_of_the_user(run_cli: RunCli) -> None:
    code, _, err = run_cli("config", "--nope")
    assert code == 2
    assert "--nope" in err


def test_a_mistake_is_one_clean_message_without_traceback(run_cli: RunCli) -> None:
    code, out, err = run_cli("config", "attention=nope")
    assert (code, out) == (2, "")
    assert err.startswith("error: attention=nope: no such attention; choose one of auto, naive, native_cpu, torch_sdpa")
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("--traceback", "config", "cache=x"), ("config", "cache=x", "--traceback")])
def test_traceback_option_shows_it_wherever_it_stands(run_cli: RunCli, words: tuple[str, ...]) -> None:
    code, _, err = run_cli(*words)
    assert code == 2
    assert "Traceback" in err
    assert "error: cache=x" in err


def test_traceback_variable_shows_it(run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_TRACEBACK", "1")
    assert "Traceback" in run_cli("config", "cache=x")[2]


def test_words_after_a_double_dash_are_left_alone(run_cli: RunCli) -> None:
    code, _, err = run_cli("config", "--", "--traceback")
    assert code == 2
    assert "'--traceback' is not an override" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("x"), 2), (EngineDeadError("x"), 1), (KeyboardInterrupt(), 130), (click.UsageError("x"), 2)],
)
def test_exit_codes_tell_mistakes_from_failures(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tokenloom.cli.plugins.default_registry", fail)
    assert run_cli("plugins")[0] == code


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tokenloom.cli.plugins.default_registry", fail)
    with pytest.raises(ZeroDivisionError):
        entry_point(["plugins"])


def test_a_closed_pipe_ends_quietly() -> None:
    code = "import sys; from tokenloom.cli import main; sys.exit(main(['plugins', '--json']))"
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" | true; echo ${PIPESTATUS[0]}', sys.executable, code],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() in ("0", "1")
    assert done.stderr == ""


def test_a_lazy_group_imports_a_command_only_to_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    group = LazyGroup({"later": LazyCommand("no_module_of_this_name:command", "Comes later.")}, name="g")
    group.main(["--help"], standalone_mode=False)
    assert "Comes later." in capsys.readouterr().out
    with pytest.raises(ModuleNotFoundError):
        group.main(["later"], standalone_mode=False)


def test_split_words_tells_overrides_from_text() -> None:
    words = ["Hello", "cache=none", "what is 1+1=2", "+a.b=1", "cache/eviction=lru", "two words=x", "x@y=1"]
    texts, overrides = split_words(words)
    assert texts == ["Hello", "what is 1+1=2", "two words=x"]
    assert overrides == ["cache=none", "+a.b=1", "cache/eviction=lru", "x@y=1"]


def test_every_error_of_the_tree_is_a_clean_message() -> None:
    assert issubclass(ConfigError, TokenloomError)
    assert issubclass(ConfigError, ValueError)
