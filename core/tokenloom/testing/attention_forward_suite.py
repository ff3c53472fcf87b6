"""Conformance of attention: what `forward` computes, against dense fp32 attention on the true tokens.

Every pool starts full of NaN, the null block included, so that reading what was never written shows as NaN.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tokenloom.testing.attention_cases import HEADS, AttentionCases, mixed_works
from tokenloom.testing.numeric_device import DTYPES, TOLERANCES, check_close, require_dtype
from tokenloom.testing.paged_pool import Work, layer_of, new_rows, random_parents

__all__ = ["AttentionForwardSuite"]


class AttentionForwardSuite(AttentionCases):
    """The half of `AttentionSuite` that is about results."""

    @pytest.mark.parametrize("heads", HEADS)
    def test_forward_of_a_mixed_batch_matches_the_reference(self, heads: tuple[int, int]) -> None:
        """Prompts, chunks, decodes and verifications in one batch, at every block size. A failure with few KV heads
        only points at their pairing: query head h reads KV head h // (Hq // Hkv). See `AttentionBatch`."""
        for block_size in self.block_sizes():
            pool = self.make_pool(self.shape(num_heads=heads[0], num_kv_heads=heads[1], block_size=block_size), 1200)
            pool.check(mixed_works(pool), layer_of(pool.shape), case="mixed batch")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_forward_in_every_dtype_and_head_dim_matches_the_reference(self, dtype: str) -> None:
        """Each declared dtype with each declared head size. Scores and softmax belong in fp32; sizes that are no power
        of two need their padding masked. See `Capabilities.head_dims`."""
        for head_dim in self.head_dims():
            pool = self.make_pool(self.shape(dtype=require_dtype(self.capabilities, dtype), head_dim=head_dim))
            works = [Work(pool.paged(33), 33), Work(pool.paged(40, 39), 1), Work(pool.paged(23, 18), 5)]
            pool.check(works, layer_of(pool.shape), case="head sizes")

    def test_forward_of_long_sequences_matches_the_reference(self) -> None:
        """Lengths around 256, 512 and 1024, where kernels cut keys into tiles or share a sequence among threads, beside
        a short one. Partial results must be put together by their maxima and sums."""
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape(), 4000)
            works = [Work(pool.paged(length, length - 1), 1) for length in (255, 257, 512, 1025, 3)]
            works += [Work(pool.paged(1025, 1000), 25), Work(pool.paged(300), 300)]
            pool.check(works, layer_of(pool.shape, window, soft_cap), case="long sequences")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_forward_keeps_large_scores_exact(self, dtype: str) -> None:
        """Scores of some +-50, where bfloat16 has steps of 0.25: they must not be rounded before the softmax."""
        pool = self.make_pool(self.shape(dtype=require_dtype(self.capabilities, dtype)))
        works = [Work(pool.paged(33), 33), Work(pool.paged(40, 39), 1), Work(pool.paged(23, 18), 5)]
        for work in works:
            work.paged.query *= 16
        pool.check(works, layer_of(pool.shape), case="large scores")

    def test_forward_tells_scores_beyond_80_apart(self) -> None:
        """Scores around 96, and around -96, that differ by some units: exp() of the difference to the largest is what
        counts, and needs no clamp. All numbers are chosen so that no dtype rounds them."""
        pool = self.make_pool(self.shape())
        works = [Work(pool.paged(length), length) for length in (33, 40)]
        works.append(Work(pool.paged(24), 1))
        layer = replace(layer_of(pool.shape), softmax_scale=48 / pool.shape.head_dim)
        for work in works:
            paged = work.paged
            paged.query.fill_(1.0)
            paged.query[::2] = -1.0
            paged.key.copy_(paged.key.round().clamp(-1, 1) + 2)
            paged.value *= 0.25
        pool.check(works[:2], layer, case="scores beyond 80")
        pool.write([Work(works[2].paged, 23)])
        works[2].paged.num_computed = 23
        pool.check(works[2:], layer, case="scores beyond 80 in decode")

    def test_forward_uses_the_scale_of_the_layer(self) -> None:
        """`AttentionLayer.softmax_scale` multiplies q.k; it need not be 1/sqrt(head_dim)."""
        pool = self.make_pool(self.shape())
        works = [Work(pool.paged(21), 21), Work(pool.paged(30, 29), 1)]
        for scale in (0.7, 0.05):
            pool.check(works, replace(layer_of(pool.shape), softmax_scale=scale), case="scale")

    @pytest.mark.parametrize("num_new", [1, 3, 40])
    def test_forward_around_the_window_matches_the_reference(self, num_new: int) -> None:
        """Lengths W-1 to 2W+1 in decode (1), verification and prefill. Blocks that left the window are the null block,
        full of NaN. Position i sees j with i - W < j <= i, itself included: W tokens. See `AttentionLayer.window`."""
        self.require("sliding_window")
        for window in (4, 17, 64, 130):
            pool = self.make_pool(self.shape(), 3000)
            lengths = [*range(window - 1, 2 * window + 2)]
            if window > 17:
                lengths = [window - 1, window, window + 1, 2 * window + 1]
            works = [Work(pool.paged(length + num_new, length), num_new) for length in lengths]
            works += [Work(pool.paged(length), length) for length in lengths]
            for work in works:
                pool.free_left_of_window(work.paged, window)
            pool.check(works, layer_of(pool.shape, window), case="window")

    def test_forward_sees_exactly_the_window(self) -> None:
        """With equal weights the result is the mean over the tokens seen. It shows which ones those are: value j is
        2 ** j, a missing or surplus token changes the sum by a power of two."""
        self.require("sliding_window")
        pool = self.make_pool(self.shape(num_heads=1, num_kv_heads=1))
        paged = pool.paged(9)
        paged.query.zero_()
        paged.value.copy_((2.0 ** torch.arange(9))[:, None, None])
        out = pool.step([Work(paged, 9)], layer_of(pool.shape, window=4))[:, 0, 0]
        tolerance = TOLERANCES[pool.shape.dtype] * 512
        for row in range(9):
            seen = min(row + 1, 4)
            got, want = float(out[row]) * seen, sum(2**slot for slot in range(row + 1 - seen, row + 1))
            assert abs(got - want) <= tolerance, (
                f"window 4: position {row} sees {seen} tokens, whose values 2 ** j add up to {want}; got {got:.6g}"
            )

    def test_forward_caps_scores_before_the_mask(self) -> None:
        """soft_cap * tanh(score / soft_cap), then the mask: what is hidden stays at minus infinity. Strong scores show
        a missing cap, a mask in front of it gives hidden tokens a weight. See `AttentionLayer.soft_cap`."""
        self.require("soft_cap")
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape(), 1000)
            works = mixed_works(pool)
            for work in works:
                work.paged.query *= 4
            pool.check(works, layer_of(pool.shape, window, soft_cap), case="soft cap")

    def test_forward_weighs_sinks_and_gives_them_no_value(self) -> None:
        """A sink joins the denominator of its query head's softmax, once for each row: with windows and caps, in trees,
        in sequences that are put together from parts, and where it outweighs all keys or hardly counts. It is neither
        scaled nor capped. See `AttentionLayer.sinks`."""
        self.require("sinks")
        kinds = self.layer_kinds()
        for window, soft_cap in dict.fromkeys((kinds[0], kinds[-1])):
            pool = self.make_pool(self.shape(num_heads=6, num_kv_heads=2), 800)
            works = [Work(pool.paged(400, 399), 1), Work(pool.paged(19), 19), Work(pool.paged(23, 18), 5)]
            if "tree_mask" in self.capabilities.flags:
                works.append(Work(pool.paged(25, 20), 5, random_parents(5, 0)))
            sinks = torch.tensor([4.0, 0.5, 90.0, -1.0, -90.0, 2.5], device=pool.shape.device)
            layer = replace(layer_of(pool.shape, window, soft_cap), sinks=sinks)
            pool.check(works, layer, num_padding=1, case="sinks")
            pool.check(works[1:2], layer, case="sinks of one prompt")

    def test_forward_of_a_prompt_equals_its_chunks(self) -> None:
        """prefill(n) == prefill(k) + prefill(n - k), whatever k. A chunk attends to the cached part as well; its first
        new token has slot seq_len - query_len."""
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape(), 1200)
            layer = layer_of(pool.shape, window, soft_cap)
            paged = pool.paged(70)
            whole = pool.step([Work(pool.twin(paged), 70)], layer)
            for first in (1, 16, 33, 69):
                halves = pool.twin(paged)
                chunks = [pool.step([Work(halves, first)], layer)]
                halves.num_computed = first
                chunks.append(pool.step([Work(halves, 70 - first)], layer))
                case = f"chunks {first} and {70 - first}, window {window}, soft_cap {soft_cap}"
                check_close(torch.cat(chunks), whole, TOLERANCES[pool.shape.dtype], case)

    def test_forward_of_a_verification_equals_single_steps(self) -> None:
        """1 + k new tokens give what k + 1 decode steps give: each draft sees the ones before it and none behind."""
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape())
            layer = layer_of(pool.shape, window, soft_cap)
            paged = pool.paged(30, num_computed=14)
            for num_drafts in (1, 5):
                verified = pool.step([Work(pool.twin(paged, 14), 1 + num_drafts)], layer)
                single = pool.twin(paged, 14)
                for row in range(1 + num_drafts):
                    out = pool.step([Work(single, 1)], layer)
                    single.num_computed += 1
                    check_close(out[0], verified[row], TOLERANCES[pool.shape.dtype], f"row {row} of 1 + {num_drafts}")

    @pytest.mark.parametrize("num_nodes", [2, 7, 45])
    def test_forward_of_trees_matches_the_reference(self, num_nodes: int) -> None:
        """A node sees the cached prefix, its ancestors and itself: `tree_mask`. Siblings share a position, so slots
        and positions differ; a window is measured by position, K and V lie by slot."""
        self.require("tree_mask")
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape(), 1000)
            works = [
                Work(pool.paged(cached + num_nodes, cached), num_nodes, random_parents(num_nodes, seed))
                for seed, cached in enumerate((0, 3, 4, 5, 16, 60))
            ]
            if window is not None:
                for work in works:
                    pool.free_left_of_window(work.paged, window)
            pool.check(works, layer_of(pool.shape, window, soft_cap), case="trees")

    def test_forward_mixes_trees_with_plain_requests(self) -> None:
        """Requests without a tree have lower triangular rows in the step's `tree_mask`; columns past a request's query
        length are False."""
        self.require("tree_mask")
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape())
            works = [
                Work(pool.paged(40), 40),
                Work(pool.paged(25, 20), 5, random_parents(5, 0)),
                Work(pool.paged(30, 29), 1),
                Work(pool.paged(36, 30), 5),
                Work(pool.paged(25, 8), 17, random_parents(17, 1)),
            ]
            pool.check(works, layer_of(pool.shape, window, soft_cap), num_padding=2, case="trees and chains")

    def test_forward_ignores_padding_rows(self) -> None:
        """A request with seq_lens 0 and one row is padding: its NaN must reach no real row, and its own result is
        zero. Batches of 1 to 9 rows, as a graph of fixed size pads them."""
        for batch_size in range(1, 10):
            pool = self.make_pool(self.shape(), seed=batch_size)
            works = [Work(pool.paged(50, 5 * i + 1), 1) for i in range(batch_size)]
            pool.check(works, layer_of(pool.shape), 9 - batch_size, case=f"{batch_size} of 9 rows are real")

    def test_forward_ignores_slots_beyond_the_sequence(self) -> None:
        """Rejected drafts leave K and V behind their sequence, until the next step overwrites them. What lies at or
        past seq_lens must not be read into a result, however plausible it looks."""
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape())
            layer = layer_of(pool.shape, window, soft_cap)
            works = [Work(pool.paged(length + 6, length), 6) for length in (3, 8, 17, 31)]
            pool.step(works, layer)
            pool.check([Work(work.paged, 1) for work in works], layer, case="after rejected drafts")

    def test_forward_takes_strided_queries(self) -> None:
        """Queries are often a slice of a fused projection: only the last dimension is sure to be contiguous."""
        pool = self.make_pool(self.shape())
        works = [Work(pool.paged(20), 20), Work(pool.paged(45), 45), Work(pool.paged(30, 29), 1)]
        layer = layer_of(pool.shape)
        out = pool.step(works, layer)
        query = new_rows(works, "query")
        fused = torch.cat([torch.full_like(query, torch.nan), query, torch.full_like(query, torch.nan)], dim=1)
        num_heads = pool.shape.num_heads
        metadata = pool.backend.prepare(pool.batch(works))
        strided = pool.backend.forward(fused[:, num_heads : 2 * num_heads], pool.kv, layer, metadata)
        check_close(strided, out, TOLERANCES[pool.shape.dtype], "strided query")

    def test_forward_leaves_query_and_cache_as_they_are(self) -> None:
        """`forward` reads. Scaling the query in place, for one, spoils it for whoever uses it next."""
        pool = self.make_pool(self.shape())
        works = [Work(pool.paged(40), 40), Work(pool.paged(30, 29), 1)]
        pool.write(works)
        query = new_rows(works, "query")
        before, cache = query.clone(), [part.view(torch.uint8).clone() for part in pool.kv]
        pool.backend.forward(query, pool.kv, layer_of(pool.shape), pool.backend.prepare(pool.batch(works)))
        assert torch.equal(query, before), "forward changed its query"
        for index, (part, old) in enumerate(zip(pool.kv, cache)):
            assert torch.equal(part.view(torch.uint8), old), f"forward changed cache tensor {index}"
