"""A Hugging Face folder as a checkpoint: shards, ties, damage, config spellings, chat templates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tokenloom.errors import ModelError
from tokenloom.loader.hf_checkpoint import HFCheckpoint
from tokenloom.model_config import LinearScaling, Llama3Scaling, ModelConfig, RopeConfig

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def only_rope(config: ModelConfig) -> RopeConfig:
    (rope,) = set(config.ropes)
    assert rope is not None
    return rope


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        HFCheckpoint(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_load_gives_every_tensor(tmp_path: Path, tiny: Any, num_shards: int, tied: bool) -> None:
    weights = tiny.weights(tied=tied)
    folder = tiny.write_hf(tmp_path / "m", weights, {"tie_word_embeddings": tied}, num_shards=num_shards)
    checkpoint = HFCheckpoint(folder)
    assert sorted(checkpoint.tensor_names()) == sorted(weights)
    assert checkpoint.config.tie_word_embeddings is tied
    for name, tensor in weights.items():
        assert torch.equal(checkpoint.load(name), tensor)
        assert torch.equal(checkpoint.load(name, torch.bfloat16), tensor.to(torch.bfloat16))
        assert checkpoint.file_of(name).parent == folder
    checkpoint.close()


def test_loaded_tensors_own_their_memory(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    folder = tiny.write_hf(tmp_path / "m", weights)
    checkpoint = HFCheckpoint(folder)
    norm = checkpoint.load("model.norm.weight", torch.float32)
    norm.zero_()
    assert torch.equal(checkpoint.load("model.norm.weight"), weights["model.norm.weight"])


def test_missing_tensor_names_folder_and_near_matches(tmp_path: Path, tiny: Any) -> None:
    checkpoint = HFCheckpoint(tiny.write_hf(tmp_path / "m", tiny.weights()))
    with pytest.raises(ModelError, match=r"no tensor 'lm_head\.weight'"):
        checkpoint.load("lm_head.weight")
    with pytest.raises(ModelError, match=r"Did you mean 'model\.norm\.weight'"):
        checkpoint.load("model.norm.bias")


def test_expect_names_the_shard(tmp_path: Path, tiny: Any) -> None:
    checkpoint = HFCheckpoint(tiny.write_hf(tmp_path / "m", tiny.weights(), num_shards=2))
    norm = checkpoint.load("model.norm.weight")
    assert checkpoint.expect("model.norm.weight", norm, (64,)) is norm
    with pytest.raises(ModelError, match=r"of-00002\.safetensors: tensor 'model\.norm\.weight'.*\[64\].*\[32, 2\]"):
        checkpoint.expect("model.norm.weight", norm, (32, 2))


def test_packed_integers_load_only_as_stored(tmp_path: Path, tiny: Any) -> None:
    name = "model.layers.0.self_attn.q_proj.qweight"
    weights = {**tiny.weights(), name: torch.arange(8, dtype=torch.int32)}
    scheme = {"quant_method": "gptq", "bits": 4}
    checkpoint = HFCheckpoint(tiny.write_hf(tmp_path / "m", weights, {"quantization_config": scheme}))
    assert checkpoint.quantization == scheme
    assert torch.equal(checkpoint.load(name), weights[name])
    assert torch.equal(checkpoint.load(name, torch.int32), weights[name])
    with pytest.raises(ModelError, match=r"qweight' holds int32, which cannot be read as bfloat16"):
        checkpoint.load(name, torch.bfloat16)


def test_quantization_is_none_without_a_config(tmp_path: Path, tiny: Any) -> None:
    assert HFCheckpoint(tiny.write_hf(tmp_path / "m", tiny.weights())).quantization is None


def test_missing_shard_is_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights(), num_shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors is missing" in refusal(folder)


def test_shard_without_its_tensor_is_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights(), num_shards=2)
    save_file({"other": torch.ones(1)}, folder / "model-00001-of-00002.safetensors")
    message = refusal(folder)
    assert "model-00001-of-00002.safetensors lacks" in message
    assert "'model." in message


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", 3])
def test_index_may_only_name_files_of_its_folder(tmp_path: Path, tiny: Any, shard: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights(), num_shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    assert "must name a file of this folder" in refusal(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', "[" * 100_000])
def test_damaged_index_is_refused(tmp_path: Path, tiny: Any, content: str) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights(), num_shards=2)
    (folder / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in refusal(folder)


def test_every_truncation_of_the_weights_is_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights())
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for length in [*range(0, 4000, 37), *range(4000, len(content), 9973), len(content) - 1]:
        file.write_bytes(content[:length])
        assert "model.safetensors is truncated or damaged" in refusal(folder)


def test_folder_without_weights_is_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights())
    (folder / "model.safetensors").unlink()
    assert "no weights: none of model.safetensors, model.safetensors.index.json, pytorch" in refusal(folder)


def test_weights_of_another_layout_are_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", {"transformer.wte.weight": torch.ones(2, 2)})
    message = refusal(folder)
    assert "'model.embed_tokens.weight'" in message
    assert "transformer.wte.weight" in message


def test_weights_digest_is_stable_and_follows_weights_and_config(tmp_path: Path, tiny: Any) -> None:
    def digest(name: str, seed: int, **config: Any) -> str:
        folder = tiny.write_hf(tmp_path / name, tiny.weights(seed=seed), config, num_shards=2)
        for file in folder.iterdir():
            os.utime(file, ns=(0, 0))
        return HFCheckpoint(folder).weights_digest

    first = digest("a", 0)
    assert digest("b", 0) == first
    assert digest("c", 1) != first
    assert digest("d", 0, rms_norm_eps=1e-4) != first


def test_config_reads_the_newer_spelling(tmp_path: Path, tiny: Any) -> None:
    rope = {**LLAMA3, "rope_theta": 500000.0}
    config = HFCheckpoint(tiny.write_hf(tmp_path / "m", tiny.weights(), {"rope_parameters": rope})).config
    assert (only_rope(config).theta, only_rope(config).rotary_dim) == (500000.0, 32)
    assert only_rope(config).scaling == Llama3Scaling(8.0, 1.0, 4.0, 128)
    assert (config.hidden_size, config.head_dim, config.num_kv_heads) == (64, 32, 2)
    assert config.dtype == "float32"


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, None),
        ({"type": "linear", "factor": 2.0}, LinearScaling(2.0)),
        (LLAMA3, Llama3Scaling(8.0, 1.0, 4.0, 128)),
    ],
)
def test_config_reads_the_older_spelling(tmp_path: Path, tiny: Any, scaling: Any, expected: Any) -> None:
    older = {
        "rope_parameters": None,
        "dtype": None,
        "torch_dtype": "float16",
        "rope_theta": 20000.0,
        "rope_scaling": scaling,
    }
    config = HFCheckpoint(tiny.write_hf(tmp_path / "m", tiny.weights(), older)).config
    assert (only_rope(config).theta, only_rope(config).scaling) == (20000.0, expected)
    assert config.dtype == "float16"


def test_config_defaults_are_those_of_the_architecture(tmp_path: Path, tiny: Any) -> None:
    absent = dict.fromkeys(
        ("rope_parameters", "dtype", "rms_norm_eps", "tie_word_embeddings", "hidden_act", "max_position_embeddings")
    )
    config = HFCheckpoint(tiny.write_hf(tmp_path / "m", tiny.weights(tied=False), absent)).config
    assert only_rope(config).theta == 10000.0
    assert config.rms_norm_eps == 1e-6
    assert config.tie_word_embeddings is False
    assert config.max_position_embeddings == 2048


def test_config_head_dim_follows_hidden_size_where_absent(tmp_path: Path, tiny: Any) -> None:
    absent = {"head_dim": None, "num_key_value_heads": None}
    config = HFCheckpoint(tiny.write_hf(tmp_path / "m", tiny.weights(), absent)).config
    assert (config.head_dim, config.num_kv_heads) == (16, 4)


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [(2, None, (2,)), (2, [7, 2, 9], (2, 7, 9)), ([3, 4], 5, (3, 4, 5)), (None, [6], (6,)), (-1, None, ())],
)
def test_generation_config_adds_end_tokens(
    tmp_path: Path, tiny: Any, in_config: Any, in_generation: Any, expected: tuple[int, ...]
) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights(), {"eos_token_id": in_config})
    if in_generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    assert HFCheckpoint(folder).config.eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "qwen2"}, "type 'qwen2'"),
        ({"model_type": None}, "lacks the key 'model_type'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_size": None}, "lacks the key 'hidden_size'"),
        ({"hidden_size": "64"}, "'hidden_size' must be an integer"),
        ({"hidden_size": True}, "'hidden_size' must be an integer"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' must be an integer from 1 to 4096"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be an integer from 1"),
        ({"num_key_value_heads": 3}, "num_heads must be a multiple of num_kv_heads"),
        ({"hidden_act": "gelu"}, "hidden_act must be one of silu"),
        ({"rms_norm_eps": "small"}, "'rms_norm_eps' must be a finite number"),
        ({"attention_bias": 1}, "'attention_bias' must be true or false"),
        ({"rope_parameters": {"rope_type": "spiral", "factor": 2.0}}, "rope type 'spiral' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "lacks the key 'factor'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.0}}, "factor must be positive"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "0 < low_freq_factor < high_freq_factor"),
        ({"rope_parameters": 5}, "'rope_parameters' must be an object"),
        ({"sliding_window": 4}, "'sliding_window'"),
        ({"head_dim": None, "num_attention_heads": 6}, "not a multiple"),
        ({"head_dim": 31}, "rotary_dim must be even"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' must be a token id"),
        ({"quantization_config": "int4"}, "'quantization_config' must be an object"),
    ],
)
def test_unsupported_configs_are_refused(tmp_path: Path, tiny: Any, changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(tiny.write_hf(tmp_path / "m", tiny.weights(), changes))


def test_damaged_config_is_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights())
    (folder / "config.json").write_text('{"hidden_size": ')
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": "{}"}, None),
        ({"tokenizer_config.json": '{"chat_template": "A"}'}, "A"),
        ({"tokenizer_config.json": '{"chat_template": "A"}', "chat_template.jinja": "B"}, "B"),
        (
            {
                "tokenizer_config.json": '{"chat_template": [{"name": "tool_use", "template": "T"},'
                ' {"name": "default", "template": "D"}]}'
            },
            "D",
        ),
    ],
)
def test_tokenizer_source_finds_the_chat_template(
    tmp_path: Path, tiny: Any, files: dict[str, str], expected: str | None
) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights())
    for name, content in files.items():
        (folder / name).write_text(content)
    source = HFCheckpoint(folder).tokenizer_source()
    assert (source.kind, source.path, source.metadata) == ("hf", folder, {})
    assert source.chat_template == expected


def test_chat_template_of_another_type_is_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.weights())
    (folder / "tokenizer_config.json").write_text('{"chat_template": 3}')
    with pytest.raises(ModelError, match="'chat_template' must be a string"):
        HFCheckpoint(folder).tokenizer_source()
