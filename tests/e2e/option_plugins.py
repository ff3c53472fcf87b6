"""Plugins for tests of sampling options: a drafter that knows scripts by heart, and a faulty logits processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

import torch
from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice, PluginInfo
from tokenloom.interfaces.logits_processor import (
    LogitsProcessor,
    LogitsProcessorConfig,
    LogitsProcessorContext,
    LogitsRow,
)
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    Proposal,
    SpecDecodeConfig,
)
from tokenloom.plugins import hookimpl

__all__ = ["FaultyConfig", "ScriptedConfig", "tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins under test conditions only."""
    here = "tests.e2e.option_plugins"
    return [
        PluginInfo("spec_decode", "scripted", f"{here}:ScriptedConfig", (1, 0), "For tests."),
        PluginInfo("logits_processor", "faulty", f"{here}:FaultyConfig", (1, 0), "For tests."),
    ]


class ScriptedConfig(SpecDecodeConfig):
    """Sequences that the drafter knows, and the form of its proposals."""

    scripts: tuple[tuple[int, ...], ...]
    is_tree: bool = False
    policy: PluginChoice

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> Drafter:
        return Scripted(self, context.vocab_size)


@final
class Scripted(Drafter):
    """Proposes how a script goes on: as a chain with a wrong token now and then, or as a tree with wrong siblings."""

    def __init__(self, config: ScriptedConfig, vocab_size: int) -> None:
        self._config = config
        self._vocab_size = vocab_size

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        requests = zip(batch.token_ids, batch.max_drafts, batch.chain_only, strict=True)
        return [self._proposal(tuple(token_ids.tolist()), count, is_chain) for token_ids, count, is_chain in requests]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""

    def _proposal(self, token_ids: tuple[int, ...], count: int, is_chain: bool) -> Proposal:
        length = len(token_ids)
        known = [script for script in self._config.scripts if script[:length] == token_ids]
        right = known[0][length : length + count] if known else ()
        if is_chain or not self._config.is_tree:
            wrong = length % 5
            return Proposal(tuple(self._other(t) if index == wrong else t for index, t in enumerate(right)))
        nodes: list[int] = []
        parents: list[int] = []
        parent = -1
        for token_id in right:  # every right token behind a wrong sibling
            nodes += [self._other(token_id), token_id]
            parents += [parent, parent]
            parent = len(nodes) - 1
        return Proposal(tuple(nodes[:count]), tuple(parents[:count]))

    def _other(self, token_id: int) -> int:
        return (token_id + 1) % self._vocab_size


class FaultyConfig(LogitsProcessorConfig):
    """What goes wrong, at the output position `at`: "raise", "nan", "forbid" (everything) or "none"."""

    fault: str
    at: Annotated[int, Field(ge=0)] = 0

    def build(self, context: LogitsProcessorContext) -> LogitsProcessor:
        return Faulty()


@final
class Faulty(LogitsProcessor):
    """Does what each row's settings say."""

    def process(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        for index, row in enumerate(rows):
            settings = row.settings
            assert isinstance(settings, FaultyConfig)
            assert not row.token_ids.flags.writeable, "a processor may not change the tokens"
            if len(row.token_ids) - row.num_prompt_tokens != settings.at:
                continue
            if settings.fault == "raise":
                raise ValueError("on purpose")
            logits[index] = {"nan": torch.nan, "forbid": -torch.inf}.get(settings.fault, logits[index])
