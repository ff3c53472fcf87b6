"""The admission policies: what each lets start, that reserve_all spares everybody, and that peak_memory is exact."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.schedulers.scheduling import LIMITS, build, served
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.ledger import Grant, Ledger
from tokenloom.interfaces.scheduler_events import RequestFinished
from tokenloom.interfaces.scheduling_policy import AdmissionPolicy
from tokenloom.plugins import default_registry
from tokenloom.request import FinishReason
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, oracle_drafts
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.stub_model import full_group
from tokenloom.testing.suite import build_choice
from tokenloom.testing.workloads import Workload, play, workloads
from tokenloom_schedulers.block_growth import BlockGrowth

GROUPS: dict[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "pools": (full_group(), full_group(1, window=9, pool_id=1)),
}
IN_ORDER = ("fcfs", "sjf", "fair_share", "prefix_affinity", "static_batch")
"""Schedulers that serve running requests in order of admission."""


def choice(name: str, **settings: Any) -> PluginChoice:
    return build_choice(default_registry().get("scheduler.admission", name).info, settings)


def policy(name: str, **settings: Any) -> AdmissionPolicy:
    built = choice(name, **settings).build(LIMITS)
    assert isinstance(built, AdmissionPolicy)
    return built


def desk_of(lengths: Sequence[tuple[int, int]], num_blocks: int, waiting: tuple[int, int] = (4, 4)) -> Desk:
    """Running requests of (tokens, most tokens), decoding, and one that waits."""
    desk = Desk((num_blocks + 1,), cache="none")
    for index, (num_tokens, most) in enumerate(lengths):
        desk.run(f"r{index}", range(100 * index, 100 * index + num_tokens)).max_total_tokens = most
    desk.wait("w", range(5_000, 5_000 + waiting[0])).max_total_tokens = sum(waiting)
    return desk


def asked(admission: AdmissionPolicy, desk: Desk) -> int:
    """The answer about the waiting request, with everybody served as far as it goes."""
    ledger, view = desk.ledger(), desk.view()
    grant_all(desk, ledger)
    return admission.num_missing_blocks(desk.waiting[0], desk.running, view, ledger)


def grant_all(desk: Desk, ledger: Ledger) -> None:
    for request in [*desk.running, *desk.waiting]:
        assert isinstance(ledger.reserve(request, ledger.need(request)), Grant)


def test_blocks_of_growing_sequences_add_up() -> None:
    rng = random.Random(1)
    for block_size in (1, 2, 5, 16):
        growth, slots = BlockGrowth(block_size), [rng.randrange(60) for _ in range(40)]
        for count in slots:
            growth.add(count)
        for index, count in enumerate(slots[:20]):
            growth.remove(count)
            for steps in (0, 1, index, 7 * index + 3):
                expected = sum(-(-(other + steps) // block_size) for other in slots[index + 1 :])
                assert growth.num_blocks(steps) == expected


def test_optimistic_is_not_asked_and_reserve_all_counts_caps() -> None:
    """r0 holds 3 blocks of the 5 that its cap takes (20 slots, of which the last is not stored), w needs 2 in all."""
    desk = desk_of([(9, 20)], num_blocks=6)
    assert not policy("optimistic").can_refuse
    assert asked(policy("reserve_all"), desk) == 1
    assert asked(policy("reserve_all"), desk_of([(9, 20)], num_blocks=7)) == 0
    assert asked(policy("reserve_all"), desk_of([(9, 21)], num_blocks=7)) == 0, "20 slots are five blocks"
    assert asked(policy("reserve_all"), desk_of([(9, 22)], num_blocks=7)) == 1, "21 are six"
    assert served(desk, "fcfs", admission=choice("reserve_all")) == {"r0": 1}
    assert served(desk, "fcfs", admission=choice("optimistic")) == {"r0": 1, "w": 4}


def test_with_nobody_beside_it_a_request_starts_whatever_the_policy_says() -> None:
    desk = Desk((4,), cache="none")
    desk.wait("w", range(8)).max_total_tokens = 200
    desk.wait("x", [1]).max_total_tokens = 2
    assert served(desk, "fcfs", admission=choice("reserve_all")) == {"w": 8}


def test_peak_memory_lets_short_requests_use_what_long_ones_need_later() -> None:
    """w is gone before r0 needs its blocks; a reservation would have both at once."""
    desk = desk_of([(9, 33)], num_blocks=8, waiting=(4, 4))
    assert asked(policy("reserve_all"), desk) == 2
    assert asked(policy("peak_memory"), desk) == 0
    assert served(desk, "fcfs", admission=choice("peak_memory")) == {"r0": 1, "w": 4}


def brute_force(desk: Desk, num_spare: int) -> int:
    """Blocks that lack at the peak, found by going through all steps."""
    block_size, requests = desk.limits.block_size, [*desk.running, *desk.waiting]
    num_now = sum(-(-request.num_tokens // block_size) for request in requests)
    peak = 0
    for step in range(1, 200):
        alive = [request for request in requests if request.num_tokens + step <= request.max_total_tokens]
        peak = max(peak, sum(-(-(request.num_tokens + step - 1) // block_size) for request in alive))
    return max(0, peak - num_now - num_spare)


def test_peak_memory_is_exact_to_a_block() -> None:
    rng, admission, answers = random.Random(2), policy("peak_memory"), []
    for _ in range(300):
        lengths = [(rng.randrange(2, 30), rng.randrange(1, 50)) for _ in range(rng.randrange(1, 7))]
        waiting = (rng.randrange(1, 20), rng.randrange(1, 40))
        num_now = sum(-(-num_tokens // LIMITS.block_size) for num_tokens, _ in (*lengths, waiting))
        running = [(num_tokens, num_tokens + left) for num_tokens, left in lengths]
        desk = desk_of(running, num_now + rng.randrange(25), waiting)
        ledger = desk.ledger()
        grant_all(desk, ledger)
        answers.append(admission.num_missing_blocks(desk.waiting[0], desk.running, desk.view(), ledger))
        assert answers[-1] == brute_force(desk, ledger.spare_blocks), f"{lengths}"
    assert 40 < sum(answer > 0 for answer in answers) < 260, "the lengths tell nothing"


def test_peak_memory_counts_what_others_hold_too_as_kept() -> None:
    """r0 ends soon, but w shares its two full blocks and goes on."""
    desk = Desk((11,))
    desk.run("r0", range(9)).max_total_tokens = 10
    desk.wait("w", [*range(8), 99]).max_total_tokens = 41
    ledger, view = desk.ledger(), desk.view()
    assert (ledger.num_own_blocks(desk.running[0]), ledger.num_blocks(desk.running[0])) == (2, 2)
    grant_all(desk, ledger)
    assert [ledger.num_own_blocks(request) for request in (*desk.running, *desk.waiting)] == [1, 1]
    assert [ledger.num_blocks(request) for request in (*desk.running, *desk.waiting)] == [3, 3]
    assert ledger.spare_blocks == 10 - 4
    # w will take ten blocks; of r0's three, one comes back.
    assert policy("peak_memory").num_missing_blocks(desk.waiting[0], desk.running, view, ledger) == 0
    desk.waiting[0].max_total_tokens = 50
    assert policy("peak_memory").num_missing_blocks(desk.waiting[0], desk.running, view, ledger) == 3


def test_a_prompt_that_is_cut_counts_whole_until_it_ends() -> None:
    """Both need 8 blocks at their ends. w is gone when r0 does, unless its prompt takes one step after the other."""
    for budget, admitted in ((29, True), (15, True), (2, False)):
        desk = desk_of([(9, 33)], 12, waiting=(28, 4))
        desk.limits = replace(desk.limits, max_num_batched_tokens=budget)
        assert ("w" in served(desk, "fcfs", admission=choice("peak_memory"))) is admitted


def test_an_estimate_admits_more_than_the_cap() -> None:
    admission = policy("peak_memory", estimate="tenant_mean")
    desk = desk_of([(9, 60)], num_blocks=8, waiting=(4, 40))
    assert asked(admission, desk) > 0
    done = replace(desk.running[0], request_id="done", output_token_ids=[1, 2, 3], prompt_token_ids=[1])
    admission.observe(RequestFinished(0.0, done, FinishReason.STOP))
    assert asked(admission, desk) == 0


@pytest.mark.parametrize("answer", [-1, 0.5, None])
def test_what_is_no_count_is_refused_by_name(answer: Any) -> None:
    class Odd(AdmissionPolicy):
        def num_missing_blocks(self, *_: Any) -> int:
            return answer  # type: ignore[no-any-return]

    desk = desk_of([(9, 20)], num_blocks=6)
    scheduler = build("fcfs", desk.limits)
    scheduler._admission = Odd()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"Odd\.num_missing_blocks gave"):
        scheduler.schedule(desk.view(), desk.ledger())


def harness_of(
    workload: Workload, admission: str, scheduler: str, groups: str, cache: str, num_drafts: int
) -> EngineHarness:
    num_pools = len({group.pool_id for group in GROUPS[groups]})
    per_pool = len(GROUPS[groups]) // num_pools
    return EngineHarness(
        num_blocks=(1 + (workload.num_blocks - 1) * per_pool,) * num_pools,
        block_size=workload.block_size,
        groups=GROUPS[groups],
        cache=cache,
        max_num_seqs=workload.max_num_seqs,
        budget=workload.budget,
        max_model_len=64,
        scheduler=lambda context: build(scheduler, context, admission=choice(admission)),
        draft_policy=ChosenDrafts(lambda *_: num_drafts) if num_drafts else None,
        drafts=(lambda model: oracle_drafts(model, lambda _, n: n % (num_drafts + 1))) if num_drafts else None,
        vocab_size=10_000_000,
    )


@RANDOM
@given(
    workload=workloads(),
    scheduler=st.sampled_from([*IN_ORDER, "deadline", "slo_adaptive"]),
    groups=st.sampled_from(sorted(GROUPS)),
    cache=st.sampled_from(["hash", "radix", "none", "contiguous"]),
)
def test_reserve_all_never_preempts(workload: Workload, scheduler: str, groups: str, cache: str) -> None:
    """Whatever runs: chunks, drafts, shared prefixes, windows, aborts."""
    harness = harness_of(workload, "reserve_all", scheduler, groups, cache, workload.num_drafts)
    harness.check_truth(but=play(harness, workload.arrivals))
    assert harness.engine.stats.num_preemptions == 0


@RANDOM
@given(
    workload=workloads(),
    scheduler=st.sampled_from(IN_ORDER),
    groups=st.sampled_from(sorted(GROUPS)),
    cache=st.sampled_from(["hash", "radix", "none", "contiguous"]),
)
def test_peak_memory_never_preempts_when_lengths_are_known(
    workload: Workload, scheduler: str, groups: str, cache: str
) -> None:
    """Without drafts every running request gets its token a step; those that end early only leave more."""
    harness = harness_of(workload, "peak_memory", scheduler, groups, cache, num_drafts=0)
    harness.check_truth(but=play(harness, workload.arrivals))
    assert harness.engine.stats.num_preemptions == 0


def test_peak_memory_runs_more_at_once_than_reserve_all_and_optimistic_pays() -> None:
    """Requests of mixed lengths on the memory of three or four."""
    figures = {}
    for name in ("optimistic", "reserve_all", "peak_memory"):
        harness = harness_of(Workload((), 40, 4, 64, 12), name, "fcfs", "full", "none", 0)
        requests = [harness.request(f"r{i}", range(100 * i, 100 * i + 8), 4 + 12 * (i % 4)) for i in range(12)]
        harness.run(*requests)
        harness.check_truth()
        figures[name] = (harness.engine.stats.num_preemptions, len(harness.executor.plans))
    assert figures["optimistic"][0] > 0
    assert figures["reserve_all"][0] == figures["peak_memory"][0] == 0
    assert figures["peak_memory"][1] < figures["reserve_all"][1]
