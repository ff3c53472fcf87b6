"""The default verifier on chains, trees and ragged batches against a plain walk; equality with no speculation."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tokenloom.sampling import SamplingBatch, SamplingRow, Verification, sample, verify_chain, verify_tree
from tokenloom.sampling_params import SamplingParams


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def flat(lists: list[list[int]]) -> Tensor:
    return ints(list(itertools.chain.from_iterable(lists)))


def per_request(values: Tensor, counts: list[int]) -> list[list[Any]]:
    rows = values.tolist()
    return [rows[start : start + count] for start, count in zip(cumulated(counts).tolist(), counts)]


def cumulated(counts: list[int]) -> Tensor:
    return ints(list(itertools.accumulate(counts, initial=0)))


def emitted(result: Verification, counts: list[int]) -> list[list[int]]:
    """New tokens of each request."""
    pairs = zip(per_request(result.token_ids, counts), per_request(result.is_emitted, counts), strict=True)
    return [[token for token, is_emitted in zip(*pair, strict=True) if is_emitted] for pair in pairs]


def walk_chain(samples: list[int], drafts: list[int]) -> list[int]:
    tokens = [samples[0]]
    for draft, following in zip(drafts, samples[1:], strict=True):
        if draft != tokens[-1]:
            break
        tokens.append(following)
    return tokens


def walk_tree(samples: list[int], drafts: list[int], parents: list[int]) -> list[int]:
    """Rows of the accepted path, the root's included."""
    path = [0]
    while True:
        children = [i + 1 for i, parent in enumerate(parents) if parent == path[-1] - 1]
        matching = [row for row in children if drafts[row - 1] == samples[path[-1]]]
        if not matching:
            return path
        path.append(matching[0])


@pytest.mark.parametrize("num_right", range(6))
def test_chain_accepts_up_to_the_first_difference(num_right: int) -> None:
    samples = [10, 11, 12, 13, 14, 15]
    drafts = [10, 11, 12, 13, 14]
    if num_right < 5:
        drafts[num_right] = 99
    result = verify_chain(ints(samples), ints(drafts), ints([0, 6]))
    assert result.num_accepted_tokens.tolist() == [num_right]
    assert emitted(result, [6]) == [samples[: num_right + 1]]
    assert result.last_row.tolist() == [num_right]


def test_right_drafts_behind_a_wrong_one_do_not_count() -> None:
    result = verify_chain(ints([1, 2, 3, 4]), ints([9, 2, 3]), ints([0, 4]))
    assert emitted(result, [4]) == [[1]]


def test_ragged_batches_of_random_chains_equal_the_walk() -> None:
    rng = random.Random(0)
    for _ in range(200):
        counts = [1 + rng.choice([0, 1, 3, 5]) for _ in range(rng.randint(1, 7))]
        samples = [[rng.randint(0, 1) for _ in range(count)] for count in counts]
        drafts = [[rng.randint(0, 1) for _ in range(count - 1)] for count in counts]
        result = verify_chain(flat(samples), flat(drafts), cumulated(counts))
        expected = [walk_chain(s, d) for s, d in zip(samples, drafts, strict=True)]
        assert emitted(result, counts) == expected
        assert result.num_accepted_tokens.tolist() == [len(tokens) - 1 for tokens in expected]
        assert result.token_ids[result.last_row].tolist() == [tokens[-1] for tokens in expected]


@pytest.mark.parametrize("num_requests", [0, 1, 4])
def test_requests_without_drafts_emit_their_sample(num_requests: int) -> None:
    samples = ints(list(range(num_requests)))
    cu_num_rows = torch.arange(num_requests + 1)
    for result in (verify_chain(samples, ints([]), cu_num_rows), verify_tree(samples, ints([]), ints([]), cu_num_rows)):
        assert result.num_accepted_tokens.tolist() == [0] * num_requests
        assert emitted(result, [1] * num_requests) == [[sample] for sample in range(num_requests)]


def test_tree_follows_the_child_that_equals_the_sample() -> None:
    #        root
    #      5     6           rows 1, 2
    #    7   8     9         rows 3, 4, 5
    drafts, parents = ints([5, 6, 7, 8, 9]), ints([-1, -1, 0, 0, 1])
    samples = ints([6, 7, 9, 0, 0, 4])
    result = verify_tree(samples, drafts, parents, ints([0, 6]))
    assert result.is_emitted.tolist() == [True, False, True, False, False, True]
    assert emitted(result, [6]) == [[6, 9, 4]]
    assert (result.num_accepted_tokens.tolist(), result.last_row.tolist()) == ([2], [5])


