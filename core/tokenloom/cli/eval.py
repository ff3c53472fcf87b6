"""`tokenloom eval`: how good a model's answers are, and what variants of it gain and lose."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.cli.lazy_group import LazyCommand, LazyGroup

__all__ = ["EVAL_COMMANDS", "evaluate"]

EVAL_COMMANDS: Mapping[str, LazyCommand] = {
    "run": LazyCommand(
        "tokenloom.cli.eval_run:run",
        "Run tasks on one model; this word may be left out.",
        "tokenloom.cli.eval_settings:EvalSettings",
    ),
    "compare": LazyCommand(
        "tokenloom.cli.eval_compare:compare",
        "Put variants side by side: size, quality, speed.",
        "tokenloom.cli.eval_settings:EvalCompareSettings",
    ),
}
"""Its commands."""

evaluate = LazyGroup(
    EVAL_COMMANDS,
    default="run",
    name="eval",
    help="Judge a model's answers: tokenloom eval perplexity model=... is short for tokenloom eval run perplexity ...",
)
