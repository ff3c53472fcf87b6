"""GGUF files of every family against the Hugging Face folders that they were made from: config, tensors, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as oracle

from tests.core.loader.gguf_conversion import Conversion, gguf_names_of, write_gguf
from tests.core.loader.hf_families import FAMILY_CONFIGS, write_hf_family
from tests.core.models.building import build
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.gguf_checkpoint import GGUFCheckpoint
from tokenloom.model_config import DivisorScaling, Llama3Scaling, ModelConfig

Q8_0 = gguf.GGMLQuantizationType.Q8_0

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 24.0,
    "beta_slow": 2.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILY_CONFIGS},
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama attention bias": ("llama", {"attention_bias": True}),
    "llama mlp bias": ("llama", {"mlp_bias": True}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "qwen2 yarn with attention factor": ("qwen2", {"rope_parameters": {**YARN, "attention_factor": 1.25}}),
    "qwen2 untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3 attention bias": ("qwen3", {"attention_bias": True}),
    "gemma2 of 27b": ("gemma2", {"num_hidden_layers": 46, "query_pre_attn_scalar": 16}),
    "gemma3 of 27b": ("gemma3_text", {"num_hidden_layers": 62, "query_pre_attn_scalar": 16}),
    "gemma3 without windows": ("gemma3_text", {"sliding_window": None, "layer_types": ["full_attention"] * 7}),
    "gemma3 with a cap": ("gemma3_text", {"final_logit_softcapping": 30.0}),
    "phi3 plain": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_window": None},
    ),
    "smollm3 attention bias": ("smollm3", {"attention_bias": True}),
}


def without_origin(config: ModelConfig) -> ModelConfig:
    """Mistral's models are stored as llama; nothing but a window would tell."""
    return replace(config, architecture="llama") if config.architecture == "mistral" else config


@pytest.mark.parametrize("variant", VARIANTS)
def test_gguf_gives_the_config_and_the_tensors_of_the_folder(tmp_path: Path, variant: str) -> None:
    family, changes = VARIANTS[variant]
    folder = write_hf_family(tmp_path / "hf", family, changes)
    expected, actual = open_checkpoint(folder), open_checkpoint(write_gguf(folder, tmp_path / "m.gguf"))
    assert actual.config == without_origin(expected.config)
    assert set(actual.tensor_names()) == set(expected.tensor_names())
    for name in expected.tensor_names():
        tensor = actual.load(name)
        if FAMILY_CONFIGS[family].get("hidden_activation") and name.endswith("norm.weight"):
            # The file holds 1 + weight in float32, and so does the model's norm: that must be the same number.
            assert torch.equal(1.0 + tensor, 1.0 + expected.load(name)), name
            torch.testing.assert_close(tensor, expected.load(name), rtol=0, atol=3e-7)
        else:
            assert torch.equal(tensor, expected.load(name)), name


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_bfloat16_norms_come_back_exactly(tmp_path: Path, family: str) -> None:
    folder = write_hf_family(tmp_path / "hf", family, dtype=torch.bfloat16)
    expected = open_checkpoint(folder)
    actual = open_checkpoint(write_gguf(folder, tmp_path / "m.gguf", Conversion(gguf.GGMLQuantizationType.BF16)))
    assert actual.config.dtype == "bfloat16"
    for name in expected.tensor_names():
        weight = expected.load(name)
        # A weight next to zero loses its last bits to the file's 1 + weight; the others do not.
        is_kept = weight.abs() > 1e-3
        assert torch.equal(actual.load(name, torch.bfloat16)[is_kept], weight[is_kept]), name


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_quantized_matrices_come_back_in_the_folders_row_order(tmp_path: Path, family: str) -> None:
    folder = write_hf_family(tmp_path / "hf", family)
    expected = open_checkpoint(folder)
    actual = open_checkpoint(write_gguf(folder, tmp_path / "m.gguf", Conversion(Q8_0)))
    for name in expected.tensor_names():
        weight = expected.load(name)
        if weight.ndim == 2:
            error = (actual.load(name) - weight).abs().amax()
            assert 0.0 < error < 0.02 * weight.abs().amax(), name


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XXS"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_k_quant_blocks_are_decoded_and_put_in_order(tmp_path: Path, family: str, kind: str) -> None:
    folder = write_hf_family(tmp_path / "hf", family, {"hidden_size": 256})
    names = gguf_names_of(folder)
    quant_type = gguf.GGMLQuantizationType[kind]
    block_bytes = gguf.GGML_QUANT_SIZES[quant_type][1]
    name = "model.layers.1.self_attn.k_proj.weight"
    blocks = np.random.default_rng(1).integers(0, 64, (48, block_bytes), dtype=np.uint8)  # finite scales
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(raw_tensors={names[name]: (quant_type, blocks)}))
    values = torch.from_numpy(oracle(blocks, quant_type).copy())
    if family == "llama":  # two heads of 24 rows, rotary pairs as neighbours
        values = values.view(2, 12, 2, 256).transpose(1, 2).reshape(48, 256)
    assert torch.equal(open_checkpoint(path).load(name), values)


