"""What every scheduler must keep, run in the real engine on a stub model, and on the ledger alone."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import pytest
from hypothesis import given

from tokenloom.batch import PreemptMode
from tokenloom.errors import RequestError
from tokenloom.request import FinishReason
from tokenloom.testing.desk import Desk
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.scheduler_memory_suite import BLOCK, TINY, SchedulerMemorySuite
from tokenloom.testing.scheduler_rig import assert_equal_runs
from tokenloom.testing.workloads import BUSY, OUTSIDERS, SaltedId, Workload, outsider_request, play, workloads

__all__ = ["SchedulerSuite"]


class SchedulerSuite(SchedulerMemorySuite):
    """The rules of `tokenloom.interfaces.scheduler`.

    Flags by which a scheduler declares that it does *not* promise something:
        unbounded_wait: a request may wait for ever while others keep coming (strict priorities).
        spare_budget: it leaves tokens of a step's budget unused on purpose while prompts wait.
        whole_prompts: it never cuts a prompt, and needs max_num_batched_tokens >= max_model_len.

    Attributes:
        max_wait_s: the bound on waiting that the scheduler states: any request ends within this time of its arrival,
            if newcomers of which each takes one step keep the engine just busy. A step takes 1 s.
    """

    max_wait_s: ClassVar[float] = 100.0

    # ---- every plan ----

    @RANDOM
    @given(workload=workloads())
    def test_random_traffic_ends_and_each_request_yields_what_it_yields_alone(self, workload: Workload) -> None:
        """The core refused a plan, a request never ended, or one got other tokens than it gets alone.

        A refusal names the rule, see `tokenloom.scheduling.plan_check`. The example shown is the least one found.
        """
        harness, _ = self.engine(workload)
        harness.check_truth(but=play(harness, workload.arrivals))

    @pytest.mark.parametrize(("budget", "max_num_seqs"), [(1, 3), (5, 1), (7, 8), (64, 2)])
    def test_a_plan_keeps_to_the_budget_and_the_slots(self, budget: int, max_num_seqs: int) -> None:
        """A plan had more tokens than max_num_batched_tokens, or would run more than max_num_seqs requests.

        Both limits are in `view.limits`, and what is left of them on the ledger: remaining_tokens, remaining_slots.
        """
        harness, watched = self.engine(Workload(BUSY, 40, BLOCK, budget, max_num_seqs))
        play(harness, BUSY)
        budget = self.budget(budget)
        for step in watched.decisions:
            assert step.num_tokens <= budget, f"{step.num_tokens} tokens exceed the budget of {budget}: {step}"
            held = {*step.running, *step.num_scheduled_tokens} - {*step.victims}
            assert len(held) <= max_num_seqs, f"{len(held)} requests run in {max_num_seqs} slots: {step}"

    def test_every_step_computes_something(self) -> None:
        """A plan was empty although a request ran or waited, so that the engine would stand still.

        Nothing is in flight in this test: some request can always be served, if need be after preempting others.
        """
        harness, watched = self.engine(TINY)
        play(harness, BUSY)
        for step in watched.decisions:
            assert step.num_tokens > 0, f"nothing is scheduled: {step}"

    def test_schedule_gives_the_same_plan_when_asked_again(self) -> None:
        """`schedule` was called twice with the same view, and the second plan differed from the first.

        It must not change the scheduler's own state, nor draw from a generator that it keeps: a plan may be dropped.
        State changes in `observe` alone.
        """
        harness, watched = self.engine(TINY, asks_twice=True)
        play(harness, BUSY)
        assert not watched.changed_answers, watched.changed_answers[0]

    def test_equal_arrivals_give_equal_decisions(self) -> None:
        """The same requests at the same times led to other plans in a second run.

        Usual causes: the order of a set, `id()` or `hash()` of an object, real time, a generator without a seed.
        """
        runs = []
        for run in range(2):
            harness, watched = self.engine(TINY)
            play(harness, BUSY, partial(_salted, run))
            runs.append(watched.decisions)
        assert_equal_runs(*runs)

    # ---- prompts ----

    @pytest.mark.parametrize("length", [64, 65, 128, 129])
    def test_a_prompt_longer_than_the_budget_is_cut(self, length: int) -> None:
        """A prompt of budget + 1 tokens or more stalled, was cut into more steps than it takes, or changed its output.

        What does not fit into a step is computed in the next one. A scheduler that cannot cut declares whole_prompts.
        """
        harness, watched = self.engine(Workload((), 100, BLOCK, 64, 4))
        harness.run(harness.request("a", range(length), 1))
        harness.check_truth()
        if "whole_prompts" in self.capabilities.flags:
            counts = [step.num_tokens for step in watched.decisions]
            assert counts == [length], f"whole_prompts is declared, but the prompt was cut into {counts}"
        elif not self.spares_budget:
            num_steps = len(watched.decisions)
            assert num_steps == -(-length // 64), f"{length} tokens took {num_steps} steps of 64"

    def test_the_tail_of_a_prompt_shares_its_step_with_the_next_prompt(self) -> None:
        """The second of two prompts of budget + 1 tokens got no token in a step in which the first needed but one.

        Cut to what is left of the budget first, then test whether it fits; not the other way round.
        """
        if self.spares_budget:
            pytest.skip("spare_budget is declared, or max_chunk_tokens is set")
        if "whole_prompts" in self.capabilities.flags:
            pytest.skip("whole_prompts is declared")
        harness, watched = self.engine(Workload((), 40, BLOCK, 16, 4))
        harness.run(harness.request("a", range(17), 1), harness.request("b", range(100, 117), 1))
        counts = [step.num_tokens for step in watched.decisions]
        assert counts == [16, 16, 2], f"34 tokens took steps of {counts}, the budget is 16"

    def test_chunks_keep_to_max_chunk_tokens(self) -> None:
        """A prompt was given more tokens in a step than the setting max_chunk_tokens allows."""
        if "max_chunk_tokens" not in type(self.make_config()).model_fields:
            pytest.skip("its Config has no max_chunk_tokens")
        harness, watched = self.engine(Workload((), 40, BLOCK, 16, 4), max_chunk_tokens=3)
        harness.run(*[harness.request(f"r{i}", range(20 * i, 20 * i + 8), 2) for i in range(3)])
        for step in watched.decisions:
            longest = max(step.num_scheduled_tokens.values())
            assert longest <= 3, f"a chunk of {longest} tokens, max_chunk_tokens is 3: {step}"

    def test_cached_tokens_are_not_scheduled_again(self) -> None:
        """A request of which 40 of 41 tokens lie in the prefix cache was scheduled for more than the one that is left.

        Ask `ledger.need(request)`: it knows what the cache holds. A request's own counts know it only once it runs.
        """
        desk = Desk((33,), budget=self.budget(8))
        desk.cache(range(40))
        desk.wait("w", [*range(40), 99])
        counts = dict(self.plan(desk).num_scheduled_tokens)
        assert counts == {"w": 1}, f"scheduled {counts}"

    def test_a_prompt_as_large_as_the_memory_holds_up_nobody(self) -> None:
        """A request that fits only when it runs alone never ran, or those behind it did not.

        Nothing in the queue is infeasible: the core refuses that on arrival. So `max_total_tokens` is no reason to
        refuse, as a request that meets the end of memory ends there.
        """
        harness, _ = self.engine(Workload((), 6, BLOCK, 16, 4))
        with pytest.raises(RequestError):
            harness.add(harness.request("too_large", range(5 * BLOCK + 1), 4))
        harness.add(harness.request("small", [1, 2], 6))
        harness.add(harness.request("full", range(5 * BLOCK), None), harness.request("growing", [7], None))
        harness.run(harness.request("behind", [3, 4], 6))
        harness.check_truth()
        for name in ("full", "growing"):
            assert harness.reason(name) is FinishReason.LENGTH, f"{name} ended with {harness.reason(name)}"

    # ---- waiting ----

    @pytest.mark.parametrize("load", ["slots", "budget"])
    @pytest.mark.parametrize("outsider", OUTSIDERS)
    def test_nobody_waits_longer_than_stated(self, outsider: str, load: str) -> None:
        """While others kept coming, this one did not end within `max_wait_s`: it starves.

        Let waiting count (age requests), state a longer bound as `max_wait_s` of your test class, or declare the flag
        unbounded_wait, so that users know.
        """
        if "unbounded_wait" in self.capabilities.flags:
            pytest.skip("unbounded_wait is declared")
        limits = {"slots": (16, 1), "budget": (2, 4)}[load]
        own, others = OUTSIDERS[outsider]
        harness, _ = self.engine(Workload((), 100, BLOCK, *limits))
        harness.run(outsider_request(harness, "first", others))
        harness.add(harness.request("occupant", [1], 4))
        harness.step()
        waiter = outsider_request(harness, "waiter", own)
        harness.add(waiter)
        for step in range(int(self.max_wait_s)):
            for index in range(limits[1] if load == "slots" else limits[0]):
                harness.add(outsider_request(harness, f"newcomer{step}_{index}", others))
            harness.step()
            if waiter.is_finished:
                return
        waited = f"{waiter.num_output_tokens} tokens after {self.max_wait_s} s"
        raise AssertionError(f"a request that is {outsider}, among newcomers who are not, had {waited}")

    @pytest.mark.parametrize("mode", list(PreemptMode))
    @pytest.mark.parametrize("outsider", OUTSIDERS)
    def test_a_preempted_request_waits_no_longer_than_stated(self, outsider: str, mode: PreemptMode) -> None:
        """One was preempted after its first token, and did not end within `max_wait_s`, while others kept coming.

        The preemption is not of the scheduler's making. Who waits may be PREEMPTED or SWAPPED, and its wait goes on.
        """
        if "unbounded_wait" in self.capabilities.flags:
            pytest.skip("unbounded_wait is declared")
        own, others = OUTSIDERS[outsider]
        harness, _ = self.engine(Workload((), 100, BLOCK, 16, 1), preempts=("waiter", 1, mode))
        harness.run(outsider_request(harness, "first", others))
        waiter = outsider_request(harness, "waiter", own, num_output=2)
        harness.add(waiter)
        harness.step()
        for step in range(int(self.max_wait_s)):
            harness.add(outsider_request(harness, f"newcomer{step}", others))
            harness.step()
            if waiter.is_finished:
                break
        waited = f"{waiter.num_output_tokens} of 2 tokens after {self.max_wait_s} s"
        assert waiter.is_finished, f"a request that is {outsider}, among newcomers who are not, had {waited}"
        assert waiter.num_preemptions > 0, "nothing was preempted"

    def test_all_slots_are_used(self) -> None:
        """Eight short requests waited for eight slots, with ample memory and budget, and never ran all at once.

        A scheduler that runs fewer than max_num_seqs on purpose declares spare_budget.
        """
        if "spare_budget" in self.capabilities.flags:
            pytest.skip("spare_budget is declared")
        harness, watched = self.engine(Workload((), 200, BLOCK, 64, 8))
        harness.run(*[harness.request(f"r{i}", [10 * i, 10 * i + 1], 40) for i in range(8)])
        most = max(len({*step.running, *step.num_scheduled_tokens}) for step in watched.decisions)
        assert most == 8, f"at most {most} of 8 requests ran at once, in 8 slots"


def _salted(salt: int, index: int) -> SaltedId:
    return SaltedId(f"r{index}", salt)
