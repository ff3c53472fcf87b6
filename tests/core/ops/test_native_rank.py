"""The first tokens of a row in rank order, in C++ against torch's, at every level of instructions of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests.core.ops.native_levels import LEVELS, NEEDS_COMPILER, at_level
from tokenloom.ops.native_sampling import native_rank
from tokenloom.ops.sampling_table import TORCH_SAMPLING, build_sampling_ops
from tokenloom.sampling import SamplingBatch, SamplingRow
from tokenloom.sampling.filtering import rank_tokens
from tokenloom.sampling_params import SamplingParams

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("module")]


@pytest.fixture(params=LEVELS)
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield from at_level(request.param)


def assert_ranked(scores: torch.Tensor, width: int) -> None:
    expected, found = rank_tokens(scores, width), native_rank(scores, width)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1].view(torch.int32), expected[1].view(torch.int32))


@pytest.mark.parametrize("size", [1, 2, 65, 1031, 5000])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_it_is_torch_s(num_rows: int, size: int) -> None:
    scores = -torch.rand(num_rows, size, generator=torch.Generator().manual_seed(size))
    for width in sorted({1, min(size, 7), min(size, 300), size}):
        assert_ranked(scores, width)


@pytest.mark.parametrize("width", [1, 50, 900])
def test_of_equal_scores_the_lowest_ids_come_first(width: int) -> None:
    """A few values, so that the last place is shared by many; and one value alone, zero of either sign."""
    scores = -torch.randint(0, 3, (3, 1031), generator=torch.Generator().manual_seed(0)).float()
    assert_ranked(scores, width)
    zeros = torch.zeros(2, 1031)
    zeros[0, ::2] = -0.0
    assert_ranked(zeros, width)


@pytest.mark.parametrize("width", [1, 4, 70])
def test_what_is_no_number_comes_last(width: int) -> None:
    scores = torch.full((4, 70), float("-inf"))
    scores[0, 3:6] = float("nan")
    scores[1] = float("nan")
    scores[2, [1, 69]] = torch.tensor([-2.0, -1e-42])
    assert_ranked(scores, width)


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_k": 300, "top_p": 0.7}, {"top_p": 0.9}, {"min_p": 0.01}])
def test_tokens_chosen_with_it_are_torch_s(options: dict[str, float]) -> None:
    rows = [SamplingRow(SamplingParams(temperature=0.5 + seed, **options), seed, 0, 0, (), ()) for seed in range(3)]  # type: ignore[arg-type]
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(1))
    batch = SamplingBatch.build(rows, 3000)
    found, expected = (ops.choose_tokens(logits, batch) for ops in (build_sampling_ops("native"), TORCH_SAMPLING))
    assert found[0].tolist() == expected[0].tolist()


def test_wrong_operands_are_refused(module: ModuleType) -> None:
    for scores, width in (
        (torch.zeros(3), 1),
        (torch.zeros(3, 4), 0),
        (torch.zeros(3, 4), 5),
        (torch.zeros(4, 3).T, 1),
    ):
        with pytest.raises(RuntimeError, match="must be float32 with 2 dimensions, contiguous, and have at least"):
            module.rank(scores, width)
