"""Builds a tokenizer from GGUF metadata (`tokenizer.ggml.*`) with nothing but the `tokenizers` library."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE

from tokenloom.checkpoint.end_tokens import end_tokens_by_text
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError
from tokenloom.text.merge_check import fault_in_merges
from tokenloom.text.pre_tokenizers import SplitStyle, split_style
from tokenloom.text.sentencepiece_vocabulary import PieceKind, SentencePieces, duplicate_in, matched_tokens
from tokenloom.text.token_bytes import TextForm
from tokenloom.text.tokenizer_parts import TokenizerParts

__all__ = ["parts_from_gguf"]

_log = logging.getLogger(__name__)


def parts_from_gguf(source: TokenizerSource) -> TokenizerParts:
    """Builds the tokenizer that the metadata of `source` describes. Raises ModelError where it cannot."""
    metadata = _Metadata(source)
    bos, eos = (metadata.token_id(f"{name}_token_id") for name in ("bos", "eos"))
    ends = _end_ids(metadata)
    vocabulary = _vocabulary(metadata)
    always_control = {token_id for token_id in (bos, *ends) if token_id is not None}
    controls, plain = matched_tokens(metadata.tokens, metadata.types, always_control)
    vocabulary.library.add_special_tokens(controls)
    vocabulary.library.add_tokens(plain)
    adds_bos = metadata.flag("add_bos_token", default=vocabulary.adds_bos)
    adds_eos = metadata.flag("add_eos_token", default=vocabulary.adds_eos)
    return TokenizerParts(
        library=vocabulary.library,
        text_form=vocabulary.text_form,
        bos_token_id=bos,
        eos_token_ids=ends,
        prefix_ids=(bos,) if adds_bos and bos is not None else (),
        suffix_ids=(eos,) if adds_eos and eos is not None else (),
        named_tokens=_named_tokens(metadata),
        chat_template=source.chat_template,
    )


def _end_ids(metadata: _Metadata) -> tuple[int, ...]:
    """What the keys say; where none of them names the end of a turn, the tokens that are known to be one."""
    ids = [metadata.token_id(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    if not metadata.has("eot_token_id"):
        ids.extend(end_tokens_by_text(metadata.tokens, metadata.types))
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


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
    merges: list[Any] = [tuple(merge.split(" ")) for merge in metadata.texts("merges")]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        metadata.fail("merges", f"{' '.join(wrong)!r} is not a pair of tokens with one space between them")
    vocabulary = {token: token_id for token_id, token in enumerate(metadata.tokens)}
    fault = fault_in_merges(vocabulary, merges)
    if fault is not None:
        raise ModelError(f"{metadata.path}: tokenizer.ggml.merges and tokens do not fit together: {fault}")
    try:
        library = Tokenizer(BPE(vocabulary, merges, ignore_merges=style.ignore_merges))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{metadata.path}: tokenizer.ggml.merges and tokens do not fit together: {error}") from error
    library.pre_tokenizer = style.build()
    if style.nfc:
        library.normalizer = normalizers.NFC()
    return library


def _pieces(metadata: _Metadata, *, is_unigram: bool) -> SentencePieces:
    scores = metadata.numbers("scores")
    if len(scores) != len(metadata.tokens):
        metadata.fail("scores", f"has {len(scores)} entries for {len(metadata.tokens)} tokens")
    return SentencePieces(
        tokens=metadata.tokens,
        scores=scores,
        kinds=metadata.types,
        is_unigram=is_unigram,
        unknown_id=_unknown_id(metadata),
        space_prefix="each" if metadata.flag("add_space_prefix", default=not is_unigram) else "never",
        squeezes_spaces=metadata.flag("remove_extra_whitespaces", default=False),
        charsmap=_charsmap(metadata),
    )


def _charsmap(metadata: _Metadata) -> bytes | None:
    values = metadata.integers("precompiled_charsmap") if metadata.has("precompiled_charsmap") else []
    wrong = next((value for value in values if not -128 <= value <= 255), None)
    if wrong is not None:
        metadata.fail("precompiled_charsmap", f"expected bytes, got {wrong}")
    return bytes(value % 256 for value in values) or None  # stored as signed or unsigned bytes


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
        self.tokens = self.texts("tokens")
        self.types = self.integers("token_type") if self.has("token_type") else [PieceKind.NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            self.fail("token_type", f"has {len(self.types)} entries for {len(self.tokens)} tokens")

        twice = duplicate_in(self.tokens)
        if twice is not None:
            self.fail("tokens", f"holds {twice!r} twice; each token must have one id")

    def has(self, key: str) -> bool:
        return self._values.get(f"tokenizer.ggml.{key}") is not None

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ModelError(f"{self.path}: tokenizer.ggml.{key}: {problem}")

    def texts(self, key: str) -> list[str]:
        return list(self._array(key, {str}, "strings"))

    def integers(self, key: str) -> list[int]:
        return list(self._array(key, {int}, "integers"))

    def numbers(self, key: str) -> list[float]:
        return [float(value) for value in self._array(key, {int, float}, "numbers")]

    def _array(self, key: str, types: Collection[type], elements: str) -> Sequence[Any]:
        value = self._values.get(f"tokenizer.ggml.{key}")
        if value is None:
            self.fail(key, f"is missing; expected a list of {elements}")
        if not isinstance(value, list | tuple):
            self.fail(key, f"expected a list of {elements}, got {reprlib.repr(value)}")
        if not set(map(type, value)).issubset(types):  # exact types, so that true and false are no numbers
            index, wrong = next((index, item) for index, item in enumerate(value) if type(item) not in types)
            self.fail(key, f"expected a list of {elements}, got {reprlib.repr(wrong)} at index {index}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, str):
            self.fail(key, f"expected a string, got {reprlib.repr(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            self.fail(key, f"expected true or false, got {reprlib.repr(value)}")
        return value

    def token_id(self, key: str) -> int | None:
        value = self._values.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            self.fail(key, f"expected a token id below {len(self.tokens)}, got {reprlib.repr(value)}")
        return value
