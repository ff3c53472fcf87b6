"""Dense fp32 attention of one request at a time: the written meaning of the attention contract, slow and plain.

Attention kernels are tested against it. It reads whole KV blocks in the canonical layout of `export_blocks`, so it
serves every backend, whatever its own layout.
"""

from __future__ import annotations

import torch

from tokenloom.interfaces.attention import AttentionBatch, AttentionLayer

__all__ = ["reference_attend", "reference_forward", "reference_visible"]


def reference_visible(
    num_computed: int, positions: torch.Tensor, window: int | None, tree_mask: torch.Tensor | None
) -> torch.Tensor:
    """Which slots of its own sequence each new token of a request sees.

    Args:
        num_computed: tokens cached before this step.
        positions: int64 [R], positions of the new tokens.
        window: position i sees j with i - window < j <= i; None sees all.
        tree_mask: bool [R, >= R], does row see the new token of that column; None means causal.

    Returns:
        bool [R, num_computed + R].
    """
    num_rows = positions.shape[0]
    prefix = torch.arange(num_computed, device=positions.device)
    if tree_mask is None:
        among_new = torch.ones(num_rows, num_rows, dtype=torch.bool, device=positions.device).tril()
    else:
        among_new = tree_mask[:, :num_rows]
    visible = torch.cat([torch.ones_like(prefix, dtype=torch.bool).expand(num_rows, -1), among_new], dim=1)
    if window is not None:
        slot_positions = torch.cat([prefix, positions])
        visible = visible & (slot_positions[None, :] > positions[:, None] - window)
    return visible


def reference_attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    softmax_scale: float,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one request in fp32; what is not visible cannot reach the result, NaN included.

    Args:
        query: [R, Hq, D].
        key, value: [S, Hkv, D]; query head h reads KV head h // (Hq // Hkv).
        visible: bool [R, S].
        softmax_scale, soft_cap, sinks: as in `AttentionLayer`.

    Returns:
        fp32 [R, Hq, D]; rows that see nothing are zero.
    """
    group = query.shape[1] // key.shape[1]
    seen = visible.any(0)[:, None, None]
    k = torch.where(seen, key.float(), 0.0).repeat_interleave(group, dim=1)  # [S, Hq, D]
    v = torch.where(seen, value.float(), 0.0).repeat_interleave(group, dim=1)  # [S, Hq, D]
    scores = torch.einsum("rhd,shd->hrs", query.float(), k) * softmax_scale  # [Hq, R, S]
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = torch.where(visible, scores, float("-inf"))
    if sinks is not None:  # one more column, whose weight goes nowhere
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[0]]
    weights = torch.where(visible.any(1)[:, None], weights, 0.0)
    return torch.einsum("hrs,shd->rhd", weights, v)


def reference_forward(
    query: torch.Tensor,
    key_blocks: torch.Tensor,
    value_blocks: torch.Tensor,
    batch: AttentionBatch,
    layer: AttentionLayer,
) -> torch.Tensor:
    """The contract's `forward`, from blocks in the canonical layout.

    Args:
        query: [T, Hq, D].
        key_blocks, value_blocks: [num_blocks, BS, Hkv, D], what `export_blocks` gives for all blocks in order.
        batch: the step's work.
        layer: scale, window, soft cap and sinks.

    Returns:
        fp32 [T, Hq, D].
    """
    block_size = key_blocks.shape[1]
    out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    start = 0
    for request, (query_len, seq_len) in enumerate(zip(batch.query_lens_cpu, batch.seq_lens_cpu, strict=True)):
        stop = start + query_len
        if seq_len == 0:  # padding rows
            start = stop
            continue
        slots = torch.arange(seq_len, device=query.device)
        blocks, offsets = batch.block_table[request].long()[slots // block_size], slots % block_size
        tree_mask = None if batch.tree_mask is None else batch.tree_mask[start:stop]
        visible = reference_visible(seq_len - query_len, batch.positions[start:stop], layer.window, tree_mask)
        key, value = key_blocks[blocks, offsets], value_blocks[blocks, offsets]  # [seq_len, Hkv, D]
        form = (layer.softmax_scale, layer.soft_cap, layer.sinks)
        out[start:stop] = reference_attend(query[start:stop], key, value, visible, *form)
        start = stop
    return out
