"""No speculative decoding: never proposes, and has no policy that would ask it to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    Proposal,
    SpecDecodeConfig,
    Verifier,
)

__all__ = ["NoneConfig", "NoneDrafter"]


@final
class NoneConfig(SpecDecodeConfig):
    """`spec_decode=none` has no settings."""

    # No key of this plugin: where nothing is drafted there is nothing to choose.
    verifier: ClassVar[Verifier] = "position_noise"  # type: ignore[misc]

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
