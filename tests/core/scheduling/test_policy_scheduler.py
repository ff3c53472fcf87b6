"""PolicyScheduler: running first, preemption while blocks lack, then admission without overtaking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.scheduler import Ledger, SchedulerView, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent, StepLanded
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom.testing.desk import Desk

Select = Callable[[RequestView, Sequence[RequestView]], RequestView | None]


class Policy(SchedulingPolicy):
    """Arrival order and full chunks, unless a test says otherwise; remembers what it was asked."""

    def __init__(
        self,
        select: Select = lambda request, candidates: candidates[-1],
        chunk: Callable[[RequestView, int], int] = lambda request, need: need,
        admit: Callable[[RequestView], bool] = lambda request: True,
    ) -> None:
        self._select = select
        self._chunk = chunk
        self._admit = admit
        self.chunks_asked: list[tuple[str, int]] = []
        self.candidates: list[list[str]] = []
        self.events: list[SchedulerEvent] = []

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        yield from requests

    def admit(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
        return self._admit(request)

    def chunk(self, request: RequestView, need: int, view: SchedulerView, ledger: Ledger) -> int:
        self.chunks_asked.append((request.request_id, need))
        return min(self._chunk(request, need), ledger.remaining_tokens)

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        self.candidates.append([candidate.request_id for candidate in candidates])
        return self._select(request, candidates)

    def observe(self, event: SchedulerEvent) -> None:
        self.events.append(event)


def schedule(desk: Desk, policy: Policy | None = None) -> SchedulePlan:
    return PolicyScheduler(policy or Policy()).schedule(desk.view(), desk.ledger())


def victims(plan: SchedulePlan) -> list[str]:
    return [victim.request_id for victim in plan.preemptions]


def full_desk(names: str, num_spare: int = 0) -> Desk:
    """Requests that hold two full blocks each and need a third for their next token."""
    desk = Desk((2 * len(names) + num_spare + 1,), cache="none")
    for index, name in enumerate(names):
        desk.run(name, range(100 * index, 100 * index + 9))
    return desk


def test_running_requests_come_first_then_waiting_ones_in_order() -> None:
    desk = Desk(budget=10)
    desk.wait("w1", range(5))
    desk.run("r1", range(20, 29), num_drafts=2)
    desk.wait("w2", range(40, 50))
    desk.run("r2", range(60, 69))
    plan = schedule(desk)
    assert list(plan.num_scheduled_tokens.items()) == [("r1", 3), ("r2", 1), ("w1", 5), ("w2", 1)]
    assert plan.preemptions == ()


def test_prompt_is_cut_to_the_budget_before_it_is_tested() -> None:
    desk = Desk(budget=8)
    desk.run("long", range(9), 8)
    desk.wait("next", range(40, 49))
    assert schedule(desk).num_scheduled_tokens == {"long": 1, "next": 7}


def test_first_waiting_request_that_does_not_fit_is_not_overtaken() -> None:
    desk = Desk((5,), cache="none")
    desk.run("r", range(9))
    desk.wait("big", range(20, 29))
    desk.wait("small", [1])
    assert schedule(desk).num_scheduled_tokens == {"r": 1}


def test_admission_ends_where_the_policy_says_so_or_slots_end() -> None:
    desk = Desk(max_num_seqs=2)
    for index in range(3):
        desk.wait(f"w{index}", [index])
    assert list(schedule(desk).num_scheduled_tokens) == ["w0", "w1"]
    refused = Policy(admit=lambda request: request.request_id != "w1")
    assert list(schedule(desk, refused).num_scheduled_tokens) == ["w0"]
    skipped = Policy(chunk=lambda request, need: 0 if request.request_id == "w0" else need)
    assert schedule(desk, skipped).num_scheduled_tokens == {}


def test_need_is_read_after_the_cache_lookup() -> None:
    desk = Desk(budget=64)
    desk.cache(range(16))
    desk.wait("w", [*range(16), 99])
    policy = Policy()
    assert schedule(desk, policy).num_scheduled_tokens == {"w": 1}
    assert policy.chunks_asked == [("w", 1)]


def test_last_in_gives_its_blocks_to_those_before_it() -> None:
    desk = full_desk("abcd")
    policy = Policy()
    plan = schedule(desk, policy)
    assert plan.num_scheduled_tokens == {"a": 1, "b": 1}
    assert victims(plan) == ["d", "c"]
    assert policy.candidates == [["a", "b", "c", "d"], ["c"]]
    desk.commit(plan)


def test_no_more_is_preempted_than_is_needed() -> None:
    """Eight growing sequences, two spare blocks: the first two take these, and each victim serves two more."""
    plan = schedule(full_desk("abcdefgh", num_spare=2))
    assert list(plan.num_scheduled_tokens) == ["a", "b", "c", "d", "e", "f"]
    assert victims(plan) == ["h", "g"]


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    desk = full_desk("abc")
    desk.wait("w", [1])
    plan = schedule(desk)
    assert victims(plan) == ["c"]
    assert "w" not in plan.num_scheduled_tokens


def test_request_may_be_its_own_victim() -> None:
    policy = Policy(select=lambda request, candidates: request)
    plan = schedule(full_desk("abc", num_spare=1), policy)
    assert victims(plan) == ["b"]
    assert plan.num_scheduled_tokens == {"a": 1, "c": 1}
    assert policy.candidates == [["b", "c"]], "nobody takes memory from one that comes before it"


def test_the_first_never_gives_up_its_place_while_there_are_others() -> None:
    """Asked again, the policy finds its request among the candidates, as it always did."""
    asked = []

    def select(request: RequestView, candidates: Sequence[RequestView]) -> RequestView | None:
        asked.append((request.request_id, candidates.index(request)))
        return max(candidates, key=lambda candidate: candidate.num_computed_tokens)

    plan = schedule(full_desk("abc"), Policy(select=select))
    assert asked == [("a", 0), ("c", 1)]
    assert victims(plan) == ["b"]
    assert plan.num_scheduled_tokens == {"a": 1, "c": 1}
    alone = schedule(full_desk("a"), Policy(select=lambda request, candidates: request))
    assert victims(alone) == ["a"], "memory that nobody else can give back"


class LastServedFirst(Policy):
    """Serves in the reverse of its order."""

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        yield from reversed(view.running)


def test_who_may_give_memory_back_follows_the_order_and_not_the_sequence() -> None:
    policy = LastServedFirst(select=lambda request, candidates: candidates[0])
    plan = schedule(full_desk("abc"), policy)
    assert policy.candidates == [["c"]]
    assert victims(plan) == ["c"]
    assert plan.num_scheduled_tokens == {"b": 1, "a": 1}


def test_drafts_leave_a_token_for_each_that_runs() -> None:
    desk = Desk(budget=5)
    desk.run("a", range(9), num_drafts=7)
    desk.run("b", range(20, 29), num_drafts=1)
    desk.run("c", range(40, 60), 8)
    assert schedule(desk).num_scheduled_tokens == {"a": 3, "b": 1, "c": 1}
    desk.wait("w", [1])
    assert schedule(desk).num_scheduled_tokens == {"a": 3, "b": 1, "c": 1}, "those that wait are no reason"
    desk.running.pop()
    assert schedule(desk).num_scheduled_tokens == {"a": 4, "b": 1}


def test_victims_that_keep_blocks_never_leave_nobody_running() -> None:
    """Each gives up its own place and would keep what the other lacks: then nobody keeps anything."""
    desk = Desk((5,), cache="none")
    desk.limits = replace(desk.limits, partial_preemption=True)
    desk.run("a", range(9))
    desk.run("b", range(20, 25), 5)
    desk.requests["b"].output_token_ids = [1, 2, 3, 4, 5, 6, 7, 8]
    plan = schedule(desk, Policy(select=lambda request, candidates: request))
    assert plan.num_scheduled_tokens, "a step makes progress"


def test_request_without_victim_waits_and_others_go_on() -> None:
    desk = Desk((6,), cache="none")
    desk.run("a", range(9))
    desk.run("b", range(20, 30))
    plan = schedule(desk, Policy(select=lambda request, candidates: None))
    assert plan.num_scheduled_tokens == {"b": 1}
    assert plan.preemptions == ()


def test_grant_of_a_later_victim_is_cancelled_and_its_tokens_are_used_by_others() -> None:
    """The last in order is scheduled first and preempted later: its tokens go back into the budget."""
    desk = Desk((7,), cache="none", budget=3)
    desk.run("c", range(40, 42), 1)
    desk.run("b", range(20, 29))
    desk.run("a", range(9), 8, num_drafts=1)
    policy = LastServedFirst(select=lambda request, candidates: candidates[-1])
    plan = schedule(desk, policy)
    assert victims(plan) == ["a"]
    assert plan.num_scheduled_tokens == {"b": 1, "c": 1}
    desk.commit(plan)


def test_blocks_that_come_by_themselves_stop_further_preemption() -> None:
    """Memory of a step in flight is freed when it lands; until then the free count does not move, and need not."""
    desk = Desk((9,), cache="none")
    for index in range(4):
        request = desk.run(f"r{index}", range(20 * index, 20 * index + 8), 7)
        request.num_inflight_tokens = request.num_placeholder_tokens = 1
    desk.kv.check()
    assert desk.kv.pools[0].num_available == 0
    plan = schedule(desk)
    assert victims(plan) == ["r3"]
    assert plan.num_scheduled_tokens == {}


def test_request_with_all_tokens_in_flight_is_left_alone() -> None:
    desk = Desk()
    desk.run("a", range(9)).num_inflight_tokens = 1
    policy = Policy()
    assert schedule(desk, policy).num_scheduled_tokens == {}
    assert policy.chunks_asked == []


def test_budget_that_is_used_up_ends_the_loop() -> None:
    desk = Desk(budget=2)
    for name in "abcd":
        desk.run(name, range(9))
    policy = Policy()
    assert list(schedule(desk, policy).num_scheduled_tokens) == ["a", "b"]
    assert policy.chunks_asked == [("a", 1), ("b", 1)]


def test_events_reach_the_policy() -> None:
    policy = Policy()
    event = StepLanded(1.0, 3, 0.1, 5, {})
    PolicyScheduler(policy).observe(event)
    assert policy.events == [event]


# ---- what version 1.1 added ----


class Wide(SchedulingPolicy):
    """Everything that 1.1 added, as a test says; the rest by default."""

    def __init__(
        self,
        limits: StepLimits | None = None,
        sequence: Callable[[SchedulerView], Iterable[RequestView]] | None = None,
        displaced: Callable[[Shortfall, Sequence[RequestView]], RequestView | None] | None = None,
        select: Select = lambda request, candidates: candidates[-1],
    ) -> None:
        self._limits = limits or StepLimits()
        self._sequence = sequence
        self._displaced = displaced
        self._select = select
        self.shortfalls: list[Shortfall] = []
        self.num_read = 0

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        for request in requests:
            self.num_read += 1
            yield request

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        return super().sequence(view, ledger) if self._sequence is None else self._sequence(view)

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._select(request, candidates)

    @property
    def is_preemptive(self) -> bool:
        return self._displaced is not None

    def select_displaced(
        self, request: RequestView, shortfall: Shortfall, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        self.shortfalls.append(shortfall)
        return None if self._displaced is None else self._displaced(shortfall, candidates)


def planned(desk: Desk, policy: Wide) -> dict[str, int]:
    return dict(PolicyScheduler(policy).schedule(desk.view(), desk.ledger()).num_scheduled_tokens)


def prompts_desk(*lengths: int, budget: int = 64, max_num_seqs: int = 8) -> Desk:
    """Waiting prompts w0, w1, ... of these lengths."""
    desk = Desk((60,), budget=budget, max_num_seqs=max_num_seqs)
    for index, length in enumerate(lengths):
        desk.wait(f"w{index}", range(100 * index, 100 * index + length))
    return desk


def test_defaults_admit_everybody_and_fill_the_budget() -> None:
    assert planned(prompts_desk(5, 9, 30, budget=20), Wide()) == {"w0": 5, "w1": 9, "w2": 6}
    assert SchedulingPolicy.observe(Wide(), StepLanded(1.0, 3, 0.1, 5, {})) is None


def test_sequence_may_put_waiting_requests_before_running_ones() -> None:
    desk = prompts_desk(6, budget=6)
    desk.run("r", range(900, 909))
    assert planned(desk, Wide()) == {"r": 1, "w0": 5}
    assert planned(desk, Wide(sequence=lambda view: (*view.waiting, *view.running))) == {"w0": 6}


def test_running_requests_are_served_after_admission_has_ended() -> None:
    desk = Desk((5,), cache="none")
    desk.wait("big", range(20, 40))
    desk.wait("small", [1])
    desk.run("r", range(900, 909))
    assert planned(desk, Wide(sequence=lambda view: (*view.waiting, *view.running))) == {"r": 1}


def test_queue_is_not_read_when_nobody_could_join() -> None:
    desk = prompts_desk(1, 1, 1, max_num_seqs=1)
    desk.run("r", range(900, 909))
    policy = Wide()
    assert planned(desk, policy) == {"r": 1}
    assert policy.num_read == 1
    displacing = Wide(displaced=lambda shortfall, candidates: None)
    planned(desk, displacing)
    assert displacing.num_read == 2


def test_limits_on_tokens_of_prompts_leave_decoding_alone() -> None:
    desk = prompts_desk(10, 10, 10)
    desk.run("r", range(900, 909), num_drafts=6)
    assert planned(desk, Wide(StepLimits(max_chunk_tokens=4))) == {"r": 7, "w0": 4, "w1": 4, "w2": 4}
    assert planned(desk, Wide(StepLimits(max_prefill_tokens=13))) == {"r": 7, "w0": 10, "w1": 3}
    assert planned(desk, Wide(StepLimits(max_chunk_tokens=4, max_prefill_tokens=9))) == {
        "r": 7,
        "w0": 4,
        "w1": 4,
        "w2": 1,
    }
    assert planned(desk, Wide(StepLimits(max_prefill_tokens=1))) == {"r": 7, "w0": 1}


def test_prompts_that_run_count_against_the_limit_on_their_tokens() -> None:
    desk = prompts_desk(10)
    desk.run("p", range(900, 930), 8)
    assert planned(desk, Wide(StepLimits(max_prefill_tokens=25))) == {"p": 22, "w0": 3}
    assert planned(desk, Wide(StepLimits(max_prefill_tokens=22))) == {"p": 22}


def test_no_further_prompt_starts_while_enough_are_computed_in_part() -> None:
    limits = StepLimits(max_chunk_tokens=5, max_num_partial_prefills=1)
    assert planned(prompts_desk(4, 5, 10, 10), Wide(limits)) == {"w0": 4, "w1": 5, "w2": 5}
    desk = prompts_desk(10)
    part = desk.run("p", range(900, 930), 8)
    assert planned(desk, Wide(limits)) == {"p": 5}
    part.num_computed_tokens = 27
    desk.kv.grow(part, 27)
    assert planned(desk, Wide(limits)) == {"p": 3, "w0": 5}, "one that ends in this step makes room"


def test_long_prompt_that_has_to_wait_is_overtaken_by_short_ones_only() -> None:
    limits = StepLimits(max_chunk_tokens=5, max_long_partial_prefills=1, long_prefill_token_threshold=8)
    assert planned(prompts_desk(20, 20, 3, 9, 8), Wide(limits)) == {"w0": 5, "w2": 3, "w4": 5}
    desk = prompts_desk(20, 3)
    desk.run("p", range(900, 930), 8)
    assert planned(desk, Wide(limits)) == {"p": 5, "w1": 3}


def test_limit_on_sequences_ends_admission_but_stops_nobody_who_runs() -> None:
    limits = StepLimits(max_num_seqs=2)
    assert list(planned(prompts_desk(1, 1, 1), Wide(limits))) == ["w0", "w1"]
    desk = prompts_desk(1)
    for index in range(3):
        desk.run(f"r{index}", range(900 + 9 * index, 909 + 9 * index))
    assert list(planned(desk, Wide(limits))) == ["r0", "r1", "r2"]


def test_waiting_request_displaces_whom_the_policy_names_until_it_fits() -> None:
    desk = full_desk("abcd", num_spare=4)
    desk.limits = replace(desk.limits, max_num_seqs=4)
    desk.wait("w", range(900, 922))
    policy = Wide(displaced=lambda shortfall, candidates: candidates[0])
    plan = PolicyScheduler(policy).schedule(desk.view(), desk.ledger())
    assert victims(plan) == ["a", "b"]
    assert dict(plan.num_scheduled_tokens) == {"c": 1, "d": 1, "w": 22}
    assert [shortfall.resource for shortfall in policy.shortfalls] == ["slots", "blocks"]
    desk.commit(plan)


def test_nobody_is_displaced_for_a_request_that_waits_for_a_prefix_being_computed() -> None:
    """The slot of another one would stand empty; and who comes next has no better claim to it."""
    desk = Desk((40,), max_num_seqs=3)
    for index in range(2):
        desk.run(f"r{index}", range(900 + 9 * index, 909 + 9 * index))
    desk.wait("owner", range(20))
    desk.wait("follower", [*range(16), 77])
    desk.wait("other", range(500, 509))
    plan = PolicyScheduler(Wide(displaced=lambda shortfall, candidates: candidates[-1])).schedule(
        desk.view(), desk.ledger()
    )
    assert victims(plan) == []
    assert dict(plan.num_scheduled_tokens) == {"r0": 1, "r1": 1, "owner": 20}


def test_nobody_is_displaced_in_vain() -> None:
    desk = full_desk("ab", num_spare=2)
    desk.wait("w", range(900, 948))
    policy = Wide(displaced=lambda shortfall, candidates: candidates[-1] if len(candidates) > 1 else None)
    plan = PolicyScheduler(policy).schedule(desk.view(), desk.ledger())
    assert victims(plan) == []
    assert dict(plan.num_scheduled_tokens) == {"a": 1, "b": 1}
    assert len(policy.shortfalls) == 2


def test_displaced_memory_that_is_in_flight_is_waited_for() -> None:
    """The victim's blocks come when its step lands; another one would gain nothing, and giving it back neither."""
    desk = Desk((9,), cache="none", max_num_seqs=4)
    for index in range(4):
        request = desk.run(f"r{index}", range(20 * index, 20 * index + 8), 7)
        request.num_inflight_tokens = request.num_placeholder_tokens = 1
    desk.wait("w", range(900, 908))
    policy = Wide(
        sequence=lambda view: (*view.waiting, *view.running), displaced=lambda shortfall, candidates: candidates[-1]
    )
    plan = PolicyScheduler(policy).schedule(desk.view(), desk.ledger())
    assert victims(plan) == ["r3"]
    assert "w" not in plan.num_scheduled_tokens


