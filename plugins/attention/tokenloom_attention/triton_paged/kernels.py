"""Attention over paged keys and values in Triton: one launch for prompts, chunks, decodes, verifications and trees.

Maths (README.md has more): online softmax in base 2 over tiles of keys. With x = q k^T and c = softmax_scale log2(e),
m' = max(m, c max x), p = 2^(c x - m'), l = 2^(m - m') l + sum p, o = 2^(m - m') o + p v. Dao, FlashAttention-2 (2023),
algorithm 1. Long sequences are split over programs: Dao et al., Flash-Decoding for long-context inference (2023).

Layout: cache [num_blocks, 2, Hkv, BS, D] (keys, values), scales [num_blocks, 2, Hkv, BS]. A *line* is ((2 block +
which) Hkv + head) BS + offset: it counts vectors of D elements, and scales. A program's rows are query heads of one KV
head, token by token: row m is head m % GROUP of token m // GROUP.

Helpers take what belongs together as tuples:
    seq     query_begin (its first row of the query), query_len, computed (slots before the new tokens)
    rows    index (new token of its request), token (row of the query), head, is_row
    store   keys, values, scales or None, table (the request's blocks) or None, stride_lines: with a table, lines count
            from the tensors' beginning; without one, slot i is stride_lines * i lines behind it
    tree    tree_words or None, their number for each token, positions; bit i of word w: sees new token 32 w + i
    form    factor (softmax_scale log2(e)), inner_scale, soft_cap or None, window or None, sinks or None

Of a kernel's arguments, None stands for what is not: no scales, tree, cap, window, sinks or splits. Requests of at most
split_query_len new tokens are split into spans of split_span slots. SKIP_FRESH leaves those alone that have nothing
cached, MASK_ALL masks every tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_kernel", "combine_kernel", "is_interpreted", "store_kernel"]


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels: TRITON_INTERPRET=1 was set when triton was imported."""
    return not isinstance(attend_kernel, triton.JITFunction)


