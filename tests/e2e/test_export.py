"""Exported folders in Transformers' hands: equal logits, equal token ids, the same rendered chat template."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from tests.byte_level_vocabulary import byte_level_metadata
from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.models.building import build
from tests.core.models.dense_attention import Sequences
from tests.core.models.family_checkpoints import FAMILIES, write_family
from tests.core.text import tiny_sentencepiece
from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.export_folder import ExportOptions, export_folder
from tokenloom.loader.sources import resolve_model
from tokenloom.text import ChatTemplate, Tokenizer, build_tokenizer

pytestmark = pytest.mark.slow

TEXTS = (
    "Hello, world! It's 12345; isn't it?",
    "  two spaces,\ttabs\n\n\n and an end ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><tool_call>x</tool_call>",
    "é e\u0301 日本語 😀👩‍👩‍👧 ﬁ \u00a0\u200b",
    "def f(x):\n    return x ** 2\n",
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why is the sky blue?"},
    {"role": "assistant", "content": "Rayleigh."},
    {"role": "user", "content": "And red at dusk?"},
]
SIZES: dict[str, Any] = {"vocab_size": 432, "hidden_size": 64, "intermediate_size": 96}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "llama, linear rope": ("llama", {"rope_parameters": ROPES["linear"]}),
    "llama, llama3 rope": ("llama", {"rope_parameters": ROPES["llama3"]}),
    "llama, tied, biased": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
}


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    return build_tokenizer(checkpoint.tokenizer_source(), checkpoint.config.vocab_size)


@torch.inference_mode()
def their_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def assert_equal_tokenizers(ours: Tokenizer, folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text), text
        ids = ours.encode(text, add_special_tokens=False)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids, text
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids), text
    assert theirs.bos_token_id == ours.bos_token_id
    assert theirs.eos_token_id in ours.eos_token_ids
    if ours.chat_template is not None:
        for add_generation_prompt in (True, False):
            rendered = ChatTemplate.for_tokenizer(ours).render(MESSAGES, add_generation_prompt=add_generation_prompt)
            options = {"add_generation_prompt": add_generation_prompt}
            assert theirs.apply_chat_template(MESSAGES, tokenize=False, **options) == rendered


@pytest.mark.parametrize("case", CASES)
def test_exported_gguf_gives_equal_logits_in_transformers(tmp_path: Path, case: str) -> None:
    family, settings = CASES[case]
    heads: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 32} if family.startswith("gemma") else {}
    folder = write_family(tmp_path / "hf", family, {**SIZES, **heads, **settings})
    vocabulary = byte_level_metadata("qwen2" if family == "qwen2" else "smollm")
    conversion = Conversion(gguf.GGMLQuantizationType.Q8_0, metadata=vocabulary)
    path = write_gguf(folder, tmp_path / "m.gguf", conversion)
    export_folder(open_checkpoint(path), tmp_path / "out", ExportOptions("float32"))
    ids = torch.randint(0, SIZES["vocab_size"], (41,), generator=torch.Generator().manual_seed(5)).tolist()
    ours = Sequences(build(path), 1, 64).feed(ids)
    torch.testing.assert_close(their_logits(tmp_path / "out", ids), ours, rtol=0.0, atol=1e-4)
    assert_equal_tokenizers(tokenizer_of(open_checkpoint(path)), tmp_path / "out")


VOCABULARIES: dict[str, dict[str, Any]] = {
    "smollm": byte_level_metadata("smollm"),
    "llama-bpe": byte_level_metadata("llama-bpe", add_bos_token=True),
    "qwen2": byte_level_metadata("qwen2", add_eos_token=True),
    "gpt-2": byte_level_metadata("gpt-2", add_bos_token=True, add_eos_token=True),
}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3"])
@pytest.mark.parametrize("vocabulary", [*VOCABULARIES, "sentencepiece", "sentencepiece without prefix"])
def test_exported_tokenizer_is_the_same_in_transformers(tmp_path: Path, vocabulary: str, family: str) -> None:
    """Whatever the family: Transformers has its own tokenizer classes for some, which build their own rules."""
    if vocabulary in VOCABULARIES:
        metadata = VOCABULARIES[vocabulary]
    else:
        metadata = tiny_sentencepiece.gguf_metadata(
            tiny_sentencepiece.train(), space_prefix=vocabulary == "sentencepiece"
        )
    folder = write_family(tmp_path / "hf", family, SIZES)
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata=metadata))
    if family == "qwen2" and vocabulary != "qwen2":
        with pytest.raises(ModelError, match=r"for every model of architecture 'qwen2'"):
            export_folder(open_checkpoint(path), tmp_path / "out")
        return
    export_folder(open_checkpoint(path), tmp_path / "out")
    assert_equal_tokenizers(tokenizer_of(open_checkpoint(path)), tmp_path / "out")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_default_model_is_the_same_in_transformers(tmp_path: Path, dtype: Any) -> None:
    """The command itself, then both sides: the GGUF file here, the folder there."""
    path = resolve_model(None, progress=False)
    command = [str(Path(sys.executable).parent / "tokenloom"), "export", str(tmp_path / "out"), f"dtype={dtype}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    original = open_checkpoint(path)
    ours = tokenizer_of(original)
    assert_equal_tokenizers(ours, tmp_path / "out")
    exported = open_checkpoint(tmp_path / "out")
    assert exported.config.dtype == dtype
    theirs = tokenizer_of(exported)
    assert [theirs.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]
    ids = ours.encode("The capital of France is Paris, and that of Italy is", add_special_tokens=False)
    wanted = getattr(torch, dtype)
    if dtype == "float32":
        logits = Sequences(build(path), 1, 64).feed(ids)
        torch.testing.assert_close(their_logits(tmp_path / "out", ids), logits, rtol=0.0, atol=1e-4)
    for name in original.tensor_names():
        assert torch.equal(exported.load(name), original.load(name, wanted)), name
