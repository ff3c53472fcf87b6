"""Checkpoints that Transformers loads with the format's own library, and those that the library makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import AutoModelForCausalLM

from tests.core.models.dense_attention import Sequences
from tests.plugins.quant.checkpoint_packing import PROMPT, Encoded, check_models, load_model, random, write_pair
from tests.plugins.quant.format_encoders import ct_settings, int_weights
from tests.tiny_model import write_tiny_llama
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.quantization.awq import AWQ
from tokenloom.quantization.formats import WRITERS
from tokenloom.quantization.gptq import GPTQ
from tokenloom.quantization.make import quantize_checkpoint
from tokenloom.quantization.method import RoundingMethod
from tokenloom.quantization.plan import QuantizePlan
from tokenloom.quantization.rounded_weight import RoundingScheme, round_to_nearest
from tokenloom.quantization.smoothquant import SmoothQuant
from tokenloom.quantization.writer import Making
from tokenloom_quant.compressed_tensors import CompressedTensorsConfig

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries warn of each other

CASES: dict[str, tuple[RoundingMethod, int, int, bool]] = {
    "W4A16": (GPTQ(), 4, 32, True),
    "W4A16, scaled": (AWQ(num_ratios=4), 4, 32, True),
    "W8A16": (GPTQ(), 8, -1, True),
    "W8A8": (SmoothQuant(), 8, -1, True),
}


@pytest.mark.parametrize("case", CASES)
def test_transformers_gives_the_same_logits(tmp_path: Path, case: str) -> None:
    method, bits, group_size, symmetric = CASES[case]
    model = write_tiny_llama(tmp_path / "model", head_dim=32, with_tokenizer=True)
    (tmp_path / "text.txt").write_text("".join(f"{number} apples and {number * 7} pears. " for number in range(200)))
    scheme = RoundingScheme(bits, group_size, symmetric, torch.float32)
    plan = QuantizePlan(method, WRITERS["compressed-tensors"], scheme, num_samples=4, sample_tokens=64)
    checkpoint = open_checkpoint(model)
    quantize_checkpoint(checkpoint, tmp_path / "made", replace(plan, calibration=tmp_path / "text.txt"))
    checkpoint.close()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    ours = load_model(tmp_path / "made", CompressedTensorsConfig(weights="dense"))
    logits = Sequences(ours, 1, 128).feed(PROMPT)
    if method.rounds_activations:  # by max / 127 of each row here, by max / 127.5 there
        assert float((logits - expected).abs().mean()) < 0.1
    else:
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("group_size", [32, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_library_unpacks_what_the_maker_packed(group_size: int, symmetric: bool) -> None:
    """Layer by layer: with zero points, Transformers 5.24 refuses whatever the library packs."""
    scheme = RoundingScheme(4, group_size, symmetric, torch.float32)
    rounded = round_to_nearest(random(0, 24, 96), scheme)
    writer = WRITERS["compressed-tensors"]
    making = Making(scheme, False, (), False, True, None, "0")
    weights = writer.settings(making)["config_groups"]["group_0"]["weights"]
    theirs = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    unpacked = PackedQuantizationCompressor.decompress(writer.tensors(rounded, making), theirs)
    torch.testing.assert_close(unpacked["weight"], rounded.dequantized())


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, None)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_what_the_library_packs_is_read(tmp_path: Path, bits: int, group_size: int | None, symmetric: bool) -> None:
    settings = int_weights(bits, group_size, symmetric=symmetric)
    args = QuantizationArgs(**settings)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def encode(_: str, weight: torch.Tensor) -> Encoded:
        groups = weight.view(weight.shape[0], -1, group_size or weight.shape[1])
        scale, zero = calculate_qparams(*groups.aminmax(dim=2), args)
        zero = zero.to(torch.int8)
        tensors = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        return PackedQuantizationCompressor.compress(tensors, scheme), fake_quantize(weight, scale, zero, args)

    check_models(*write_pair(tmp_path, ct_settings(settings), encode), CompressedTensorsConfig(weights="dense"))
