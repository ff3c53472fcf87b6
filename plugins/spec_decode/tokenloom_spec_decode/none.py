"""No speculative decoding: never proposes, and has no policy that would ask it to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    Proposal,
    SpecDecodeConfig,
)

__all__ = ["NoneConfig", "NoneDrafter"]


@final
class NoneConfig(SpecDecodeConfig):
    """`spec_decode=none` has no settings."""

    def build(self, context: DrafterContext) -> NoneDrafter:
        return NoneDrafter()


@final
class NoneDrafter(Drafter):
    """Answers every request with an empty proposal."""

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [Proposal()] * len(batch.request_ids)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""