def test_a_window_makes_a_llama_file_a_mistral(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "hf", "mistral", {"sliding_window": 32})
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata={"attention.sliding_window": 32}))
    assert open_checkpoint(path).config == open_checkpoint(folder).config


def test_rope_divisors_give_the_frequencies_of_llama3_scaling(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "hf", "llama", {"rope_parameters": LLAMA3})
    expected, actual = (open_checkpoint(path).config for path in (folder, write_gguf(folder, tmp_path / "m.gguf")))
    ropes = expected.ropes[0], actual.ropes[0]
    assert ropes[0] is not None
    assert ropes[1] is not None
    assert isinstance(ropes[0].scaling, Llama3Scaling)
    assert isinstance(ropes[1].scaling, DivisorScaling)
    torch.testing.assert_close(ropes[1].inv_freq(), ropes[0].inv_freq(), rtol=1e-6, atol=0)
    assert replace(actual, ropes=expected.ropes) == expected


def test_layers_without_rope_stay_so_beside_divisors(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "hf", "smollm3", {"rope_parameters": LLAMA3})
    config = open_checkpoint(write_gguf(folder, tmp_path / "m.gguf")).config
    assert [rope is None for rope in config.ropes] == [False, False, False, True, False]


@pytest.mark.parametrize("pattern", [2, [True, False, True]])
def test_gemma2_windows_follow_a_pattern(tmp_path: Path, pattern: Any) -> None:
    folder = write_hf_family(tmp_path / "hf", "gemma2")
    conversion = Conversion(metadata={"attention.sliding_window_pattern": pattern})
    assert open_checkpoint(write_gguf(folder, tmp_path / "m.gguf", conversion)).config.windows == (32, None, 32)


def test_gemma3_reads_its_own_pattern_and_local_base(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "hf", "gemma3_text")
    conversion = Conversion(metadata={"attention.sliding_window_pattern": 3, "rope.freq_base_swa": 5000.0})
    config = open_checkpoint(write_gguf(folder, tmp_path / "m.gguf", conversion)).config
    assert config.windows == (32, 32, None, 32, 32, None, 32)
    assert [rope.theta for rope in config.ropes if rope is not None] == [5e3, 5e3, 1e6, 5e3, 5e3, 1e6, 5e3]


@pytest.mark.parametrize(("factor", "expected"), [(None, 1.1339), (1.19, 1.19)])
def test_phi3_attention_factor_is_computed_or_stated(tmp_path: Path, factor: float | None, expected: float) -> None:
    folder = write_hf_family(tmp_path / "hf", "phi3")
    conversion = Conversion(metadata={"rope.scaling.attn_factor": factor})
    (rope,) = set(open_checkpoint(write_gguf(folder, tmp_path / "m.gguf", conversion)).config.ropes)
    assert rope is not None
    assert rope.amplitude == pytest.approx(expected, abs=1e-4)


def test_a_scaling_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "hf", "qwen2")
    for metadata in ({"rope.scaling.factor": 2.0}, {"rope.scale_linear": 2.0}):
        path = write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata=metadata))
        (rope,) = set(open_checkpoint(path).config.ropes)
        assert rope is not None
        assert rope.scaling is not None
        assert rope.scaling.factor == 2.0  # type: ignore[attr-defined]


def test_embeddings_without_unused_rows_decide_the_vocabulary(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "hf", "gemma2")
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata={"tokenizer.ggml.tokens": ["a", "b"]}))
    assert open_checkpoint(path).config.vocab_size == 72


@pytest.mark.parametrize(
    "metadata",
    [
        {"expert_count": 0, "expert_used_count": 0},
        {"attention.causal": True},
        {"logit_scale": 1.0},
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.finetuned": False},
        {"tensor_data_layout": "Meta AI original pth"},
    ],
)
def test_keys_that_change_nothing_are_accepted(tmp_path: Path, metadata: dict[str, Any]) -> None:
    folder = write_hf_family(tmp_path / "hf", "llama")
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata=metadata))
    assert GGUFCheckpoint(path).config == open_checkpoint(folder).config


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_models_are_built_with_progress(tmp_path: Path, family: str) -> None:
    folder = write_hf_family(tmp_path / "hf", family)
    calls: list[tuple[str, int, int]] = []
    model = build(write_gguf(folder, tmp_path / "m.gguf"), progress=lambda *call: calls.append(call))
    num_tensors = len(gguf_names_of(folder))
    assert calls == [("loading weights", done, num_tensors) for done in range(num_tensors + 1)]
    assert model.num_weight_bytes == build(folder).num_weight_bytes
