"""Conversations and the target's states over them, in one folder that grows shard by shard and can be gone on with.

conversations-0000.safetensors   token_ids int32 [T], num_tokens and num_prompt_tokens int32 [conversations]
states-0000.safetensors          one tensor [T, H] for each layer, by its number; -1 is the final normed state
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast, final

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tokenloom.drafter_training.conversations import Conversation
from tokenloom.errors import ConfigError

__all__ = [
    "Corpus",
    "Sequenced",
    "conversations_path",
    "read_conversations",
    "states_path",
    "write_conversations",
    "write_tensors",
]

_TOKENS, _LENGTHS, _PROMPTS = "token_ids", "num_tokens", "num_prompt_tokens"


def conversations_path(folder: Path, shard: int) -> Path:
    """Where a shard's conversations are kept."""
    return folder / f"conversations-{shard:04d}.safetensors"


def states_path(folder: Path, shard: int) -> Path:
    """Where the states over them are kept."""
    return folder / f"states-{shard:04d}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a file, or, if interrupted, none."""
    scratch = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, scratch)
    scratch.replace(path)


def write_conversations(path: Path, conversations: Sequence[Conversation]) -> None:
    """Writes one shard."""
    write_tensors(
        path,
        {
            _TOKENS: torch.tensor([i for each in conversations for i in each.token_ids], dtype=torch.int32),
            _LENGTHS: torch.tensor([len(each.token_ids) for each in conversations], dtype=torch.int32),
            _PROMPTS: torch.tensor([each.num_prompt_tokens for each in conversations], dtype=torch.int32),
        },
    )


def read_conversations(path: Path) -> list[Conversation]:
    """Reads one shard."""
    tensors = load_file(path)
    pieces = torch.split(tensors[_TOKENS], tensors[_LENGTHS].tolist())
    return [
        Conversation(tuple(ids.tolist()), count) for ids, count in zip(pieces, tensors[_PROMPTS].tolist(), strict=True)
    ]


@final
@dataclass(frozen=True, slots=True)
class Sequenced:
    """One conversation with the target's states: T tokens.

    Attributes:
        token_ids: int64 [T].
        num_prompt_tokens: how many come before the answer.
        states: per layer [T, H], as stored.
    """

    token_ids: torch.Tensor
    num_prompt_tokens: int
    states: Mapping[int, torch.Tensor]


@final
class Corpus:
    """The shards of a folder that have states. Conversations of `held_out` serve evaluation, the others training.

    Args:
        folder: where they are.
        max_tokens: longer conversations are cut off there.
        held_out_every: every so manieth conversation is held out.

    Raises:
        ConfigError: there are none, or too few within max_tokens.
    """

    def __init__(self, folder: Path, *, max_tokens: int, held_out_every: int = 20) -> None:
        paths = sorted(folder.glob("states-*.safetensors"))
        if not paths:
            raise ConfigError(f"data={folder} holds no states of conversations; let train-drafter make some there")
        self._files = [cast(Any, safe_open(path, framework="pt", device="cpu")) for path in paths]
        self._places: list[tuple[int, int, Conversation]] = []
        for number, path in enumerate(paths):
            conversations = read_conversations(path.with_name(path.name.replace("states", "conversations")))
            starts = accumulate((len(each.token_ids) for each in conversations), initial=0)
            self._places += [(number, start, each) for start, each in zip(starts, conversations, strict=False)]
        self._max_tokens = max_tokens
        whole = [
            index for index, (_, _, each) in enumerate(self._places) if each.num_prompt_tokens < self.num_tokens(index)
        ]
        self.held_out = whole[::held_out_every]
        held_out = set(self.held_out)
        self.training = [index for index in whole if index not in held_out]
        if not self.training:
            raise ConfigError(
                f"of {len(self._places)} conversations in data={folder}, {len(whole)} have some of their answer within "
                f"max_tokens={max_tokens}: too few to train on and to judge by; raise max_tokens= or conversations="
            )

    def num_tokens(self, index: int) -> int:
        """Of one conversation, as far as it is used."""
        return min(self._max_tokens, len(self._places[index][2].token_ids))

    def num_answer_tokens(self, index: int) -> int:
        """Those of its answer."""
        return self.num_tokens(index) - self._places[index][2].num_prompt_tokens

    def answer(self, index: int) -> tuple[int, ...]:
        """The tokens of one answer."""
        conversation = self._places[index][2]
        return conversation.token_ids[conversation.num_prompt_tokens : self.num_tokens(index)]

    def load(self, index: int, layers: Sequence[int], device: torch.device) -> Sequenced:
        """One conversation with the states of some layers."""
        number, start, conversation = self._places[index]
        end = start + self.num_tokens(index)
        states = {layer: self._files[number].get_slice(str(layer))[start:end].to(device) for layer in layers}
        ids = torch.tensor(conversation.token_ids[: self.num_tokens(index)], device=device)
        return Sequenced(ids, conversation.num_prompt_tokens, states)
