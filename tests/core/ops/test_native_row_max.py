"""The maximum of each row in C++ against torch's, at every level of instructions that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests.core.ops.native_levels import LEVELS, NEEDS_COMPILER, at_level
from tokenloom.ops.native_sampling import native_row_max
from tokenloom.ops.sampling_table import TORCH_SAMPLING, build_sampling_ops
from tokenloom.sampling import SamplingBatch, SamplingRow
from tokenloom.sampling_params import SamplingParams

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("module")]


@pytest.fixture(params=LEVELS)
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield from at_level(request.param)


@pytest.mark.parametrize("size", [1, 2, 33, 1024, 1031, 70000])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 5])
def test_it_is_torch_s_with_ties_in_pieces_and_between_them(num_rows: int, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    scores = torch.randint(-3, 3, (num_rows, size + 7), generator=generator).float()[:, :size]
    expected, found = scores.max(dim=-1), native_row_max(scores)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.indices, expected.indices)


@pytest.mark.parametrize("num_rows", [1, 3, 9])
@pytest.mark.parametrize("place", [0, 15, 1023, 1024, 69_999])
def test_the_first_nan_is_the_greatest(num_rows: int, place: int) -> None:
    scores = torch.full((num_rows, 70_000), float("inf"))
    scores[-1, [place, 69_999]] = float("nan")
    found = native_row_max(scores)
    assert found.values[-1].isnan()
    assert found.indices.tolist() == [0] * (num_rows - 1) + [place]


def test_a_row_of_minus_infinities_has_its_first() -> None:
    found = native_row_max(torch.full((3, 2050), float("-inf")))
    assert found.values.tolist() == [float("-inf")] * 3
    assert found.indices.tolist() == [0] * 3


def test_tokens_chosen_with_it_are_torch_s() -> None:
    temperatures = (0.0, 1.0, 0.7, 0.0)
    rows = [SamplingRow(SamplingParams(temperature=t), seed, 0, 0, (), ()) for seed, t in enumerate(temperatures)]
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1))
    logits[3, 7] = float("nan")
    batch = SamplingBatch.build(rows, 3000)
    found, expected = (ops.choose_tokens(logits, batch) for ops in (build_sampling_ops("native"), TORCH_SAMPLING))
    assert found[1].tolist() == expected[1].tolist() == [False, False, False, True]
    assert found[0].tolist() == expected[0].tolist()


def test_wrong_operands_are_refused(module: ModuleType) -> None:
    for scores in (torch.zeros(3), torch.zeros(3, 0), torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4, 3).T):
        with pytest.raises(RuntimeError, match="must be float32 with 2 dimensions, contiguous, and have columns"):
            module.row_max(scores)
