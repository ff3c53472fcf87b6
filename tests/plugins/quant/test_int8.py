"""int8 weights: how they are rounded, that products use exactly q * s, and what a whole model says with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.models.dense_attention import Sequences
from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext, Shard
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.build import build_model
from tokenloom.models.causal_lm import CausalLM
from tokenloom.parallel import ParallelContext
from tokenloom_quant import int8_product
from tokenloom_quant.int8 import Int8Config, Int8Linear
from tokenloom_quant.int8_product import Int8Product, quantize_rows
from tokenloom_quant.none import NoneConfig

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
PROMPT = [int(token) for token in torch.randint(0, 256, (33,), generator=torch.Generator().manual_seed(5))]


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _spec(name: str, in_features: int, *shards: tuple[str, int], has_bias: bool = False) -> LayerSpec:
    sizes = tuple(Shard(*shard) for shard in shards)
    return LayerSpec(name, "linear", in_features, sum(shard.out_features for shard in sizes), sizes, has_bias=has_bias)


def _linear(
    weights: Sequence[torch.Tensor],
    dtype: torch.dtype,
    biases: Sequence[torch.Tensor] = (),
) -> Int8Linear:
    shards = [(f"part{index}", weight.shape[0]) for index, weight in enumerate(weights)]
    spec = _spec("model.fused", weights[0].shape[1], *shards, has_bias=bool(biases))
    layer = Int8Linear(spec, QuantContext(dtype, CPU))
    for index, weight in reversed(list(enumerate(weights))):  # checkpoints keep no order
        layer.load(f"part{index}", "weight", weight)
    for index, bias in enumerate(biases):
        layer.load(f"part{index}", "bias", bias)
    layer.finalize()
    return layer


def _dequantized(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    quantized, scale = quantize_rows(weight, dtype)
    return quantized.double() * scale.double().unsqueeze(1)


def _check_near(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    limit = TOLERANCE[dtype] * max(1.0, float(expected.abs().amax()) if expected.numel() else 0.0)
    torch.testing.assert_close(result.double(), expected, rtol=0.0, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-5, 0.02, 30.0])
def test_quantize_rows_stays_within_half_a_step(dtype: torch.dtype, size: float) -> None:
    weight = _random(1, 50, 33) * size
    quantized, scale = quantize_rows(weight, dtype)
    assert quantized.dtype == torch.int8
    assert scale.dtype == dtype
    assert int(quantized.min()) >= -127
    error = (weight.double() - quantized.double() * scale.double().unsqueeze(1)).abs()
    assert bool((error <= scale.double().unsqueeze(1) * (0.5 + 1e-6)).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_rows_uses_the_whole_range_of_each_row(dtype: torch.dtype) -> None:
    weight = _random(1, 20, 64) * torch.logspace(-2, 1, 20).unsqueeze(1)
    quantized, _ = quantize_rows(weight, dtype)
    assert bool((quantized.abs().amax(dim=1) == 127).all())


def test_quantize_rows_keeps_a_row_of_zeros() -> None:
    quantized, scale = quantize_rows(torch.zeros(2, 5), torch.float16)
    assert not quantized.any()
    assert bool((scale > 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 21])
def test_int8_linear_multiplies_block_by_block(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_rows: int
) -> None:
    monkeypatch.setattr(int8_product, "_BLOCK_ELEMENTS", 33 * 10)
    weight, bias, x = _random(1, 47, 33), _random(2, 47), _random(3, num_rows, 33).to(dtype)
    result = _linear([weight], dtype, [bias]).apply(x)
    _check_near(result, x.double() @ _dequantized(weight, dtype).T + bias.to(dtype).double(), dtype)


def test_int8_linear_in_float16_does_not_overflow_before_it_is_scaled() -> None:
    weight = torch.full((4, 64), 0.01)
    x = torch.full((21, 64), 100.0, dtype=torch.float16)  # 127 * 100 * 64 is far beyond float16
    torch.testing.assert_close(
        _linear([weight], torch.float16).apply(x).float(), torch.full((21, 4), 64.0), rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("is_right", [True, False])
def test_int8_product_uses_the_int8_op_only_where_it_works(monkeypatch: pytest.MonkeyPatch, is_right: bool) -> None:
    monkeypatch.setattr(int8_product, "_is_int8_op_right", lambda: is_right)
    weight, x = _random(1, 40, 33), _random(2, 3, 33).bfloat16()
    layer = _linear([weight], torch.bfloat16)
    _check_near(layer.apply(x), x.double() @ _dequantized(weight, torch.bfloat16).T, torch.bfloat16)
    padding = 15 if is_right else 0
    assert layer.num_bytes == 40 * (33 + padding) + 40 * 2


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_int8_linear_refuses_weights_that_are_not_finite(bad: float) -> None:
    weight = torch.ones(3, 4)
    weight[1, 2] = bad
    with pytest.raises(ModelError, match=r"model\.fused.*part0.*infinities, NaN"):
        _linear([weight], torch.bfloat16)


def test_int8_linear_refuses_packed_weights() -> None:
    layer = Int8Linear(_spec("model.o_proj", 8, ("o_proj", 8)), QuantContext(torch.float32, CPU))
    with pytest.raises(ModelError, match=r"model\.o_proj.*'qweight'.*quantized already"):
        layer.load("o_proj", "qweight", torch.zeros(1, 8, dtype=torch.int32))
    with pytest.raises(ModelError, match=r"no weight came for o_proj"):
        layer.finalize()


@pytest.mark.parametrize(
    ("name", "kind", "without", "with_embedding"),
    [
        ("model.layers.0.mlp.down_proj", "linear", True, True),
        ("model.embed_tokens", "embedding", False, True),
        ("lm_head", "linear", False, True),
    ],
)
def test_int8_covers(name: str, kind: Any, without: bool, with_embedding: bool) -> None:
    spec = LayerSpec(name, kind, 8, 8, (Shard(name.rpartition(".")[2], 8),))
    context = QuantContext(torch.float32, CPU)
    assert Int8Config().build(context).covers(spec) == without
    assert Int8Config(include_embedding=True).build(context).covers(spec) == with_embedding


def test_int8_fingerprint_names_its_settings() -> None:
    context = QuantContext(torch.float32, CPU)
    fingerprints = {Int8Config(include_embedding=flag).build(context).fingerprint for flag in (True, False)}
    assert len(fingerprints | {NoneConfig().build(context).fingerprint}) == 3


def _build(folder: Path, config: QuantConfig, dtype: torch.dtype = torch.float32, **options: Any) -> CausalLM:
    quantizer = config.build(QuantContext(dtype, CPU))
    checkpoint = open_checkpoint(folder)
    return build_model(checkpoint, quantizer=quantizer, dtype=dtype, device=CPU, parallel=ParallelContext(), **options)


def _write_rounded_copy(source: Path, folder: Path, *, skip: tuple[str, ...]) -> Path:
    """A copy whose matrices are q * s already, but for those whose names contain an entry of `skip`."""
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    rounded = {
        name: tensor
        if tensor.ndim == 1 or any(entry in name for entry in skip)
        else _dequantized(tensor, torch.float32).float()
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(rounded, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("include_embedding", [False, True])
def test_int8_model_says_what_a_model_of_rounded_weights_says(
    tmp_path: Path, tied: bool, include_embedding: bool
) -> None:
    folder = write_tiny_llama(tmp_path / "plain", tied=tied, attention_bias=True)
    skip = () if include_embedding else ("embed_tokens", "lm_head")
    rounded = _write_rounded_copy(folder, tmp_path / "rounded", skip=skip)
    quantized = _build(folder, Int8Config(include_embedding=include_embedding))
    reference = _build(rounded, NoneConfig())
    plain = _build(folder, NoneConfig())
    logits = [Sequences(model, 1, 128).feed(PROMPT) for model in (quantized, reference, plain)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)
    assert (logits[0] - logits[2]).abs().max() > 1e-2  # rounding did happen
    tokens = [Sequences(model, 1, 128).greedy(PROMPT, 64) for model in (quantized, reference)]
    assert tokens[0] == tokens[1]


def test_int8_model_is_smaller(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tied=True)
    sizes = [
        _build(folder, config).num_weight_bytes
        for config in (NoneConfig(), Int8Config(), Int8Config(include_embedding=True))
    ]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 0.3 * sizes[0]  # from float32: a quarter, scales and norms added


def test_int8_model_refuses_a_skip_entry_that_names_no_layer(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    with pytest.raises(ConfigError, match=r"'model\.layers\.7'"):
        _build(folder, Int8Config(), skip=("model.layers.7",))


def test_int8_product_accepts_no_rows_and_one_column() -> None:
    product = Int8Product(
        torch.tensor([[3], [-4]], dtype=torch.int8), torch.tensor([0.5, 2.0]), None, deterministic=False
    )
    torch.testing.assert_close(product(torch.tensor([[2.0]])), torch.tensor([[3.0, -16.0]]))
    assert product(torch.empty(0, 1)).shape == (0, 2)
