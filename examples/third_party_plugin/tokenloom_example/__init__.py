"""Example plugins for tokenloom: the scheduler `shortest_prompt` and the drafter `bigram`.

The entry point names this module, so it is imported whenever plugins are listed. It stays cheap: it imports neither
torch nor the modules that hold the plugins; those load when somebody chooses them.
"""

from __future__ import annotations

from pathlib import Path

from tokenloom.plugins import PluginInfo, hookimpl

__all__ = ["tokenloom_config_dir", "tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins of this package."""
    return [
        PluginInfo(
            kind="scheduler",
            name="shortest_prompt",
            config="tokenloom_example.shortest_prompt:ShortestPromptConfig",
            contract=(1, 0),
            summary="Least remaining prompt first; waiting makes up for length, so that nobody starves.",
            # Nested plugins that the Config has a field for, and the one to take when the user names none.
            sub_kinds={"scheduler.victim": "last_in"},
        ),
        PluginInfo(
            kind="spec_decode",
            name="bigram",
            config="tokenloom_example.bigram:BigramConfig",
            contract=(1, 0),
            summary="Drafts, for each token, the one that followed it last time in the same request.",
            sub_kinds={"spec_decode.policy": "fixed"},
        ),
    ]


@hookimpl
def tokenloom_config_dir() -> Path:
    """Names the folder with this package's config groups: one YAML file for each plugin."""
    return Path(__file__).parent / "conf"
