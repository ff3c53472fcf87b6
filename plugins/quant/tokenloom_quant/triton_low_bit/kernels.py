"""Products with packed weights in Triton: codes of 4 and 8 bits times floating rows, and 8 bits times 8 bits.

Maths, with M rows, N output features, K input features, groups of g input features:
    grouped   y[m, n] = sum over groups G of  s[G, n] sum(x[m, k] c[k, n]) + o[G, n] sum(x[m, k]),  c = code - zero
    scaled    y[m, n] = sum over groups G of  a[m, G] b[G, n] sum(q[m, k] w[n, k])
c is a small whole number, which fp16, bf16 and fp32 hold exactly: nothing is rounded but sums, in fp32 (of int8 times
int8 in whole numbers). README.md has the layout of codes.

A program makes a tile of BLOCK_M rows and BLOCK_N features, over all input features or, where these are split, over
some of them: then results are partial ones, which `add_splits_kernel` adds in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_splits_kernel", "grouped_product_kernel", "round_rows_kernel", "scaled_product_kernel"]


@triton.jit
def store_tile(
    out: tl.tensor,
    partial: tl.tensor,
    bias: tl.tensor,
    acc: tl.tensor,
    rows: tl.tensor,
    features: tl.tensor,
    split: tl.tensor,
    num_rows: tl.tensor,
    num_features: tl.tensor,
) -> None:
    """Writes acc fp32 [BLOCK_M, BLOCK_N] to partial [splits, M, N] or, if that is None, with the bias to out [M, N]."""
    is_real = (rows < num_rows)[:, None] & (features < num_features)[None, :]
    at = rows.to(tl.int64)[:, None] * num_features + features[None, :]
    if partial is not None:
        tl.store(partial + split.to(tl.int64) * num_rows * num_features + at, acc, mask=is_real)
    else:
        if bias is not None:
            acc += tl.load(bias + features, mask=features < num_features, other=0.0).to(tl.float32)[None, :]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=is_real)


@triton.jit
def add_group(
    acc: tl.tensor,
    product: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    at: tl.tensor,
) -> tl.tensor:
    """acc + product * scale + sums * offset, with the scales of one group at `at` [BLOCK_N]."""
    acc += product * tl.load(scale + at).to(tl.float32)[None, :]
    if offset is not None:
        acc += sums[:, None] * tl.load(offset + at)[None, :]
    return acc


@triton.jit
def grouped_product_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    x: tl.tensor,
    codes: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    bias: tl.tensor,
    stride_x: tl.tensor,
    stride_codes: tl.tensor,
    num_rows: tl.tensor,
    num_features: tl.tensor,
    num_columns: tl.tensor,
    num_steps: tl.tensor,
    steps_per_split: tl.tensor,
    steps_per_group: tl.tensor,
    BITS: tl.constexpr,
    HALF: tl.constexpr,
    IS_PAIR_ALIKE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Floating x [M, K] times codes uint8 [steps * HALF, stride_codes]; scale, offset: [groups, stride_codes].

    A step is HALF columns of 8 bits, or the 2 HALF whose codes lie in HALF bytes: the first in their lower bits. Both
    halves have one scale (IS_PAIR_ALIKE), or a step has two groups and steps_per_group does not matter.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    features = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    inner = tl.arange(0, HALF)
    is_row = (rows < num_rows)[:, None]
    from_x = x + rows.to(tl.int64)[:, None] * stride_x
    stride = stride_codes.to(tl.int64)
    zero: tl.constexpr = 1 << (BITS - 1)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(split * steps_per_split, tl.minimum((split + 1) * steps_per_split, num_steps)):
        column = step * (HALF if BITS == 8 else 2 * HALF) + inner
        low_x = tl.load(from_x + column[None, :], mask=is_row & (column < num_columns)[None, :], other=0.0)
        at = (step * HALF + inner)[:, None] * stride + features[None, :]
        code = tl.load(codes + at)  # uint8 [HALF, BLOCK_N]; there is room for a whole last tile
        low_c = ((code if BITS == 8 else code & 15).to(tl.int16) - zero).to(x.dtype.element_ty)
        product = tl.dot(low_x, low_c, input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        sums = tl.sum(low_x.to(tl.float32), axis=1)  # [BLOCK_M]; dropped where there is no offset
        if BITS == 4:
            is_high = (column + HALF < num_columns)[None, :]
            high_x = tl.load(from_x + (column + HALF)[None, :], mask=is_row & is_high, other=0.0)
            high_c = ((code >> 4).to(tl.int16) - zero).to(x.dtype.element_ty)
            high_sums = tl.sum(high_x.to(tl.float32), axis=1)
            if IS_PAIR_ALIKE:
                product = tl.dot(high_x, high_c, product, input_precision="ieee")
                group = (step // steps_per_group) * stride
                acc = add_group(acc, product, sums + high_sums, scale, offset, group + features)
            else:
                acc = add_group(acc, product, sums, scale, offset, 2 * step * stride + features)
                high_product = tl.dot(high_x, high_c, input_precision="ieee")
                acc = add_group(acc, high_product, high_sums, scale, offset, (2 * step + 1) * stride + features)
        else:
            acc = add_group(acc, product, sums, scale, offset, (step // steps_per_group) * stride + features)
    store_tile(out, partial, bias, acc, rows, features, split, num_rows, num_features)


@triton.jit
def scaled_product_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    codes: tl.tensor,
    row_scale: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    num_rows: tl.tensor,
    num_features: tl.tensor,
    num_columns: tl.tensor,
    num_steps: tl.tensor,
    steps_per_split: tl.tensor,
    steps_per_group: tl.tensor,
    num_groups: tl.tensor,
    IS_GROUPED: tl.constexpr,
    IS_INT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """codes [M, K] times weight [N, K], both int8 or both e4m3, K a multiple of 16 and both contiguous.

    row_scale: fp32 [M, groups]; scale: fp32 [N, groups]. Without IS_GROUPED there is one group, and scales come last.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    features = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    first = split * steps_per_split
    last = tl.minimum(first + steps_per_split, num_steps)
    inner = tl.arange(0, BLOCK_K)
    is_row, is_feature = rows < num_rows, features < num_features
    from_codes = codes + rows.to(tl.int64)[:, None] * num_columns
    from_weight = weight + features.to(tl.int64)[None, :] * num_columns
    sum_dtype: tl.constexpr = tl.int32 if IS_INT else tl.float32
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_N), sum_dtype)
    for step in range(first, last):
        column = step * BLOCK_K + inner
        is_column = column < num_columns
        left = tl.load(from_codes + column[None, :], mask=is_row[:, None] & is_column[None, :], other=0.0)
        right = tl.load(from_weight + column[:, None], mask=is_column[:, None] & is_feature[None, :], other=0.0)
        if IS_GROUPED:
            group = step // steps_per_group
            product = tl.dot(left, right, out_dtype=sum_dtype)
            of_rows = tl.load(row_scale + rows.to(tl.int64) * num_groups + group, mask=is_row, other=0.0)
            of_features = tl.load(scale + features.to(tl.int64) * num_groups + group, mask=is_feature, other=0.0)
            acc += product.to(tl.float32) * of_rows[:, None] * of_features[None, :]
        elif IS_INT:
            total = tl.dot(left, right, total, out_dtype=sum_dtype)
        else:
            # The matrix units of sm_90 add e4m3 with 14 bits; each step's sum is added in fp32.
            total = tl.dot(left, right, total, max_num_imprecise_acc=BLOCK_K, out_dtype=sum_dtype)
    if not IS_GROUPED:
        of_rows = tl.load(row_scale + rows, mask=is_row, other=0.0)
        of_features = tl.load(scale + features, mask=is_feature, other=0.0)
        acc = total.to(tl.float32) * of_rows[:, None] * of_features[None, :]
    store_tile(out, partial, bias, acc, rows, features, split, num_rows, num_features)


