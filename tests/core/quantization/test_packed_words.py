"""Small numbers in words: golden words of the formats, and what their readers make of them."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import pack, random_codes
from tokenloom.quantization.awq_writer import AWQWriter
from tokenloom.quantization.gptq_writer import GPTQWriter
from tokenloom.quantization.packed_words import packed_words
from tokenloom.quantization.rounded_weight import RoundedWeight, RoundingScheme
from tokenloom.quantization.writer import Making
from tokenloom_quant.affine_words import unpacked


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("count", [1, 17, 32, 129])
def test_words_are_one_stream_of_bits(bits: int, count: int) -> None:
    codes = random_codes(bits, 2**bits - 1, 3, count)
    assert torch.equal(packed_words(codes.to(torch.uint8), bits), pack(codes, bits))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_readers_unpack_what_was_packed(bits: int) -> None:
    codes = random_codes(bits, 2**bits - 1, 2, 96).to(torch.uint8)
    assert torch.equal(unpacked(packed_words(codes, bits), bits), codes)


def weight(bits: int, codes: torch.Tensor) -> RoundedWeight:
    num_rows, num_columns = codes.shape
    scheme = RoundingScheme(bits, -1, True, torch.float16)
    zero = torch.full((num_rows, 1), 1 << (bits - 1), dtype=torch.uint8)
    scale = torch.ones(num_rows, 1, dtype=torch.float16)
    return RoundedWeight(codes, scale, zero, torch.zeros(num_columns, dtype=torch.int64), scheme)


def making(scheme: RoundingScheme) -> Making:
    return Making(scheme, False, (), False, True, None, "0")


def golden(writer: AWQWriter | GPTQWriter, codes: torch.Tensor) -> dict[str, int]:
    """The first word of each tensor of words."""
    stored = weight(4, codes)
    tensors = writer.tensors(stored, making(stored.scheme))
    return {name: int(tensors[name].flatten()[0]) & 0xFFFFFFFF for name in ("qweight", "qzeros")}


def test_golden_word_of_awq() -> None:
    codes = torch.arange(8, dtype=torch.uint8).unsqueeze(1).expand(8, 8).contiguous()  # output n has the code n
    assert golden(AWQWriter(), codes) == {"qweight": 0x75316420, "qzeros": 0x88888888}


def test_golden_word_of_gptq() -> None:
    codes = torch.arange(8, dtype=torch.uint8).unsqueeze(0).expand(8, 8).contiguous()  # input k has the code k
    assert golden(GPTQWriter(), codes) == {"qweight": 0x76543210, "qzeros": 0x77777777}
