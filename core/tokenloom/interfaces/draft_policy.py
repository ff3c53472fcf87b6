"""Contract `spec_decode.policy` 1.1: how many tokens to draft for each request in each step.

Flag in the capabilities: "shared_statistics", what one request has shown enters the answers for others.

Changes:
    1.1  `DraftPolicy.observe_step`, which tells what the step was made of and how long proposing took. Policies written
         for 1.0 run as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig
from tokenloom.request import RequestView

__all__ = [
    "POLICY_CONTRACT_VERSION",
    "DraftPolicy",
    "DraftPolicyConfig",
    "DraftPolicyContext",
    "DraftStep",
    "VerifiedDrafts",
]

POLICY_CONTRACT_VERSION = CONTRACT_VERSIONS["spec_decode.policy"]


@dataclass(frozen=True, slots=True)
class DraftPolicyContext:
    """What a policy knows when it is built: the tokens per step and requests it may count on."""

    max_num_seqs: int
    max_num_batched_tokens: int


class DraftPolicyConfig(PluginConfig):
    """Base of policy Configs. `build` takes a `DraftPolicyContext`."""

    @abstractmethod
    def build(self, context: DraftPolicyContext) -> DraftPolicy: ...


@dataclass(frozen=True, slots=True)
class VerifiedDrafts:
    """What became of one request's drafts in a step, as the target judged them (before any stop cut the output).

    Attributes:
        request_id: whose.
        num_drafts: drafts (nodes) verified.
        num_accepted_tokens: of them accepted.
        max_depth: longest path among them; equals num_drafts for a chain.
    """

    request_id: str
    num_drafts: int
    num_accepted_tokens: int
    max_depth: int


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A step that has landed.

    Attributes:
        verified: of each request whose drafts were verified, what became of them.
        duration_s: seconds from the plan to the landing.
        num_rows: requests that ran.
        num_own_tokens: tokens that ran and are no drafts; equals num_rows if no request ran a chunk of its prompt.
        num_proposed: drafts that were proposed for the steps to come.
        draft_s: of the duration, the seconds that proposing them took.
    """

    verified: Sequence[VerifiedDrafts]
    duration_s: float
    num_rows: int
    num_own_tokens: int
    num_proposed: int
    draft_s: float


class DraftPolicy(ABC):
    """Decides how many tokens to draft; the sub-kind `spec_decode.policy`. Runs in the core, real or simulated."""

    @abstractmethod
    def num_drafts(self, request: RequestView, num_running: int) -> int:
        """Most drafts to propose for `request` after the coming step; 0 switches drafting off for it."""

    @abstractmethod
    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
        """Is told each step's outcome and how long the step took.

        State changes here (or in `observe_step`) and in `forget` alone. A request may have been forgotten before the
        outcome of its last step is told.
        """

    def observe_step(self, step: DraftStep) -> None:
        """Is told of each step in full: what the core calls. By default it calls `observe`."""
        self.observe(step.verified, step.duration_s)

    @abstractmethod
    def forget(self, request_id: str) -> None:
        """Drops the state of a request that ended."""
