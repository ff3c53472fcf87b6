"""plan_memory: how many blocks, and an error that says what to change."""

from __future__ import annotations

import pytest

from tokenloom.errors import OutOfMemoryError
from tokenloom.kv.memory_plan import MemoryBudget, format_bytes, plan_memory
from tokenloom.testing.stub_model import full_group

BUDGET = MemoryBudget(weights=1_000, activation_peak=100, workspace=50, available=1_000)
GROUP = full_group(page_bytes=10)


def test_fraction_of_the_available_memory_becomes_blocks() -> None:
    plan = plan_memory(BUDGET, (GROUP,), 16, 0.5, None)
    assert plan.num_blocks == (50,)
    assert plan.breakdown == {
        "weights": 1_000,
        "kv_cache": 500,
        "activation_peak": 100,
        "workspace": 50,
        "available": 1_000,
    }


def test_groups_of_one_pool_share_its_blocks_and_pools_add_up() -> None:
    groups = (GROUP, full_group(1, page_bytes=10), full_group(2, page_bytes=30, pool_id=1))
    assert plan_memory(BUDGET, groups, 16, 0.5, None).num_blocks == (12, 12)
    assert plan_memory(BUDGET, groups, 16, 0.5, 5).num_blocks == (5, 5)


def test_explicit_number_is_taken_whatever_the_fraction() -> None:
    assert plan_memory(BUDGET, (GROUP,), 16, 0.01, 85).num_blocks == (85,)


@pytest.mark.parametrize(
    ("fraction", "num_blocks", "remedy", "wrong"),
    [
        (0.5, 86, "lower cache.num_blocks to at most 85", "memory_fraction"),
        (0.015, None, "raise cache.memory_fraction", "lower cache.memory_fraction"),
        (0.9, None, "lower cache.memory_fraction", "raise cache.memory_fraction"),
    ],
)
def test_error_names_the_breakdown_and_a_remedy_that_helps(
    fraction: float, num_blocks: int | None, remedy: str, wrong: str
) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        plan_memory(BUDGET, (GROUP,), 16, fraction, num_blocks)
    message = str(caught.value)
    assert remedy in message
    assert wrong not in message
    assert all(name in message for name in ("weights", "kv_cache", "activation_peak", "workspace", "available"))
    assert isinstance(caught.value, MemoryError)


@pytest.mark.parametrize("num_blocks", [None, 5])
@pytest.mark.parametrize("available", [0, 100, 169])
def test_where_not_even_two_blocks_fit_no_size_of_the_cache_is_blamed(available: int, num_blocks: int | None) -> None:
    budget = MemoryBudget(weights=1_000, activation_peak=100, workspace=50, available=available)
    with pytest.raises(OutOfMemoryError) as caught:
        plan_memory(budget, (GROUP,), 16, 0.5, num_blocks)
    message = str(caught.value)
    assert "does not fit" in message
    assert f"even 2 blocks lack {170 - available} B: lower scheduler.max_num_batched_tokens" in message
    assert "cache." not in message
    assert " -" not in message


@pytest.mark.parametrize("num_blocks", [None, 5])
def test_weights_that_do_not_fit_are_told_with_what_is_missing(num_blocks: int | None) -> None:
    budget = MemoryBudget(weights=1_000, activation_peak=100, workspace=50, available=-600)
    with pytest.raises(OutOfMemoryError) as caught:
        plan_memory(budget, (GROUP,), 16, 0.5, num_blocks)
    message = str(caught.value)
    assert "the weights do not fit: they take 1000 B of a memory of 400 B, 600 B are missing" in message
    assert "quant=int8" in message
    assert "cache." not in message
    assert " -" not in message


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.00 KiB"),
        (3 << 19, "1.50 MiB"),
        (1 << 30, "1.00 GiB"),
        (1 << 42, "4096.00 GiB"),
    ],
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert format_bytes(size) == text
