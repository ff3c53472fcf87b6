"""What every admission policy must keep: asked alone, and under the built-in scheduler in an engine short of memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar, final

import pytest
from hypothesis import given
from pydantic import ConfigDict

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.ledger import Grant, Ledger
from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import AdmissionConfig, AdmissionPolicy
from tokenloom.request import Request
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.engine_under_fcfs import engine_under_fcfs
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.surroundings import CLOCKS, clock_at
from tokenloom.testing.workloads import BUSY, SaltedId, Workload, play, workloads

__all__ = ["AdmissionSuite"]

LIMITS = SchedulerContext(8, 64, 256, 4, 32)


class AdmissionSuite(PluginSuite):
    """The rules of `AdmissionPolicy` in `tokenloom.interfaces.scheduling_policy`."""

    kind = "scheduler.admission"

    @pytest.mark.parametrize("num_running", [1, 2, 5])
    def test_the_answer_is_a_count(self, num_running: int) -> None:
        """`num_missing_blocks` returned no integer, or one below 0.

        0 lets the request start; a policy whose `can_refuse` is False is not asked, so it must not give anything else.
        """
        policy = self.build()
        for seed in range(20):
            missing = _Question.draw(num_running, seed).ask(policy)
            is_count = isinstance(missing, int) and not isinstance(missing, bool) and missing >= 0
            assert is_count, f"{missing!r} is no number of blocks"
            assert policy.can_refuse or missing == 0, f"can_refuse is False, but {missing} blocks lack"

    def test_equal_questions_give_equal_answers(self) -> None:
        """Asked again, at another time, or in a second run, it gave another answer to the same question.

        Usual causes: the order of a set, `id()` or `hash()` of an object, a generator without a seed, real time.
        """
        for seed in range(20):
            answers = []
            for run in range(2):
                policy, question = self.build(), _Question.draw(4, seed, run)
                for now_s in CLOCKS[2 * run : 2 * run + 2]:
                    with clock_at(now_s):
                        answers.append(question.ask(policy))
            assert len(set(answers)) == 1, f"answered {answers[:2]}, and in another run {answers[2:]}"

    def test_asking_changes_nothing(self) -> None:
        """`num_missing_blocks` changed a request, the list of them or the ledger, or kept something.

        It is called while a step is planned, and the plan may be dropped. What is learned comes through `observe`.
        """
        policy, question = self.build(), _Question.draw(6, 1)
        before = question.snapshot()
        question.ask(policy)
        size = footprint_bytes(policy)
        for _ in range(50):
            question.ask(policy)
        assert question.snapshot() == before, f"what it was asked about was {before}, and is {question.snapshot()}"
        grown = footprint_bytes(policy)
        assert grown == size, f"the policy had {size} bytes before 50 questions, {grown} after them"

    def test_ample_memory_keeps_nobody_out(self) -> None:
        """Eight requests for eight slots, whose longest sequences fit beside each other ten times, did not run at once.

        What the policy looks at is memory; how many run, and whose turn it is, is the scheduler's to say.
        """
        harness = self.engine(Workload((), 10 * 8 * 6 + 1, 4, 64, 8))
        harness.add(*[harness.request(f"r{i}", range(100 * i, 100 * i + 8), 16) for i in range(8)])
        harness.step()
        running = harness.engine.num_running
        assert running == 8, f"{running} of 8 requests run, on memory for 80"

    def test_who_is_kept_out_starts_in_the_end(self) -> None:
        """Of ten requests on memory for one or two of them, some never started, or one got other tokens than alone.

        With nobody beside it a request is not asked about; else others end sooner or later, and leave their blocks.
        """
        harness = self.engine(Workload(BUSY, num_blocks=9, block_size=4, budget=9, max_num_seqs=5))
        harness.check_truth(but=play(harness, BUSY))

    @RANDOM
    @given(workload=workloads())
    def test_random_traffic_ends(self, workload: Workload) -> None:
        """Some traffic never came to its end, or a request got other tokens than it gets alone."""
        harness = self.engine(workload)
        harness.check_truth(but=play(harness, workload.arrivals))

    def test_requests_that_ended_take_no_memory(self) -> None:
        """After 200 requests, the policy held more memory than after 20, though none was left.

        What is kept by request must go at `RequestFinished`.
        """
        policy = self.build()
        harness = self.engine(Workload(BUSY, num_blocks=9, block_size=4, budget=9, max_num_seqs=5), policy)
        sizes = []
        for turn in range(20):
            play(harness, BUSY, partial("{1}_{0}".format, turn))
            sizes.append(footprint_bytes(policy))
        assert sizes[-1] <= 1.5 * sizes[1], f"{sizes[1]} bytes after 20 requests, {sizes[-1]} after 200"

    # ---- machinery ----

    def build(self) -> AdmissionPolicy:
        """The policy under test."""
        policy = self.make_config().build(LIMITS)
        assert isinstance(policy, AdmissionPolicy), f"build() returned a {type(policy).__name__}, no AdmissionPolicy"
        return policy

    def engine(self, workload: Workload, policy: AdmissionPolicy | None = None) -> EngineHarness:
        """An engine of the workload's size, under the built-in scheduler with this policy, or a new one."""
        config = self.make_config() if policy is None else _Given(policy=policy)
        return engine_under_fcfs(workload, PluginChoice(self.kind, self.info.name, config))


@final
class _Given(AdmissionConfig):
    """Builds a policy that exists."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    policy: AdmissionPolicy

    def build(self, context: SchedulerContext) -> AdmissionPolicy:  # noqa: ARG002
        return self.policy


@final
@dataclass(frozen=True, slots=True)
class _Question:
    """A request that could start beside others, as a policy is asked about it."""

    request: Request
    others: list[Request]
    view: SchedulerView
    ledger: Ledger

    @classmethod
    def draw(cls, num_running: int, seed: int, run: int = 0) -> _Question:
        """Running requests and one that waits, on little memory; another run differs only in what must not matter."""
        rng, desk = random.Random(f"{seed} {num_running}"), Desk((60,))
        for index in range(num_running):
            length, start = rng.randrange(6, 30), 100 * rng.randrange(1, 4)
            request = desk.run(SaltedId(f"r{index}", 2 * seed + run), range(start, start + length), length - 1)
            _vary(request, rng)
        waiting = desk.wait(SaltedId("w", run), range(100, 100 + rng.randrange(2, 20)))
        _vary(waiting, rng)
        ledger, view = desk.ledger(defers=False), desk.view()
        for request in [*desk.running, waiting]:
            granted = ledger.reserve(request, ledger.need(request))
            assert isinstance(granted, Grant), f"{request.request_id} did not fit: {granted}"
        return cls(waiting, list(desk.running), view, ledger)

    def ask(self, policy: AdmissionPolicy) -> int:
        """The policy's answer."""
        return policy.num_missing_blocks(self.request, self.others, self.view, self.ledger)

    def snapshot(self) -> list[object]:
        """Everything that asking must leave alone."""
        requests: Sequence[Request] = (*self.others, self.request)
        ledger = self.ledger
        counts = [ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks, ledger.num_preempted]
        granted = [ledger.num_granted_tokens(request) for request in requests]
        return [*counts, *granted, *([repr(getattr(r, item.name)) for item in fields(r)] for r in requests)]


def _vary(request: Request, rng: random.Random) -> None:
    request.max_total_tokens = request.num_tokens + rng.randrange(1, 60)
    request.priority, request.tenant = rng.randrange(3), rng.choice(["", "a", "b"])
    request.num_preemptions, request.arrival_time_s = rng.randrange(2), float(rng.randrange(3))
