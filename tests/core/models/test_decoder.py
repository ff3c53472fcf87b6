"""What all families share: parts and ranges of layers, fused tensors, rotary tables, low precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.models.building import build
from tests.core.models.dense_attention import Sequences
from tests.core.models.family_checkpoints import FAMILIES, VOCAB_SIZE, open_oracle, oracle_logits, write_family
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import QuantContext, Quantizer
from tokenloom.model_config import LongRopeScaling, RopeConfig
from tokenloom.models.decoder import Decoder
from tokenloom.models.rotary_cache import RotationTables
from tokenloom_quant.int8 import Int8Config

PROMPT = [int(token) for token in torch.randint(0, VOCAB_SIZE, (21,), generator=torch.Generator().manual_seed(6))]
TOKEN_IDS = torch.tensor(PROMPT)
CPU = torch.device("cpu")


def logits_of(model: Decoder, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return Sequences(model, 1, 32, dtype).feed(PROMPT)


def run_layers(
    model: Decoder, delta: torch.Tensor | None, residual: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """All loaded layers, part by part, as a drafter would run them."""
    context = Sequences(model, 1, 32).context([len(PROMPT)])
    for layer, rotation, kv in zip(model.layers, model.rotations(context.positions), context.kv, strict=True):
        delta, residual = layer.attention_part(delta, residual, rotation, kv, context)
        delta, residual = layer.ffn_part(delta, residual)
    return delta, residual


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_run_part_by_part_and_in_two_ranges_give_the_whole_model(
    folder_of: Callable[[str], Path], name: str
) -> None:
    whole = build(folder_of(name))
    split = whole.config.num_layers - 1
    lower, upper = (build(folder_of(name), layers=part) for part in (range(split), range(split, split + 1)))
    assert [layer.facts for layer in (*lower.layers, *upper.layers)] == list(whole.attention_layers())
    delta, residual = run_layers(upper, *run_layers(lower, None, lower.embed(TOKEN_IDS)))
    logits = whole.compute_logits(upper.final_state(delta, residual))
    torch.testing.assert_close(logits, logits_of(whole), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_layer_whose_attention_is_skipped_still_runs_its_ffn(folder_of: Callable[[str], Path], name: str) -> None:
    model = build(folder_of(name), layers=range(1))
    x = model.embed(TOKEN_IDS)
    alone, residual = model.layers[0].ffn_part(None, x.clone())
    torch.testing.assert_close(residual, x, rtol=0.0, atol=0.0)
    with_zero, residual = model.layers[0].ffn_part(torch.zeros_like(x), x.clone())
    torch.testing.assert_close(alone, with_zero, rtol=0.0, atol=0.0)
    assert alone.abs().mean() > 0.01


def rewrite(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text((source / "config.json").read_text())
    return target


def fuse(tensors: dict[str, torch.Tensor]) -> None:
    for layer in range(3):
        for parent, fused, parts in (
            ("self_attn", "qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("mlp", "gate_up_proj", ("gate_proj", "up_proj")),
        ):
            name = f"model.layers.{layer}.{parent}"
            tensors[f"{name}.{fused}.weight"] = torch.cat([tensors.pop(f"{name}.{part}.weight") for part in parts])


def split(tensors: dict[str, torch.Tensor]) -> None:
    for layer in range(3):
        name = f"model.layers.{layer}"
        q, k, v = tensors.pop(f"{name}.self_attn.qkv_proj.weight").split([48, 24, 24])
        gate, up = tensors.pop(f"{name}.mlp.gate_up_proj.weight").chunk(2)
        for part, tensor in (("q", q), ("k", k), ("v", v)):
            tensors[f"{name}.self_attn.{part}_proj.weight"] = tensor.contiguous()
        tensors |= {f"{name}.mlp.gate_proj.weight": gate.contiguous(), f"{name}.mlp.up_proj.weight": up.contiguous()}


def int8() -> Quantizer:
    return Int8Config().build(QuantContext(torch.float32, CPU))


@pytest.mark.parametrize(("name", "change"), [("llama", fuse), ("phi3", split)])
def test_fused_and_split_projections_are_one_model(
    folder_of: Callable[[str], Path], tmp_path: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    usual, other = folder_of(name), rewrite(folder_of(name), tmp_path / "other", change)
    assert build(usual).config.is_qkv_fused is (name == "phi3")
    assert build(other).config.is_qkv_fused is (name != "phi3")
    torch.testing.assert_close(logits_of(build(other)), logits_of(build(usual)), rtol=0.0, atol=0.0)
    for skip in ((), ("model.layers.0.self_attn.qkv_proj",), ("model.layers.1.mlp.gate_up_proj", "layers.2.mlp")):
        models = [build(folder, quantizer=int8(), skip=skip) for folder in (usual, other)]
        torch.testing.assert_close(logits_of(models[0]), logits_of(models[1]), rtol=0.0, atol=0.0)
        assert models[0].num_weight_bytes == models[1].num_weight_bytes


def test_a_part_of_a_fused_tensor_cannot_be_skipped(folder_of: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"names 'model\.layers\.0\.self_attn\.q_proj', but no layer has that name"):
        build(folder_of("phi3"), skip=("model.layers.0.self_attn.q_proj",))


def test_norms_of_queries_and_keys_must_both_come(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.k_norm.weight"]

    with pytest.raises(ModelError, match=r"lacks tensor 'model\.layers\.1\.self_attn\.k_norm\.weight'"):
        build(rewrite(folder_of("qwen3"), tmp_path / "other", drop))


def test_layers_of_equal_rope_share_one_table_and_one_lookup() -> None:
    local, wide = RopeConfig(100.0, 8, None), RopeConfig(1e4, 8, None)
    tables = RotationTables((local, wide, None, RopeConfig(100.0, 8, None)), 32, torch.float32, CPU)
    first, second, none, third = tables.lookup(torch.tensor([0, 5, 31]))
    assert first is third
    assert first is not second
    assert none is None


@pytest.mark.parametrize(("max_len", "divisor"), [(16, 2.0), (17, 5.0)])
def test_longrope_takes_its_divisors_by_the_longest_sequence(max_len: int, divisor: float) -> None:
    rope = RopeConfig(1e4, 4, LongRopeScaling((2.0, 2.0), (5.0, 5.0), 16, 1.5))
    (rotation,) = RotationTables((rope,), max_len, torch.float32, CPU).lookup(torch.tensor([7]))
    assert rotation is not None
    torch.testing.assert_close(rotation.cos[0, 0, 0], 1.5 * torch.tensor(7.0 / divisor).cos())
    torch.testing.assert_close(rotation.signed_sin[0, 0, 0], -1.5 * torch.tensor(7.0 / divisor).sin())
    with pytest.raises(AssertionError, match="ask for_length"):
        rope.inv_freq()


def test_cached_keys_of_other_longrope_divisors_have_another_key(folder_of: Callable[[str], Path]) -> None:
    config = build(folder_of("llama")).config
    assert config.rope_key(100) == config.rope_key(200)
    rope = RopeConfig(1e4, 4, LongRopeScaling((2.0, 2.0), (5.0, 5.0), 16, 1.5))
    long = replace(config, ropes=(rope,) * 3)
    assert long.rope_key(10) == long.rope_key(16) != long.rope_key(17) == long.rope_key(256)


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_is_as_near_to_float32_as_transformers(tmp_path: Path, name: str) -> None:
    folder = write_family(tmp_path, name, seed=2, dtype=torch.bfloat16)
    prompt = [(7 * index * index + 3 * index) % VOCAB_SIZE for index in range(100)]
    exact = oracle_logits(folder, prompt)
    error_of_transformers = (oracle_logits(folder, prompt, torch.bfloat16) - exact).abs().mean()
    model = build(folder, torch.bfloat16)
    error = (Sequences(model, 1, 100, torch.bfloat16).feed(prompt) - exact).abs().mean()
    assert 0.0 < error < 1.2 * error_of_transformers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_embedding_scale_is_rounded_as_transformers_does(
    folder_of: Callable[[str], Path], name: str, dtype: torch.dtype
) -> None:
    expected = open_oracle(folder_of(name), dtype).get_input_embeddings()(TOKEN_IDS)
    torch.testing.assert_close(build(folder_of(name), dtype).embed(TOKEN_IDS), expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_gemma_in_bfloat16_stays_finite_where_float16_would_overflow(tmp_path: Path, name: str) -> None:
    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.embed_tokens.weight"] *= 3e5

    folder = rewrite(write_family(tmp_path / "plain", name, dtype=torch.bfloat16), tmp_path / "large", enlarge)
    model = build(folder, torch.bfloat16)
    assert model.embed(TOKEN_IDS).abs().max() > torch.finfo(torch.float16).max
    assert logits_of(model, torch.bfloat16).isfinite().all()
