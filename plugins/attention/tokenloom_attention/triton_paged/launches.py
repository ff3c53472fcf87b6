"""The operations of `triton_paged`: they check what they are given, and launch the kernels."""

from __future__ import annotations

import math

import torch
import triton

from tokenloom.interfaces.attention import AttentionBatch, AttentionLayer
from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom_attention.fixed_scales import CODE_LIMITS
from tokenloom_attention.triton_paged.kernels import attend_kernel, combine_kernel, store_kernel
from tokenloom_attention.triton_paged.plan import StepPlan

__all__ = [
    "attention_launches",
    "form_arguments",
    "pack_tree",
    "padded_dim",
    "paged_attention",
    "partial_results",
    "store_launch",
    "store_tokens",
]

TOKENS_OF_A_STORE = 16
"""Tokens that one program stores; enough to fill its threads, few enough to spread a decode step."""


def paged_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    batch: AttentionBatch,
    tree_words: torch.Tensor | None,
    layer: AttentionLayer,
    plan: StepPlan,
) -> torch.Tensor:
    """Attention of a step's new tokens over everything cached, their own keys and values included.

    Args:
        query: [T, Hq, D], float32, float16 or bfloat16; only the last dimension need be contiguous.
        cache: [num_blocks, 2, Hkv, BS, D], contiguous: keys and values, of the query's dtype, int8 or float8_e4m3fn.
        scales: fp32 [num_blocks, 2, Hkv, BS] that int8 and e4m3 are multiplied by; None for the query's dtype.
        batch: the step.
        tree_words: `pack_tree` of its tree mask, or None.
        layer: scale (positive), window, soft cap and sinks.
        plan: of `plan_step`, for this batch and window.

    Returns:
        [T, Hq, D], dtype of query; rows that see nothing are zero.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for launch in attention_launches(out, query, cache, scales, batch, tree_words, layer, plan):
        launch.run()
    return out


def store_tokens(
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Stores new tokens' keys and values at their slots, quantized if there are scales.

    Args:
        cache, scales: as in `paged_attention`; mutated.
        key, value: [T, Hkv, D]; only the last dimension need be contiguous.
        slot_mapping: int64 [T], block * BS + offset; a negative one means "do not store".
    """
    store_launch(cache, scales, key, value, slot_mapping).run()


