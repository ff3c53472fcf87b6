"""Engine with drafts: what is emitted never depends on them, and no rejected token is left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest

from tokenloom.interfaces.spec_decode import VerifiedDrafts
from tokenloom.request import FinishReason
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, oracle_drafts
from tokenloom.testing.stub_executor import Drafts
from tokenloom.testing.stub_model import StubModel, full_group, stub_request

K = 5


def drafting(num_drafts: int, num_right: Callable[[str, int], int], **options: object) -> EngineHarness:
    return EngineHarness(
        draft_policy=ChosenDrafts(lambda request, _: num_drafts),
        drafts=lambda model: oracle_drafts(model, num_right),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("max_tokens", "stop_at"), list(product(range(1, K + 3), range(K + 1))))
def test_stop_and_cap_inside_an_accepted_run_end_it_as_without_drafts(max_tokens: int, stop_at: int) -> None:
    """The first token comes from the prompt, the next K + 1 from one step whose drafts are all right."""
    harness = drafting(K, lambda name, length: K)
    known = harness.model.verdict(stub_request("known", [1, 2, 3], K + 3)).token_ids
    harness.run(harness.request("r", [1, 2, 3], max_tokens, stop=[known[1 + stop_at]]))
    harness.check_truth()
    assert harness.tokens["r"] == known[: min(max_tokens, stop_at + 2)]
    expected = FinishReason.STOP if stop_at + 2 <= max_tokens else FinishReason.LENGTH
    assert harness.reason("r") is expected
    assert len(harness.executor.plans) <= 2


def test_right_drafts_save_steps() -> None:
    harness = drafting(3, lambda name, length: 3)
    harness.run(harness.request("r", [1, 2, 3], 13))
    harness.check_truth()
    assert len(harness.executor.plans) == 1 + 12 // 4


@pytest.mark.parametrize("num_right", range(K + 1))
@pytest.mark.parametrize("prompt_length", [2, 3, 4, 5, 8])
def test_frontier_ends_at_the_last_verified_token(num_right: int, prompt_length: int) -> None:
    """Right for j tokens, then wrong, at every place relative to a block's border."""
    harness = drafting(K, lambda name, length: num_right)
    request = harness.request("r", range(prompt_length), 20)
    harness.add(request)
    while harness.engine.has_work():
        harness.step()
        assert request.num_computed_tokens == request.num_tokens - 1 or request.is_finished
        tokens = request.prompt_token_ids + request.output_token_ids
        probe = stub_request("probe", [*tokens, 0])
        expected = 0 if request.is_finished else request.num_computed_tokens // 4 * 4
        found = harness.kv.match(probe).num_tokens
        harness.kv.release(probe, is_final=True)
        assert found >= expected
        assert len(harness.kv.pools[0].cache) == found // 4, "a block with a rejected token was published"
    harness.check_idle()
    harness.check_truth()


def test_requests_whose_draft_lengths_differ_do_not_mix() -> None:
    """Four requests with 0, 1, 3 and 5 drafts that change places every step."""
    lengths = (0, 1, 3, 5)
    harness = EngineHarness(
        draft_policy=ChosenDrafts(lambda request, _: lengths[(int(request.request_id) + request.num_tokens) % 4]),
        drafts=lambda model: oracle_drafts(model, lambda name, length: (int(name) + length) % 4),
    )
    harness.run(*[harness.request(str(i), range(10 * i, 10 * i + 1 + i), 40) for i in range(4)])
    harness.check_truth()
    verified = {len(row.draft_token_ids) for plan in harness.executor.plans for row in plan.rows}
    assert verified >= set(lengths)


