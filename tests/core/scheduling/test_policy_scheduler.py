"""PolicyScheduler: running first, preemption while blocks lack, then admission without overtaking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.scheduler import Ledger, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent, StepLanded
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy
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
    assert policy.candidates == [["a", "b", "c", "d"], ["a", "b", "c"]]
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
    plan = schedule(full_desk("ab"), Policy(select=lambda request, candidates: request))
    assert victims(plan) == ["a"]
    assert plan.num_scheduled_tokens == {"b": 1}


def test_request_without_victim_waits_and_others_go_on() -> None:
    desk = Desk((6,), cache="none")
    desk.run("a", range(9))
    desk.run("b", range(20, 30))
    plan = schedule(desk, Policy(select=lambda request, candidates: None))
    assert plan.num_scheduled_tokens == {"b": 1}
    assert plan.preemptions == ()


def test_grant_of_a_later_victim_is_cancelled_and_its_tokens_are_used_by_others() -> None:
    """The oldest request is scheduled first and preempted last: its tokens go back into the budget."""
    desk = Desk((7,), cache="none", budget=3)
    desk.run("a", range(9), 8, num_drafts=1)
    desk.run("b", range(20, 29))
    desk.run("c", range(40, 42), 1)
    policy = Policy(select=lambda request, candidates: candidates[0])
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
