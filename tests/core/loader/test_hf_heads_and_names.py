"""A Hugging Face folder as people save it: tied and untied heads, prefixes of names, dtypes, parts for other senses."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.loader.hf_families import write_hf_family
from tokenloom.errors import ModelError
from tokenloom.loader.hf_checkpoint import HFCheckpoint

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        HFCheckpoint(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_head_that_repeats_tied_embeddings_is_left_out(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    folder = tiny.write_hf(tmp_path, {**weights, HEAD: weights[EMBEDDINGS].clone()})
    checkpoint = HFCheckpoint(folder)
    assert checkpoint.config.tie_word_embeddings
    assert sorted(checkpoint.tensor_names()) == sorted(weights)


def test_head_that_differs_from_tied_embeddings_is_used_with_a_warning(
    tmp_path: Path, tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tiny.weights(tied=False)
    folder = tiny.write_hf(tmp_path, weights, {"tie_word_embeddings": True})
    with caplog.at_level(logging.WARNING, "tokenloom"):
        checkpoint = HFCheckpoint(folder)
    assert not checkpoint.config.tie_word_embeddings
    assert torch.equal(checkpoint.load(HEAD), weights[HEAD])
    assert "the weights hold another one" in caplog.text


def test_head_that_differs_in_its_last_element_only_is_another_head(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    head = weights[EMBEDDINGS].clone()
    head[-1, -1] += 1.0
    assert not HFCheckpoint(tiny.write_hf(tmp_path, {**weights, HEAD: head})).config.tie_word_embeddings


def test_missing_head_is_refused_where_the_config_unties_it(tmp_path: Path, tiny: Any) -> None:
    message = refusal(tiny.write_hf(tmp_path, tiny.weights(), {"tie_word_embeddings": False}))
    assert "no tensor 'lm_head.weight'" in message
    assert "tie_word_embeddings" in message


@pytest.mark.parametrize("has_head", [True, False])
def test_silent_config_leaves_the_tie_to_the_weights(tmp_path: Path, tiny: Any, has_head: bool) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(tied=not has_head), {"tie_word_embeddings": None})
    assert HFCheckpoint(folder).config.tie_word_embeddings is not has_head


@pytest.mark.parametrize("has_head", [True, False])
@pytest.mark.parametrize("prefix", ["", "model.language_model.", "language_model.model.", "language_model."])
def test_names_become_those_of_the_model(tmp_path: Path, tiny: Any, prefix: str, has_head: bool) -> None:
    weights = tiny.weights(tied=not has_head)
    head_prefix = "language_model." if prefix == "language_model.model." else ""
    stored = {
        f"{head_prefix}{name}" if name == HEAD else f"{prefix}{name.removeprefix('model.')}": tensor
        for name, tensor in weights.items()
    }
    checkpoint = HFCheckpoint(tiny.write_hf(tmp_path, stored, {"tie_word_embeddings": None}, num_shards=2))
    assert sorted(checkpoint.tensor_names()) == sorted(weights)
    for name, tensor in weights.items():
        assert torch.equal(checkpoint.load(name), tensor)
        assert checkpoint.file_of(name).exists()


FAMILY_OF_INNER_PART = {
    "LlamaModel": "llama",
    "MistralModel": "mistral",
    "Qwen2Model": "qwen2",
    "Qwen3Model": "qwen3",
    "Gemma2Model": "gemma2",
    "Gemma3TextModel": "gemma3_text",
    "Phi3Model": "phi3",
    "SmolLM3Model": "smollm3",
}


@pytest.mark.parametrize("class_name", FAMILY_OF_INNER_PART)
@pytest.mark.parametrize("tie", [True, False])
def test_inner_part_needs_tied_embeddings(tmp_path: Path, class_name: str, tie: bool) -> None:
    """As Transformers writes it: without the head, which only tied embeddings replace."""
    family = FAMILY_OF_INNER_PART[class_name]
    folder = write_hf_family(tmp_path, family, {"architectures": [class_name], "tie_word_embeddings": True})
    stored = {name.removeprefix("model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(stored, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "tie_word_embeddings": tie}))
    if tie:
        checkpoint = HFCheckpoint(folder)
        assert checkpoint.config.tie_word_embeddings
        assert set(checkpoint.tensor_names()) == {f"model.{name}" for name in stored}
    else:
        assert "no tensor 'lm_head.weight'" in refusal(folder)


def test_inner_part_that_does_not_tell_of_its_head_is_refused(tmp_path: Path, tiny: Any) -> None:
    """Older versions of Transformers leave out what is the family's default, here: untied."""
    config = {"architectures": ["LlamaModel"], "tie_word_embeddings": None}
    assert "config.json does not say whether the embeddings are the head" in refusal(
        tiny.write_hf(tmp_path, tiny.weights(), config)
    )
    whole = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": None}
    assert HFCheckpoint(tiny.write_hf(tmp_path, tiny.weights(), whole)).config.tie_word_embeddings


@pytest.mark.parametrize("prefix", ["model.", "", "model.language_model."])
def test_packed_embeddings_are_opened(tmp_path: Path, tiny: Any, prefix: str) -> None:
    stored = {f"{prefix}{name.removeprefix('model.')}": tensor for name, tensor in tiny.weights().items()}
    stored[f"{prefix}embed_tokens.qweight"] = stored.pop(f"{prefix}embed_tokens.weight").to(torch.int8)
    config = {"quantization_config": {"quant_method": "some"}, "dtype": None, "tie_word_embeddings": True}
    checkpoint = HFCheckpoint(tiny.write_hf(tmp_path, stored, config))
    assert "model.embed_tokens.qweight" in checkpoint.tensor_names()
    assert checkpoint.config.dtype == "bfloat16"
    assert checkpoint.load("model.embed_tokens.qweight").dtype == torch.int8


