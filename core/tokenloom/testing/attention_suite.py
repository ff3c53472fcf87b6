"""The conformance suite of attention backends: results, memory, and independence of the batch where it is claimed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.testing.attention_cases import mixed_works
from tokenloom.testing.attention_forward_suite import AttentionForwardSuite
from tokenloom.testing.attention_memory_suite import AttentionMemorySuite
from tokenloom.testing.numeric_device import DTYPES, require_dtype
from tokenloom.testing.paged_pool import Paged, Pool, Work, layer_of, random_parents

__all__ = ["AttentionSuite"]


class AttentionSuite(AttentionForwardSuite, AttentionMemorySuite):
    """Tests of the contract in `tokenloom.interfaces.attention`::

        class TestMine(AttentionSuite):
            plugin = "my_attention"

    What is tried follows from the plugin's `Capabilities`: its dtypes, head sizes and block sizes, and the flags
    `sliding_window`, `soft_cap`, `sinks`, `tree_mask` and `deterministic`. It runs on the CPU if the plugin declares
    it, else on CUDA; `device = "cuda"` chooses. A backend that quantizes its cache overrides `as_stored`.
    """

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_deterministic_results_do_not_depend_on_the_batch_or_the_chunks(self, dtype: str) -> None:
        """Built with `deterministic`, a token's result is the same bits whatever shares its step, trees included, and
        however its prompt was cut. Products of another shape sum in another order: shapes may depend on the token's
        own slot only."""
        self.require("deterministic")
        kind = require_dtype(self.capabilities, dtype)
        head_dim = max((size for size in self.head_dims() if size <= 64), default=min(self.head_dims()))
        shape = self.shape(num_heads=6, num_kv_heads=3, head_dim=head_dim, deterministic=True, dtype=kind)
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(shape, 6000)
            layer = layer_of(shape, window, soft_cap)
            paged = pool.paged(75)
            alone = pool.step([Work(pool.twin(paged), 75)], layer)
            for pieces in ([7] * 10 + [5], [16, 1, 32, 26], [40, 35], [1] * 20 + [55]):
                out = self._run_in_pieces(pool, pool.twin(paged), layer, pieces)
                wrong = (out != alone).flatten(1).any(dim=1).nonzero().flatten().tolist()
                assert not wrong, f"window {window}, soft_cap {soft_cap}, pieces {pieces}: tokens {wrong[:8]} differ"

    def test_deterministic_results_match_the_reference(self) -> None:
        """What is the same in every batch must also be right: `deterministic` often takes another path, with tiles of
        its own, windows and trees included."""
        self.require("deterministic")
        flags = self.capabilities.flags
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape(deterministic=True), 1000)
            works = mixed_works(pool)
            if "tree_mask" in flags:
                works.append(Work(pool.paged(75, 30), 45, random_parents(45, 0)))
            if window is not None:
                for work in works:
                    pool.free_left_of_window(work.paged, window)
            layer = layer_of(pool.shape, window, soft_cap)
            pool.check(works, layer, num_padding=2, case="deterministic")
            if "sinks" in flags:
                sinks = torch.linspace(-2.0, 3.0, pool.shape.num_heads, device=pool.shape.device)
                pool.check(works, replace(layer, sinks=sinks), num_padding=2, case="deterministic, sinks")

    def _run_in_pieces(self, pool: Pool, paged: Paged, layer: AttentionLayer, pieces: list[int]) -> torch.Tensor:
        """The sequence's outputs when its tokens come in pieces, each in a step with other requests."""
        outs: list[torch.Tensor] = []
        for seed, num_new in enumerate(pieces):
            works = self._companions(pool, seed)
            place = seed % (len(works) + 1)
            works.insert(place, Work(paged, num_new))
            start = sum(work.num_new for work in works[:place])
            out = pool.step(works, layer)
            outs.append(out[start : start + num_new])
            paged.num_computed += num_new
            if layer.window is not None:
                pool.free_left_of_window(paged, layer.window)
        return torch.cat(outs)

    def _companions(self, pool: Pool, seed: int) -> list[Work]:
        """Other requests of a step, now and then with a tree."""
        shuffle = random.Random(seed)
        has_trees = "tree_mask" in self.capabilities.flags and seed % 2 == 1
        works: list[Work] = []
        for _ in range(shuffle.randrange(4)):
            cached, num_new = shuffle.randrange(1, 40), shuffle.choice([1, 1, 4, 20])
            parents = random_parents(num_new, seed) if has_trees else None
            works.append(Work(pool.paged(cached + num_new, cached), num_new, parents))
        return works