@triton.jit
def find_block(
    cu_seqlens_q: tl.tensor, num_requests: tl.tensor, uniform_query_len: tl.tensor, BLOCK_Q: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """This program's request, and its first new token in it; that may lie behind the last one.

    Request i has the programs from cu_seqlens_q[i] // BLOCK_Q + i on, which is at least ceil(query_len / BLOCK_Q) of
    them. So the grid's size follows from counts that the host knows. The last blocks, which see most keys, come first.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    request = block * 0
    first_block = block * 0
    if uniform_query_len > 0:
        num_each = tl.cdiv(uniform_query_len, BLOCK_Q)
        request = block // num_each
        first_block = request * num_each
    else:
        above = num_requests
        while above - request > 1:
            middle = (request + above) // 2
            start = tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle
            request = tl.where(start <= block, middle, request)
            above = tl.where(start <= block, above, middle)
        first_block = tl.load(cu_seqlens_q + request) // BLOCK_Q + request
    return request, (block - first_block) * BLOCK_Q


@triton.jit
def lines_of(
    store: tl.tuple, slots: tl.tensor, is_read: tl.tensor, MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr
) -> tl.tensor:
    """int64 [BLOCK_N]: the lines of a tile's slots, for this program's KV head."""
    table = store[3]
    if table is None:
        lines = slots.to(tl.int64) * store[4]
    else:
        if MASKED:
            block = tl.load(table + slots // BLOCK_SIZE, mask=is_read, other=0).to(tl.int64)
        else:
            block = tl.load(table + slots // BLOCK_SIZE).to(tl.int64)
        lines = (2 * block * tl.num_programs(1) + tl.program_id(1)) * BLOCK_SIZE + slots % BLOCK_SIZE
    return lines


@triton.jit
def load_lines(
    pointer: tl.tensor,
    lines: tl.tensor,
    is_read: tl.tensor,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> tl.tensor:
    """[BLOCK_N, BLOCK_D]; what is not read, and what pads D, is 0."""
    columns = tl.arange(0, BLOCK_D)
    at = pointer + lines[:, None] * HEAD_DIM + columns[None, :]
    if MASKED and BLOCK_D != HEAD_DIM:
        tile = tl.load(at, mask=is_read[:, None] & (columns < HEAD_DIM)[None, :], other=0.0)
    elif MASKED:
        tile = tl.load(at, mask=is_read[:, None], other=0.0)
    elif BLOCK_D != HEAD_DIM:
        tile = tl.load(at, mask=(columns < HEAD_DIM)[None, :], other=0.0)
    else:
        tile = tl.load(at)
    return tile


@triton.jit
def key_range(
    seq: tl.tuple,
    first: tl.tensor,
    window: tl.tensor,
    HAS_TREE: tl.constexpr,
    MASK_ALL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tl.tuple:
    """The slots that BLOCK_Q new tokens from `first` on may see, as (begin, full_begin, full_end, end, first_read):
    every one of them sees all from full_begin to full_end, and none what lies below first_read. The first three are
    multiples of BLOCK_N."""
    _, query_len, computed = seq
    last = tl.minimum(first + BLOCK_Q, query_len)  # exclusive
    first_read = computed * 0
    full_begin = computed * 0
    end = computed + last
    full_end = computed + first + 1
    if HAS_TREE:  # a node may see any other, and no node's position lies below `computed`
        end = computed + query_len
        full_end = computed
    if window is not None:
        lowest = computed if HAS_TREE else computed + first
        first_read = tl.maximum(lowest - window + 1, 0)
        full_begin = tl.cdiv(tl.maximum(computed + last - window, 0), BLOCK_N) * BLOCK_N
    begin = first_read // BLOCK_N * BLOCK_N
    full_end = tl.maximum(tl.maximum(full_end, 0) // BLOCK_N * BLOCK_N, full_begin)
    if MASK_ALL:
        full_begin = begin
        full_end = begin
    return begin, full_begin, full_end, end, first_read


@triton.jit
def span_of(bounds: tl.tuple, split_span: tl.tensor, is_split: tl.tensor) -> tl.tuple:
    """This program's part of `bounds`, which may be empty; all of it if the request is not split."""
    begin, full_begin, full_end, end, first_read = bounds
    low = tl.where(is_split, begin + tl.program_id(2) * split_span, begin)
    high = tl.maximum(tl.where(is_split, tl.minimum(low + split_span, end), end), low)
    full_begin = tl.minimum(tl.maximum(full_begin, low), high)
    full_end = tl.minimum(tl.maximum(full_end, low), high)
    return low, full_begin, full_end, high, first_read


@triton.jit
def rows_of(seq: tl.tuple, first: tl.tensor, GROUP: tl.constexpr, BLOCK_M: tl.constexpr) -> tl.tuple:
    """index, token, head, is_row of each of the program's rows, all [BLOCK_M]; see the module's docstring."""
    query_begin, query_len, _ = seq
    row = tl.arange(0, BLOCK_M)
    index = first + row // GROUP
    is_row = (row < BLOCK_M // GROUP * GROUP) & (index < query_len)
    return index, (query_begin + index).to(tl.int64), tl.program_id(1) * GROUP + row % GROUP, is_row


@triton.jit
def load_rows(at: tl.tensor, is_row: tl.tensor, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr) -> tl.tensor:
    """[rows, BLOCK_D] from pointers to the first element of each; 0 where there is no row, and behind HEAD_DIM."""
    columns = tl.arange(0, BLOCK_D)
    return tl.load(at[:, None] + columns[None, :], mask=is_row[:, None] & (columns < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def save_rows(pointer: tl.tensor, lines: tl.tensor, tile: tl.tensor, is_row: tl.tensor, HEAD_DIM: tl.constexpr) -> None:
    """Stores a tile [rows, BLOCK_D] at lines of HEAD_DIM elements, in the dtype of what is pointed at."""
    columns = tl.arange(0, tile.shape[1])
    mask = is_row[:, None] & (columns < HEAD_DIM)[None, :]
    at = pointer + lines[:, None] * HEAD_DIM + columns[None, :]
    tl.store(at, tile.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def visible_tile(
    start: tl.tensor,
    seq: tl.tuple,
    rows: tl.tuple,
    tree: tl.tuple,
    window: tl.tensor,
    BLOCK_N: tl.constexpr,
) -> tl.tensor:
    """bool [BLOCK_M, BLOCK_N]: which slots from `start` on a row sees."""
    query_begin, query_len, computed = seq
    index, token, _, is_row = rows
    tree_words, num_words, positions = tree
    slots = start + tl.arange(0, BLOCK_N)
    row_positions = computed + index
    slot_positions = slots
    if tree_words is None:
        visible = slots[None, :] <= row_positions[:, None]
    else:
        node = slots - computed
        is_new = (node >= 0) & (node < query_len)
        first_word = tl.maximum(start - computed, 0) // 32
        in_tree = is_row[:, None].to(tl.int32) * 0
        for word in tl.static_range((BLOCK_N + 30) // 32 + 1):  # as many words as a tile may touch
            at = first_word + word
            has_bits = is_row & (index * 0 + at < num_words)
            bits = tl.load(tree_words + token * num_words + at, mask=has_bits, other=0)
            in_tree |= tl.where((node // 32 == at)[None, :], bits[:, None] >> (node & 31)[None, :], 0)
        visible = (((in_tree & 1) != 0) & is_new[None, :]) | (node < 0)[None, :]
        if window is not None:
            row_positions = tl.load(positions + token, mask=is_row, other=0).to(tl.int32)
            new_positions = tl.load(positions + query_begin + node, mask=is_new, other=0).to(tl.int32)
            slot_positions = tl.where(is_new, new_positions, slots)
    if window is not None:
        visible = visible & (slot_positions[None, :] > (row_positions - window)[:, None])
    return visible


@triton.jit
def update_softmax(
    scores: tl.tensor,
    factor: tl.tensor,
    acc: tl.tensor,
    row_sum: tl.tensor,
    row_max: tl.tensor,
    MASKED: tl.constexpr,
) -> tl.tuple:
    """One tile's step of the online softmax: weights 2^(factor * score - max), and what was kept, rescaled.

    Args:
        scores: fp32 [BLOCK_M, BLOCK_N], -inf where hidden.
        factor: positive; turns scores into exponents of 2.
        acc, row_sum, row_max: fp32 [BLOCK_M, BLOCK_D], [BLOCK_M], [BLOCK_M]; row_max starts at -inf.
    """
    row_max_new = tl.maximum(row_max, tl.max(scores, 1) * factor)
    base = row_max_new
    if MASKED:  # a row that has seen nothing yet: -inf - -inf is NaN
        base = tl.where(row_max_new == float("-inf"), 0.0, row_max_new)
    weights = tl.exp2(scores * factor - base[:, None])
    kept = tl.exp2(row_max - base)
    return weights, acc * kept[:, None], row_sum * kept + tl.sum(weights, 1), row_max_new


@triton.jit
def attend_keys(
    q: tl.tensor,
    bounds: tl.tuple,
    seq: tl.tuple,
    rows: tl.tuple,
    store: tl.tuple,
    tree: tl.tuple,
    form: tl.tuple,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASK_ALL: tl.constexpr,
) -> tl.tuple:
    """Attention of a tile of rows to the slots within `bounds`, in three parts: the middle one needs no mask. Returns
    fp32 [BLOCK_M, BLOCK_D], and the base 2 logarithm of each row's sum, its sink included [BLOCK_M]: 0 and -inf if it
    has none and sees nothing."""
    keys, values, scales, _, _ = store
    factor, inner_scale, soft_cap, window, sinks = form
    acc = tl.zeros([q.shape[0], q.shape[1]], tl.float32)
    row_sum = tl.zeros([q.shape[0]], tl.float32)
    row_max = tl.full([q.shape[0]], float("-inf"), tl.float32)
    if sinks is not None:  # a score that is there already, without a value; of a row's splits, in the first one
        row_sum += tl.where(tl.program_id(2) == 0, 1.0, 0.0)
        row_max = tl.where(row_sum > 0, tl.load(sinks + rows[2]) * 1.4426950408889634, row_max)  # log2(e)
    for part in tl.static_range(3):
        if part == 2 or (not MASK_ALL and (part == 1 or window is not None)):
            for start in tl.range(bounds[part], bounds[part + 1], BLOCK_N, num_stages=None if part == 1 else 1):
                slots = start + tl.arange(0, BLOCK_N)
                is_read = (slots >= bounds[4]) & (slots < seq[1] + seq[2])
                lines = lines_of(store, slots, is_read, part != 1, BLOCK_SIZE)
                k = load_lines(keys, lines, is_read, part != 1, HEAD_DIM, q.shape[1])  # [BLOCK_N, BLOCK_D]
                scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
                if scales is not None:
                    scores *= tl.load(scales + lines, mask=is_read, other=0.0)[None, :]
                if soft_cap is not None:
                    scores = cap_scores(scores, inner_scale, soft_cap)
                if part != 1:
                    visible = visible_tile(start, seq, rows, tree, window, BLOCK_N)
                    scores = tl.where(visible, scores, float("-inf"))
                p, acc, row_sum, row_max = update_softmax(scores, factor, acc, row_sum, row_max, part != 1)
                v = load_lines(values, lines, is_read, part != 1, HEAD_DIM, q.shape[1])  # [BLOCK_N, BLOCK_D]
                if scales is not None:
                    p *= tl.load(scales + lines + tl.num_programs(1) * BLOCK_SIZE, mask=is_read, other=0.0)[None, :]
                acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc, input_precision="ieee")
    has_seen = row_sum > 0
    row_sum = tl.where(has_seen, row_sum, 1.0)
    return acc / row_sum[:, None], tl.where(has_seen, row_max + tl.log2(row_sum), float("-inf"))


@triton.jit
def cap_scores(scores: tl.tensor, inner_scale: tl.tensor, soft_cap: tl.tensor) -> tl.tensor:
    """soft_cap * tanh(inner_scale * scores). From 2^60 on, the tanh is 1."""
    exponents = tl.minimum(scores * (inner_scale * 2.8853900817779268), 60.0)  # 2 log2(e)
    return soft_cap * (1.0 - 2.0 / (tl.exp2(exponents) + 1.0))


@triton.jit
def attend_kernel(
    out: tl.tensor,
    partial_out: tl.tensor,
    partial_lse: tl.tensor,
    query: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    cu_seqlens_q: tl.tensor,
    seq_lens: tl.tensor,
    block_table: tl.tensor,
    positions: tl.tensor,
    tree_words: tl.tensor,
    stride_query_token: tl.tensor,
    stride_query_head: tl.tensor,
    stride_table: tl.tensor,
    num_words: tl.tensor,
    num_requests: tl.tensor,
    uniform_query_len: tl.tensor,
    split_query_len: tl.tensor,
    split_span: tl.tensor,
    factor: tl.tensor,
    inner_scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    sinks: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASK_ALL: tl.constexpr,
    SKIP_FRESH: tl.constexpr,
) -> None:
    """Grid (query blocks, Hkv, splits): BLOCK_M // GROUP new tokens, and all their keys or a span; see above."""
    request, first = find_block(cu_seqlens_q, num_requests, uniform_query_len, BLOCK_M // GROUP)
    query_begin = tl.load(cu_seqlens_q + request)
    query_len = tl.load(cu_seqlens_q + request + 1) - query_begin
    seq = (query_begin, query_len, tl.load(seq_lens + request) - query_len)
    if (first >= query_len) | ((query_len > split_query_len) & (tl.program_id(2) > 0)) | ((seq[2] == 0) & SKIP_FRESH):
        return
    rows = rows_of(seq, first, GROUP, BLOCK_M)
    index, token, head, is_row = rows
    q = load_rows(query + token * stride_query_token + head * stride_query_head, is_row, HEAD_DIM, BLOCK_D)
    bounds = key_range(seq, first, window, tree_words is not None, MASK_ALL, BLOCK_M // GROUP, BLOCK_N)
    if partial_out is not None:
        bounds = span_of(bounds, split_span, query_len <= split_query_len)
    values = cache + tl.num_programs(1) * BLOCK_SIZE * HEAD_DIM
    store = (cache, values, scales, block_table + request.to(tl.int64) * stride_table, 0)
    tree = (tree_words, num_words, positions)
    form = (factor, inner_scale, soft_cap, window, sinks)
    acc, lse = attend_keys(q, bounds, seq, rows, store, tree, form, HEAD_DIM, BLOCK_SIZE, BLOCK_N, MASK_ALL)
    num_heads = tl.num_programs(1) * GROUP
    num_whole = tl.where(query_len > split_query_len, query_len, 0)
    save_rows(out, token * num_heads + head, acc, is_row & (index < num_whole), HEAD_DIM)
    if partial_out is not None:
        line = ((request * split_query_len + index) * num_heads + head).to(tl.int64)
        line = line * tl.num_programs(2) + tl.program_id(2)
        save_rows(partial_out, line, acc, is_row & (index >= num_whole), HEAD_DIM)
        tl.store(partial_lse + line, lse, mask=is_row & (index >= num_whole))


@triton.jit
def combine_kernel(
    out: tl.tensor,
    partial_out: tl.tensor,
    partial_lse: tl.tensor,
    cu_seqlens_q: tl.tensor,
    seq_lens: tl.tensor,
    split_query_len: tl.tensor,
    num_splits: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    SKIP_FRESH: tl.constexpr,
) -> None:
    """Grid (requests * split_query_len, Hkv): puts one token's splits together, by 2^lse; an empty one has lse -inf."""
    request = tl.program_id(0) // split_query_len
    index = tl.program_id(0) % split_query_len
    query_begin = tl.load(cu_seqlens_q + request)
    query_len = tl.load(cu_seqlens_q + request + 1) - query_begin
    is_left_alone = (tl.load(seq_lens + request) == query_len) & SKIP_FRESH  # its rows are somebody else's
    if (index >= query_len) | (query_len > split_query_len) | is_left_alone:
        return
    num_heads = tl.num_programs(1) * GROUP
    group = tl.arange(0, BLOCK_G)
    head = tl.program_id(1) * GROUP + group
    line = (tl.program_id(0).to(tl.int64) * num_heads + head) * num_splits
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    peak = tl.full([BLOCK_G], float("-inf"), tl.float32)
    for split in range(num_splits):
        lse = tl.load(partial_lse + line + split, mask=group < GROUP, other=float("-inf"))
        part = load_rows(partial_out + (line + split) * HEAD_DIM, lse > float("-inf"), HEAD_DIM, BLOCK_D)
        peak_new = tl.maximum(peak, lse)
        base = tl.where(peak_new == float("-inf"), 0.0, peak_new)
        kept, weight = tl.exp2(peak - base), tl.exp2(lse - base)
        acc = acc * kept[:, None] + part * weight[:, None]
        total = total * kept + weight
        peak = peak_new
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    save_rows(out, (query_begin + index).to(tl.int64) * num_heads + head, acc, group < GROUP, HEAD_DIM)


@triton.jit
def save_tokens(
    cache: tl.tensor,
    scales: tl.tensor,
    lines: tl.tensor,
    tile: tl.tensor,
    is_stored: tl.tensor,
    HEAD_DIM: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    """Stores vectors; with scales each is divided by absmax / LIMIT first, and rounded to even for int8."""
    if scales is not None:
        tile = tile.to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(tile), 1), LIMIT + tl.zeros([tile.shape[0]], tl.float32))
        divisor = tl.where(scale > 0, scale, 1.0)[:, None] + tl.zeros(tile.shape, tl.float32)
        tile = tl.div_rn(tile, divisor)
        if cache.dtype.element_ty == tl.int8:
            tile = (tile + 12582912.0) - 12582912.0  # 1.5 * 2^23: sums are integers, rounded to even
        tl.store(scales + lines, scale, mask=is_stored)
    save_rows(cache, lines, tile, is_stored, HEAD_DIM)


@triton.jit
def store_kernel(
    cache: tl.tensor,
    scales: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    slot_mapping: tl.tensor,
    num_tokens: tl.tensor,
    stride_key_token: tl.tensor,
    stride_key_head: tl.tensor,
    stride_value_token: tl.tensor,
    stride_value_head: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    """Grid (token blocks, Hkv): keys and values of BLOCK_T new tokens go to their slots; negative slots are skipped."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token, mask=token < num_tokens, other=-1)
    is_stored = slot >= 0
    num_kv_heads = tl.num_programs(1)
    line = (2 * (slot // BLOCK_SIZE) * num_kv_heads + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    k = load_rows(key + token * stride_key_token + head * stride_key_head, is_stored, HEAD_DIM, BLOCK_D)
    save_tokens(cache, scales, line, k, is_stored, HEAD_DIM, LIMIT)
    v = load_rows(value + token * stride_value_token + head * stride_value_head, is_stored, HEAD_DIM, BLOCK_D)
    save_tokens(cache, scales, line + num_kv_heads * BLOCK_SIZE, v, is_stored, HEAD_DIM, LIMIT)