def test_packed_embeddings_without_a_quantization_are_refused(tmp_path: Path, tiny: Any) -> None:
    stored = {name.replace("embed_tokens.weight", "embed_tokens.qweight"): t for name, t in tiny.weights().items()}
    message = refusal(tiny.write_hf(tmp_path, stored))
    assert "no tensor 'model.embed_tokens.weight'. Did you mean 'model.embed_tokens.qweight'" in message


def test_parts_for_other_senses_are_left_out(tmp_path: Path, tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    weights = tiny.weights()
    stored = {f"model.language_model.{name.removeprefix('model.')}": tensor for name, tensor in weights.items()}
    stored["model.vision_tower.patch.weight"] = torch.ones(2)
    stored["model.multi_modal_projector.linear.weight"] = torch.ones(2)
    with caplog.at_level(logging.INFO, "tokenloom"):
        checkpoint = HFCheckpoint(tiny.write_hf(tmp_path, stored))
    assert sorted(checkpoint.tensor_names()) == sorted(weights)
    assert "2 tensors of its parts other than text" in caplog.text


def test_strange_tensors_of_a_text_model_are_kept_for_the_model_to_refuse(tmp_path: Path, tiny: Any) -> None:
    stored = {**tiny.weights(), "model.layers.0.mlp.experts.weight": torch.ones(2), "extra.weight": torch.ones(1)}
    names = HFCheckpoint(tiny.write_hf(tmp_path, stored)).tensor_names()
    assert {"model.layers.0.mlp.experts.weight", "extra.weight"} <= set(names)


def test_two_models_in_one_folder_are_refused(tmp_path: Path, tiny: Any) -> None:
    stored = {**tiny.weights(), "embed_tokens.weight": torch.ones(160, 64)}
    assert "'model.embed_tokens.weight' and 'embed_tokens.weight'" in refusal(tiny.write_hf(tmp_path, stored))


def test_two_names_of_one_tensor_are_refused(tmp_path: Path, tiny: Any) -> None:
    stored = {f"language_model.{name}": tensor for name, tensor in tiny.weights(tied=False).items()}
    stored[HEAD] = stored["language_model.lm_head.weight"].clone()
    message = refusal(tiny.write_hf(tmp_path, stored, {"tie_word_embeddings": False}))
    assert "holds 'lm_head.weight' twice" in message


def test_rotary_buffers_are_left_out(tmp_path: Path, tiny: Any) -> None:
    stored = {**tiny.weights(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    assert sorted(HFCheckpoint(tiny.write_hf(tmp_path, stored)).tensor_names()) == sorted(tiny.weights())


def test_text_part_of_a_larger_config_counts(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights())
    text = json.loads((folder / "config.json").read_text())
    del text["architectures"], text["eos_token_id"], text["dtype"]
    whole = {
        "model_type": "sees_and_reads",
        "architectures": ["SeesAndReadsForConditionalGeneration"],
        "text_config": {**text, "tie_word_embeddings": False},
        "vision_config": {"hidden_size": 3},
        "eos_token_id": [5, 6],
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(whole))
    config = HFCheckpoint(folder).config
    assert (config.architecture, config.hidden_size, config.dtype) == ("llama", 64, "bfloat16")
    assert (config.eos_token_ids, config.tie_word_embeddings) == ((5, 6), True)


def test_text_part_of_an_unknown_family_is_refused(tmp_path: Path, tiny: Any) -> None:
    other = {"model_type": "sees", "hidden_size": None, "text_config": {"model_type": "reads"}}
    assert "type 'reads'" in refusal(tiny.write_hf(tmp_path, tiny.weights(), other))


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stated", [None, "auto"])
def test_dtype_follows_the_weights_where_none_is_stated(
    tmp_path: Path, tiny: Any, stored: torch.dtype, stated: str | None
) -> None:
    weights = {name: tensor.to(stored) for name, tensor in tiny.weights().items()}
    folder = tiny.write_hf(tmp_path, weights, {"dtype": None, "torch_dtype": stated})
    assert HFCheckpoint(folder).config.dtype == str(stored).removeprefix("torch.")


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, "bfloat16"),
    ],
)
def test_stated_dtype_counts(tmp_path: Path, tiny: Any, stated: dict[str, Any], expected: str) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(), {"dtype": None, **stated})
    assert HFCheckpoint(folder).config.dtype == expected


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("float64", "states the dtype 'float64'"),
        ("float8_e4m3fn", "states the dtype 'float8_e4m3fn'; dtype must be one of float32, float16, bfloat16"),
        ("half", "states the dtype 'half'"),
        (16, "'dtype' must be a string"),
    ],
)
def test_dtypes_that_nothing_runs_in_are_refused(tmp_path: Path, tiny: Any, stated: Any, expected: str) -> None:
    assert expected in refusal(tiny.write_hf(tmp_path, tiny.weights(), {"dtype": stated}))


def test_weights_in_float8_are_refused_with_their_dtype(tmp_path: Path, tiny: Any) -> None:
    weights = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in tiny.weights().items()}
    message = refusal(tiny.write_hf(tmp_path, weights, {"dtype": None}))
    assert "embeddings are stored in 'float8_e4m3fn'" in message


def test_float8_weight_is_not_taken_for_its_value(tmp_path: Path, tiny: Any) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    weights = tiny.weights()
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    checkpoint = HFCheckpoint(tiny.write_hf(tmp_path, weights, {"quantization_config": {"quant_method": "fp8"}}))
    assert checkpoint.load(name).dtype == torch.float8_e4m3fn
    with pytest.raises(ModelError, match=r"holds float8_e4m3fn, which cannot be read as bfloat16"):
        checkpoint.load(name, torch.bfloat16)
