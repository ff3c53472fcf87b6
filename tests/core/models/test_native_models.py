"""Models whose operations are native, against the same in float32 and against torch's operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.core.models.building import build
from tests.core.models.dense_attention import Sequences
from tests.core.models.family_checkpoints import FAMILIES, VOCAB_SIZE
from tests.core.ops.native_levels import LEVELS, NEEDS_COMPILER, at_level
from tokenloom.interfaces.quant import QuantContext, Quantizer
from tokenloom.models.decoder import Decoder
from tokenloom_quant.int8 import Int8Config

pytestmark = NEEDS_COMPILER

BF16 = torch.bfloat16
PROMPT = [int(token) for token in torch.randint(0, VOCAB_SIZE, (21,), generator=torch.Generator().manual_seed(6))]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    for _ in at_level(request.param):
        yield request.param


def _logits(model: Decoder, dtype: torch.dtype) -> torch.Tensor:
    """Of the whole prompt at once, and of its last token fed alone after the others."""
    whole = Sequences(model, 1, 32, dtype).feed(PROMPT)
    stepwise = Sequences(model, 1, 32, dtype)
    stepwise.feed(PROMPT[:-1])
    return torch.cat((whole, stepwise.feed(PROMPT[-1:])))


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    assert found.dtype == torch.float32
    return float((found - exact).square().mean().sqrt())


def _int8() -> Quantizer:
    return Int8Config().build(QuantContext(BF16, torch.device("cpu")))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("name", FAMILIES)
def test_native_operations_are_as_near_to_float32_as_torch_s(folder_of: Callable[[str], Path], name: str) -> None:
    exact = _logits(build(folder_of(name)), torch.float32)
    plain = _distance(_logits(build(folder_of(name), BF16), BF16), exact)
    native = _distance(_logits(build(folder_of(name), BF16, ops="native"), BF16), exact)
    assert native <= 1.25 * plain


@pytest.mark.parametrize("name", FAMILIES)
def test_native_operations_go_with_a_quantizer(folder_of: Callable[[str], Path], name: str) -> None:
    plain = _logits(build(folder_of(name), BF16, quantizer=_int8()), BF16)
    native = _logits(build(folder_of(name), BF16, quantizer=_int8(), ops="native"), BF16)
    torch.testing.assert_close(native, plain, rtol=0.05, atol=0.1 * float(plain.abs().max()))
