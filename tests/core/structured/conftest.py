"""Tokenizers of each kind, and a tiny model whose replies can end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import decoders

from tests.byte_level_vocabulary import CHATML, byte_level_metadata
from tests.core.text.tiny_sentencepiece import gguf_metadata, train
from tests.tiny_model import write_tiny_llama
from tokenloom import LLM
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.text import Tokenizer, build_tokenizer
from tokenloom.text.gguf_vocabulary import parts_from_gguf

NUM_PADDED = 7


def _source(metadata: dict[str, Any]) -> TokenizerSource:
    return TokenizerSource("gguf", Path("tiny.gguf"), metadata, CHATML)


def _tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    num_tokens = len(metadata["tokenizer.ggml.tokens"])
    return build_tokenizer(_source(metadata), num_tokens + NUM_PADDED)


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Byte-level BPE; token 2 ends a reply."""
    return _tokenizer(byte_level_metadata())


@pytest.fixture(scope="session")
def scored() -> Tokenizer:
    """SentencePiece BPE with byte tokens, so that a character can be spelled in two ways."""
    return _tokenizer(gguf_metadata(train()))


@pytest.fixture(scope="session")
def unigram() -> Tokenizer:
    """SentencePiece Unigram."""
    return _tokenizer(gguf_metadata(train("unigram"), "t5"))


@pytest.fixture(params=["byte_level", "scored", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each kind of tokenizer in turn."""
    value: Tokenizer = request.getfixturevalue(request.param)
    return value


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama over the byte-level vocabulary, with padded rows."""
    library = parts_from_gguf(_source(byte_level_metadata())).library
    library.decoder = decoders.ByteLevel()
    folder = write_tiny_llama(
        tmp_path_factory.mktemp("structured"), vocab_size=library.get_vocab_size() + NUM_PADDED, max_position=1024
    )
    library.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def build_llm(tiny_folder: Path) -> Iterator[Callable[..., LLM]]:
    """Engines on the tiny model, one for each set of overrides."""
    built: dict[tuple[str, ...], LLM] = {}

    def build(*overrides: str) -> LLM:
        if overrides not in built:
            fixed = ("model.dtype=float32", "cache.num_blocks=400", "debug.checks=full", "engine.num_threads=1")
            built[overrides] = LLM(str(tiny_folder), [*fixed, *overrides], show_progress=False)
        return built[overrides]

    yield build
    for llm in built.values():
        llm.close()
