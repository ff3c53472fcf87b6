"""A GGUF llama as a checkpoint: names, row order, dtypes, config, identity."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as oracle

from tokenloom.checkpoint.end_tokens import END_TOKEN_TEXTS
from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.loader.gguf_checkpoint import GGUFCheckpoint
from tokenloom.loader.weights_digest import DigestRecord, file_sha256
from tokenloom.model_config import DivisorScaling, LinearScaling, ModelConfig, RopeConfig

KINDS = [gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")]


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        GGUFCheckpoint(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def only_rope(config: ModelConfig) -> RopeConfig:
    """The rope that all layers share."""
    (rope,) = set(config.ropes)
    assert rope is not None
    return rope


def stored_values(tiny: Any, name: str, tensor: torch.Tensor, kind: gguf.GGMLQuantizationType) -> torch.Tensor:
    """What a file of type `kind` keeps of a tensor, in the original row order, by the reference's arithmetic."""
    if tensor.ndim == 1:
        return tensor
    heads = 4 if ".q_proj." in name else 2 if ".k_proj." in name else None
    values = torch.from_numpy(oracle(tiny.stored_array(name, tensor, kind), kind).copy()).view(tensor.shape)
    if heads is None:
        return values
    order = tiny.interleave_heads(torch.arange(tensor.shape[0]), heads)
    restored = torch.empty_like(values)
    restored[order] = values
    return restored


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [True, False])
def test_load_gives_every_tensor_in_the_original_order(
    tmp_path: Path, tiny: Any, kind: gguf.GGMLQuantizationType, tied: bool
) -> None:
    weights = tiny.weights(tied=tied)
    checkpoint = GGUFCheckpoint(tiny.write_gguf(tmp_path / "m.gguf", weights, tiny.gguf_options(kind)))
    assert set(checkpoint.tensor_names()) == set(weights)
    assert checkpoint.config.tie_word_embeddings is tied
    for name, tensor in weights.items():
        expected = stored_values(tiny, name, tensor, kind)
        assert torch.equal(checkpoint.load(name), expected), name
        assert torch.equal(checkpoint.load(name, torch.bfloat16), expected.to(torch.bfloat16)), name
        checkpoint.expect(name, checkpoint.load(name), tuple(tensor.shape))


def test_load_restores_biases(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights(bias=True)
    checkpoint = GGUFCheckpoint(tiny.write_gguf(tmp_path / "m.gguf", weights))
    assert checkpoint.config.qkv_bias
    assert not checkpoint.config.mlp_bias
    for name, tensor in weights.items():
        assert torch.equal(checkpoint.load(name), tensor), name


def test_load_reads_a_quantized_bias(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(bias=True))
    content = path.read_bytes()
    name = b"blk.0.attn_q.bias"
    type_at = content.index(name) + len(name) + 4 + 8
    path.write_bytes(content[:type_at] + bytes([8]) + content[type_at + 1 :])  # Q8_0 needs fewer bytes than F32
    assert GGUFCheckpoint(path).load("model.layers.0.self_attn.q_proj.bias").shape == (128,)


def test_loaded_tensors_stay_valid_after_close(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    checkpoint = GGUFCheckpoint(tiny.write_gguf(tmp_path / "m.gguf", weights))
    norm = checkpoint.load("model.norm.weight")
    checkpoint.close()
    (tmp_path / "m.gguf").write_bytes(b"")
    assert torch.equal(norm, weights["model.norm.weight"])


def test_load_of_a_missing_tensor_names_file_and_near_matches(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    checkpoint = GGUFCheckpoint(path)
    with pytest.raises(ModelError, match=r"no tensor 'model\.norms\.weight'.*Did you mean 'model\.norm\.weight'"):
        checkpoint.load("model.norms.weight")
    with pytest.raises(ModelError, match="lm_head"):
        checkpoint.load("lm_head.weight")


def test_expect_names_file_tensor_and_both_shapes(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    checkpoint = GGUFCheckpoint(path)
    norm = checkpoint.load("model.norm.weight")
    with pytest.raises(ModelError) as caught:
        checkpoint.expect("model.norm.weight", norm, (65,))
    for part in (str(path), "'model.norm.weight'", "[64]", "[65]"):
        assert part in str(caught.value)


def test_config_follows_the_metadata(tmp_path: Path, tiny: Any) -> None:
    metadata = {
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 2,
        "llama.attention.sliding_window": 33,
        "llama.rope.freq_base": 500000.0,
    }
    config = GGUFCheckpoint(
        tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), tiny.gguf_options(metadata=metadata))
    ).config
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (4, 2, 32, 160)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.max_position_embeddings == 512
    assert config.eos_token_ids == (2, 7)
    assert config.bos_token_id == 1
    assert config.windows == (33, 33)
    assert only_rope(config) == RopeConfig(500000.0, 32, None)
    assert config.dtype == "float32"


@pytest.mark.parametrize("text", sorted(END_TOKEN_TEXTS))
@pytest.mark.parametrize("kind", [3, 4])
def test_token_that_ends_a_turn_is_found_by_its_text(
    tmp_path: Path, tiny: Any, text: str, kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), tiny.gguf_options(metadata=token_as(text, kind)))
    with caplog.at_level(logging.INFO, "tokenloom"):
        # Loading reads a file twice, for the tokenizer and for the weights; once told is enough.
        assert [GGUFCheckpoint(path).config.eos_token_ids for _ in range(2)] == [(2, 9)] * 2
    assert caplog.text.count(f"by their text, {text!r} end a reply as well") == 1


@pytest.mark.parametrize(
    ("text", "kind", "more"),
    [
        ("<|end|>", 1, {}),  # ordinary text
        ("<|start|>", 3, {}),
        ("<|end|>", 3, {"tokenizer.ggml.eot_token_id": 2}),  # the file says which one it is
        ("<|end|>", 3, {"tokenizer.ggml.eos_token_id": 9, "tokenizer.ggml.eot_token_id": None}),
    ],
)
def test_other_tokens_end_nothing(tmp_path: Path, tiny: Any, text: str, kind: int, more: dict[str, Any]) -> None:
    options = tiny.gguf_options(metadata={**token_as(text, kind), **more})
    config = GGUFCheckpoint(tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), options)).config
    assert config.eos_token_ids == (more.get("tokenizer.ggml.eos_token_id", 2),)


