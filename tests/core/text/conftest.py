"""Tiny tokenizers, trained here: byte-level from GGUF metadata, and SentencePiece-like from a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.core.text.tiny_sentencepiece import gguf_metadata, train
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.text import Tokenizer, build_tokenizer

_CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "system user assistant: say hello to the world! <tool_call> ends with </tool_call>",
    "im_start im_end endoftext 0123456789 3.14159 2024-01-31",
    "日本語のテキスト 中文文本 한국어 텍스트 é è ü ñ e\u0301 o\u0308 😀👍🏽👨‍👩‍👧 🇩🇪",
] * 3

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _byte_level_metadata() -> dict[str, Any]:
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=460,
        special_tokens=_CONTROLS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(_CORPUS, trainer)
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens.append("<tool_call>")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(_CONTROLS) + [1] * (len(tokens) - len(_CONTROLS) - 1) + [4],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _from_gguf(metadata: dict[str, Any], vocab_size: int = 1000, chat_template: str | None = _CHATML) -> Tokenizer:
    return build_tokenizer(TokenizerSource("gguf", Path("tiny.gguf"), metadata, chat_template), vocab_size)


def _from_hf(folder: Path, vocab_size: int = 1000, chat_template: str | None = None) -> Tokenizer:
    return build_tokenizer(TokenizerSource("hf", folder, {}, chat_template), vocab_size)


@pytest.fixture(scope="session")
def from_gguf() -> Callable[..., Tokenizer]:
    return _from_gguf


@pytest.fixture(scope="session")
def from_hf() -> Callable[..., Tokenizer]:
    return _from_hf


@pytest.fixture(scope="session")
def trained_metadata() -> dict[str, Any]:
    return _byte_level_metadata()


@pytest.fixture
def metadata(trained_metadata: dict[str, Any]) -> dict[str, Any]:
    """A copy that a test may change."""
    return dict(trained_metadata)


@pytest.fixture(scope="session")
def byte_tokenizer(trained_metadata: dict[str, Any]) -> Tokenizer:
    return _from_gguf(trained_metadata, vocab_size=len(trained_metadata["tokenizer.ggml.tokens"]) + 8)


def _write_spaced_folder(folder: Path) -> None:
    """Writes a SentencePiece-like tokenizer: `▁` for spaces, one put first, bytes for unknown characters."""
    library = LibraryTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False
    )
    library.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    library.train_from_iterator(_CORPUS[:3], trainer)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    state = json.loads(library.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    eos = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": False, "rstrip": False}
    config = {"bos_token": "<s>", "eos_token": eos, "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture
def spaced_folder(tmp_path: Path) -> Path:
    """A Hugging Face folder that a test may change."""
    _write_spaced_folder(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def spaced_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("spaced")
    _write_spaced_folder(folder)
    return _from_hf(folder, vocab_size=420)


@pytest.fixture(scope="session")
def scored_tokenizer() -> Tokenizer:
    """SentencePiece BPE from GGUF metadata."""
    return _from_gguf(gguf_metadata(train()))


@pytest.fixture(scope="session")
def unigram_tokenizer() -> Tokenizer:
    """SentencePiece Unigram from GGUF metadata, with a space in front of texts."""
    return _from_gguf(gguf_metadata(train("unigram"), "t5"))


@pytest.fixture(params=["byte_tokenizer", "spaced_tokenizer", "scored_tokenizer", "unigram_tokenizer"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each kind of tokenizer in turn."""
    value: Tokenizer = request.getfixturevalue(request.param)
    return value