def test_nobody_joins_after_a_running_request_had_to_take_memory() -> None:
    desk = full_desk("abc")
    desk.wait("w", [1])
    policy = Wide(displaced=lambda shortfall, candidates: candidates[-1])
    plan = PolicyScheduler(policy).schedule(desk.view(), desk.ledger())
    assert victims(plan) == ["c"]
    assert "w" not in plan.num_scheduled_tokens


@pytest.mark.parametrize("point", ["select_victim", "select_displaced"])
def test_victim_that_is_no_candidate_is_refused(point: str) -> None:
    desk = full_desk("ab", num_spare=0 if point == "select_victim" else 2)
    desk.limits = replace(desk.limits, max_num_seqs=2)
    stranger = desk.wait("w", range(900, 908))
    policy = Wide(select=lambda request, candidates: stranger, displaced=lambda shortfall, candidates: stranger)
    with pytest.raises(ValueError, match=rf"Wide\.{point} named w, which is not among its candidates"):
        PolicyScheduler(policy).schedule(desk.view(), desk.ledger())


@pytest.mark.parametrize("max_num_seqs", [3, 8])
def test_running_requests_behind_a_long_queue_are_served_without_reading_it(max_num_seqs: int) -> None:
    """Slots are full, or the first that waits does not fit: then nobody who waits is of interest any more."""
    desk = Desk((12,), cache="none", max_num_seqs=max_num_seqs)
    first, second, last = (
        desk.run(name, range(start, start + 9)) for name, start in (("a", 900), ("b", 930), ("c", 960))
    )
    for index in range(300):
        desk.wait(f"w{index}", range(1000 + 50 * index, 1040 + 50 * index))
    read: list[str] = []

    def sequence(view: SchedulerView) -> Iterable[RequestView]:
        for request in (first, *view.waiting, second, last):
            read.append(request.request_id)
            yield request

    assert planned(desk, Wide(sequence=sequence)) == {"a": 1, "b": 1, "c": 1}
    assert read == ["a", "w0", "a", "b", "c"]


def test_policy_with_chunks_of_its_own_is_asked_about_decoding_requests_too() -> None:
    desk = Desk((20,))
    for index, name in enumerate("abc"):
        desk.run(name, range(100 * index, 100 * index + 6))
    policy = Policy(chunk=lambda request, need: 0 if request.request_id == "b" else need)
    assert dict(schedule(desk, policy).num_scheduled_tokens) == {"a": 1, "c": 1}
    assert policy.chunks_asked == [("a", 1), ("b", 1), ("c", 1)]
