"""Models built from GGUF files against Transformers' logits of the folders that the files were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.models.building import build
from tests.core.models.dense_attention import Sequences
from tests.core.models.family_checkpoints import VOCAB_SIZE, oracle_logits, write_family

pytestmark = pytest.mark.slow

PROMPT = torch.randint(0, VOCAB_SIZE, (41,), generator=torch.Generator().manual_seed(5)).tolist()
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 1.5, 2.5, 4.0, 8.0, 16.0],
    },
}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama, llama3 rope": ("llama", {"rope_parameters": ROPES["llama3"]}, {}),
    "llama, linear rope": ("llama", {"rope_parameters": ROPES["linear"]}, {}),
    "mistral": ("mistral", {}, {"attention.sliding_window": 7}),
    "qwen2": ("qwen2", {}, {}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": ROPES["yarn"]}, {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}, {}),
    "qwen3": ("qwen3", {}, {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 20}, {}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 20}, {}),
    "phi3": ("phi3", {"sliding_window": 7}, {}),
    "phi3, short": ("phi3", {"rope_parameters": ROPES["longrope"], "original_max_position_embeddings": 256}, {}),
    "smollm3": ("smollm3", {}, {}),
}
"""{name: (family, settings of its config class, metadata that converters leave out)}"""


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_gguf_equal_transformers(tmp_path: Path, case: str) -> None:
    family, settings, metadata = CASES[case]
    folder = write_family(tmp_path / "hf", family, settings)
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata=metadata))
    logits = Sequences(build(path), 1, 64).feed(PROMPT)
    torch.testing.assert_close(logits, oracle_logits(folder, PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "phi3", "smollm3"])
def test_a_split_quantized_gguf_is_near_to_the_folder(tmp_path: Path, family: str) -> None:
    """Q8_0 keeps eight bits: logits move a little, and far less than by a wrong row order or norm."""
    settings: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}  # rows of whole blocks
    if family.startswith("gemma"):
        settings |= {"head_dim": 32, "query_pre_attn_scalar": 32}
    folder = write_family(tmp_path / "hf", family, settings)
    conversion = Conversion(gguf.GGMLQuantizationType.Q8_0, num_parts=2)
    logits = Sequences(build(write_gguf(folder, tmp_path / "m.gguf", conversion)), 1, 64).feed(PROMPT)
    expected = oracle_logits(folder, PROMPT)
    error = (logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 1e-4 < error < 0.05
