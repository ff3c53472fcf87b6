"""The maximum of each row and its place, against torch's."""

from __future__ import annotations

import pytest
import torch

from tokenloom.sampling.row_max import row_max


@pytest.mark.parametrize("size", [1, 33, 64, 192, 512, 1000, 2560])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_row_max_is_torch_s(num_rows: int, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    # Few values, so that there are ties within pieces and between them; rows strided.
    scores = torch.randint(-3, 3, (num_rows, size + 7), generator=generator).float()[:, :size]
    expected = scores.max(dim=-1)
    found = row_max(scores)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.indices, expected.indices)


def test_row_max_of_equal_maxima_is_the_first() -> None:
    scores = torch.zeros(3, 256)
    scores[0, [63, 64, 255]] = 1.0
    scores[1, 255] = 1.0
    assert row_max(scores).indices.tolist() == [63, 255, 0]


@pytest.mark.parametrize("place", [0, 100, 255])
def test_row_max_is_nan_where_a_row_holds_one(place: int) -> None:
    scores = torch.full((2, 256), float("inf"))
    scores[0, place] = float("nan")
    found = row_max(scores)
    assert found.values[0].isnan()
    assert found.indices[0] == place
    assert found.values[1] == float("inf")


def test_row_max_of_a_row_without_finite_elements_is_minus_infinity() -> None:
    assert row_max(torch.full((1, 128), float("-inf"))).values.item() == float("-inf")
