"""What the kernels of `triton_paged` must compute, in plain PyTorch and fp32, one request after the other."""

from __future__ import annotations

import torch

from tokenloom.interfaces.attention import AttentionBatch, AttentionLayer
from tokenloom_attention.triton_paged.plan import StepPlan

__all__ = ["dequantized", "paged_attention", "quantized", "store_tokens"]

_LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def paged_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    batch: AttentionBatch,
    tree_words: torch.Tensor | None,  # noqa: ARG001  (the batch has the mask itself)
    layer: AttentionLayer,
    plan: StepPlan | None = None,  # noqa: ARG001  (without meaning here)
) -> torch.Tensor:
    """As `tokenloom_attention.triton_paged.launches.paged_attention`, whose result it gives in fp32."""
    num_heads, block_size = query.shape[1], cache.shape[3]
    out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    start = 0
    for request, (query_len, seq_len) in enumerate(zip(batch.query_lens_cpu, batch.seq_lens_cpu, strict=True)):
        rows = slice(start, start + query_len)
        start += query_len
        if seq_len == 0:
            continue
        slots = torch.arange(seq_len, device=query.device)
        blocks, offsets = batch.block_table[request, slots // block_size].long(), slots % block_size
        stored = dequantized(cache, scales)[blocks, :, :, offsets]  # [seq_len, 2, Hkv, D]
        visible = _visible(batch, rows, slots, seq_len - query_len, layer.window)  # [R, seq_len]
        stored = torch.where(visible.any(0)[:, None, None, None], stored, 0.0)
        k, v = stored.repeat_interleave(num_heads // cache.shape[2], dim=2).unbind(1)  # [seq_len, Hq, D]
        scores = torch.einsum("rhd,shd->rhs", query[rows].float(), k) * layer.softmax_scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        if layer.sinks is not None:
            sinks = layer.sinks[:, None].expand(query_len, -1, 1)
            scores = torch.cat([scores, sinks], dim=-1)  # [R, Hq, seq_len + 1]
        weights = torch.softmax(scores, dim=-1)[..., :seq_len]
        out[rows] = torch.einsum("rhs,shd->rhd", torch.nan_to_num(weights), v)
    return out


def _visible(
    batch: AttentionBatch, rows: slice, slots: torch.Tensor, computed: int, window: int | None
) -> torch.Tensor:
    """bool [R, seq_len]: which slots the new tokens of a request see."""
    positions = batch.positions[rows]
    visible = slots <= computed + torch.arange(positions.shape[0], device=slots.device)[:, None]
    slot_positions = slots
    if batch.tree_mask is not None:
        visible = torch.cat([visible[:, :computed], batch.tree_mask[rows, : positions.shape[0]]], dim=1)
        slot_positions = torch.cat([slots[:computed], positions])
    if window is not None:
        visible = visible & (slot_positions > positions[:, None] - window)
    return visible


def store_tokens(
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """As `tokenloom_attention.triton_paged.launches.store_tokens`."""
    is_stored = slot_mapping >= 0
    blocks, offsets = slot_mapping[is_stored] // cache.shape[3], slot_mapping[is_stored] % cache.shape[3]
    tokens = torch.stack([key, value], dim=1)[is_stored]  # [n, 2, Hkv, D]
    if scales is None:
        cache[blocks, :, :, offsets] = tokens
        return
    codes, scale = quantized(tokens, cache.dtype)
    cache.view(torch.uint8)[blocks, :, :, offsets] = codes.view(torch.uint8)
    scales[blocks, :, :, offsets] = scale


def quantized(tokens: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of vectors [..., D] in int8 or float8_e4m3fn, and fp32 scales [...]: absmax over the largest code. A vector
    of zeros has scale 0."""
    exact = tokens.float()
    scales = exact.abs().amax(dim=-1) / _LIMITS[dtype]
    codes = exact / torch.where(scales > 0, scales, 1.0)[..., None]
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def dequantized(cache: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """The cache in fp32."""
    return cache.float() if scales is None else cache.float() * scales[..., None]
