"""`naive`: what it refuses, that all its scores are in memory, and trees of which each branch equals a chain."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tokenloom_attention
from tokenloom.errors import CapabilityError
from tokenloom.interfaces.contract import CONTRACT_VERSIONS
from tokenloom.plugins import Registry
from tokenloom.testing.paged_pool import Pool, Shape, Work, layer_of
from tokenloom_attention.naive import NaiveConfig


def _pool(shape: Shape, num_blocks: int = 200) -> Pool:
    return Pool(NaiveConfig().build(shape.context()), shape, num_blocks)


def test_all_scores_of_a_request_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scores: list[torch.Size] = []
    softmax = torch.softmax

    def noting_softmax(values: torch.Tensor, dim: int) -> torch.Tensor:
        scores.append(values.shape)
        return softmax(values, dim=dim)

    monkeypatch.setattr(torch, "softmax", noting_softmax)
    pool = _pool(Shape(num_heads=6, num_kv_heads=2))
    pool.step([Work(pool.paged(64), 64), Work(pool.paged(9, 6), 3)], layer_of(pool.shape))
    assert scores == [(2, 3, 64, 64), (2, 3, 3, 9)]


def test_a_deterministic_branch_of_a_tree_has_the_bits_of_a_chain() -> None:
    pool = _pool(Shape(dtype=torch.bfloat16, deterministic=True))
    layer = layer_of(pool.shape, window=17)
    paged = pool.paged(33, 30)
    chain = pool.step([Work(paged, 3)], layer)
    twin = pool.twin(paged, 30)
    # Node 1 and node 2 both follow node 0: seen from node 2, node 1 is not there.
    tree = pool.step([Work(twin, 3, (-1, 0, 0))], layer)
    assert torch.equal(tree[:2], chain[:2])
    assert not torch.equal(tree[2], chain[2])


def test_naive_is_declared_with_every_flag() -> None:
    info = Registry.from_modules([tokenloom_attention]).get("attention", "naive").info
    assert info.contract == CONTRACT_VERSIONS["attention"]
    declared = {"sliding_window", "soft_cap", "sinks", "tree_mask", "deterministic@cpu", "whole_scores"}
    assert info.capabilities.flags == declared


def test_build_names_every_reason_against_a_context() -> None:
    context = replace(
        Shape(deterministic=True).context(), device=torch.device("cuda"), num_heads=5, dtype=torch.float64
    )
    with pytest.raises(CapabilityError) as caught:
        NaiveConfig().build(context)
    assert "got 5 and 2" in caught.value.reasons[0]
    assert "got torch.float64; try model.dtype=bfloat16" in caught.value.reasons[1]
    assert "deterministic on cpu only, got cuda" in caught.value.reasons[2]
