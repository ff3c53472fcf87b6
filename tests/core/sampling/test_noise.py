"""Philox words against published answers and a plain reference; range and distribution of the numbers made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tokenloom.sampling.noise import (
    Purpose,
    gumbel_noise,
    gumbel_noise_for,
    philox4x32,
    uniform_from_words,
    uniform_noise,
)

KNOWN_ANSWERS = [  # the philox4x32-10 lines of Random123's known-answer file: counter, key, output
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def int64(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def keys(num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)
    return seeds, torch.arange(num_rows) % 3, torch.arange(num_rows) * 7


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, output: str) -> None:
    c = [int64(int(word, 16)) for word in counter.split()]
    k = [int64(int(word, 16)) for word in key.split()]
    words = philox4x32((c[0], c[1], c[2], c[3]), (k[0], k[1]))
    assert [f"{int(word):08x}" for word in words] == output.split()


def test_philox_equals_plain_integers_on_many_counters(plain: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 2**32, (200, 6), generator=generator)
    c0, c1, c2, c3, k0, k1 = inputs.unbind(dim=1)
    words = torch.stack(philox4x32((c0, c1, c2, c3), (k0, k1)), dim=1)
    assert words.tolist() == [plain.philox(row[:4], row[4:]) for row in inputs.tolist()]


def test_uniform_is_strictly_inside_its_interval_at_both_ends() -> None:
    u = uniform_from_words(int64(0, 2**23 - 1, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1))
    assert u.dtype == torch.float32
    assert u.tolist() == [2.0**-33, (2**24 - 1) * 2.0**-33, 0.5, 1 - 2.0**-24, 1 - 2.0**-24, 1 - 2.0**-24]


def test_gumbel_range_is_the_documented_one() -> None:
    ends = uniform_from_words(int64(0, 2**32 - 1)).double()
    highest, lowest = (-torch.log(-torch.log1p(-ends))).tolist()
    assert 22.87 < highest < 22.88
    assert -2.82 < lowest < -2.81


def test_gumbel_noise_follows_the_documented_layout(plain: Any) -> None:
    seeds, choice, position = int64(5, -(2**63), 2**63 - 1), int64(0, 1, 2), int64(0, 4095, 2**31)
    noise = gumbel_noise(seeds, choice, position, Purpose.RESIDUAL, 10)
    expected = [
        [plain.gumbel(seed, c, p, 2, token_id) for token_id in range(10)]
        for seed, c, p in zip(seeds.tolist(), choice.tolist(), position.tolist())
    ]
    torch.testing.assert_close(noise.double(), torch.tensor(expected, dtype=torch.float64), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 5, 129, 1000, 49152])
def test_a_row_alone_equals_the_row_in_a_batch(vocab_size: int) -> None:
    seeds, choice, position = keys(9)
    together = gumbel_noise(seeds, choice, position, Purpose.SAMPLE, vocab_size)
    assert together.shape == (9, vocab_size)
    for row in range(9):
        one = slice(row, row + 1)
        alone = gumbel_noise(seeds[one], choice[one], position[one], Purpose.SAMPLE, vocab_size)
        assert torch.equal(alone[0], together[row])


def test_a_larger_vocabulary_only_adds_tokens() -> None:
    small = gumbel_noise(*keys(3), Purpose.SAMPLE, 41)
    large = gumbel_noise(*keys(3), Purpose.SAMPLE, 1000)
    assert torch.equal(small, large[:, :41])


@pytest.mark.parametrize(("vocab_size", "num_ids"), [(17, 1), (1000, 129), (49152, 50), (49152, 20000)])
def test_noise_for_some_tokens_equals_the_gathered_whole(vocab_size: int, num_ids: int) -> None:
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(0, vocab_size, (6, num_ids), generator=generator)
    whole = gumbel_noise(*keys(6), Purpose.SAMPLE, vocab_size)
    assert torch.equal(gumbel_noise_for(*keys(6), Purpose.SAMPLE, token_ids), whole.gather(1, token_ids))


def test_any_part_of_the_key_changes_the_noise() -> None:
    base = (12345, 0, 0, Purpose.SAMPLE)
    variants = [
        base,
        (12346, 0, 0, Purpose.SAMPLE),
        (12345 + 2**32, 0, 0, Purpose.SAMPLE),
        (-12345, 0, 0, Purpose.SAMPLE),
        (12345, 1, 0, Purpose.SAMPLE),
        (12345, 0, 1, Purpose.SAMPLE),
        (12345, 0, 0, Purpose.ACCEPT),
        (12345, 0, 0, Purpose.RESIDUAL),
    ]
    rows = [gumbel_noise(int64(s), int64(c), int64(p), purpose, 64)[0] for s, c, p, purpose in variants]
    for i, row in enumerate(rows):
        for other in rows[:i]:
            assert int((row == other).sum()) <= 1


def test_uniform_noise_is_one_independent_number_a_row() -> None:
    seeds, choice, position = keys(1000)
    u = uniform_noise(seeds, choice, position, Purpose.ACCEPT)
    assert u.shape == (1000,)
    assert len(set(u.tolist())) > 990
    assert torch.equal(uniform_noise(seeds[5:6], choice[5:6], position[5:6], Purpose.ACCEPT), u[5:6])


def test_uniform_noise_is_uniform(assert_distributed: Callable[[Tensor, Tensor], None]) -> None:
    position = torch.arange(200_000)
    u = uniform_noise(torch.full_like(position, 3), torch.zeros_like(position), position, Purpose.ACCEPT)
    assert_distributed((u * 64).long(), torch.full((64,), 1 / 64))


def test_gumbel_noise_has_the_right_moments_and_distribution(
    assert_distributed: Callable[[Tensor, Tensor], None],
) -> None:
    noise = gumbel_noise(int64(1, 2, 3, 4), int64(0, 0, 0, 0), int64(0, 1, 2, 3), Purpose.SAMPLE, 50_000).double()
    count = noise.numel()
    assert abs(float(noise.mean()) - 0.5772156649) < 4 * math.pi / math.sqrt(6 * count)
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.05
    quantile = torch.exp(-torch.exp(-noise))
    assert_distributed((quantile.flatten() * 16).long().clamp(max=15), torch.full((16,), 1 / 16))


def test_neighbours_in_token_and_position_are_uncorrelated() -> None:
    position = torch.arange(64)
    seeds = torch.zeros(64, dtype=torch.int64)
    noise = gumbel_noise(seeds, seeds, position, Purpose.SAMPLE, 4096).double()
    noise = (noise - noise.mean()) / noise.std()
    for product in (noise[:, 1:] * noise[:, :-1], noise[1:] * noise[:-1], noise[:, 4:] * noise[:, :-4]):
        assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())


def test_no_rows_give_no_noise() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert gumbel_noise(none, none, none, Purpose.SAMPLE, 100).shape == (0, 100)
    assert gumbel_noise_for(none, none, none, Purpose.SAMPLE, torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 5)
    assert uniform_noise(none, none, none, Purpose.ACCEPT).shape == (0,)
