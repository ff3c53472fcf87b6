"""Tokens drawn in C++ against torch's, at every level of instructions of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType

import pytest
import torch

from tests.core.ops.native_levels import LEVELS, NEEDS_COMPILER, at_level
from tokenloom.ops.native_sampling import native_draw, native_total_mass
from tokenloom.ops.sampling_table import TORCH_SAMPLING, build_sampling_ops
from tokenloom.sampling import SamplingBatch, SamplingRow
from tokenloom.sampling.filtering import total_mass
from tokenloom.sampling.noise import Purpose, gumbel_noise
from tokenloom.sampling.sampler import draw_tokens
from tokenloom.sampling_params import SamplingParams

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("module")]


@pytest.fixture(params=LEVELS)
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield from at_level(request.param)


def batch_of(settings: Sequence[SamplingParams], vocab_size: int, seed: int = 0) -> SamplingBatch:
    """Rows of different seeds (with bits above 2^32), choices and positions."""
    rows = [SamplingRow(each, (seed + i) * 0x9_1234_5679 - i, i % 3, 7 * i, (), ()) for i, each in enumerate(settings)]
    return SamplingBatch.build(rows, vocab_size)


def logits_of(num_rows: int, vocab_size: int) -> torch.Tensor:
    return 4 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size))


@pytest.mark.parametrize("vocab_size", [1, 3, 63, 64, 65, 1031, 5000])
@pytest.mark.parametrize("num_rows", [1, 2, 40])
def test_it_draws_torch_s_tokens(num_rows: int, vocab_size: int) -> None:
    settings = [SamplingParams(temperature=0.3 + 0.2 * i, min_p=0.02 * (i % 2)) for i in range(num_rows)]
    batch, logits = batch_of(settings, vocab_size), logits_of(num_rows, vocab_size)
    tops = logits.amax(dim=-1)
    assert native_draw(logits, tops, batch).tolist() == draw_tokens(logits, tops, batch).tolist()


def test_its_noise_is_torch_s_in_all_of_its_range() -> None:
    """Equal logits: the noise alone decides. A pair of tokens draws as the difference of their noise says, to bits.

    A row's second logit is set so that the sums differ by little, in the one direction or the other.
    """
    vocab_size, num_rows = 512, 512
    batch = batch_of([SamplingParams(temperature=1.0)] * num_rows, vocab_size, seed=5)
    noise = gumbel_noise(*batch.noise_keys(batch.groups.plain_rows), Purpose.SAMPLE, vocab_size)
    assert float(noise.max()) > 10
    assert float(noise.min()) < -2
    rows, other = torch.arange(num_rows), torch.arange(num_rows).roll(1)
    for sign in (1, -1):
        logits = torch.full((num_rows, vocab_size), float("-inf"))
        logits[rows, rows] = 0.0
        # Tokens whose noise is about equal to the first one's, less or more a trifle.
        logits[rows, other] = noise[rows, rows] - noise[rows, other] + sign * 4e-6 * noise.abs().amax(dim=-1)
        expected = torch.where(torch.tensor(sign > 0), other, rows)
        assert native_draw(logits, logits.amax(dim=-1), batch).tolist() == expected.tolist()


def test_rows_among_others_draw_alike() -> None:
    """Greedy and ranked rows between them, and fewer rows than are cut into parts."""
    settings = [SamplingParams(temperature=t, top_k=k) for t, k in ((0.0, 0), (0.8, 0), (0.8, 5), (1.3, 0))]
    batch, logits = batch_of(settings, 2000), logits_of(4, 2000)
    native = build_sampling_ops("native")
    tokens, invalid = native.choose_tokens(logits, batch)
    assert tokens.tolist() == TORCH_SAMPLING.choose_tokens(logits, batch)[0].tolist()
    assert not bool(invalid.any())
    for row in range(4):
        alone = native.choose_tokens(logits[row : row + 1], batch.select([row], [0]))[0]
        assert alone.tolist() == [int(tokens[row])]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_without_a_distribution_are_invalid(bad: float) -> None:
    logits = logits_of(3, 130)
    logits[0, 77] = bad
    logits[1] = float("-inf")
    batch = batch_of([SamplingParams(temperature=1.0)] * 3, 130)
    found, expected = (ops.choose_tokens(logits, batch) for ops in (build_sampling_ops("native"), TORCH_SAMPLING))
    assert found[1].tolist() == expected[1].tolist() == [True, True, False]
    assert found[0].tolist() == expected[0].tolist()


def test_a_tiny_temperature_takes_the_greatest() -> None:
    logits = logits_of(2, 300)
    batch = batch_of([SamplingParams(temperature=1e-6)] * 2, 300)
    assert native_draw(logits, logits.amax(dim=-1), batch).tolist() == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("size", [1, 7, 16, 1031])
def test_masses_add_up_to_torch_s(size: int) -> None:
    scores = -30 * torch.rand(5, size, generator=torch.Generator().manual_seed(size))
    scores[:, 0] = 0.0
    scores[2, 1:] = float("-inf")
    expected = total_mass(scores)
    assert torch.allclose(native_total_mass(scores).double(), expected.double(), rtol=1e-6, atol=0.0)
    assert int(native_total_mass(scores)[2]) == 1 << 40


def test_wrong_operands_are_refused(module: ModuleType) -> None:
    rows, numbers = torch.tensor([0]), torch.tensor([1.0])
    for logits, row in ((torch.zeros(3), rows), (torch.zeros(4, 3).T, rows), (torch.zeros(1, 3), torch.tensor([1]))):
        with pytest.raises(RuntimeError, match=r"logits must be float32|row 1 of 1 logits"):
            module.noisy_choice(logits, row, numbers, numbers, numbers, rows, rows, rows, 0)
    with pytest.raises(RuntimeError, match="a number of each kind"):
        module.noisy_choice(torch.zeros(1, 3), rows, numbers, numbers.double(), numbers, rows, rows, rows, 0)
    with pytest.raises(RuntimeError, match="scores must be float32"):
        module.total_mass(torch.zeros(3))
