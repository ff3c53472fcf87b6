"""Attention over contiguous keys and values of ragged lengths in Triton, with the logarithms of the sums.

Maths and helpers are those of `tokenloom_attention.triton_paged.kernels`: Dao, FlashAttention-2 (2023), algorithm 1.
The new tokens of a request are its last ones: token i of n sees the first num_keys - n + i + 1 keys.

Layout: query [T, Hq, D], keys and values [S, Hkv, D] with the same strides, requests one behind the other in both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenloom_attention.triton_paged.kernels import attend_keys, find_block, key_range, load_rows, rows_of, save_rows

__all__ = ["flash_kernel"]


@triton.jit
def flash_kernel(
    out: tl.tensor,
    lse: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    cu_seqlens_q: tl.tensor,
    cu_seqlens_k: tl.tensor,
    seq_lens: tl.tensor,
    stride_query_token: tl.tensor,
    stride_query_head: tl.tensor,
    stride_key_token: tl.tensor,
    num_requests: tl.tensor,
    uniform_query_len: tl.tensor,
    factor: tl.tensor,
    inner_scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    sinks: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Grid (query blocks, Hkv): BLOCK_M // GROUP new tokens and all their keys. Strides of keys count lines of HEAD_DIM
    elements. Given seq_lens, requests that are longer than what is given of them are left alone."""
    request, first = find_block(cu_seqlens_q, num_requests, uniform_query_len, BLOCK_M // GROUP)
    query_begin = tl.load(cu_seqlens_q + request)
    query_len = tl.load(cu_seqlens_q + request + 1) - query_begin
    key_begin = tl.load(cu_seqlens_k + request).to(tl.int64)
    num_keys = tl.load(cu_seqlens_k + request + 1) - key_begin.to(tl.int32)
    seq_len = num_keys if seq_lens is None else tl.load(seq_lens + request)
    if (first >= query_len) | (seq_len != num_keys):
        return
    seq = (query_begin, query_len, num_keys - query_len)
    rows = rows_of(seq, first, GROUP, BLOCK_M)
    _, token, head, is_row = rows
    q = load_rows(query + token * stride_query_token + head * stride_query_head, is_row, HEAD_DIM, BLOCK_D)
    bounds = key_range(seq, first, window, False, False, BLOCK_M // GROUP, BLOCK_N)
    offset = (key_begin * stride_key_token + tl.program_id(1)) * HEAD_DIM
    store = (key + offset, value + offset, None, None, stride_key_token)
    form = (factor, inner_scale, soft_cap, window, sinks)
    acc, sums = attend_keys(q, bounds, seq, rows, store, (None, 0, None), form, HEAD_DIM, 1, BLOCK_N, False)
    num_heads = tl.num_programs(1) * GROUP
    save_rows(out, token * num_heads + head, acc, is_row, HEAD_DIM)
    if lse is not None:
        tl.store(lse + token * num_heads + head, sums * 0.6931471805599453, mask=is_row)  # ln 2
