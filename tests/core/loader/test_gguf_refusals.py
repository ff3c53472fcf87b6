"""GGUF files that are refused: what would be computed wrongly, tensors without a place, damage of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.loader.hf_families import write_hf_family
from tests.core.models.building import build
from tokenloom.errors import ModelError
from tokenloom.loader.gguf_checkpoint import GGUFCheckpoint


@pytest.mark.parametrize(
    ("family", "metadata", "expected"),
    [
        ("qwen2", {"expert_count": 4}, "mixture of experts ('qwen2.expert_count')"),
        ("qwen2", {"general.architecture": "qwen2moe"}, "a 'qwen2moe' model, a mixture of experts"),
        ("llama", {"general.architecture": "mistral3"}, "architecture 'mistral3'; supported are gemma2"),
        ("qwen2", {"attention.causal": False}, "'qwen2.attention.causal' to False"),
        ("qwen2", {"pooling_type": 3}, "'qwen2.pooling_type' to 3, which is not supported"),
        ("qwen2", {"attention.sliding_window": 16}, "'qwen2.attention.sliding_window' to 16"),
        ("qwen3", {"attention.slidng_window": 16}, "'qwen3.attention.slidng_window'"),
        ("qwen3", {"attention.scale": 0.5}, "'qwen3.attention.scale' to 0.5"),
        ("llama", {"logit_scale": 0.5}, "'llama.logit_scale' to 0.5"),
        ("llama", {"residual_scale": 0.2}, "'llama.residual_scale'"),
        ("llama", {"rope.scaling.yarn_log_multiplier": 0.1}, "'llama.rope.scaling.yarn_log_multiplier'"),
        ("llama", {"rope.scaling.type": "dynamic"}, "is 'dynamic'; supported are none, linear, yarn, longrope"),
        ("llama", {"rope.scaling.type": "yarn"}, "lacks the key 'llama.rope.scaling.factor'"),
        ("llama", {"rope.scaling.type": "longrope"}, "lacks the tensor 'rope_factors_short.weight'"),
        ("llama", {"rope.dimension_count": 12}, "'llama.rope.dimension_count' is 12, but only the full head size 24"),
        ("smollm3", {"rope.dimension_count": 8}, "'smollm3.rope.dimension_count' is 8"),
        ("phi3", {"rope.dimension_count": 8}, "tensor 'rope_factors_short.weight' has shape [6]; expected [4]"),
        ("gemma2", {"attention.sliding_window_pattern": [True]}, "a period or 3 times true or false"),
        ("gemma2", {"attention.sliding_window_pattern": [1, 0, 1]}, "a period or 3 times true or false"),
        ("gemma2", {"attention.sliding_window_pattern": 0}, "must be an integer from 1"),
        ("gemma2", {"rope.freq_base_swa": 100.0}, "'gemma2.rope.freq_base_swa'"),
        ("gemma2", {"attn_logit_softcapping": -5.0}, "attn_soft_cap must be a positive number"),
        ("gemma2", {"attn_logit_softcapping": float("inf")}, "must be a finite number, got inf"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "'gemma3.attn_logit_softcapping'"),
        ("gemma3_text", {"rope.freq_base": float("nan")}, "must be a finite number, got nan"),
        ("gemma3_text", {"attention.head_count": 0}, "'gemma3.attention.head_count' must be an integer from 1"),
        ("qwen2", {"attention.head_count": [4, 8]}, "'qwen2.attention.head_count' differs between layers"),
        ("qwen2", {"context_length": None}, "lacks the key 'qwen2.context_length'"),
        ("qwen2", {"attention.layer_norm_rms_epsilon": "small"}, "must be a finite number"),
    ],
)
def test_models_that_would_compute_something_else_are_refused(
    tmp_path: Path, family: str, metadata: dict[str, Any], expected: str
) -> None:
    path = write_gguf(write_hf_family(tmp_path / "hf", family), tmp_path / "m.gguf", Conversion(metadata=metadata))
    with pytest.raises(ModelError) as caught:
        GGUFCheckpoint(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("family", "tensor", "expected"),
    [
        ("llama", "blk.0.ffn_gate_exps.weight", "it is a mixture of experts"),
        ("qwen3", "blk.1.ffn_gate_inp.weight", "it is a mixture of experts"),
        ("gemma3_text", "v.blk.0.attn_q.weight", "it has a vision part"),
        ("gemma3_text", "mm.input_projection.weight", "it has a vision part"),
        ("qwen3", "cls.output.weight", "it is a classifier"),
        ("llama", "blk.0.attn_qkv.weight", "it may be another kind of model"),
        ("llama", "blk.0.attn_q_norm.weight", "it may be another kind of model. Did you mean 'blk.0.attn_norm.weight'"),
        ("llama", "blk.5.attn_norm.weight", "its tensors are those of 6 layers"),
        ("qwen2", "blk.0.attn_q_norm.weight", "does not use, among them 'blk.0.attn_q_norm.weight'"),
        ("phi3", "blk.0.ffn_gate.weight", "'blk.0.ffn_gate.weight'"),
        ("gemma2", "blk.0.post_ffn_norm.weight", "'blk.0.post_ffw_norm.weight'"),
    ],
)
def test_tensors_without_a_place_are_refused_with_a_hint(
    tmp_path: Path, family: str, tensor: str, expected: str
) -> None:
    conversion = Conversion(extra_tensors={tensor: torch.ones(64)})
    path = write_gguf(write_hf_family(tmp_path / "hf", family), tmp_path / "m.gguf", conversion)
    with pytest.raises(ModelError) as caught:
        GGUFCheckpoint(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_without_embeddings_is_refused(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "hf", "qwen2")
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(drop_tensors=("token_embd.weight",)))
    with pytest.raises(ModelError, match=r"has no matrix 'token_embd\.weight'"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize(
    ("family", "tensor", "shape", "expected"),
    [
        ("llama", "blk.0.attn_q.weight", (64, 64), "has 64 rows; the metadata asks for 96 (4 heads of 24)"),
        ("smollm3", "blk.0.attn_k.weight", (16, 64), "has 16 rows; the metadata asks for 32 (2 heads of 16)"),
        ("qwen2", "blk.0.attn_k.bias", (16,), "has shape [16]; the model's config asks for [32]"),
        ("qwen3", "blk.1.attn_q_norm.weight", (16,), "has shape [16]; the model's config asks for [24]"),
        ("gemma2", "blk.1.post_ffw_norm.weight", (32,), "has shape [32]; the model's config asks for [64]"),
        ("gemma3_text", "blk.6.ffn_up.weight", (96, 32), "has shape [96, 32]; the model's config asks for [96, 64]"),
        ("phi3", "blk.0.attn_qkv.weight", (64, 64), "has shape [64, 64]; the model's config asks for [128, 64]"),
        ("phi3", "blk.0.ffn_up.weight", (96, 64), "has shape [96, 64]; the model's config asks for [192, 64]"),
        ("llama", "output.weight", (72, 32), "has shape [72, 32]; the model's config asks for [72, 64]"),
        ("llama", "token_embd.weight", (70, 64), "has shape [70, 64]; the model's config asks for [72, 64]"),
    ],
)
def test_tensors_of_the_wrong_shape_are_refused(
    tmp_path: Path, family: str, tensor: str, shape: tuple[int, ...], expected: str
) -> None:
    wrong = (gguf.GGMLQuantizationType.F32, np.ones(shape, dtype=np.float32))
    folder = write_hf_family(tmp_path / "hf", family)
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(raw_tensors={tensor: wrong}))
    with pytest.raises(ModelError) as caught:
        build(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("family", "tensor", "expected"),
    [
        ("gemma2", "blk.1.post_ffw_norm.weight", "lacks tensor 'model.layers.1.post_feedforward_layernorm.weight'"),
        ("qwen2", "blk.0.attn_v.bias", "lacks tensor 'model.layers.0.self_attn.v_proj.bias'"),
        ("qwen3", "blk.1.attn_k_norm.weight", "lacks tensor 'model.layers.1.self_attn.k_norm.weight'"),
        ("phi3", "blk.1.ffn_up.weight", "lacks tensor 'model.layers.1.mlp.gate_up_proj.weight'"),
        ("llama", "output_norm.weight", "lacks tensor 'model.norm.weight'"),
    ],
)
def test_missing_tensors_are_named(tmp_path: Path, family: str, tensor: str, expected: str) -> None:
    folder = write_hf_family(tmp_path / "hf", family)
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(drop_tensors=(tensor,)))
    with pytest.raises(ModelError) as caught:
        build(path)
    assert expected in str(caught.value)


@pytest.mark.parametrize("family", ["gemma3_text", "phi3"])
def test_flipped_header_bytes_load_or_are_refused(tmp_path: Path, family: str) -> None:
    path = write_gguf(write_hf_family(tmp_path / "hf", family), tmp_path / "m.gguf")
    content = bytearray(path.read_bytes())
    generator = np.random.default_rng(1)
    end = content.index(b"blk.0.")
    num_refused = 0
    for _ in range(150):
        position, mask = int(generator.integers(24, end)), 1 << int(generator.integers(8))
        content[position] ^= mask
        path.write_bytes(content)
        content[position] ^= mask
        try:
            checkpoint = GGUFCheckpoint(path)
            for name in checkpoint.tensor_names():
                checkpoint.load(name)
        except ModelError:
            num_refused += 1
    assert 30 < num_refused < 150


def test_rope_divisors_beside_two_kinds_of_rope_are_refused(tmp_path: Path) -> None:
    conversion = Conversion(extra_tensors={"rope_freqs.weight": torch.ones(12)})
    path = write_gguf(write_hf_family(tmp_path / "hf", "gemma3_text"), tmp_path / "m.gguf", conversion)
    with pytest.raises(ModelError, match="rope divisors, but its layers have 2 kinds of rope"):
        GGUFCheckpoint(path)
