"""Choosing tokens and verifying drafts in Triton: one program for each row of logits, and for each request.

Maths. A row's scores are (logit - maximum) / temperature, in fp32 and none above 0. Ranked rows keep a prefix of their
tokens in the order (score descending, id ascending): `tokenloom.sampling.filtering` says which. Nothing is sorted. The
prefix ends at some (magnitude, id), magnitude being the score's bits without the sign, which grow as the score falls;
bisection finds the magnitude by summing the weights of all tokens up to it, ones for top_k, probabilities for top_p. A
last pass counts tokens of that magnitude by id. Integer sums make it exact, whatever their order. The token is the
argmax of score + Gumbel noise, of `tokenloom.sampling.noise`.

Logarithms and exponentials are accurate to the last bits, as PyTorch's are. So PyTorch's tokens and these are the same,
but where two sums, or a sum and its limit, are equal to the last bits.

Layout: logits fp32 [R, V], rows may be strided; scores fp32 [rows of the launch, V], contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["GREEDY", "PLAIN", "RANKED", "choose_kernel", "verify_kernel"]

GREEDY, PLAIN, RANKED = 0, 1, 2
"""Kinds of rows: without noise; with noise over the vocabulary; with noise over what top_k and top_p keep."""


@triton.jit
def choose_kernel(
    token_ids: tl.tensor,
    is_invalid: tl.tensor,
    logits: tl.tensor,
    scores: tl.tensor,
    rows: tl.tensor,
    temperature: tl.tensor,
    log_min_p: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    seeds: tl.tensor,
    choice: tl.tensor,
    position: tl.tensor,
    stride_logits: tl.tensor,
    vocab_size: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Row rows[program]: token_ids int64 [R] and is_invalid uint8 [R] from logits; `scores` is scratch memory.

    KIND is one of 0 greedy, 1 plain, 2 ranked.
    """
    row = tl.load(rows + tl.program_id(0))
    from_row = logits + row * stride_logits
    best, token, is_bad = row_maximum(from_row, vocab_size, BLOCK)
    if KIND != 0:  # known when it is compiled, unlike the next one  # noqa: SIM102
        if is_bad == 0:
            own = scores + tl.program_id(0).to(tl.int64) * vocab_size
            write_scores(own, from_row, best, tl.load(temperature + row), tl.load(log_min_p + row), vocab_size, BLOCK)
            tl.debug_barrier()  # other threads read what these wrote
            magnitude = 0x7F7FFFFF  # the greatest finite one
            last_id = vocab_size
            if KIND == 2:
                magnitude, last_id = kept_prefix(own, vocab_size, tl.load(top_k + row), tl.load(top_p + row), BLOCK)
            key = (tl.load(seeds + row), tl.load(choice + row), tl.load(position + row))
            token = noisy_maximum(own, vocab_size, magnitude, last_id, key, BLOCK)
    tl.store(token_ids + row, tl.where(is_bad == 0, token, 0).to(tl.int64))
    tl.store(is_invalid + row, is_bad.to(tl.uint8))


