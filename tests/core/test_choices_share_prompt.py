"""Several choices of one prompt: full blocks are shared, the last one is copied, and one token each is computed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenloom.batch import PreemptMode
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.request import Request
from tokenloom.testing.engine_harness import EngineHarness, PreemptAt, build_fcfs
from tokenloom.testing.stub_model import full_group

BLOCK = 4
LAYOUTS: dict[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "drafter": (full_group(), full_group(1, lookahead=1, is_drafter=True)),
}


def choices(harness: EngineHarness, count: int, prompt: Sequence[int], max_tokens: int = 6) -> list[Request]:
    """The choices of one prompt. The stub's tokens do not depend on the choice, so all say the same."""
    made = []
    for index in range(count):
        request = harness.request(f"c{index}", prompt, max_tokens)
        request.choice_index, request.choice_set = index, "c"
        made.append(request)
    return made


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("length", [BLOCK + 1, BLOCK + 2, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK + 3])
@pytest.mark.parametrize("budget", [5, 64])
def test_prompt_is_computed_once_and_its_last_token_by_each_choice(
    layout: str, cache: str, length: int, budget: int
) -> None:
    harness = EngineHarness(num_blocks=(90,), block_size=BLOCK, groups=LAYOUTS[layout], cache=cache, budget=budget)
    harness.run(*choices(harness, 4, range(length), max_tokens=9))
    harness.check_truth()
    # The last token of each output is never computed.
    assert harness.engine.stats.num_computed_tokens == length + 3 + 4 * 8
    assert [harness.last[f"c{i}"].num_cached_tokens for i in range(4)] == [0, *[length - 1] * 3]


@pytest.mark.parametrize("mode", list(PreemptMode))
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_copies_survive_what_happens_to_the_first_choice(mode: PreemptMode, at: int) -> None:
    harness = EngineHarness(
        num_blocks=(40,),
        max_num_seqs=3,
        scheduler=lambda context: PreemptAt(build_fcfs(context), {"c0": [at], "c2": [at]}, mode),
        host_memory_bytes=10**9,
    )
    made = choices(harness, 6, range(11), 9)
    harness.run(*made)
    harness.check_truth()
    for request in made:
        assert request.num_preemptions == (1 if request.request_id in ("c0", "c2") else 0)


def test_first_choice_that_ended_leaves_its_full_blocks_and_the_next_one_copies_from_who_runs() -> None:
    harness = EngineHarness(num_blocks=(40,), max_num_seqs=2)
    made = choices(harness, 5, range(11), 4)
    harness.add(*made)
    harness.step()
    assert harness.engine.abort("c0") is not None
    harness.run()
    harness.check_truth(but={"c0"})
    cached = [harness.last[f"c{i}"].num_cached_tokens for i in range(1, 5)]
    assert cached[0] == 8, "nobody is left to copy from"
    assert cached[1:] in ([10, 10, 10], [8, 10, 10]), cached


def test_short_prompts_do_not_wait_for_each_other() -> None:
    harness = EngineHarness()
    harness.add(*choices(harness, 3, range(BLOCK), 4))
    harness.step()
    assert len(harness.executor.plans[0].rows) == 3
    harness.run()
    harness.check_truth()


def test_no_copies_without_a_cache_or_between_strangers() -> None:
    for cache, choice_set in (("none", "c"), ("contiguous", "c"), ("hash", "")):
        harness = EngineHarness(cache=cache, num_blocks=(200,))
        made = choices(harness, 3, range(11), 4)
        for request in made:
            request.choice_set = choice_set
        harness.run(*made)
        harness.check_truth()
        assert not any(plan.transfers for plan in harness.executor.plans)
