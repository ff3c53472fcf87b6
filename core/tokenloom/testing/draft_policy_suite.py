"""The conformance suite of draft-length policies: counts, determinism, and state that changes in `observe` alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast, final

import pytest

from tokenloom.interfaces.draft_policy import (
    DraftPolicy,
    DraftPolicyConfig,
    DraftPolicyContext,
    DraftStep,
    VerifiedDrafts,
)
from tokenloom.request import RequestStatus, RequestView
from tokenloom.testing.footprint import bytes_leaked
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.surroundings import CLOCKS, clock_at

__all__ = ["DraftPolicySuite", "SeenRequest"]

_NUM_RUNNING = (1, 2, 8, 64)
_CONTEXT = DraftPolicyContext(max_num_seqs=64, max_num_batched_tokens=512)


@final
@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as a policy may see it: every field of `RequestView`, none of which can be written to."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_drafts: int = 0
    max_total_tokens: int = 200
    status: RequestStatus = RequestStatus.RUNNING
    arrival_time_s: float = 1.0
    priority: int = 0
    tenant: str = ""
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    retention_priority: int = 0
    retention_ttl_s: float | None = None
    first_token_time_s: float | None = 2.0
    num_inflight_tokens: int = 0
    num_placeholder_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_computed_tokens(self) -> int:
        return max(0, self.num_tokens - 1)


class DraftPolicySuite(PluginSuite):
    """Tests of the sub-kind `spec_decode.policy` in `tokenloom.interfaces.draft_policy`::

        class TestMine(DraftPolicySuite):
            plugin = "my_policy"

    The flag `shared_statistics` says that what one request has shown enters the answers for others.
    """

    kind: ClassVar[str] = "spec_decode.policy"

    def test_num_drafts_is_a_count(self) -> None:
        """`num_drafts` returned something else than a whole number from 0 up.

        It is asked for every request in every step: new ones, preempted ones, ones at their end, alone or among many.
        The core caps the answer by what the request has room for.
        """
        policy = self.policy()
        for step, verified in enumerate(_history()):
            for request in _requests(step):
                for num_running in _NUM_RUNNING:
                    self._ask(policy, request, num_running)
            _tell(policy, verified, 0.01)

    def test_num_drafts_changes_nothing(self) -> None:
        """Asking more often, or about other requests too, led to other answers later.

        State changes in `observe` alone: a plan may be dropped, and the same question asked again.
        """
        asked, quiet = self.policy(), self.policy()
        for step, verified in enumerate(_history()):
            for request in _requests(step):
                for num_running in _NUM_RUNNING:
                    self._ask(asked, request, num_running)
            assert self._answers(asked, step) == self._answers(quiet, step), f"step {step}: asking changed the answers"
            _tell(asked, verified, 0.01)
            _tell(quiet, verified, 0.01)

    def test_equal_histories_give_equal_answers(self) -> None:
        """A second policy of the same config that observed the same gave other answers.

        Draw from no generator without a seed, and read no clock: durations come with `observe`.
        """
        for first_s, second_s in itertools.pairwise(CLOCKS):
            first, second = self.policy(), self.policy()
            for step, verified in enumerate(_history()):
                with clock_at(first_s + step):
                    answers = self._answers(first, step)
                    _tell(first, verified, 0.01)
                with clock_at(second_s):
                    found = self._answers(second, step)
                    _tell(second, list(verified), 0.01)
                assert answers == found, f"step {step}: {answers} at {first_s + step} s, {found} at {second_s} s"

    @pytest.mark.parametrize("duration_s", [0.0, 1e-9, 1e6])
    def test_observe_takes_every_outcome(self, duration_s: float) -> None:
        """`observe` failed, or made `num_drafts` fail.

        A step may verify nothing, all of a chain or of a tree, drafts of a request that has just ended, or of one that
        the policy was never asked about; and clocks are coarse.
        """
        policy = self.policy()
        for verified in (
            [],
            [VerifiedDrafts("r0", 4, 0, 4)],
            [VerifiedDrafts("r0", 4, 4, 4), VerifiedDrafts("never_asked", 1, 1, 1)],
            [VerifiedDrafts("r1", 12, 3, 3)],
            [VerifiedDrafts("r1", 64, 0, 1)],
        ):
            _tell(policy, verified, duration_s)
            for request in _requests(1):
                self._ask(policy, request, 2)
        policy.forget("r0")
        _tell(policy, [VerifiedDrafts("r0", 4, 1, 4)], duration_s)
        self._ask(policy, SeenRequest("r0", 3, 1), 1)

    def test_a_forgotten_id_is_a_new_request(self) -> None:
        """After `forget`, an id that was used again got the answers of its first owner; or an unknown id failed.

        The core calls it for each request that ends. A preempted request keeps its state.
        """
        policy = self.policy()
        policy.forget("never_seen")
        if "shared_statistics" in self.capabilities.flags:
            pytest.skip("the plugin declares shared_statistics: earlier requests may show")
        for verified in _history():
            _tell(policy, verified, 0.01)
        for request in _requests(0):
            policy.forget(request.request_id)
        fresh = self.policy()
        for step, verified in enumerate(_history()):
            assert self._answers(policy, step) == self._answers(fresh, step), f"step {step}: old state shows"
            _tell(policy, verified, 0.01)
            _tell(fresh, verified, 0.01)

    def test_requests_that_ended_take_no_memory(self) -> None:
        """The policy kept growing with the number of requests, though each of them was forgotten.

        What is kept by request must go at `forget`; a history of outcomes needs a bound.
        """
        policy = self.policy()

        def live(number: int) -> None:
            for step, accepted in enumerate((4, 0, 2)):
                policy.num_drafts(SeenRequest(f"r{number}", 5, step), 8)
                _tell(policy, [VerifiedDrafts(f"r{number}", 4, accepted, 4)], 0.01)
            policy.forget(f"r{number}")

        leaked = bytes_leaked(policy, live, 2_000)
        assert not leaked, f"it grows by {leaked} bytes with every request"

    def policy(self) -> DraftPolicy:
        """A new policy of the plugin."""
        policy = cast(DraftPolicyConfig, self.make_config()).build(_CONTEXT)
        assert isinstance(policy, DraftPolicy), f"build() returned {policy!r}, which is no DraftPolicy"
        return policy

    def _answers(self, policy: DraftPolicy, step: int) -> list[int]:
        return [self._ask(policy, request, num_running) for request in _requests(step) for num_running in (1, 8)]

    def _ask(self, policy: DraftPolicy, request: RequestView, num_running: int) -> int:
        count = policy.num_drafts(request, num_running)
        assert type(count) is int, f"num_drafts() returned {count!r}, which is no plain whole number"
        assert count >= 0, f"num_drafts() returned {count}"
        return count


def _tell(policy: DraftPolicy, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
    """A step as the core tells of it: with the requests that drafted, and another one."""
    num_rows, num_drafts = len(verified) + 1, sum(drafts.num_drafts for drafts in verified)
    policy.observe_step(DraftStep(verified, duration_s, num_rows, num_rows, num_drafts, duration_s / 8))


def _requests(step: int) -> list[SeenRequest]:
    """Some requests in their `step`-th step: fresh, running, preempted, and one with room for a single token."""
    return [
        SeenRequest("r0", 5, step),
        SeenRequest("r1", 40, 3 * step, num_drafts=4),
        SeenRequest("r2", 7, step, status=RequestStatus.PREEMPTED, num_preemptions=2),
        SeenRequest("r3", 9, step, max_total_tokens=10 + step),
        SeenRequest("r4", 3, 0, status=RequestStatus.WAITING, first_token_time_s=None),
    ]


def _history() -> Iterator[Sequence[VerifiedDrafts]]:
    """Outcomes of a run: first all drafts are accepted, then fewer and fewer, then none."""
    for step in range(12):
        accepted = max(0, 4 - step // 2)
        yield [VerifiedDrafts("r0", 4, accepted, 4), VerifiedDrafts("r1", 6, min(2, accepted), 3)][: 1 + step % 2]
