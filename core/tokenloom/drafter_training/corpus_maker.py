"""Makes a corpus with one engine: first all conversations, then the target's states over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from tokenloom.compose import ComposedConfig
from tokenloom.drafter_training.conversations import ConversationMaker, ConversationPlan
from tokenloom.drafter_training.corpus import (
    conversations_path,
    read_conversations,
    states_path,
    write_conversations,
    write_tensors,
)
from tokenloom.drafter_training.states import StateCapture, capture_states
from tokenloom.errors import ConfigError
from tokenloom.json_file import read_json
from tokenloom.llm import LLM

__all__ = ["CorpusPlan", "make_corpus"]

_SHARD = 256
_RECIPE = "recipe.json"


@final
@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """What a corpus holds.

    Attributes:
        fingerprint: of the target.
        state_layers: layers whose states are kept; -1 is the final normed state.
        num_conversations: rounded up to whole shards.
        conversations: how they are made.
        shard: conversations in a file.
    """

    fingerprint: str
    state_layers: tuple[int, ...]
    num_conversations: int
    conversations: ConversationPlan
    shard: int = _SHARD

    @property
    def num_shards(self) -> int:
        return -(-self.num_conversations // self.shard)


def make_corpus(
    config: ComposedConfig, folder: Path, plan: CorpusPlan, progress: Callable[[str, int, int], None]
) -> None:
    """Makes what is not there yet of a corpus.

    Args:
        config: of the engine, without prefix cache and drafts.
        folder: of the corpus; made if needed.
        plan: what it is to hold.
        progress: told (part, done, in all).

    Raises:
        ConfigError: the folder holds a corpus of another recipe.
    """
    _check_recipe(folder, plan)
    shards = range(plan.num_shards)
    if all(states_path(folder, shard).exists() for shard in shards):
        return
    capture = StateCapture()
    with LLM(config=config, taps=(capture,)) as llm:
        maker = ConversationMaker(llm, plan.conversations)
        for shard in shards:
            path = conversations_path(folder, shard)
            if not path.exists():
                write_conversations(path, maker.make(shard, plan.shard))
            progress("conversations", shard + 1, plan.num_shards)
        capture.listen(plan.state_layers)
        for shard in shards:
            if not states_path(folder, shard).exists():
                conversations = read_conversations(conversations_path(folder, shard))
                write_tensors(states_path(folder, shard), capture_states(llm, capture, conversations))
            progress("states", shard + 1, plan.num_shards)


def _check_recipe(folder: Path, plan: CorpusPlan) -> None:
    """A corpus may grow, but not change."""
    folder.mkdir(parents=True, exist_ok=True)
    path, recipe = folder / _RECIPE, json.loads(json.dumps(asdict(plan)))
    del recipe["num_conversations"]
    if path.exists() and read_json(path) != recipe:
        raise ConfigError(
            f"data={folder} holds conversations of another recipe ({path.name} says which); choose another folder, or "
            "the same model, seed and settings"
        )
    path.write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
