"""StepLedger: counts that are exact, against a brute-force recount and against what a commit really takes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tokenloom.batch import PreemptMode
from tokenloom.interfaces.scheduler import Grant, Shortfall
from tokenloom.request import Request, RequestStatus
from tokenloom.scheduling import StepLedger
from tokenloom.testing.desk import Desk
from tokenloom.testing.stub_model import full_group, stub_request

# ---- single rules ----


def test_new_ledger_shows_the_limits() -> None:
    desk = Desk((9,), max_num_seqs=3, budget=20)
    desk.run("a", range(9))
    ledger = desk.ledger()
    assert (ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks) == (20, 2, 6)
    assert ledger.num_preempted == 0


def test_running_request_takes_tokens_and_only_the_blocks_that_it_lacks() -> None:
    desk = Desk((9,), budget=20)
    request = desk.run("a", range(10), num_drafts=3)
    ledger = desk.ledger()
    assert ledger.need(request) == 4
    assert ledger.reserve(request, 3) == Grant("a", 3, 0)
    assert ledger.is_scheduled(request)
    assert (ledger.remaining_tokens, ledger.spare_blocks, ledger.remaining_slots) == (17, 5, 7)
    other = desk.ledger()
    assert other.reserve(request, 4) == Grant("a", 4, 1)
    assert other.spare_blocks == 4


def test_waiting_request_takes_a_slot_and_pins_what_it_found() -> None:
    desk = Desk((9,), budget=20)
    desk.cache(range(12))
    request = desk.wait("a", range(14))
    ledger = desk.ledger()
    assert ledger.cached_tokens(request) == 12
    assert ledger.need(request) == 2
    assert ledger.spare_blocks == 8
    assert ledger.reserve(request, 2) == Grant("a", 2, 1, num_cached_tokens=12)
    assert ledger.spare_blocks == 4, "three blocks pinned, one new"
    assert ledger.remaining_slots == 7


def test_blocks_found_by_two_requests_are_pinned_once() -> None:
    desk = Desk((9,), budget=20)
    desk.cache(range(12))
    first, second = desk.wait("a", range(13)), desk.wait("b", range(13))
    ledger = desk.ledger()
    ledger.reserve(first, 1)
    assert ledger.spare_blocks == 4
    ledger.reserve(second, 1)
    assert ledger.spare_blocks == 3
    desk.commit(ledger.plan())
    assert desk.kv.pools[0].num_available == 3


def test_asking_changes_nothing() -> None:
    desk = Desk((9,))
    desk.cache(range(12))
    request = desk.wait("a", range(13))
    ledger = desk.ledger()
    before = (ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks)
    assert [ledger.cached_tokens(request), ledger.need(request)] == [12, 1]
    assert before == (ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks)
    assert desk.kv.usage()["cached"] == 3


@pytest.mark.parametrize(
    ("budget", "max_num_seqs", "num_blocks", "shortfall"),
    [
        (8, 8, 17, Shortfall("tokens", 2)),
        (64, 1, 17, Shortfall("slots", 1)),
        (64, 8, 5, Shortfall("blocks", 1)),
    ],
)
def test_shortfall_names_what_lacks_and_takes_nothing(
    budget: int, max_num_seqs: int, num_blocks: int, shortfall: Shortfall
) -> None:
    desk = Desk((num_blocks,), budget=budget, max_num_seqs=max_num_seqs)
    desk.run("a", range(5))
    request = desk.wait("b", range(50, 60))
    ledger = desk.ledger()
    before = (ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks)
    if shortfall.resource == "blocks":
        assert before[2] == 3
        ledger.reserve(desk.requests["a"], 1)
    taken = (ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks)
    assert ledger.reserve(request, 10) == shortfall
    assert taken == (ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks)
    assert not ledger.is_scheduled(request)


def test_pinned_blocks_count_against_the_newcomer_that_finds_them() -> None:
    """All four blocks are cached: three are pinned, one is left for two new ones."""
    desk = Desk((5,), budget=64)
    desk.cache(range(12))
    request = desk.wait("a", [*range(12), *range(90, 95)])
    ledger = desk.ledger()
    assert ledger.spare_blocks == 4
    assert ledger.reserve(request, 5) == Shortfall("blocks", 1)
    assert ledger.reserve(request, 4) == Grant("a", 4, 1, 12)
    assert ledger.spare_blocks == 0


def test_preempt_gives_back_memory_slot_grant_and_budget() -> None:
    desk = Desk((9,), budget=20)
    request = desk.run("a", range(9))
    ledger = desk.ledger()
    before = (ledger.remaining_tokens, ledger.remaining_slots, ledger.spare_blocks)
    ledger.reserve(request, 1)
    assert ledger.spare_blocks == before[2] - 1
    assert ledger.preempt(request) == 3, "two blocks of its own and the one just granted"
    assert ledger.spare_blocks == before[2] + 2
    assert ledger.remaining_tokens == before[0]
    assert ledger.remaining_slots == before[1] + 1
    assert (ledger.is_preempted(request), ledger.is_scheduled(request), ledger.num_preempted) == (True, False, 1)
    assert ledger.plan().num_scheduled_tokens == {}
    assert [victim.request_id for victim in ledger.plan().preemptions] == ["a"]


def test_victim_whose_blocks_are_shared_frees_less() -> None:
    desk = Desk((17,))
    desk.cache(range(12))
    first, second = desk.run("a", range(14), 13), desk.run("b", range(14), 13)
    ledger = desk.ledger()
    assert ledger.spare_blocks == 16 - 5
    assert ledger.preempt(first) == 1
    assert ledger.preempt(second) == 4
    assert ledger.spare_blocks == 16


def test_newcomer_that_pins_a_victims_blocks_keeps_them_from_becoming_available() -> None:
    desk = Desk((9,))
    victim = desk.run("victim", range(9))
    for order in ("pin first", "preempt first"):
        newcomer = desk.wait(f"new {order}", range(9))
        ledger = desk.ledger()
        if order == "pin first":
            ledger.reserve(newcomer, 1)
            assert ledger.preempt(victim) == 0
        else:
            assert ledger.preempt(victim) == 2
            ledger.reserve(newcomer, 1)
        assert ledger.spare_blocks == 5
    desk.commit(ledger.plan())
    assert desk.kv.pools[0].num_available == 5


def test_victim_in_flight_frees_nothing_yet_and_the_shortfall_says_what_is_pending() -> None:
    desk = Desk((5,), budget=64)
    victim = desk.run("victim", range(16), 15)
    newcomer = desk.wait("new", range(50, 58))
    victim.num_inflight_tokens = 1
    ledger = desk.ledger()
    assert ledger.spare_blocks == 0
    assert ledger.preempt(victim) == 0
    assert ledger.reserve(newcomer, 8) == Shortfall("blocks", 2, pending=4)


def test_need_counts_placeholders_and_tokens_in_flight() -> None:
    desk = Desk()
    request = desk.run("a", range(9), 4, num_drafts=2)
    assert desk.ledger().need(request) == 7
    request.num_inflight_tokens, request.num_placeholder_tokens = 5, 1
    assert desk.ledger().need(request) == 3


def test_illegal_calls_are_refused() -> None:
    desk = Desk()
    running, waiting = desk.run("a", range(9)), desk.wait("b", range(9))
    stranger = stub_request("stranger", range(4))
    ledger = desk.ledger()
    for count in (0, -1, 2, 1.0, 0.5):
        with pytest.raises(ValueError, match=rf"{count} tokens reserved, allowed is 1\.\.1"):
            ledger.reserve(running, count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not in this step's view"):
        ledger.reserve(stranger, 1)
    with pytest.raises(ValueError, match="cannot be preempted"):
        ledger.preempt(waiting)
    with pytest.raises(ValueError, match="not supported"):
        ledger.preempt(running, PreemptMode.SWAP)
    with pytest.raises(ValueError, match="not supported"):
        ledger.preempt(running, keep_blocks=-1)
    with pytest.raises(ValueError, match="savepoint 0"):
        ledger.rollback(0)
    ledger.reserve(running, 1)
    with pytest.raises(ValueError, match="already"):
        ledger.reserve(running, 1)
    ledger.preempt(running)
    with pytest.raises(ValueError, match="cannot be preempted"):
        ledger.preempt(running)
    with pytest.raises(ValueError, match="already"):
        ledger.reserve(running, 1)


def test_savepoints_nest_and_can_be_rolled_back_to_twice() -> None:
    desk = Desk()
    a, b = desk.run("a", range(9)), desk.run("b", range(20, 29))
    ledger = desk.ledger()
    start = ledger.savepoint()
    ledger.reserve(a, 1)
    middle = ledger.savepoint()
    for _ in range(2):
        ledger.preempt(b)
        ledger.preempt(a)
        ledger.rollback(middle)
        assert list(ledger.plan().num_scheduled_tokens) == ["a"]
        assert ledger.num_preempted == 0
    ledger.rollback(start)
    assert ledger.plan().num_scheduled_tokens == {}
    with pytest.raises(ValueError, match="savepoint 1"):
        ledger.rollback(middle)


def test_reserve_next_is_reserve_of_one_token_or_nothing() -> None:
    """A decoding request whose token has a place is scheduled as `reserve` does it; of others nothing changes."""
    desk = Desk((40,), budget=64)
    inside, at_end = desk.run("inside", range(6)), desk.run("at_end", range(100, 109))
    drafting, prompt = desk.run("drafting", range(200, 206), num_drafts=2), desk.run("prompt", range(300, 310), 4)
    in_flight = desk.run("in_flight", range(400, 406))
    in_flight.num_inflight_tokens = 1
    waiting, choice = desk.wait("waiting", [7]), desk.run("choice", range(500, 507))
    choice.choice_set = "pair"
    expected = {"inside", "choice"}
    for request in (inside, at_end, drafting, prompt, in_flight, waiting, choice):
        ledger, twin = desk.ledger(), desk.ledger()
        is_done = ledger.reserve_next(request)
        assert is_done is (request.request_id in expected), request.request_id
        if is_done:
            assert isinstance(twin.reserve(request, 1), Grant)
            assert not ledger.reserve_next(request), "it has a grant"
        assert ledger.plan() == twin.plan()
        assert ledger.remaining_tokens == twin.remaining_tokens
        assert ledger.spare_blocks == twin.spare_blocks
        assert ledger.num_blocks(request) == twin.num_blocks(request)
        if is_done:
            assert ledger.preempt(request) == twin.preempt(request)


def test_reserve_next_keeps_to_the_budget_and_passes_victims() -> None:
    desk = Desk((40,), budget=1)
    first, second = desk.run("a", range(6)), desk.run("b", range(100, 106))
    ledger = desk.ledger()
    ledger.preempt(second)
    assert not ledger.reserve_next(second)
    assert ledger.reserve_next(first)
    assert ledger.remaining_tokens == 0
    other = desk.ledger()
    assert other.reserve_next(second)
    assert not other.reserve_next(first), "no token is left"
    assert not desk.ledger().reserve_next(stub_request("unknown", [1, 2], status=RequestStatus.RUNNING))


def test_waiting_request_learns_what_a_decoding_one_completes() -> None:
    """The block that ends with this token holds what both begin with."""
    desk = Desk((40,))
    decoding = desk.run("decoding", range(8))
    desk.wait("waiting", [*range(8), 99])
    ledger = desk.ledger()
    assert ledger.reserve_next(decoding)
    assert ledger.reserve(desk.requests["waiting"], 1) == Shortfall("prefix", 4, 4)


def test_made_knows_only_its_own_current_plan() -> None:
    desk = Desk()
    request = desk.run("a", range(9))
    ledger = desk.ledger()
    empty = ledger.plan()
    ledger.reserve(request, 1)
    assert not ledger.made(empty)
    plan = ledger.plan()
    assert ledger.made(plan)
    assert isinstance(plan.num_scheduled_tokens, dict)
    plan.num_scheduled_tokens["a"] = 5
    assert not ledger.made(plan)


# ---- everything at once, against a recount ----


@dataclass
class Recount:
    """What was granted and preempted; every number is counted anew from it."""

    desk: Desk
    grants: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    victims: list[str] = field(default_factory=list)

    def copy(self) -> Recount:
        return Recount(self.desk, dict(self.grants), list(self.victims))

    def tokens(self) -> int:
        return self.desk.limits.max_num_batched_tokens - sum(count for count, _ in self.grants.values())

    def slots(self) -> int:
        admitted = sum(self.desk.requests[name] in self.desk.waiting for name in self.grants)
        return self.desk.limits.max_num_seqs - len(self.desk.running) - admitted + len(self.victims)

    def available(self, extra: str | None = None) -> list[int]:
        """Blocks per pool that nobody holds, less what was granted; `extra` pins as if it were granted."""
        kv, held = self.desk.kv, [set[int]() for _ in self.desk.kv.pools]
        for request in self.desk.running:
            if request.request_id not in self.victims:
                for group, table in enumerate(kv.tables(request.request_id)):
                    held[kv.pool_of_group[group]].update(table)
        for request in self.desk.waiting:
            if request.request_id in self.grants or request.request_id == extra:
                for group, ids in enumerate(kv.match(request).block_ids):
                    held[kv.pool_of_group[group]].update(ids)
        free = [pool.blocks.num_usable - len(ids - {0}) for pool, ids in zip(kv.pools, held, strict=True)]
        return [count - sum(new[pool] for _, new in self.grants.values()) for pool, count in enumerate(free)]

    def spare(self) -> int:
        pools = self.desk.kv.pool_of_group
        return min(count // pools.count(pool) for pool, count in enumerate(self.available()))

    def new_blocks(self, request: Request, count: int) -> list[int]:
        kv, needed = self.desk.kv, [0] * len(self.desk.kv.pools)
        is_running = request in self.desk.running
        start = request.num_computed_tokens if is_running else kv.match(request).num_tokens
        for group, pool in enumerate(kv.pool_of_group):
            owned = len(kv.tables(request.request_id)[group]) if is_running else start // kv.block_size
            needed[pool] += max(0, -(-(start + count) // kv.block_size) - owned)
        return needed

    def expect(self, request: Request, count: int) -> str | list[int]:
        """The resource that lacks, or the blocks that the grant takes."""
        if count > self.tokens():
            return "tokens"
        if request in self.desk.waiting and self.slots() < 1:
            return "slots"
        needed = self.new_blocks(request, count)
        available = self.available(request.request_id)
        return "blocks" if any(n > a for n, a in zip(needed, available, strict=True)) else needed


def random_desk(rng: random.Random) -> Desk:
    layout = rng.choice(["one", "pool", "pools", "window", "drafter"])
    groups = {
        "one": (full_group(),),
        "pool": (full_group(), full_group(1)),
        "pools": (full_group(), full_group(1, pool_id=1)),
        "window": (full_group(), full_group(1, window=5)),
        "drafter": (full_group(), full_group(1, lookahead=1)),
    }[layout]
    num_blocks = tuple(rng.randrange(14, 30) for _ in range(2 if layout == "pools" else 1))
    desk = Desk(num_blocks, 2, groups, max_num_seqs=rng.randrange(4, 7), budget=rng.randrange(4, 20))

    def tokens() -> list[int]:
        return rng.choices([0, 1], [4, 1], k=rng.randrange(2, 9))

    if rng.random() < 0.5:
        desk.cache(tokens())
    for index in range(rng.randrange(1, 5)):
        prompt = tokens()
        cost = len(groups) * -(-len(prompt) // 2)
        if all(pool.num_available > cost for pool in desk.kv.pools):
            desk.run(f"run{index}", prompt, rng.choice([None, len(prompt) // 2]), rng.randrange(4))
    for index in range(rng.randrange(4)):
        desk.wait(f"wait{index}", tokens(), rng.choice([RequestStatus.WAITING, RequestStatus.PREEMPTED]))
    return desk


def compare(ledger: StepLedger, recount: Recount) -> None:
    assert ledger.remaining_tokens == recount.tokens()
    assert ledger.remaining_slots == recount.slots()
    # Where groups share a pool, the public count rounds a block's error away.
    assert ledger._state.available == recount.available()
    assert ledger.spare_blocks == recount.spare()
    assert ledger.num_preempted == len(recount.victims)
    for name, request in recount.desk.requests.items():
        assert ledger.is_scheduled(request) == (name in recount.grants)
        assert ledger.is_preempted(request) == (name in recount.victims)
    plan = ledger.plan()
    assert list(plan.num_scheduled_tokens.items()) == [(name, count) for name, (count, _) in recount.grants.items()]
    assert [victim.request_id for victim in plan.preemptions] == recount.victims


@pytest.mark.parametrize("seed", range(150))
def test_random_transactions_agree_with_a_recount_and_commit_as_counted(seed: int) -> None:
    rng = random.Random(seed)
    desk = random_desk(rng)
    ledger, recount = desk.ledger(defers=False), Recount(desk)
    saved: list[Recount] = []
    for _ in range(40):
        action = rng.random()
        request = rng.choice(list(desk.requests.values())) if desk.requests else None
        if request is None:
            break
        name = request.request_id
        is_open = name not in recount.grants and name not in recount.victims
        if action < 0.55 and is_open and ledger.need(request) > 0:
            count = rng.randrange(1, ledger.need(request) + 1)
            expected = recount.expect(request, count)
            outcome = ledger.reserve(request, count)
            if isinstance(expected, str):
                assert isinstance(outcome, Shortfall)
                assert outcome.resource == expected
            else:
                assert isinstance(outcome, Grant)
                assert outcome.num_new_blocks == sum(expected)
                recount.grants[name] = (count, expected)
        elif action < 0.75 and request in desk.running and name not in recount.victims:
            before = sum(recount.available())
            freed = ledger.preempt(request)
            recount.grants.pop(name, None)
            recount.victims.append(name)
            assert freed == sum(recount.available()) - before
        elif action < 0.88:
            assert ledger.savepoint() == len(saved)
            saved.append(recount.copy())
        elif saved:
            mark = rng.randrange(len(saved))
            ledger.rollback(mark)
            del saved[mark + 1 :]
            recount = saved[mark].copy()
        compare(ledger, recount)
    expected_blocks = recount.available()
    desk.commit(ledger.plan())
    has_window = any(group.window is not None for group in desk.kv.groups)
    for pool, expected_count in zip(desk.kv.pools, expected_blocks, strict=True):
        assert pool.num_available >= expected_count if has_window else pool.num_available == expected_count
