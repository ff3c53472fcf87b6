"""Noise that belongs to a position, not to a moment: Philox4x32-10 counters turned into uniform and Gumbel numbers.

Every number is a function of (seed, choice, position, purpose, token id) alone. So a row's noise does not depend on the
batch, the order of requests, preemption or speculation.

Layout of one Philox block::

    key      k0 = seed bits 0..31       k1 = seed bits 32..63
    counter  c0 = choice index          c1 = output position       c2 = purpose     c3 = token id // 4
    output   word i belongs to token id 4 * c3 + i

Words to numbers: u = (2 w + 1) 2^-33, rounded once to fp32 and capped at 1 - 2^-24. It lies strictly inside (0, 1), is
exact for w < 2^23 and nearest otherwise (only the top 128 words are capped). The Gumbel number is -log(-log1p(-u)):
small u gives large noise, where fp32 is densest, so tokens down to a probability of about 2^-32 keep their chance. Its
range is (-2.82, 22.88). Integer words are equal on every device; the logarithms agree to their last bits.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import torch
from torch import Tensor

__all__ = ["Purpose", "gumbel_noise", "gumbel_noise_for", "philox4x32", "uniform_from_words", "uniform_noise"]

_WORD = 0xFFFFFFFF
_NUM_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_CHUNK_BLOCKS = 1 << 16
"""On a CPU, rows are done in chunks of about this many Philox blocks, so that the integer temporaries stay in cache."""


class Purpose(IntEnum):
    """What a draw is for. Equal purposes at equal positions are the same numbers, on purpose or by mistake."""

    SAMPLE = 0
    """Choosing a token. A drafter that samples uses it too: with the target's own noise it agrees most often."""
    ACCEPT = 1
    """The coin of classical rejection sampling."""
    RESIDUAL = 2
    """Choosing a token after a rejection; apart from SAMPLE, which the rejected draft may have been drawn with."""


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32 with ten rounds, on words held in int64 (torch has no full uint32 arithmetic).

    Args:
        counter: four int64 tensors with values in [0, 2^32), of shapes that broadcast together.
        key: two such tensors.

    Returns:
        Four int64 tensors of the broadcast shape, values in [0, 2^32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # A 64-bit product may wrap to a negative int64: its bits are right, and the masks drop the sign extension. c1
        # and c3 only enter XORs that are masked afterwards, so they carry the unmasked product until the end.
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32) ^ c1 ^ k0) & _WORD
        c2 = ((product0 >> 32) ^ c3 ^ k1) & _WORD
        c1, c3 = product1, product0
        k0 = (k0 + _KEY_STEPS[0]) & _WORD
        k1 = (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1 & _WORD, c2, c3 & _WORD


def uniform_from_words(words: Tensor) -> Tensor:
    """Turns 32-bit words into fp32 numbers strictly inside (0, 1).

    Args:
        words: int64 [...], values in [0, 2^32).

    Returns:
        fp32 [...]: (2 w + 1) 2^-33, rounded once, at most 1 - 2^-24.
    """
    return (words * 2 + 1).to(torch.float32).mul_(2.0**-33).clamp_(max=1.0 - 2.0**-24)


def gumbel_noise(seeds: Tensor, choice: Tensor, position: Tensor, purpose: Purpose, vocab_size: int) -> Tensor:
    """Gumbel noise for every token id of every row.

    Args:
        seeds: int64 [R], all 64 bits are used.
        choice: int64 [R], index of the choice within its request.
        position: int64 [R], index of the token within the output.
        purpose: what the draw is for.
        vocab_size: V.

    Returns:
        fp32 [R, V] on the device of `seeds`.
    """
    num_blocks = -(-vocab_size // 4)
    blocks = torch.arange(num_blocks, device=seeds.device).unsqueeze(0)  # [1, num_blocks]
    noise = torch.empty(seeds.shape[0], vocab_size, dtype=torch.float32, device=seeds.device)  # [R, V]
    for rows in _row_chunks(seeds, num_blocks):
        words = _words(seeds[rows], choice[rows], position[rows], purpose, blocks)  # [rows, num_blocks, 4]
        noise[rows] = _gumbel(words.flatten(1)[:, :vocab_size])
    return noise


def gumbel_noise_for(seeds: Tensor, choice: Tensor, position: Tensor, purpose: Purpose, token_ids: Tensor) -> Tensor:
    """Gumbel noise for some token ids of each row: bit-equal to `gumbel_noise(...).gather(1, token_ids)`.

    Costs four words a token, so it pays for up to a quarter of the vocabulary.

    Args:
        seeds: int64 [R]; so are `choice` and `position`, see `gumbel_noise`.
        token_ids: int64 [R, K].

    Returns:
        fp32 [R, K].
    """
    noise = torch.empty(token_ids.shape, dtype=torch.float32, device=token_ids.device)  # [R, K]
    for rows in _row_chunks(seeds, token_ids.shape[1]):
        ids = token_ids[rows]
        words = _words(seeds[rows], choice[rows], position[rows], purpose, ids >> 2)  # [rows, K, 4]
        noise[rows] = _gumbel(words.gather(2, (ids & 3).unsqueeze(2)).squeeze(2))
    return noise


def uniform_noise(seeds: Tensor, choice: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
    """One uniform number in (0, 1) a row (that of token id 0): fp32 [R]. Arguments as in `gumbel_noise`."""
    block = torch.zeros(1, 1, dtype=torch.int64, device=seeds.device)  # [1, 1]
    return uniform_from_words(_words(seeds, choice, position, purpose, block)[:, 0, 0])


def _words(seeds: Tensor, choice: Tensor, position: Tensor, purpose: Purpose, blocks: Tensor) -> Tensor:
    """Philox words of `blocks` (int64 [1 or R, L]) for each row: int64 [R, L, 4]."""
    key = (seeds.unsqueeze(1) & _WORD, (seeds.unsqueeze(1) >> 32) & _WORD)  # [R, 1] each
    # The block is the last word: the first rounds then work on [R, 1] tensors until it has spread to all four words.
    counter = (choice.unsqueeze(1) & _WORD, position.unsqueeze(1) & _WORD, torch.full_like(key[0], purpose), blocks)
    return torch.stack(philox4x32(counter, key), dim=-1)


def _gumbel(words: Tensor) -> Tensor:
    return uniform_from_words(words).neg_().log1p_().neg_().log_().neg_()


def _row_chunks(rows: Tensor, blocks_per_row: int) -> Iterator[slice]:
    num_rows = rows.shape[0]
    chunk = max(1, _CHUNK_BLOCKS // max(1, blocks_per_row)) if rows.device.type == "cpu" else max(1, num_rows)
    for start in range(0, num_rows, chunk):
        yield slice(start, start + chunk)