def token_as(text: str, kind: int) -> dict[str, Any]:
    """Token 9 of the tiny file with another text and type."""
    tokens = [f"token {index}" for index in range(160)]
    types = [1] * 160
    tokens[9], types[9] = text, kind
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
@pytest.mark.parametrize("value", [["a"], [4.0], [{}], [["a"]], []])
def test_sizes_of_layers_that_are_no_integers_are_refused(tmp_path: Path, tiny: Any, key: str, value: Any) -> None:
    with pytest.raises(ModelError, match="must be an integer, or one for each layer"):
        Fields({key: value}, tmp_path).uniform_integer(key)
    assert Fields({key: [4, 4]}, tmp_path).uniform_integer(key) == 4


def test_config_defaults_where_metadata_is_absent(tmp_path: Path, tiny: Any) -> None:
    absent = dict.fromkeys(
        ("llama.vocab_size", "llama.rope.freq_base", "llama.rope.dimension_count", "tokenizer.ggml.bos_token_id")
    )
    config = GGUFCheckpoint(
        tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), tiny.gguf_options(KINDS[1], metadata=absent))
    ).config
    assert config.vocab_size == 160  # rows of the embedding
    assert only_rope(config) == RopeConfig(10000.0, 32, None)
    assert config.bos_token_id is None
    assert config.windows == (None, None)
    assert config.dtype == "float16"


def test_config_of_quantized_weights_is_bfloat16(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), tiny.gguf_options(KINDS[3]))
    assert GGUFCheckpoint(path).config.dtype == "bfloat16"


def test_rope_divisors_come_from_their_tensor(tmp_path: Path, tiny: Any) -> None:
    divisors = torch.linspace(1.0, 8.0, 16)
    options = tiny.gguf_options(
        metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        extra_tensors={"rope_freqs.weight": divisors},
    )
    checkpoint = GGUFCheckpoint(tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), options))
    rope = only_rope(checkpoint.config)
    assert rope.scaling == DivisorScaling(tuple(divisors.tolist()))
    periods = 10000.0 ** (torch.arange(0, 32, 2).float() / 32)
    torch.testing.assert_close(rope.inv_freq(), 1.0 / periods / divisors, rtol=1e-6, atol=0)
    assert "rope_freqs.weight" not in checkpoint.tensor_names()


