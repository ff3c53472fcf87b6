"""The vocabulary of a Hugging Face folder: tokenizer.json, a SentencePiece file, or vocab.json with merges.txt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE

from tokenloom.errors import ModelError
from tokenloom.text.merge_check import fault_in_merges
from tokenloom.text.pre_tokenizers import split_style
from tokenloom.text.sentencepiece_vocabulary import SpacePrefix, matched_tokens
from tokenloom.text.token_bytes import SPACE_MARK, TextForm

__all__ = ["FolderVocabulary", "read_vocabulary"]

_END_OF_TEXT = "<|endoftext|>"
# tokenizer_class (without "Fast") -> the name of its way to split, and the tokens that its config may leave out.
_BYTE_LEVEL_CLASSES: dict[str, tuple[str, dict[str, str]]] = {
    "GPT2Tokenizer": ("gpt-2", {"bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT, "unk_token": _END_OF_TEXT}),
    "CodeGenTokenizer": ("gpt-2", {"bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT, "unk_token": _END_OF_TEXT}),
    "GPTNeoXTokenizer": ("mpt", {"bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT, "unk_token": _END_OF_TEXT}),
    "Qwen2Tokenizer": ("qwen2", {"eos_token": _END_OF_TEXT, "pad_token": _END_OF_TEXT}),
    "Qwen3_5Tokenizer": ("qwen35", {"eos_token": _END_OF_TEXT, "pad_token": _END_OF_TEXT}),
}
_SENTENCEPIECE_CLASSES = ("LlamaTokenizer", "GemmaTokenizer")


@dataclass(frozen=True, slots=True)
class FolderVocabulary:
    """A vocabulary before the folder's other files have had their say.

    Attributes:
        library: vocabulary, splitting, and the added tokens that the same file declares.
        text_form: how a token's string turns into the bytes of the text.
        named_tokens: `bos_token`, ... that hold where tokenizer_config.json does not name them.
        adds_bos: a text gets a BOS token where tokenizer_config.json does not say.
    """

    library: Tokenizer
    text_form: TextForm
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    adds_bos: bool = False


def read_vocabulary(folder: Path, config: Mapping[str, Any]) -> FolderVocabulary:
    """Reads the first of the known files that the folder has.

    Args:
        folder: the folder.
        config: what tokenizer_config.json says; `tokenizer_class`, `legacy` and `add_prefix_space` count here, and only
            where there is no tokenizer.json.

    Raises:
        ModelError: there is none of them, or the one there is cannot be read.
    """
    if (folder / "tokenizer.json").is_file():
        library = _read_library(folder / "tokenizer.json")
        return FolderVocabulary(library, _text_form(library, folder))
    name = config.get("tokenizer_class")
    kind = name.removesuffix("Fast") if isinstance(name, str) else None
    if (folder / "tokenizer.model").is_file():
        return _from_sentencepiece(folder / "tokenizer.model", kind, config)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _from_merges(folder, kind, config)
    raise ModelError(
        f"{folder} has no tokenizer.json, no tokenizer.model, and not both of vocab.json and merges.txt. Try a folder "
        "that has one of them (saving the tokenizer again with a recent Transformers writes a tokenizer.json), or a "
        "GGUF file of the model"
    )


def _read_library(path: Path) -> Tokenizer:
    try:
        library = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
    # Settings of the training run: a prompt is never cut, padded or split at random in silence.
    library.no_truncation()
    library.no_padding()
    if isinstance(library.model, BPE):
        library.model.dropout = None
    return library


def _from_sentencepiece(path: Path, kind: str | None, config: Mapping[str, Any]) -> FolderVocabulary:
    # A folder that names no class is read by the file's own rules, as the models here use them: with BOS.
    if kind is not None and kind not in _SENTENCEPIECE_CLASSES:
        _refuse_class(path, kind, _SENTENCEPIECE_CLASSES)
    # Protobuf comes with it, which only such folders need.
    from tokenloom.text.sentencepiece_file import read_sentencepiece

    file = read_sentencepiece(path, _space_prefix(path, config))
    try:
        library = file.pieces.build()
    except ValueError as error:
        raise ModelError(f"{path} does not make a tokenizer: {error}") from error
    controls, plain = matched_tokens(file.pieces.tokens, file.pieces.kinds)
    library.add_special_tokens(controls)
    library.add_tokens(plain)
    return FolderVocabulary(library, file.pieces.text_form, file.named_tokens, adds_bos=True)


def _space_prefix(path: Path, config: Mapping[str, Any]) -> SpacePrefix:
    for key in ("add_prefix_space", "legacy"):
        if not isinstance(config.get(key), bool | None):
            raise ModelError(f"{path.parent}/tokenizer_config.json: {key} must be true or false, got {config[key]!r}")
    if config.get("add_prefix_space") is False:
        return "never"
    return "each" if config.get("legacy") else "first"


def _from_merges(folder: Path, kind: str | None, config: Mapping[str, Any]) -> FolderVocabulary:
    if kind is None or kind not in _BYTE_LEVEL_CLASSES:
        _refuse_class(folder / "merges.txt", kind, tuple(_BYTE_LEVEL_CLASSES))
    if config.get("add_prefix_space"):
        raise ModelError(
            f"{folder}/tokenizer_config.json: add_prefix_space=true needs a tokenizer.json; save the tokenizer again "
            "with a recent Transformers, which writes one"
        )
    style_name, named_tokens = _BYTE_LEVEL_CLASSES[kind]
    style = split_style(style_name)
    try:
        vocabulary, merges = BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        fault = fault_in_merges(vocabulary, merges)
        if fault is not None:
            raise ValueError(fault)
        library = Tokenizer(BPE(vocabulary, merges))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{folder}: vocab.json and merges.txt do not make a tokenizer: {error}") from error
    library.pre_tokenizer = style.build()
    if style.nfc:
        library.normalizer = normalizers.NFC()
    return FolderVocabulary(library, TextForm(byte_level=True), named_tokens)


def _refuse_class(path: Path, kind: str | None, known: tuple[str, ...]) -> NoReturn:
    raise ModelError(
        f"{path.parent}/tokenizer_config.json: tokenizer_class={kind!r} does not say how to use {path.name}; known: "
        f"{', '.join(known)}. Try a folder with a tokenizer.json (saving the tokenizer again with a recent "
        "Transformers writes one)"
    )


def _text_form(library: Tokenizer, folder: Path) -> TextForm:
    """Reads off the decoder how token strings become text."""
    # The library shows a decoder's settings only in its pickled state, which is JSON.
    state: Any = library.decoder.__getstate__() if library.decoder is not None else b'{"type": "none"}'
    decoder: dict[str, Any] = json.loads(state)
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return TextForm(byte_level=True)
    marks_spaces = any(step["type"] in ("Metaspace", "Replace") for step in steps)
    if marks_spaces and all(map(_is_spaced_step, steps)):
        strips = any(
            step["type"] == "Strip" or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")
            for step in steps
        )
        return TextForm(
            byte_level=False,
            byte_fallback="ByteFallback" in kinds,
            strip_leading_space=strips,
            strips_marks="Strip" not in kinds,
        )
    raise ModelError(
        f"{folder}/tokenizer.json: the decoder {', '.join(sorted(kinds))} is not supported in this form; supported: "
        f"ByteLevel, Metaspace, and sequences of Replace {SPACE_MARK!r} by ' ', ByteFallback, Fuse, Strip of one ' ' "
        "at the start"
    )


def _is_spaced_step(step: Mapping[str, Any]) -> bool:
    """Whether `TextForm` without byte level does what this step of a decoder does."""
    match step:
        case {"type": "ByteFallback" | "Fuse"} | {"type": "Metaspace", "replacement": "▁"}:
            return True
        case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
            return True
        case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return True
        case _:
            return False
