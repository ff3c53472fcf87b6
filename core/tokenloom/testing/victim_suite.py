"""What every victim policy must keep: alone, and under the built-in scheduler in an engine without enough memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields

import pytest
from hypothesis import given

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimPolicy
from tokenloom.request import Request, RequestStatus
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.engine_under_fcfs import engine_under_fcfs
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.stub_model import stub_request
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.surroundings import CLOCKS, clock_at
from tokenloom.testing.workloads import SaltedId, Workload, play, workloads

__all__ = ["VictimSuite"]

LIMITS = SchedulerContext(8, 64, 256, 4, 32)


class VictimSuite(PluginSuite):
    """The rules of `VictimPolicy` in `tokenloom.interfaces.scheduling_policy`."""

    kind = "scheduler.victim"

    @pytest.mark.parametrize("count", [1, 2, 5, 8])
    def test_the_victim_is_a_candidate(self, count: int) -> None:
        """`select` returned something that is not among the candidates, nor None.

        A copy of a candidate is none; the requester is one, and may give up its own place.
        """
        policy = self.build()
        for seed in range(20):
            candidates = _candidates(count, seed)
            for request in candidates:
                victim = policy.select(request, candidates, _view(candidates))
                is_legal = victim is None or any(victim is candidate for candidate in candidates)
                assert is_legal, f"{victim!r} is not one of {[c.request_id for c in candidates]}"

    def test_candidates_that_are_all_alike_are_no_problem(self) -> None:
        """`select` failed, or named no candidate, where nothing tells one from the other."""
        candidates = [stub_request(f"r{i}", [1] * 9, status=RequestStatus.RUNNING) for i in range(4)]
        policy = self.build()
        victim = policy.select(candidates[1], candidates, _view(candidates))
        assert victim is None or victim in candidates, f"{victim!r} is no candidate"

    def test_equal_candidates_give_equal_choices(self) -> None:
        """Asked again, at another time, or in a second run, `select` chose another victim among the same candidates.

        Usual causes: the order of a set, `id()` or `hash()` of an object, a generator without a seed, real time.
        """
        for seed in range(20):
            chosen = []
            for run in range(2):
                candidates = _candidates(6, seed, run)
                policy, view = self.build(), _view(candidates)
                for now_s in CLOCKS[2 * run : 2 * run + 2]:
                    with clock_at(now_s):
                        victim = policy.select(candidates[0], candidates, view)
                    chosen.append(None if victim is None else str(victim.request_id))
            assert len(set(chosen)) == 1, f"chose {chosen[:2]}, and in another run {chosen[2:]}"

    def test_select_changes_nothing(self) -> None:
        """`select` changed a candidate, the list of them, or kept something.

        It is called while a step is planned, and the plan may be dropped.
        """
        policy, candidates = self.build(), _candidates(6, 1)
        before = _snapshot(candidates)
        policy.select(candidates[0], candidates, _view(candidates))
        size = footprint_bytes(policy)
        for _ in range(50):
            for request in list(candidates):
                policy.select(request, candidates, _view(candidates))
        assert _snapshot(candidates) == before, f"the candidates were {before}, and are {_snapshot(candidates)}"
        grown = footprint_bytes(policy)
        assert grown == size, f"the policy had {size} bytes before 300 calls, {grown} after them"

    def test_growing_requests_get_their_memory(self) -> None:
        """Eight growing requests on the memory of four did not all end, or took more steps than one after the other.

        Without a victim nobody can go on; with victims that take turns nobody gets to an end.
        """
        harness = self.engine(Workload((), 4 * 6 + 1, 4, 64, 8))
        requests = [harness.request(f"r{i}", range(100 * i, 100 * i + 8), 16) for i in range(8)]
        harness.run(*requests)
        harness.check_truth()
        num_steps = len(harness.executor.plans)
        assert num_steps <= 8 * 16, f"{num_steps} steps, one after the other they take {8 * 16}"

    @RANDOM
    @given(workload=workloads())
    def test_random_traffic_ends(self, workload: Workload) -> None:
        """Some traffic never came to its end, or a request got other tokens than it gets alone."""
        harness = self.engine(workload)
        harness.check_truth(but=play(harness, workload.arrivals))

    # ---- machinery ----

    def build(self) -> VictimPolicy:
        """The policy under test."""
        policy = self.make_config().build(LIMITS)
        assert isinstance(policy, VictimPolicy), f"build() returned a {type(policy).__name__}, not a VictimPolicy"
        return policy

    def engine(self, workload: Workload) -> EngineHarness:
        """An engine of the workload's size, under the built-in scheduler with this policy."""
        return engine_under_fcfs(workload, PluginChoice(self.kind, self.info.name, self.make_config()))


def _candidates(count: int, seed: int, run: int = 0) -> list[Request]:
    """Running requests; those of another run differ only in what must not matter."""
    rng = random.Random(f"{seed} {count}")
    made = []
    for index in range(count):
        name = SaltedId(f"r{index}", 2 * seed + run)
        request = stub_request(name, range(rng.randrange(4, 40)), status=RequestStatus.RUNNING)
        request.num_computed_tokens = rng.randrange(4, request.num_tokens + 1)
        request.output_token_ids = [0] * rng.randrange(3)
        request.priority, request.tenant = rng.randrange(3), rng.choice(["", "a", "b"])
        request.num_preemptions, request.arrival_time_s = rng.randrange(2), float(rng.randrange(3))
        made.append(request)
    return made


def _view(running: Sequence[Request]) -> SchedulerView:
    return SchedulerView(5, 9.0, (), tuple(running), LIMITS)


def _snapshot(requests: Sequence[Request]) -> list[list[str]]:
    return [[repr(getattr(request, item.name)) for item in fields(request)] for request in requests]