def test_tree_with_equal_siblings_takes_the_first() -> None:
    result = verify_tree(ints([5, 7, 8, 1]), ints([5, 5, 8]), ints([-1, -1, 1]), ints([0, 4]))
    assert result.is_emitted.tolist() == [True, True, False, False]


def test_tree_that_is_a_chain_equals_the_chain() -> None:
    rng = random.Random(1)
    for _ in range(50):
        counts = [rng.randint(1, 6) for _ in range(4)]
        samples = ints([rng.randint(0, 1) for _ in range(sum(counts))])
        drafts = ints([rng.randint(0, 1) for _ in range(sum(counts) - 4)])
        parents = ints([depth - 1 for count in counts for depth in range(count - 1)])
        chain = verify_chain(samples, drafts, cumulated(counts))
        tree = verify_tree(samples, drafts, parents, cumulated(counts))
        assert torch.equal(chain.is_emitted, tree.is_emitted)
        assert torch.equal(chain.num_accepted_tokens, tree.num_accepted_tokens)
        assert torch.equal(chain.last_row, tree.last_row)


def test_ragged_batches_of_random_trees_equal_the_walk() -> None:
    rng = random.Random(2)
    for _ in range(200):
        counts = [1 + rng.choice([0, 1, 4, 12]) for _ in range(rng.randint(1, 6))]
        samples = [[rng.randint(0, 2) for _ in range(count)] for count in counts]
        drafts = [[rng.randint(0, 2) for _ in range(count - 1)] for count in counts]
        parents = [[rng.randint(-1, i - 1) for i in range(count - 1)] for count in counts]
        result = verify_tree(flat(samples), flat(drafts), flat(parents), cumulated(counts))
        paths = [walk_tree(s, d, p) for s, d, p in zip(samples, drafts, parents, strict=True)]
        rows = [[i for i, is_in in enumerate(mask) if is_in] for mask in per_request(result.is_emitted, counts)]
        assert rows == paths
        assert result.num_accepted_tokens.tolist() == [len(path) - 1 for path in paths]
        starts = cumulated(counts).tolist()
        assert result.last_row.tolist() == [start + path[-1] for start, path in zip(starts, paths)]


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {}, {"temperature": 0.8, "top_k": 9, "top_p": 0.95}])
def test_speculation_with_any_drafts_gives_the_tokens_of_no_speculation(changes: dict[str, Any]) -> None:
    """A toy model: the logits depend on the last token. Four requests, draft lengths change each step."""
    vocab_size, num_tokens = 31, 60
    model = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(5)) * 2
    requests = [SamplingRow(SamplingParams(**changes), seed=seed, choice=seed % 2) for seed in range(4)]
    batch = SamplingBatch.build(requests, vocab_size)

    def alone(request: int) -> list[int]:
        tokens = [0]
        for position in range(num_tokens):
            tokens.append(int(sample(model[tokens[-1:]], batch.select([request], [position])).token_ids))
        return tokens[1:]

    oracle = [alone(request) for request in range(4)]
    rng = random.Random(3)
    outputs: list[list[int]] = [[], [], [], []]
    num_accepted = 0
    while min(map(len, outputs)) < num_tokens:
        drafts = []
        for request, tokens in enumerate(outputs):  # right for a while, then wrong
            right = oracle[request][len(tokens) :][: rng.choice([0, 1, 3, 5])]
            drafts.append([t if rng.random() < 0.8 else rng.randrange(vocab_size) for t in right])
        counts = [1 + len(d) for d in drafts]
        inputs = [t for tokens, d in zip(outputs, drafts, strict=True) for t in [tokens[-1] if tokens else 0, *d]]
        rows = [request for request, count in enumerate(counts) for _ in range(count)]
        offsets = [len(tokens) + i for tokens, count in zip(outputs, counts, strict=True) for i in range(count)]
        sampled = sample(model[inputs], batch.select(rows, offsets)).token_ids
        result = verify_chain(sampled, flat(drafts), cumulated(counts))
        num_accepted += int(result.num_accepted_tokens.sum())
        for tokens, new in zip(outputs, emitted(result, counts), strict=True):
            tokens.extend(new)
    assert num_accepted > 50
    assert [tokens[:num_tokens] for tokens in outputs] == oracle