def pack_tree(tree_mask: torch.Tensor) -> torch.Tensor:
    """bool [T, width] as int32 [T, ceil(width / 32)], column 32 w + i in bit i of word w: what a tile needs of a row is
    then some words, not a pointer for each cell."""
    width = tree_mask.shape[1]
    num_words = -(-width // 32)
    padded = torch.nn.functional.pad(tree_mask, (0, 32 * num_words - width))
    bits = padded.reshape(-1, num_words, 32).to(torch.int32)
    shifts = torch.arange(32, dtype=torch.int32, device=tree_mask.device)
    return (bits << shifts).sum(dim=-1, dtype=torch.int32)


def padded_dim(head_dim: int) -> int:
    """Columns of a tile: a power of two that the matrix units take."""
    return max(16, 1 << (head_dim - 1).bit_length())


def attention_launches(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    batch: AttentionBatch,
    tree_words: torch.Tensor | None,
    layer: AttentionLayer,
    plan: StepPlan,
) -> list[KernelLaunch]:
    """What `paged_attention` launches: one kernel, and another one where sequences are split."""
    assert query.stride(2) == 1, f"queries with stride {query.stride()}"
    assert cache.is_contiguous(), f"a cache of shape {tuple(cache.shape)} with strides {cache.stride()}"
    assert (tree_words is None) == (batch.tree_mask is None), "a tree's mask and its words go together"
    partial = partial_results(batch.seq_lens.shape[0], query, plan)
    attend = _attend_launch(out, partial, query, cache, scales, batch, tree_words, layer, plan)
    if partial is None:
        return [attend]
    return [attend, _combine_launch(out, *partial, batch, cache.shape[2], plan)]


def form_arguments(layer: AttentionLayer) -> dict[str, float | int | torch.Tensor | None]:
    """How a layer turns products into exponents of 2, and what else it weighs them by, as the kernels' arguments."""
    assert layer.softmax_scale > 0, f"softmax_scale {layer.softmax_scale}"
    soft_cap, sinks = layer.soft_cap, layer.sinks
    assert sinks is None or (sinks.dtype == torch.float32 and sinks.is_contiguous()), f"sinks in {sinks.dtype}"
    return {
        "factor": math.log2(math.e) * (layer.softmax_scale if soft_cap is None else 1.0),
        "inner_scale": None if soft_cap is None else layer.softmax_scale / soft_cap,
        "soft_cap": soft_cap,
        "window": layer.window,
        "sinks": sinks,
    }


def _attend_launch(
    out: torch.Tensor,
    partial: tuple[torch.Tensor, torch.Tensor] | None,
    query: torch.Tensor,
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    batch: AttentionBatch,
    tree_words: torch.Tensor | None,
    layer: AttentionLayer,
    plan: StepPlan,
) -> KernelLaunch:
    num_kv_heads, block_size, head_dim = cache.shape[2:]
    return KernelLaunch(
        attend_kernel,
        (plan.num_blocks, num_kv_heads, plan.num_splits),
        arguments={
            "out": out,
            "partial_out": None if partial is None else partial[0],
            "partial_lse": None if partial is None else partial[1],
            "query": query,
            "cache": cache,
            "scales": scales,
            "cu_seqlens_q": batch.cu_seqlens_q,
            "seq_lens": batch.seq_lens,
            "block_table": batch.block_table,
            "positions": batch.positions,
            "tree_words": tree_words,
            "stride_query_token": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_table": batch.block_table.stride(0),
            "num_words": 0 if tree_words is None else tree_words.shape[1],
            "num_requests": batch.seq_lens.shape[0],
            "uniform_query_len": plan.uniform_query_len,
            "split_query_len": plan.split_query_len,
            "split_span": plan.split_span,
            **form_arguments(layer),
        },
        constants={
            "GROUP": query.shape[1] // num_kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_D": padded_dim(head_dim),
            "BLOCK_SIZE": block_size,
            "BLOCK_M": plan.tiles.rows,
            "BLOCK_N": plan.tiles.keys,
            "MASK_ALL": plan.mask_all,
            "SKIP_FRESH": plan.skip_fresh,
        },
        num_warps=plan.tiles.num_warps,
        num_stages=plan.tiles.num_stages,
    )


def partial_results(num_requests: int, query: torch.Tensor, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Room for the splits' results: fp32 [requests * split_query_len, Hq, splits, D], and the logarithms of their
    sums without the last dimension; None without splits."""
    if plan.num_splits == 1:
        return None
    cells = (num_requests * plan.split_query_len, query.shape[1], plan.num_splits)
    lse = torch.empty(cells, dtype=torch.float32, device=query.device)
    return torch.empty((*cells, query.shape[2]), dtype=torch.float32, device=query.device), lse


def _combine_launch(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    batch: AttentionBatch,
    num_kv_heads: int,
    plan: StepPlan,
) -> KernelLaunch:
    group, head_dim = out.shape[1] // num_kv_heads, out.shape[2]
    return KernelLaunch(
        combine_kernel,
        (partial_lse.shape[0], num_kv_heads),
        arguments={
            "out": out,
            "partial_out": partial_out,
            "partial_lse": partial_lse,
            "cu_seqlens_q": batch.cu_seqlens_q,
            "seq_lens": batch.seq_lens,
            "split_query_len": plan.split_query_len,
            "num_splits": plan.num_splits,
        },
        constants={
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_D": padded_dim(head_dim),
            "BLOCK_G": triton.next_power_of_2(group),
            "SKIP_FRESH": plan.skip_fresh,
        },
        num_warps=4,
        num_stages=2,
    )


def store_launch(
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> KernelLaunch:
    """What `store_tokens` launches."""
    num_kv_heads, block_size, head_dim = cache.shape[2:]
    num_tokens = slot_mapping.shape[0]
    assert key.shape == value.shape == (num_tokens, num_kv_heads, head_dim), f"{key.shape}, {value.shape}"
    assert key.stride(2) == value.stride(2) == 1, f"keys and values with strides {key.stride()}, {value.stride()}"
    assert (scales is None) == (cache.dtype not in CODE_LIMITS), (
        f"a cache of {cache.dtype}, scales {scales is not None}"
    )
    return KernelLaunch(
        store_kernel,
        (-(-num_tokens // TOKENS_OF_A_STORE), num_kv_heads),
        arguments={
            "cache": cache,
            "scales": scales,
            "key": key,
            "value": value,
            "slot_mapping": slot_mapping,
            "num_tokens": num_tokens,
            "stride_key_token": key.stride(0),
            "stride_key_head": key.stride(1),
            "stride_value_token": value.stride(0),
            "stride_value_head": value.stride(1),
        },
        constants={
            "HEAD_DIM": head_dim,
            "BLOCK_D": padded_dim(head_dim),
            "BLOCK_SIZE": block_size,
            "BLOCK_T": TOKENS_OF_A_STORE,
            "LIMIT": CODE_LIMITS.get(cache.dtype, 1.0),
        },
        num_warps=4,
        num_stages=2,
    )
