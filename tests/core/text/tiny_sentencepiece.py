"""Tiny SentencePiece vocabularies, trained here, as a file, as GGUF metadata and as a Hugging Face folder."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "system user assistant: say hello to the world! 0123456789 3.14159 2024-01-31",
    "if x > 0:\n    return  x  else:\n\treturn   -x",
    "日本語のテキスト 中文文本 한국어 텍스트 é è ü ñ",
)
CONTROLS = ("<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<tool>", "▁▁▁▁")


@cache
def train(kind: str = "bpe", **settings: Any) -> bytes:
    """Trains a vocabulary ("bpe" or "unigram"), by default with the rules of Llama's, and returns the file."""
    file = io.BytesIO()
    defaults = {
        "vocab_size": 400,
        "byte_fallback": True,
        "add_dummy_prefix": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
        "control_symbols": ",".join(CONTROLS),
        "hard_vocab_limit": False,
        "minloglevel": 2,
        "num_threads": 1,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 10), model_writer=file, model_type=kind, **(defaults | settings)
    )
    return file.getvalue()


@cache
def oracle(file: bytes) -> Any:
    """The library's own processor of a file."""
    return sentencepiece.SentencePieceProcessor(model_proto=file)


def gguf_metadata(file: bytes, kind: str = "llama", *, space_prefix: bool = True) -> dict[str, Any]:
    """The vocabulary as converters write it: spaces as they are in user-defined pieces."""
    processor = oracle(file)
    size = processor.get_piece_size()
    tokens = [processor.id_to_piece(i) for i in range(size)]
    types = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
        for i in range(size)
    ]
    for piece in USER_DEFINED:
        if piece in tokens:
            types[tokens.index(piece)] = 4
            tokens[tokens.index(piece)] = piece.replace("▁", " ")
    return {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [processor.get_score(i) for i in range(size)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


def write_folder(folder: Path, file: bytes, **config: Any) -> Path:
    """A folder with tokenizer.model and a tokenizer_config.json (left out where `config` is empty)."""
    (folder / "tokenizer.model").write_bytes(file)
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