@triton.jit
def row_maximum(row: tl.tensor, vocab_size: tl.tensor, BLOCK: tl.constexpr) -> tl.tuple:
    """(maximum, its first id, 1 if the row holds a NaN or +inf, or nothing finite)."""
    best = tl.full((), float("-inf"), tl.float32)
    best_id = tl.full((), 0, tl.int32)
    num_bad = tl.full((), 0, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values = tl.load(row + ids, mask=ids < vocab_size, other=float("-inf"))  # [BLOCK]
        is_bad = (values != values) | (values == float("inf"))
        num_bad += tl.sum(is_bad.to(tl.int32))
        values = tl.where(is_bad, float("-inf"), values)
        top = tl.max(values)
        first = tl.min(tl.where(values == top, ids, vocab_size))
        best_id = tl.where(top > best, first, best_id)
        best = tl.maximum(best, top)
    return best, best_id, ((num_bad > 0) | (best == float("-inf"))).to(tl.int32)


@triton.jit
def write_scores(
    scores: tl.tensor,
    row: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    log_min_p: tl.tensor,
    vocab_size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """(logit - best) / temperature, -inf where min_p forbids the token."""
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values = tl.load(row + ids, mask=ids < vocab_size, other=float("-inf"))  # [BLOCK]
        score = tl.div_rn(values - best, temperature + tl.zeros_like(values))
        tl.store(scores + ids, tl.where(score < log_min_p, float("-inf"), score), mask=ids < vocab_size)


@triton.jit
def kept_prefix(
    scores: tl.tensor, vocab_size: tl.tensor, top_k: tl.tensor, top_p: tl.tensor, BLOCK: tl.constexpr
) -> tl.tuple:
    """(magnitude, id) of the last token that top_k, and then top_p, keep."""
    magnitude = tl.full((), 0x7F7FFFFF, tl.int32)
    last_id = vocab_size + tl.full((), 0, tl.int32)
    if top_k < vocab_size:
        magnitude, last_id = prefix_end(scores, vocab_size, magnitude, top_k.to(tl.float64), False, BLOCK)
    if top_p < 1.0:
        total = weight_up_to(scores, vocab_size, magnitude, last_id, True, BLOCK)
        goal = top_p.to(tl.float64) * total.to(tl.float64)
        magnitude, last_id = prefix_end(scores, vocab_size, magnitude, goal, True, BLOCK)
    return magnitude, last_id


@triton.jit
def prefix_end(
    scores: tl.tensor,
    vocab_size: tl.tensor,
    magnitude: tl.tensor,
    goal: tl.tensor,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tuple:
    """(magnitude, id) of the token with which the weights, in rank order, reach `goal`.

    The goal lies no further than tokens of `magnitude`; where all finite scores do not reach it, all of them are taken.
    """
    low = magnitude * 0
    high = magnitude
    below = tl.full((), 0, tl.int64)  # weight of all tokens of a magnitude under `low`
    is_exact = 0 * magnitude
    while low < high:
        middle = low + (high - low) // 2
        weight = weight_up_to(scores, vocab_size, middle, vocab_size, BY_MASS, BLOCK)
        is_reached = weight.to(tl.float64) >= goal
        if not BY_MASS:
            is_exact = (weight.to(tl.float64) == goal).to(tl.int32)
        high = tl.where(is_reached, middle, high)
        low = tl.where(is_exact == 1, middle, tl.where(is_reached, low, middle + 1))
        below = tl.where(is_reached, below, weight)
    end = vocab_size + is_exact * 0
    if is_exact == 0:  # some tokens of this magnitude are kept, perhaps not all
        each = tl.full((), 1, tl.int64)
        if BY_MASS:
            each = tl.maximum(mass_of(-low.to(tl.float32, bitcast=True)), 1)
        count = tl.maximum(((goal - below.to(tl.float64)) / each.to(tl.float64)).to(tl.int64) - 1, 1)
        while (below + count * each).to(tl.float64) < goal:
            count += 1
        end = nth_of_magnitude(scores, vocab_size, low, count, BLOCK)
    return low, end


@triton.jit
def weight_up_to(
    scores: tl.tensor,
    vocab_size: tl.tensor,
    magnitude: tl.tensor,
    last_id: tl.tensor,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """int64: how many tokens come no later than (magnitude, last_id), or the sum of their probabilities."""
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        score = tl.load(scores + ids, mask=ids < vocab_size, other=float("-inf"))  # [BLOCK]
        is_in = comes_no_later(score, ids, magnitude, last_id)
        if BY_MASS:
            total += tl.where(is_in, mass_of(score), 0)
        else:
            total += is_in.to(tl.int64)
    return tl.sum(total)


@triton.jit
def nth_of_magnitude(
    scores: tl.tensor, vocab_size: tl.tensor, magnitude: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """int32: the id of the count-th token of a magnitude; vocab_size if there are fewer."""
    found = vocab_size + magnitude * 0
    num_before = count * 0
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        score = tl.load(scores + ids, mask=ids < vocab_size, other=float("-inf"))  # [BLOCK]
        is_equal = magnitude_of(score) == magnitude
        number = num_before + tl.cumsum(is_equal.to(tl.int32), 0)  # [BLOCK]
        found = tl.minimum(found, tl.min(tl.where(is_equal & (number == count), ids, vocab_size)))
        num_before += tl.sum(is_equal.to(tl.int32))
    return found


@triton.jit
def noisy_maximum(
    scores: tl.tensor,
    vocab_size: tl.tensor,
    magnitude: tl.tensor,
    last_id: tl.tensor,
    key: tl.tuple,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """int32: the id with the greatest score + noise among the tokens up to (magnitude, last_id); the lowest of equals.

    `key` is (seed, choice, position).
    """
    best = tl.full((), float("-inf"), tl.float32)
    best_id = tl.full((), 0, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        score = tl.load(scores + ids, mask=ids < vocab_size, other=float("-inf"))  # [BLOCK]
        is_kept = comes_no_later(score, ids, magnitude, last_id)
        if tl.sum(is_kept.to(tl.int32)) > 0:
            sums = tl.where(is_kept, score + gumbel_noise(key, start, BLOCK), float("-inf"))
            top = tl.max(sums)
            first = tl.min(tl.where(sums == top, ids, vocab_size))
            best_id = tl.where(top > best, first, best_id)
            best = tl.maximum(best, top)
    return best_id


@triton.jit
def comes_no_later(score: tl.tensor, ids: tl.tensor, magnitude: tl.tensor, last_id: tl.tensor) -> tl.tensor:
    """bool [BLOCK]: whether tokens rank no later than (magnitude, last_id)."""
    own = magnitude_of(score)
    return (own < magnitude) | ((own == magnitude) & (ids <= last_id))


@triton.jit
def magnitude_of(score: tl.tensor) -> tl.tensor:
    """int32 [BLOCK]: bits without the sign; of numbers not above 0 the greater has the smaller ones."""
    return score.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def mass_of(score: tl.tensor) -> tl.tensor:
    """int64 [BLOCK]: e^score in units of 2^-40, rounded down; 0 from e^-28 on. Scores are at most 0.

    e^x = 2^n e^r with r = x - n ln 2 (ln 2 in two parts), e^r by its Taylor series: the hardware's own exponential is
    good to some 2^-22 only.
    """
    x = tl.maximum(score, -28.0)
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693359375) + n * 2.12194440e-4
    series = 1 / 120.0 + r * (1 / 720.0 + r * (1 / 5040.0))
    series = 1.0 + r * (1.0 + r * (0.5 + r * (1 / 6.0 + r * (1 / 24.0 + r * series))))
    power = ((n.to(tl.int32) + (127 + 40)) << 23).to(tl.float32, bitcast=True)  # 2^(n + 40)
    return tl.where(score < -28.0, 0, (series * power).to(tl.int64))


@triton.jit
def gumbel_noise(key: tl.tuple, start: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """fp32 [BLOCK]: noise of the token ids from `start` on, a multiple of 4, for the purpose SAMPLE (0)."""
    seed, choice, position = key
    block = start // 4 + tl.arange(0, BLOCK // 4)  # [BLOCK / 4], Philox counters
    none = block * 0
    words = tl.philox(seed, none + choice.to(tl.int32), none + position.to(tl.int32), none, block)
    word = tl.interleave(tl.interleave(words[0], words[2]), tl.interleave(words[1], words[3]))  # [BLOCK]
    u = (word.to(tl.int64) * 2 + 1).to(tl.float32) * 1.1641532182693481e-10  # 2^-33
    u = tl.minimum(u, 0.9999999403953552)  # 1 - 2^-24
    # -log1p(-u) = -log(t) u / (1 - t) with t = 1 - u as rounded: the errors of both factors cancel.
    t = 1.0 - u
    is_small = t == 1.0
    exact = tl.div_rn(u, tl.where(is_small, 1.0, 1.0 - t)) * -tl.log(t)
    return -tl.log(tl.where(is_small, u, exact))


@triton.jit
def verify_kernel(
    is_emitted: tl.tensor,
    num_accepted: tl.tensor,
    last_row: tl.tensor,
    sampled: tl.tensor,
    drafts: tl.tensor,
    parents: tl.tensor,
    cu_num_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Walks one request's tree: from a row with sample s on to its first child whose token is s.

    is_emitted uint8 [R], num_accepted and last_row int64 [B]; sampled int64 [R], drafts and parents int64 [R - B];
    parents None stands for chains.
    """
    request = tl.program_id(0).to(tl.int64)
    root = tl.load(cu_num_rows + request)
    num_drafts = tl.load(cu_num_rows + request + 1) - root - 1
    own_drafts = root - request  # each request before it has one row that belongs to no draft
    for start in range(0, num_drafts, BLOCK):
        node = start + tl.arange(0, BLOCK)
        tl.store(is_emitted + root + 1 + node, tl.zeros((BLOCK,), tl.uint8), mask=node < num_drafts)
    tl.debug_barrier()  # before the rows that are emitted are marked
    tl.store(is_emitted + root, tl.full((), 1, tl.uint8))
    here = num_drafts * 0 - 1  # a node; -1 is the root
    accepted = num_drafts * 0
    goes_on = num_drafts > 0
    while goes_on:
        sample = tl.load(sampled + root + 1 + here)
        child = num_drafts
        for start in range(0, num_drafts, BLOCK):
            node = start + tl.arange(0, BLOCK)
            is_node = node < num_drafts
            parent = node.to(tl.int64) - 1
            if parents is not None:
                parent = tl.load(parents + own_drafts + node, mask=is_node, other=-2)
            draft = tl.load(drafts + own_drafts + node, mask=is_node, other=-1)
            is_child = is_node & (parent == here) & (draft == sample)
            child = tl.minimum(child, tl.min(tl.where(is_child, node, num_drafts)))
        goes_on = child < num_drafts
        if goes_on:
            tl.store(is_emitted + root + 1 + child, tl.full((), 1, tl.uint8))
            here = child
            accepted += 1
    tl.store(num_accepted + request, accepted)
    tl.store(last_row + request, root + 1 + here)
