"""The plainest draft-length policy: the same number of drafts for every request in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.spec_decode import DraftPolicy, DraftPolicyConfig, DraftPolicyContext, VerifiedDrafts
from tokenloom.request import RequestView

__all__ = ["FixedPolicy", "FixedPolicyConfig"]


@final
class FixedPolicyConfig(DraftPolicyConfig):
    """Settings of `spec_decode/policy=fixed`."""

    num_draft_tokens: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4, description="Most tokens to propose for a request in a step."
    )

    def build(self, context: DraftPolicyContext) -> FixedPolicy:
        return FixedPolicy(self.num_draft_tokens)


@final
class FixedPolicy(DraftPolicy):
    """Keeps no state."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def num_drafts(self, request: RequestView, num_running: int) -> int:
        return self._num_draft_tokens

    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
        """Nothing to learn."""

    def forget(self, request_id: str) -> None:
        """Keeps no state."""
