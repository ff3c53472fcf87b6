"""Builds a tokenizer from GGUF metadata (`tokenizer.ggml.*`) with nothing but the `tokenizers` library."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE

from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError
from tokenloom.text.pre_tokenizers import SplitStyle, split_style
from tokenloom.text.sentencepiece_vocabulary import PieceKind, SentencePieces, duplicate_in, matched_tokens
from tokenloom.text.token_bytes import TextForm
from tokenloom.text.tokenizer_parts import TokenizerParts

__all__ = ["parts_from_gguf"]

_log = logging.getLogger(__name__)


def parts_from_gguf(source: TokenizerSource) -> TokenizerParts:
    """Builds the tokenizer that the metadata of `source` describes. Raises ModelError where it cannot."""
    metadata = _Metadata(source)
    bos, eos, eot = (metadata.token_id(f"{name}_token_id") for name in ("bos", "eos", "eot"))
    vocabulary = _vocabulary(metadata)
    always_control = {token_id for token_id in (bos, eos, eot) if token_id is not None}
    controls, plain = matched_tokens(metadata.tokens, metadata.types, always_control)
    vocabulary.library.add_special_tokens(controls)
    vocabulary.library.add_tokens(plain)
    adds_bos = metadata.flag("add_bos_token", default=vocabulary.adds_bos)
    adds_eos = metadata.flag("add_eos_token", default=vocabulary.adds_eos)
    return TokenizerParts(
        library=vocabulary.library,
        text_form=vocabulary.text_form,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in (eos, eot) if token_id is not None)),
        prefix_ids=(bos,) if adds_bos and bos is not None else (),
        suffix_ids=(eos,) if adds_eos and eos is not None else (),
        named_tokens=_named_tokens(metadata),
        chat_template=source.chat_template,
    )


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    library: Tokenizer
    text_form: TextForm
    adds_bos: bool
    adds_eos: bool = False


def _vocabulary(metadata: _Metadata) -> _Vocabulary:
    kind = metadata.text("model")
    if kind == "gpt2":
        style = split_style(metadata.text("pre")) if metadata.has("pre") else _style_of_older_files(metadata)
        return _Vocabulary(_byte_level(metadata, style), TextForm(byte_level=True), style.add_bos)
    if kind in ("llama", "t5"):
        pieces = _pieces(metadata, is_unigram=kind == "t5")
        try:
            library = pieces.build()
        except ValueError as error:
            raise ModelError(
                f"{metadata.path}: tokenizer.ggml.tokens and scores do not make a tokenizer: {error}"
            ) from error
        return _Vocabulary(library, pieces.text_form, adds_bos=kind == "llama", adds_eos=kind == "t5")
    metadata.fail(
        "model",
        f"{kind!r} is not supported; supported: 'gpt2' (byte-level BPE), 'llama' (BPE by scores) and 't5' (Unigram)",
    )


def _style_of_older_files(metadata: _Metadata) -> SplitStyle:
    _log.warning(
        "%s does not say how to split text (tokenizer.ggml.pre is missing); splitting as 'default', which may differ "
        "from how the model was trained: a newer conversion of the model says it",
        metadata.path,
    )
    return split_style("default")


def _byte_level(metadata: _Metadata, style: SplitStyle) -> Tokenizer:
    merges: list[Any] = [tuple(merge.split(" ")) for merge in metadata.array("merges")]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        metadata.fail("merges", f"{' '.join(wrong)!r} is not a pair of tokens with one space between them")
    vocabulary = {token: token_id for token_id, token in enumerate(metadata.tokens)}
    try:
        library = Tokenizer(BPE(vocabulary, merges, ignore_merges=style.ignore_merges))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{metadata.path}: tokenizer.ggml.merges and tokens do not fit together: {error}") from error
    library.pre_tokenizer = style.build()
    if style.nfc:
        library.normalizer = normalizers.NFC()
    return library


def _pieces(metadata: _Metadata, *, is_unigram: bool) -> SentencePieces:
    scores = metadata.array("scores")
    if len(scores) != len(metadata.tokens):
        metadata.fail("scores", f"has {len(scores)} entries for {len(metadata.tokens)} tokens")
    charsmap = metadata.array("precompiled_charsmap") if metadata.has("precompiled_charsmap") else ()
    return SentencePieces(
        tokens=metadata.tokens,
        scores=[float(score) for score in scores],
        kinds=metadata.types,
        is_unigram=is_unigram,
        unknown_id=_unknown_id(metadata),
        space_prefix="each" if metadata.flag("add_space_prefix", default=not is_unigram) else "never",
        squeezes_spaces=metadata.flag("remove_extra_whitespaces", default=False),
        charsmap=bytes(int(byte) % 256 for byte in charsmap) or None,  # stored as signed or unsigned bytes
    )


def _unknown_id(metadata: _Metadata) -> int | None:
    stated = metadata.token_id("unknown_token_id")
    marked = (token_id for token_id, kind in enumerate(metadata.types) if kind == PieceKind.UNKNOWN)
    return next(marked, None) if stated is None else stated


def _named_tokens(metadata: _Metadata) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.token_id(f"{key}_token_id") for name, key in keys.items()}
    return {name: metadata.tokens[token_id] for name, token_id in ids.items() if token_id is not None}


class _Metadata:
    """Typed access to `tokenizer.ggml.*`; a missing or wrong key is a ModelError that names file and key."""

    def __init__(self, source: TokenizerSource) -> None:
        self.path = source.path
        self._values: Mapping[str, Any] = source.metadata
        self.tokens: list[str] = list(self.array("tokens"))
        self.types: list[int] = (
            [int(kind) for kind in self.array("token_type")]
            if self.has("token_type")
            else [PieceKind.NORMAL] * len(self.tokens)
        )
        if len(self.types) != len(self.tokens):
            self.fail("token_type", f"has {len(self.types)} entries for {len(self.tokens)} tokens")

        twice = duplicate_in(self.tokens)
        if twice is not None:
            self.fail("tokens", f"holds {twice!r} twice; each token must have one id")

    def has(self, key: str) -> bool:
        return self._values.get(f"tokenizer.ggml.{key}") is not None

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ModelError(f"{self.path}: tokenizer.ggml.{key}: {problem}")

    def array(self, key: str) -> Sequence[Any]:
        value = self._values.get(f"tokenizer.ggml.{key}")
        if value is None or isinstance(value, str | int | float):
            self.fail(key, "is missing; expected a list" if value is None else f"expected a list, got {value!r}")
        return value  # type: ignore[no-any-return]

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, str):
            self.fail(key, f"expected a string, got {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            self.fail(key, f"expected true or false, got {value!r}")
        return value

    def token_id(self, key: str) -> int | None:
        value = self._values.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            self.fail(key, f"expected a token id below {len(self.tokens)}, got {value!r}")
        return value
