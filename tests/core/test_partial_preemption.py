"""Victims that give only the end of their memory back, and go on from what they kept."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tokenloom.batch import Preemption, PreemptMode, SchedulePlan
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import Grant, Ledger, Scheduler, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestPreempted, SchedulerEvent
from tokenloom.kv.kept_blocks import longest_kept_prefix
from tokenloom.request import RequestStatus
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, build_fcfs, oracle_drafts
from tokenloom.testing.stub_model import full_group

BLOCK = 4
LAYOUTS: dict[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "pools": (full_group(), full_group(1, window=9, pool_id=1)),
    "drafter": (full_group(), full_group(1, lookahead=2, is_drafter=True)),
}


def pools_of(groups: Sequence[KVGroupSpec], num_blocks: int) -> tuple[int, ...]:
    pool_ids = [group.pool_id for group in groups]
    return tuple(1 + (num_blocks - 1) * pool_ids.count(pool_id) for pool_id in sorted(set(pool_ids)))


class KeepAt(Scheduler):
    """Preempts the victim once, when it has so many output tokens, and lets it keep so many blocks."""

    def __init__(self, inner: Scheduler, num_outputs: int, keep_blocks: int) -> None:
        self._inner = inner
        self._num_outputs = num_outputs
        self._keep_blocks = keep_blocks
        self.events: list[RequestPreempted] = []

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        for request in view.running:
            is_due = request.request_id == "victim" and request.num_output_tokens >= self._num_outputs
            if is_due and not self.events:
                ledger.preempt(request, keep_blocks=self._keep_blocks)
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestPreempted):
            self.events.append(event)
        self._inner.observe(event)


def test_window_groups_keep_only_what_they_can_go_on_from() -> None:
    """The example of the decision record: block size 16, window 64, 200 tokens, 8 blocks have left the window."""
    groups = (full_group(), full_group(1, window=64))
    tables = [list(range(1, 14)), [0] * 8 + list(range(1, 6))]
    assert longest_kept_prefix(groups, tables, 200, 16, 10) == 0, "it would need blocks 6 and 7 of the window group"
    assert longest_kept_prefix(groups, tables, 200, 16, 12) == 12
    assert longest_kept_prefix(groups, tables, 200, 16, 13) == 12, "the last block is not full"
    assert longest_kept_prefix(groups[:1], tables[:1], 200, 16, 10) == 10
    far = (full_group(), full_group(1, lookahead=1))
    assert longest_kept_prefix(far, [[1, 2], [3, 4]], 32, 16, 2) == 1, "its last entry depends on the next token"


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("cache", ["hash", "none"])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_whatever_is_kept_changes_no_token(layout: str, cache: str, num_drafts: int) -> None:
    groups = LAYOUTS[layout]
    for num_outputs in (1, 3, 4, 7, 10):
        for keep in range(6):
            built: list[KeepAt] = []

            def scheduler(
                context: object, built: list[KeepAt] = built, at: tuple[int, int] = (num_outputs, keep)
            ) -> Scheduler:
                built.append(KeepAt(build_fcfs(context), *at))  # type: ignore[arg-type]
                return built[0]

            harness = EngineHarness(
                num_blocks=pools_of(groups, 32),
                block_size=BLOCK,
                groups=groups,
                cache=cache,
                budget=16,
                draft_policy=ChosenDrafts(lambda *_: num_drafts) if num_drafts else None,
                drafts=(lambda model: oracle_drafts(model, lambda _, n: n % 4)) if num_drafts else None,
                scheduler=scheduler,
            )
            victim = harness.request("victim", range(BLOCK + 1), 3 * BLOCK)
            harness.run(victim, harness.request("companion", range(50, 53), 9 * BLOCK))
            harness.check_truth()
            event = built[0].events[0]
            assert event.num_kept_tokens % BLOCK == 0
            assert event.num_kept_tokens <= keep * BLOCK
            if layout == "full" and not num_drafts:
                computed = BLOCK + num_outputs
                assert event.num_kept_tokens == min(keep, computed // BLOCK) * BLOCK
                if cache == "none":
                    assert victim.num_recomputed_tokens == computed - event.num_kept_tokens


def test_kept_blocks_are_held_and_only_the_tail_comes_back() -> None:
    desk = Desk((9,), cache="none")
    victim = desk.run("victim", range(18), 17)
    ledger = desk.ledger()
    assert ledger.preempt(victim, keep_blocks=3) == 2
    assert ledger.spare_blocks == 5
    desk.commit(ledger.plan())
    assert desk.kv.pools[0].num_available == 5
    assert victim.status is RequestStatus.PREEMPTED
    ledger = desk.ledger()
    assert (ledger.cached_tokens(victim), ledger.need(victim)) == (12, 6)
    assert list(ledger.keepers()) == [victim]
    mark = ledger.savepoint()
    assert ledger.reserve(victim, 6) == Grant("victim", 6, 2, 12)
    assert list(ledger.keepers()) == []
    with pytest.raises(ValueError, match="cannot be preempted"):
        ledger.preempt(victim)
    ledger.rollback(mark)
    assert ledger.preempt(victim, keep_blocks=1) == 2, "a waiting one gives the rest, bit by bit"
    desk.commit(ledger.plan())
    assert desk.ledger().cached_tokens(victim) == 4
    ledger = desk.ledger()
    ledger.preempt(victim)
    desk.commit(ledger.plan())
    assert desk.kv.pools[0].num_available == 8
    with pytest.raises(ValueError, match="cannot be preempted"):
        desk.ledger().preempt(victim)


def test_longer_hit_replaces_what_was_kept() -> None:
    """The tail that it gave back is still cached; nothing is computed again but the last block."""
    desk = Desk((9,))
    victim = desk.run("victim", range(18), 17)
    ledger = desk.ledger()
    ledger.preempt(victim, keep_blocks=2)
    desk.commit(ledger.plan())
    ledger = desk.ledger()
    assert ledger.cached_tokens(victim) == 16
    ledger.reserve(victim, 2)
    before = ledger.spare_blocks
    desk.commit(ledger.plan())
    assert desk.kv.pools[0].num_available == before
    desk.leave(victim)
    desk.kv.check()


def test_swap_keeps_nothing() -> None:
    desk = Desk(host_memory_bytes=10**9)
    victim = desk.run("victim", range(18), 17)
    with pytest.raises(ValueError, match="not supported"):
        desk.ledger().preempt(victim, PreemptMode.SWAP, keep_blocks=1)
    with pytest.raises(ValueError, match="not supported"):
        desk.ledger().preempt(victim, keep_blocks=-1)


def test_preemption_names_what_it_keeps() -> None:
    desk = Desk()
    victim = desk.run("victim", range(18), 17)
    ledger = desk.ledger()
    ledger.preempt(victim, keep_blocks=2)
    assert ledger.plan().preemptions == (Preemption("victim", PreemptMode.RECOMPUTE, 2),)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("seed", range(12))
def test_pressure_with_partial_preemption_ends_and_recomputes_less(layout: str, seed: int) -> None:
    groups, recomputed = LAYOUTS[layout], list[int]()
    for is_partial in (False, True):
        rng = random.Random(f"{layout} {seed}")
        harness = EngineHarness(
            num_blocks=pools_of(groups, rng.randrange(8, 16)),
            block_size=BLOCK,
            groups=groups,
            cache="none",
            budget=rng.choice([8, 64]),
            max_num_seqs=rng.choice([3, 8]),
            partial_preemption=is_partial,
        )
        requests = [harness.request(f"r{i}", range(50 * i, 50 * i + rng.randrange(1, 12)), 16) for i in range(10)]
        harness.run(*requests)
        harness.check_truth()
        recomputed.append(harness.engine.stats.num_recomputed_tokens)
    if layout == "full":
        assert recomputed[1] <= recomputed[0]


def test_aborted_keeper_gives_its_blocks_back() -> None:
    built: list[KeepAt] = []

    def scheduler(context: object) -> Scheduler:
        built.append(KeepAt(build_fcfs(context), 2, 1))  # type: ignore[arg-type]
        return built[0]

    harness = EngineHarness(scheduler=scheduler, num_blocks=(30,), max_num_seqs=2)
    victim = harness.request("victim", range(9), 20)
    harness.add(victim, harness.request("companion", [50], 20), harness.request("third", [60], 20))
    while not built[0].events:
        harness.step()
    assert victim.status is RequestStatus.PREEMPTED
    assert harness.engine.abort("victim") is not None
    harness.run()
    harness.check_truth(but={"victim"})
