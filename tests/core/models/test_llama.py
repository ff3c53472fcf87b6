"""Llama against Transformers on tiny random checkpoints, and against itself under chunking, batching and ranges."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.models.building import NoQuantizer, build
from tests.core.models.dense_attention import Sequences
from tests.core.models.llama_formulas import reference_logits
from tests.tiny_model import write_tiny_llama
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.decoder import Decoder
from tokenloom.models.decoder_layer import PreNormLayer
from tokenloom.models.layers import LayerFactory
from tokenloom.models.skip_list import SkipList
from tokenloom.models.weight_loading import ignore_progress
from tokenloom.ops.table import build_op_table
from tokenloom.parallel import ParallelContext

LLAMA3_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tied": False},
    "one_kv_head": {"num_kv_heads": 1},
    "full_heads": {"num_kv_heads": 4},
    "explicit_head_dim": {"head_dim": 24, "hidden_size": 72},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "linear_rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3_rope": {"rope_scaling": LLAMA3_SCALING},
    "one_layer": {"num_layers": 1},
}
PROMPT = [int(token) for token in torch.randint(0, 256, (97,), generator=torch.Generator().manual_seed(3))]


def transformers_logits(folder: Path, token_ids: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    oracle = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        logits: torch.Tensor = oracle(torch.tensor([token_ids])).logits[0].float()
    return logits


def build_variant(folder: Path, **changes: Any) -> CausalLM:
    """The model with fields of its config replaced that a Llama checkpoint has no keys for."""
    checkpoint = open_checkpoint(folder)
    cpu = torch.device("cpu")
    factory = LayerFactory(NoQuantizer(), SkipList(), torch.float32, cpu, ParallelContext(), build_op_table(cpu))
    model = Decoder(dataclasses.replace(checkpoint.config, **changes), factory, PreNormLayer)
    model.load_weights(checkpoint, ignore_progress)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_logits_equal_its_formulas(tmp_path: Path, variant: str) -> None:
    folder = write_tiny_llama(tmp_path, **VARIANTS[variant])
    logits = Sequences(build(folder), 1, 128).feed(PROMPT)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), reference_logits(folder, PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_logits_equal_transformers(tmp_path: Path, variant: str) -> None:
    folder = write_tiny_llama(tmp_path, **VARIANTS[variant])
    logits = Sequences(build(folder), 1, 128).feed(PROMPT)
    torch.testing.assert_close(logits, transformers_logits(folder, PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_llama_in_bfloat16_is_as_near_to_float32_as_transformers(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, dtype=torch.bfloat16)
    exact = transformers_logits(folder, PROMPT)
    error_of_transformers = (transformers_logits(folder, PROMPT, torch.bfloat16) - exact).abs().mean()
    model = build(folder, torch.bfloat16)
    error = (Sequences(model, 1, 128, torch.bfloat16).feed(PROMPT) - exact).abs().mean()
    assert 0.0 < error < 1.2 * error_of_transformers


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_llama_logits_do_not_depend_on_chunks(tmp_path: Path, chunk: int) -> None:
    model = build(write_tiny_llama(tmp_path))
    whole = Sequences(model, 1, 128).feed(PROMPT)
    chunked = Sequences(model, 1, 128)
    parts = [chunked.feed(PROMPT[start : start + chunk]) for start in range(0, len(PROMPT), chunk)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


def test_llama_logits_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    model = build(write_tiny_llama(tmp_path))
    prompts = [PROMPT[:5], PROMPT[5:38], PROMPT[38:39]]
    batched = Sequences(model, 3, 64).feed(*prompts)
    alone = torch.cat([Sequences(model, 1, 64).feed(prompt) for prompt in prompts])
    torch.testing.assert_close(batched, alone, rtol=1e-4, atol=1e-4)


def test_llama_runs_a_step_without_tokens(tmp_path: Path) -> None:
    model = build(write_tiny_llama(tmp_path))
    assert Sequences(model, 1, 8).feed([]).shape == (0, 256)


def test_llama_windows_hide_what_lies_before_them(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, num_layers=1)
    windowed = Sequences(build_variant(folder, windows=(5,)), 1, 128).feed(PROMPT)
    only_window = Sequences(build(folder), 1, 128).feed(PROMPT[-5:])
    torch.testing.assert_close(windowed[-1], only_window[-1], rtol=1e-4, atol=1e-4)
    everything = Sequences(build(folder), 1, 128).feed(PROMPT)
    assert (windowed[-1] - everything[-1]).abs().max() > 0.1


def test_llama_layers_of_equal_window_share_a_group(tmp_path: Path) -> None:
    model = build_variant(write_tiny_llama(tmp_path, num_layers=3), windows=(4, None, 4), attn_soft_cap=30.0)
    facts = model.attention_layers()
    assert [layer.group_id for layer in facts] == [0, 1, 0]
    assert [layer.window for layer in facts] == [4, None, 4]
    assert {layer.soft_cap for layer in facts} == {30.0}
    assert Sequences(model, 1, 16).feed(PROMPT[:9]).isfinite().all()


def test_llama_caps_its_logits(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    plain = Sequences(build(folder), 1, 16).feed(PROMPT[:9])
    capped = Sequences(build_variant(folder, final_soft_cap=2.0), 1, 16).feed(PROMPT[:9])
    torch.testing.assert_close(capped, 2.0 * torch.tanh(plain / 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_llama_deterministic_rows_do_not_depend_on_the_batch_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    # Sizes at which ordinary products do depend on it.
    folder = write_tiny_llama(tmp_path, num_layers=1, hidden_size=576, intermediate_size=1536)
    model = build(folder, dtype, deterministic=True)
    prompts = [PROMPT[:5], PROMPT[5:38], PROMPT[38:39]]
    batched = Sequences(model, 3, 64, dtype).feed(*prompts)
    alone = torch.cat([Sequences(model, 1, 64, dtype).feed(prompt) for prompt in prompts])
    torch.testing.assert_close(batched, alone, rtol=0, atol=0)


def test_llama_captures_the_residual_stream_of_the_asked_layers(tmp_path: Path) -> None:
    model = build(write_tiny_llama(tmp_path, num_layers=3))
    token_ids = torch.tensor(PROMPT[:9])
    plain = model.forward(token_ids, Sequences(model, 1, 16).context([9]))
    output = model.forward(token_ids, Sequences(model, 1, 16).context([9], capture_layers=(0, 2, -1)))
    assert plain.captured == {}
    assert sorted(output.captured) == [-1, 0, 2]
    torch.testing.assert_close(output.hidden, plain.hidden, rtol=0, atol=0)
    torch.testing.assert_close(output.captured[-1], output.hidden, rtol=0, atol=0)
    # The stream after the last layer, normed, is the final state; after layer 0 it is what one layer alone leaves.
    one_layer = build(tmp_path, layers=range(1))
    shallow = one_layer.forward(token_ids, Sequences(one_layer, 1, 16).context([9], capture_layers=(0,)))
    torch.testing.assert_close(output.captured[0], shallow.captured[0], rtol=0, atol=0)
    norms = output.captured[2] / output.captured[2].pow(2).mean(-1, keepdim=True).add(1e-5).sqrt()
    ratio = output.hidden / norms  # the norm's weight, the same for every token
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-3, atol=1e-3)


def test_llama_loads_only_a_range_of_layers(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, num_layers=4)
    model = build(folder, layers=range(1, 3))
    assert [layer.layer_index for layer in model.attention_layers()] == [1, 2]
    assert model.config.num_layers == 4
    assert Sequences(model, 1, 16).feed(PROMPT[:3]).shape == (3, 256)
    assert model.num_weight_bytes < build(folder).num_weight_bytes


def test_llama_states_the_facts_of_its_attention_layers(tmp_path: Path) -> None:
    model = build(write_tiny_llama(tmp_path, head_dim=24, hidden_size=72))
    facts = model.attention_layers()
    assert [layer.layer_index for layer in facts] == [0, 1]
    assert {layer.group_id for layer in facts} == {0}
    assert facts[0].softmax_scale == pytest.approx(24**-0.5)
    assert facts[0].soft_cap is None


def test_llama_counts_a_tied_head_once(tmp_path: Path) -> None:
    num_bytes = {
        tied: build(write_tiny_llama(tmp_path / str(tied), tied=tied)).num_weight_bytes for tied in (True, False)
    }
    assert num_bytes[False] - num_bytes[True] == 256 * 64 * 4
    files = {tied: tmp_path / str(tied) / "model.safetensors" for tied in num_bytes}
    for tied, file in files.items():
        header_size = int.from_bytes(file.read_bytes()[:8], "little")
        assert num_bytes[tied] == file.stat().st_size - header_size - 8


def test_llama_embeds_tokens_by_the_table(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = build(write_tiny_llama(tmp_path))
    table = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    torch.testing.assert_close(model.embed(torch.tensor([3, 255, 3])), table[[3, 255, 3]], rtol=0, atol=0)


def test_tiny_llama_wanders_and_its_top_two_gaps_are_wide(tmp_path: Path) -> None:
    """Holds the properties that tests of greedy output rely on."""
    model = build(write_tiny_llama(tmp_path))
    run = Sequences(model, 1, 128)
    logits = run.feed(PROMPT[:16])[-1:]
    gaps, token_ids = [], []
    for _ in range(100):
        best = logits[-1].topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        token_ids.append(int(best.indices[0]))
        logits = run.feed(token_ids[-1:])
    assert len(set(token_ids)) > 40
    assert min(gaps) > 1e-4
    assert sorted(gaps)[50] > 0.2


def test_tiny_llama_repeats_itself_when_its_attention_is_blunt(tmp_path: Path) -> None:
    model = build(write_tiny_llama(tmp_path, sharpness=0.0))
    token_ids = Sequences(model, 1, 256).greedy(PROMPT[:16], 200)
    assert len(set(token_ids[-50:])) < 15


def test_tiny_llama_writes_a_config_that_can_be_extended(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, extra_config={"eos_token_id": 7})
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 7
    assert open_checkpoint(tmp_path).config.eos_token_ids == (7,)
