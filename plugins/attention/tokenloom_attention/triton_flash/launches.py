"""The operation of `triton_flash`: it checks what it is given, and launches the kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom_attention.triton_flash.kernels import flash_kernel
from tokenloom_attention.triton_paged.launches import form_arguments, padded_dim
from tokenloom_attention.triton_paged.plan import query_blocks
from tokenloom_attention.triton_paged.tuning import Tiles

__all__ = ["flash_attention", "flash_launch"]


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    query_lens_cpu: Sequence[int],
    layer: AttentionLayer,
    tiles: Tiles,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of ragged requests over contiguous keys and values.

    Args:
        query: [T, Hq, D], float32, float16 or bfloat16; only the last dimension need be contiguous.
        key, value: [S, Hkv, D], dtype of query, the same strides: heads follow each other, tokens may be apart.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1]: request b owns the queries and keys from its entry to the next.
            Its queries belong to its last keys.
        query_lens_cpu: queries of each request, on the host.
        layer: scale (positive), window, soft cap and sinks.
        tiles: shape of a program.

    Returns:
        [T, Hq, D] in the query's dtype, and fp32 [T, Hq]: the natural logarithm of each row's sum of exponentials,
        its head's sink included. A row that sees nothing is 0, its logarithm that of the sink, without one -inf.

    Example::

        out, lse = flash_attention(q, k, v, cu, cu, [5, 3], AttentionLayer(0, 0, 128**-0.5), Tiles(128, 64, 8, 3))
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    lens = (cu_seqlens_q, cu_seqlens_k, None)
    flash_launch(out, lse, query, key, value, lens, query_lens_cpu, layer, tiles).run()
    return out, lse


def flash_launch(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lens: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    query_lens_cpu: Sequence[int],
    layer: AttentionLayer,
    tiles: Tiles,
) -> KernelLaunch:
    """What `flash_attention` launches.

    Args:
        out, lse: results; written.
        lens: cu_seqlens_q, cu_seqlens_k, and seq_lens int32 [B] or None. Requests whose seq_len is not their number of
            keys are left alone, and their rows of the results as they are.
        others: as in `flash_attention`.
    """
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = key.shape[1]
    group = num_heads // num_kv_heads
    stride = key.stride()
    assert stride == value.stride(), f"keys and values with strides {stride} and {value.stride()}"
    assert stride[1:] == (head_dim, 1), f"keys with strides {stride}: heads must follow each other"
    assert stride[0] % head_dim == 0, f"keys with strides {stride}: tokens must lie whole heads apart"
    num_blocks, uniform_query_len = query_blocks(query_lens_cpu, tiles.rows // group)
    return KernelLaunch(
        flash_kernel,
        (num_blocks, num_kv_heads),
        arguments={
            "out": out,
            "lse": lse,
            "query": query,
            "key": key,
            "value": value,
            "cu_seqlens_q": lens[0],
            "cu_seqlens_k": lens[1],
            "seq_lens": lens[2],
            "stride_query_token": query.stride(0),
            "stride_query_head": query.stride(1),
            "stride_key_token": stride[0] // head_dim,
            "num_requests": len(query_lens_cpu),
            "uniform_query_len": uniform_query_len,
            **form_arguments(layer),
        },
        constants={
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_D": padded_dim(head_dim),
            "BLOCK_M": tiles.rows,
            "BLOCK_N": tiles.keys,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
