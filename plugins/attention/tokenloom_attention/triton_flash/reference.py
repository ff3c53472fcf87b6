"""What the kernel of `triton_flash` must compute, in plain PyTorch and fp32."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom_attention.triton_paged.tuning import Tiles

__all__ = ["flash_attention"]


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    query_lens_cpu: Sequence[int],
    layer: AttentionLayer,
    tiles: Tiles | None = None,  # noqa: ARG001  (without meaning here)
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `tokenloom_attention.triton_flash.launches.flash_attention`, whose results it gives in fp32, request by
    request."""
    num_tokens, num_heads, _ = query.shape
    group = num_heads // key.shape[1]
    out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=query.device)
    for request, query_len in enumerate(query_lens_cpu):
        start, key_start, key_stop = (int(at) for at in (cu_seqlens_q[request], *cu_seqlens_k[request : request + 2]))
        rows = slice(start, start + query_len)
        k = key[key_start:key_stop].float().repeat_interleave(group, dim=1)  # [num_keys, Hq, D]
        v = value[key_start:key_stop].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("rhd,shd->rhs", query[rows].float(), k) * layer.softmax_scale  # [R, Hq, num_keys]
        if layer.soft_cap is not None:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        slots = torch.arange(key_stop - key_start, device=query.device)
        own = slots[slots.shape[0] - query_len :, None]
        visible = slots <= own
        if layer.window is not None:
            visible &= slots > own - layer.window
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        if layer.sinks is not None:
            sinks = layer.sinks[:, None].expand(query_len, -1, 1)
            scores = torch.cat([scores, sinks], dim=-1)  # [R, Hq, num_keys + 1]
        lse[rows] = torch.logsumexp(scores, dim=-1)
        out[rows] = torch.einsum("rhs,shd->rhd", torch.softmax(scores, dim=-1)[..., : v.shape[0]], v)
    return out, lse