def tree_of(model: StubModel) -> Drafts:
    """At each depth a wrong node, then the right one, whose children follow; depth 2 has a wrong grandchild as well."""

    def propose(name: str, token_ids: Sequence[int], max_drafts: int) -> tuple[list[int], list[int]]:
        prefix, parent, ids, parents = model.prefix(token_ids), -1, list[int](), list[int]()
        while len(ids) < max_drafts:
            right = model.next_token(prefix)
            ids += [(right + 1) % model.vocab_size, right]
            parents += [parent, parent]
            parent = len(ids) - 1
            prefix = model.extend(prefix, right)
        return ids[:max_drafts], parents[:max_drafts]

    return propose


@pytest.mark.parametrize("num_nodes", range(1, 8))
@pytest.mark.parametrize("budget", [3, 6, 64])
def test_tree_is_walked_and_its_accepted_path_kept(num_nodes: int, budget: int) -> None:
    harness = EngineHarness(
        budget=budget,
        groups=(full_group(), full_group(1, window=6)),
        draft_policy=ChosenDrafts(lambda request, _: num_nodes),
        drafts=tree_of,
    )
    harness.run(harness.request("a", [1, 2, 3], 30), harness.request("b", [4], 30))
    harness.check_truth()
    trees = [row for plan in harness.executor.plans for row in plan.rows if row.draft_parents]
    assert trees
    assert all(len(row.draft_parents) == len(row.draft_token_ids) for row in trees)


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_budget_cuts_drafts_before_it_cuts_tokens(budget: int) -> None:
    harness = drafting(K, lambda name, length: 2, budget=budget)
    harness.run(harness.request("r", [1, 2, 3], 20))
    harness.check_truth()
    assert max(len(row.draft_token_ids) for plan in harness.executor.plans for row in plan.rows) == budget - 1


def test_chunk_of_a_prompt_asks_for_no_drafts() -> None:
    harness = drafting(K, lambda name, length: 2, budget=4)
    harness.run(harness.request("r", range(10), 6))
    for plan in harness.executor.plans:
        for row in plan.rows:
            assert row.samples or row.max_drafts == 0


def test_drafts_end_where_the_request_must_end() -> None:
    """A model that holds 12 tokens: no draft beyond what may be emitted, and no slot beyond the last token's."""
    harness = drafting(K, lambda name, length: K, max_model_len=12, num_blocks=(4,))
    harness.run(harness.request("r", [1, 2, 3], None))
    harness.check_truth()
    assert len(harness.tokens["r"]) == 9
    for plan in harness.executor.plans:
        for row in plan.rows:
            assert row.num_computed_tokens + row.num_scheduled_tokens <= 11


@pytest.mark.parametrize("num_right", [0, 2, K])
def test_policy_and_stats_hear_what_the_target_judged(num_right: int) -> None:
    policy = ChosenDrafts(lambda request, _: K)
    harness = EngineHarness(draft_policy=policy, drafts=lambda m: oracle_drafts(m, lambda name, length: num_right))
    harness.run(harness.request("r", [1, 2, 3], 50))
    assert policy.observed[0] == VerifiedDrafts("r", K, num_right, K)
    stats = harness.engine.stats
    assert stats.num_draft_tokens == sum(v.num_drafts for v in policy.observed)
    assert stats.num_accepted_tokens == sum(v.num_accepted_tokens for v in policy.observed)
    assert stats.num_output_tokens == 50


def test_depth_of_a_tree_is_that_of_its_longest_path() -> None:
    policy = ChosenDrafts(lambda request, _: 4)
    harness = EngineHarness(draft_policy=policy, drafts=tree_of)
    harness.run(harness.request("r", [1, 2, 3], 9))
    assert policy.observed[0] == VerifiedDrafts("r", 4, 2, 2)


def test_min_tokens_hold_inside_a_run_of_drafts() -> None:
    harness = drafting(K, lambda name, length: K)
    known = harness.model.verdict(stub_request("known", [1, 2, 3], 9)).token_ids
    harness.run(harness.request("r", [1, 2, 3], 9, stop=[known[2]], min_tokens=5))
    harness.check_truth()
    assert harness.tokens["r"][:2] == known[:2]
    assert harness.tokens["r"][2] == known[2] + 1
