"""Fixed scales of keys and values in whole engines: from checkpoints and files, never made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.plugins.quant.checkpoint_packing import write_pair
from tests.plugins.quant.format_encoders import ct_settings, encode_packed, int_weights
from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ConfigError, ModelError
from tokenloom.llm import LLM
from tokenloom.ops.native import why_not_buildable
from tokenloom.sampling_params import SamplingParams

BASE = ("cache.num_blocks=33", "engine.num_threads=1", "model.dtype=float32", "attention=native_cpu")
INT8 = ("attention.kv_dtype=int8", "attention.kv_scales=checkpoint")
PROMPT = [5, 9, 2, 40, 7, 3]
INT_SCHEME = {"num_bits": 8, "type": "int", "strategy": "attn_head", "dynamic": False, "symmetric": True}

pytestmark = pytest.mark.skipif(why_not_buildable() is not None, reason=str(why_not_buildable()))


def write(folder: Path, scales: Mapping[str, torch.Tensor], scheme: dict[str, Any] | None = INT_SCHEME) -> Path:
    """A tiny compressed-tensors checkpoint of two layers with these scales below self_attn."""
    settings = ct_settings(int_weights(8, 32), kv_cache_scheme=scheme)
    model, _ = write_pair(folder, settings, lambda _, weight: encode_packed(8, 32, weight), with_tokenizer=True)
    tensors = load_file(model / "model.safetensors")
    for layer in range(2):
        tensors |= {f"model.layers.{layer}.self_attn.{name}": scale.clone() for name, scale in scales.items()}
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


def engine(model: Path, *overrides: str) -> LLM:
    return LLM(str(model), (*BASE, *overrides), show_progress=False)


@pytest.mark.parametrize("names", [("k_scale", "v_scale"), ("k_proj.output_scale", "v_proj.output_scale")])
def test_a_checkpoint_s_scales_are_used(tmp_path: Path, names: tuple[str, str]) -> None:
    """One for each head, or for all; coarse ones change the answer, so they do reach the cache, and blocks' keys."""
    params = SamplingParams(temperature=0.0, max_tokens=12)
    answers, roots = [], []
    for name, scale in {"fine": torch.tensor([0.1, 0.11]), "coarse": torch.tensor(40.0)}.items():
        model = write(tmp_path / name, dict.fromkeys(names, scale))
        with engine(model, "quant=auto", *INT8) as llm:
            answers.append(llm.generate(PROMPT, params)[0].outputs[0].token_ids)
            roots.append(llm.engine.facts.block_root)
    assert answers[0] != answers[1]
    assert roots[0] != roots[1]
    with engine(model, "quant=auto") as plain:
        assert "attention.kv_scales=checkpoint takes them" in plain.engine.facts.weight_remarks[-1]
    with engine(model, "quant=auto", "attention=torch_sdpa") as plain:  # which has no such settings
        remark = plain.engine.facts.weight_remarks[-1]
        assert "it has no attention.kv_dtype=int8 attention.kv_scales=checkpoint, which would take them" in remark


def test_a_drafter_that_runs_the_models_layers_stores_with_its_scales(tmp_path: Path) -> None:
    """Coarse ones: with all layers, every draft is right only if it rounds as the model does."""
    model = write(tmp_path, dict.fromkeys(("k_scale", "v_scale"), torch.tensor(0.9)))
    drafting = ("spec_decode=self_spec", "spec_decode.exit_layer=2", "spec_decode/policy=fixed")
    with engine(model, "quant=auto", *INT8, *drafting) as llm:
        llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
        stats = llm.engine.stats
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 20


@pytest.mark.parametrize(
    ("scales", "scheme", "message"),
    [
        ({"k_scale": torch.tensor(0.1)}, INT_SCHEME, r"no scale of the values of layer 0 \(model.layers.0.self_attn.v"),
        ({"k_scale": torch.tensor(0.0), "v_scale": torch.tensor(1.0)}, INT_SCHEME, "k_scale must be above 0, got"),
        ({"k_scale": torch.ones(3), "v_scale": torch.ones(2)}, INT_SCHEME, "one for each of 2 heads, got 3"),
        ({"k_scale": torch.ones(1), "v_scale": torch.ones(1)}, None, "for fp8_e4m3, got attention.kv_dtype=int8"),
    ],
)
def test_no_scale_is_made_up(
    tmp_path: Path, scales: Mapping[str, torch.Tensor], scheme: dict[str, Any] | None, message: str
) -> None:
    model = write(tmp_path, scales, scheme)
    with pytest.raises(ModelError, match=message) as refusal:
        engine(model, "quant=auto", *INT8)
    assert "attention.kv_scales=token_head" in str(refusal.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    with pytest.raises(ConfigError, match=r"name a file that tokenloom calibrate-kv wrote, checkpoint or token_head"):
        engine(model, "attention.kv_dtype=int8", f"attention.kv_scales={tmp_path / 'absent'}")