def test_linear_rope_scaling_is_read(tmp_path: Path, tiny: Any) -> None:
    options = tiny.gguf_options(metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    config = GGUFCheckpoint(tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), options)).config
    assert only_rope(config).scaling == LinearScaling(4.0)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"general.architecture": "qwen9"}, "architecture 'qwen9'; supported are gemma2"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.block_count": None}, "lacks the key 'llama.block_count'"),
        ({"llama.block_count": 2**31}, "'llama.block_count' must be an integer from 1 to 4096"),
        ({"llama.block_count": "two"}, "'llama.block_count' must be an integer"),
        ({"llama.attention.head_count_kv": 3}, "num_heads must be a multiple of num_kv_heads, got 4 heads and 3"),
        ({"llama.attention.head_count_kv": [2, 4]}, "'llama.attention.head_count_kv' differs between layers"),
        ({"llama.attention.head_count_kv": ["a", "a"]}, "must be an integer, or one for each layer"),
        ({"llama.attention.value_length": 16}, "keys and values of different size (32 and 16)"),
        ({"llama.attention.key_length": None, "llama.attention.head_count": 5}, "not a multiple"),
        ({"llama.rope.dimension_count": 16}, "'llama.rope.dimension_count' is 16"),
        ({"llama.rope.scaling.type": "su"}, "'su'; supported are none, linear"),
        ({"llama.rope.freq_base": -1.0}, "theta must be a positive number"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "rms_norm_eps"),
        ({"llama.logit_scale": 0.5}, "'llama.logit_scale'"),
        ({"tokenizer.ggml.eos_token_id": "two"}, "'tokenizer.ggml.eos_token_id' must be a token id"),
        ({"split.count": 3}, "one of 3 parts of a split GGUF model; the others are found by its name"),
        ({"llama.block_count": 1}, "'blk.1.attn_norm.weight'"),
    ],
)
def test_unsupported_models_are_refused(tmp_path: Path, tiny: Any, metadata: dict[str, Any], expected: str) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), tiny.gguf_options(metadata=metadata))
    assert expected in refusal(path)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blk.0.attn_q_norm.weight", (32,), "'blk.0.attn_q_norm.weight'"),
        ("rope_freqs.weight", (5,), "has shape [5]; expected [16]"),
    ],
)
def test_unexpected_tensors_are_refused(
    tmp_path: Path, tiny: Any, name: str, shape: tuple[int, ...], expected: str
) -> None:
    options = tiny.gguf_options(extra_tensors={name: torch.ones(shape)})
    assert expected in refusal(tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), options))


def test_wrong_number_of_query_rows_is_refused_at_load(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(
        tmp_path / "m.gguf",
        tiny.weights(),
        tiny.gguf_options(metadata={"llama.attention.head_count": 8, "llama.attention.head_count_kv": 2}),
    )
    with pytest.raises(ModelError, match=r"q_proj\.weight' has 128 rows; the metadata asks for 256"):
        GGUFCheckpoint(path).load("model.layers.0.self_attn.q_proj.weight")


def test_flipped_header_bytes_load_or_are_refused(tmp_path: Path, tiny: Any) -> None:
    """Whatever a damaged header still lets through must end as a tensor or as a ModelError."""
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    content = bytearray(path.read_bytes())
    start = content.index(b"general.architecture")
    end = content.index(b"tokenizer.ggml.model")
    generator = np.random.default_rng(1)
    num_refused = 0
    for _ in range(300):
        position, mask = int(generator.integers(start, end)), 1 << int(generator.integers(8))
        content[position] ^= mask
        path.write_bytes(content)
        content[position] ^= mask
        try:
            checkpoint = GGUFCheckpoint(path)
            for name in checkpoint.tensor_names():
                checkpoint.load(name)
        except ModelError:
            num_refused += 1
    assert 100 < num_refused < 300


def test_tokenizer_source_holds_metadata_and_template(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    source = GGUFCheckpoint(path).tokenizer_source()
    assert (source.kind, source.path) == ("gguf", path)
    assert source.metadata["tokenizer.ggml.tokens"][3] == "token 3"
    assert source.chat_template == "{{ messages[0]['content'] }}"
    bare = tiny.write_gguf(tmp_path / "bare.gguf", tiny.weights(), tiny.gguf_options(drop=("tokenizer.chat_template",)))
    assert GGUFCheckpoint(bare).tokenizer_source().chat_template is None


def test_quantization_is_none(tmp_path: Path, tiny: Any) -> None:
    assert GGUFCheckpoint(tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())).quantization is None


def test_weights_digest_is_stable_and_follows_the_weights(tmp_path: Path, tiny: Any) -> None:
    def digest(seed: int, folder: str, name: str = "m.gguf") -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tiny.write_gguf(tmp_path / folder / name, tiny.weights(seed=seed))
        os.utime(path, ns=(0, 0))  # as archives leave files: the time tells nothing
        return GGUFCheckpoint(path).weights_digest

    first = digest(0, "a")
    assert digest(0, "b") == first
    assert digest(1, "c") != first


def test_weights_digest_uses_a_record_that_still_fits(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    quick = GGUFCheckpoint(path).weights_digest
    status = path.stat()
    sha256 = file_sha256(path)
    DigestRecord(sha256, status.st_size, status.st_mtime_ns).write(DigestRecord.path_for(path))
    assert GGUFCheckpoint(path).weights_digest == sha256
    DigestRecord(sha256, status.st_size, status.st_mtime_ns - 1).write(DigestRecord.path_for(path))
    assert GGUFCheckpoint(path).weights_digest == quick
