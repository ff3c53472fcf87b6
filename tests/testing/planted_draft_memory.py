"""A drafter with KV memory, the kit's own tiny model, right or with one planted bug in how it keeps that memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final

import numpy as np

from tokenloom.interfaces.contract import PluginChoice, PluginInfo
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    DraftKVGroup,
    Proposal,
    SpecDecodeConfig,
)
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom_spec_decode.draft_model import DraftModelDrafter, DraftSizes
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig

__all__ = ["MEMORY_BUGS", "PLANTED_MEMORY"]

_MODEL = TinyDecoder(seed=3)
Bug = Literal[
    "none",
    "no heads",
    "heads that do not divide",
    "two shapes of heads",
    "leaves prompt chunks out",
    "keeps what was written",
]
MEMORY_BUGS: dict[str, str] = {
    "no heads": "groups_of_a_drafter_are_legal",
    "heads that do not divide": "groups_of_a_drafter_are_legal",
    "two shapes of heads": "groups_of_a_drafter_are_legal",
    "leaves prompt chunks out": "drafts_do_not_depend_on_what_became_of_memory",
    "keeps what was written": "drafts_do_not_depend_on_what_became_of_memory",
}
"""Bug -> the test that must fail, without "test_"."""


@final
class PlantedMemoryConfig(SpecDecodeConfig):
    """Says which bug."""

    bug: Bug = "none"

    def draft_policy(self) -> PluginChoice:
        return PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())

    def build(self, context: DrafterContext) -> Drafter:
        return _PlantedMemory(context, self.bug)


@final
class _PlantedMemory(Drafter):
    def __init__(self, context: DrafterContext, bug: Bug) -> None:
        sizes = DraftSizes(_MODEL.num_heads, _MODEL.num_kv_heads, _MODEL.head_dim, _MODEL.vocab_size)
        self._inner = DraftModelDrafter(_MODEL, sizes, context)
        self._bug = bug

    def needs(self) -> DrafterNeeds:
        needs = self._inner.needs()
        wrong: dict[str, tuple[DraftKVGroup, ...]] = {
            "no heads": (DraftKVGroup(1, 0, 8),),
            "heads that do not divide": (DraftKVGroup(1, 2, 8, num_heads=3),),
            "two shapes of heads": (DraftKVGroup(1, 2, 8), DraftKVGroup(1, 2, 16)),
        }
        return replace(needs, kv_groups=wrong[self._bug]) if self._bug in wrong else needs

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        if self._bug != "leaves prompt chunks out":
            return self._inner.propose(batch)
        kept = [place for place, most in enumerate(batch.max_drafts) if most]
        proposals = [Proposal()] * len(batch.request_ids)
        if kept:
            assert batch.cu_hidden is not None
            counts = np.diff(batch.cu_hidden)[kept]
            part = replace(
                batch,
                request_ids=[batch.request_ids[place] for place in kept],
                token_ids=[batch.token_ids[place] for place in kept],
                max_drafts=[batch.max_drafts[place] for place in kept],
                chain_only=[batch.chain_only[place] for place in kept],
                first_positions=[batch.first_positions[place] for place in kept],
                cu_hidden=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                sampling=[batch.sampling[place] for place in kept],
            )
            for place, proposal in zip(kept, self._inner.propose(part), strict=True):
                proposals[place] = proposal
        return proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        if self._bug != "keeps what was written":
            self._inner.forget(request_ids)


PLANTED_MEMORY = PluginInfo(
    "spec_decode", "planted_memory", "tests.testing.planted_draft_memory:PlantedMemoryConfig", (1, 2), "For tests."
)