@triton.jit
def add_splits_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    bias: tl.tensor,
    num_features: tl.tensor,
    num_splits: tl.tensor,
    split_size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """BLOCK features of one row a program: out [M, N] from partial fp32 [splits, M, N], in order, and the bias."""
    features = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_real = features < num_features
    at = tl.program_id(0).to(tl.int64) * num_features + features
    acc = tl.zeros((BLOCK,), tl.float32)
    from_partial = partial + at
    for _ in range(num_splits):
        acc += tl.load(from_partial, mask=is_real, other=0.0)
        from_partial += split_size
    if bias is not None:
        acc += tl.load(bias + features, mask=is_real, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=is_real)


@triton.jit
def round_rows_kernel(
    codes: tl.tensor,
    row_scale: tl.tensor,
    x: tl.tensor,
    stride_x: tl.tensor,
    stride_codes: tl.tensor,
    num_columns: tl.tensor,
    group_size: tl.tensor,
    num_groups: tl.tensor,
    LIMIT: tl.constexpr,
    IS_INT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One group of one row a program: codes of x [M, K] with the largest at LIMIT, and fp32 row_scale [M, groups]."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = group * group_size
    stop = tl.minimum(start + group_size, num_columns)
    inner = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.float32)
    is_nan = tl.zeros((BLOCK,), tl.int32)
    for first in range(start, stop, BLOCK):
        values = tl.load(x + row * stride_x + first + inner, mask=first + inner < stop, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values))
        is_nan |= (values != values).to(tl.int32)  # which maxima and limits drop
    most = tl.max(largest, axis=0)
    tl.store(row_scale + row * num_groups + group, tl.where(tl.max(is_nan, axis=0) > 0, float("nan"), most / LIMIT))
    factor = tl.where(most < 1e-30, 0.0, LIMIT / tl.maximum(most, 1e-30))
    end = tl.minimum(start + group_size, stride_codes)  # columns that fill the last group are zero
    for first in range(start, end, BLOCK):
        values = tl.load(x + row * stride_x + first + inner, mask=first + inner < stop, other=0.0).to(tl.float32)
        scaled = tl.minimum(tl.maximum(values * factor, -LIMIT), LIMIT)
        if IS_INT:
            scaled = (scaled + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest whole number, ties to even
        tl.store(
            codes + row * stride_codes + first + inner, scaled.to(codes.dtype.element_ty), mask=first + inner < end
        )
