"""What every scheduler must keep about memory: victims, preemption, and what is left of requests that ended."""

from __future__ import annotations

from functools import partial

import pytest

from tokenloom.batch import PreemptMode
from tokenloom.testing.desk import Desk
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.scheduler_rig import SchedulerRig, assert_equal_runs, request_in_state
from tokenloom.testing.workloads import BUSY, Workload, play

__all__ = ["BLOCK", "TINY", "SchedulerMemorySuite"]

BLOCK = 4
TINY = Workload(BUSY, num_blocks=9, block_size=BLOCK, budget=9, max_num_seqs=5)


class SchedulerMemorySuite(SchedulerRig):
    """The part of `SchedulerSuite` that is about preemption and endings."""

    # ---- memory ----

    def test_victims_hold_memory_and_are_not_scheduled(self) -> None:
        """A plan preempted a request that does not run, that it also schedules, or twice.

        `ledger.preempt` cancels a grant; a plan made by hand must do the same.
        """
        harness, watched = self.engine(TINY)
        play(harness, BUSY)
        for step in watched.decisions:
            victims = set(step.victims)
            assert victims <= set(step.running), f"{victims - set(step.running)} did not run: {step}"
            both = victims & set(step.num_scheduled_tokens)
            assert not both, f"{both} are scheduled and preempted: {step}"
            assert len(victims) == len(step.victims), f"a victim appears twice: {step}"

    def test_growing_requests_are_not_preempted_in_a_storm(self) -> None:
        """More than half of the running requests were preempted in one step, where each frees room for several.

        Stop as soon as the request fits: `reserve` after every `preempt`.
        """
        harness, watched = self.engine(Workload((), 4 * 6 + 1, BLOCK, 64, 8))
        harness.run(*[harness.request(f"r{i}", range(100 * i, 100 * i + 8), 16) for i in range(8)])
        harness.check_truth()
        for step in watched.decisions:
            most = max(1, len(step.running) // 2)
            assert len(step.victims) <= most, f"{len(step.victims)} of {len(step.running)} were preempted: {step}"

    def test_blocks_on_their_way_stop_preemption(self) -> None:
        """All requests are in flight, so a victim's blocks are free only when the step lands; more victims fell.

        Once `Shortfall.pending` >= `Shortfall.missing`, preempting more gains nothing now: wait.
        """
        desk = Desk((9,), cache="none", budget=self.budget(64))
        for index in range(4):
            request = desk.run(f"r{index}", range(20 * index, 20 * index + 8), 7)
            request.num_inflight_tokens = request.num_placeholder_tokens = 1
        victims = [victim.request_id for victim in self.plan(desk, num_inflight=1).preemptions]
        assert len(victims) <= 2, f"preempted {victims}, though two blocks of each are on their way after the first"

    def test_a_request_whose_tokens_are_all_in_flight_is_left_alone(self) -> None:
        """A running request that needs nothing in this step was scheduled or preempted."""
        desk = Desk(budget=self.budget(16))
        desk.run("a", range(9)).num_inflight_tokens = 1
        desk.wait("w", [1, 2])
        plan = self.plan(desk, num_inflight=1)
        assert not plan.preemptions, f"{plan}"
        assert "a" not in plan.num_scheduled_tokens, f"{plan}"

    @pytest.mark.parametrize("mode", list(PreemptMode))
    @pytest.mark.parametrize("cache", ["hash", "none"])
    def test_a_preempted_request_goes_on_where_it_was(self, cache: str, mode: PreemptMode) -> None:
        """A request that was preempted, at one of its output positions, did not come back or went on with other tokens.

        The preemption is not of the scheduler's making; it learns of it by `RequestPreempted`, as of any other. Who
        waits may be PREEMPTED or SWAPPED. What a request needs follows from `ledger.need`, never from its output.
        """
        for position in range(1, 2 * BLOCK + 2):
            harness, _ = self.engine(Workload((), 32, BLOCK, 16, 4, cache=cache), preempts=("victim", position, mode))
            victim = harness.request("victim", range(BLOCK + 1), 3 * BLOCK)
            harness.run(harness.request("companion", range(50, 53), 12 * BLOCK), victim)
            assert victim.num_preemptions > 0, f"nothing was preempted at output position {position}"
            harness.check_truth()

    def test_a_preemption_told_again_changes_nothing(self) -> None:
        """The same traffic was planned in another way when each preemption was told twice.

        It is told again of a request that waits and loses blocks that it had kept. Let what is kept by request follow
        from where the request stands: a second entry in a queue of your own is one too many.
        """
        for victim in ("r0", "r1", "r4"):
            runs, preempts = [], (victim, 1, PreemptMode.RECOMPUTE)
            for tells_twice in (False, True):
                harness, watched = self.engine(TINY, tells_twice=tells_twice, preempts=preempts)
                play(harness, BUSY)
                runs.append(watched.decisions)
            assert_equal_runs(*runs)

    # ---- endings ----

    @pytest.mark.parametrize("state", ["unknown", "waiting", "prefilling", "decoding", "preempted", "finished"])
    def test_an_aborted_request_is_forgotten(self, state: str) -> None:
        """A request was aborted in this state, and the scheduler still named it, or hurt a later one of that id.

        Whatever state is kept by request must go at `RequestFinished`, which comes once, in any state.
        """
        harness, _ = self.engine(Workload((), 6, BLOCK, 6, 2))
        harness.add(*[harness.request(f"r{i}", range(20 * i, 20 * i + 7), 9) for i in range(4)])
        target = request_in_state(harness, state)
        name = "unknown" if target is None else target.request_id
        output = harness.engine.abort(name)
        assert (output is None) == (target is None or state == "finished"), f"abort of {name} returned {output}"
        assert harness.engine.abort(name) is None, f"{name} was aborted twice"
        if target is not None:
            harness.tokens.pop(name, None)
            harness.last.pop(name, None)
            harness.add(harness.request(name, range(90, 97), 9))
        harness.run()
        harness.check_truth()

    def test_requests_that_ended_take_no_memory(self) -> None:
        """After 200 requests, the scheduler held more memory than after 20, though none was left.

        What is kept by request must go at `RequestFinished`. Each preemption is told twice here, see above.
        """
        harness, watched = self.engine(TINY, tells_twice=True)
        sizes = []
        for turn in range(20):
            play(harness, BUSY, partial("{1}_{0}".format, turn))
            sizes.append(footprint_bytes(watched.inner))
        assert sizes[-1] <= 1.5 * sizes[1], f"{sizes[1]} bytes after 20 requests, {sizes[-1]} after 200"
