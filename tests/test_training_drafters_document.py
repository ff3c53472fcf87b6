"""docs/training_drafters.md: its commands are those of `train-drafter`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tokenloom.cli.train_drafter import TrainDrafterSettings
from tokenloom.compose import compose_config

DOCUMENT = (Path(__file__).parent.parent / "docs" / "training_drafters.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_understood(command: str) -> None:
    words = shlex.split(command)[1:]
    assert words[0] == "train-drafter"
    settings = compose_config(words[1:], command=TrainDrafterSettings).extras_of(TrainDrafterSettings)
    assert settings.minutes in (20.0, 45.0)


def test_there_are_commands_for_both_kinds() -> None:
    assert {word for command in COMMANDS for word in command.split() if word.startswith("kind=")} == {
        "kind=eagle3",
        "kind=medusa",
    }
