"""Builds a tokenizer from GGUF metadata (`tokenizer.ggml.*`) with nothing but the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import BPE

from tokenloom.errors import ModelError
from tokenloom.loader.tokenizer_source import TokenizerSource
from tokenloom.text.pre_tokenizers import SplitStyle, split_style
from tokenloom.text.token_bytes import SPACE_MARK, TextForm
from tokenloom.text.tokenizer_parts import TokenizerParts

__all__ = ["parts_from_gguf"]

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


def parts_from_gguf(source: TokenizerSource) -> TokenizerParts:
    """Builds the tokenizer that the metadata of `source` describes. Raises ModelError where it cannot."""
    metadata = _Metadata(source)
    kind = metadata.text("model")
    if kind == "gpt2":
        style = split_style(metadata.text("pre", default="default"))
        library, form, adds_bos = _byte_level(metadata, style), TextForm(byte_level=True), style.add_bos
    elif kind == "llama":
        with_space = metadata.flag("add_space_prefix", default=True)
        library, adds_bos = _sentencepiece(metadata, with_space), True
        form = TextForm(byte_level=False, byte_fallback=True, strip_leading_space=with_space)
    else:
        metadata.fail(
            "model", f"{kind!r} is not supported; supported: 'gpt2' (byte-level BPE) and 'llama' (BPE by scores)"
        )
    bos, eos, eot = (metadata.token_id(f"{name}_token_id") for name in ("bos", "eos", "eot"))
    _add_matched_tokens(library, metadata, {token_id for token_id in (bos, eos, eot) if token_id is not None})
    prefix = (bos,) if bos is not None and metadata.flag("add_bos_token", default=adds_bos) else ()
    suffix = (eos,) if eos is not None and metadata.flag("add_eos_token", default=False) else ()
    return TokenizerParts(
        library=library,
        text_form=form,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in (eos, eot) if token_id is not None)),
        prefix_ids=prefix,
        suffix_ids=suffix,
        named_tokens=_named_tokens(metadata),
        chat_template=source.chat_template,
    )


def _byte_level(metadata: _Metadata, style: SplitStyle) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in metadata.array("merges")]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        metadata.fail("merges", f"{' '.join(wrong)!r} is not a pair of tokens with one space between them")
    library = Tokenizer(_bpe(metadata, merges, ignore_merges=style.ignore_merges))
    library.pre_tokenizer = style.build()
    if style.nfc:
        library.normalizer = normalizers.NFC()
    return library


def _sentencepiece(metadata: _Metadata, with_space: bool) -> Tokenizer:
    unknown = metadata.token_id("unknown_token_id")
    library = Tokenizer(
        _bpe(
            metadata,
            _merges_by_score(metadata),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else metadata.tokens[unknown],
        )
    )
    mark_spaces = normalizers.Replace(" ", SPACE_MARK)
    library.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_MARK), mark_spaces]) if with_space else mark_spaces
    )
    return library


def _merges_by_score(metadata: _Metadata) -> list[tuple[str, str]]:
    """The merges that scores imply: any two pieces that make a piece, the best-scored result first."""
    scores = metadata.array("scores")
    types = metadata.types
    if len(scores) != len(metadata.tokens):
        metadata.fail("scores", f"has {len(scores)} entries for {len(metadata.tokens)} tokens")
    score_of = {
        token: float(scores[token_id])
        for token_id, token in enumerate(metadata.tokens)
        if types[token_id] == _NORMAL and token
    }
    pairs = [
        (score, token[:cut], token[cut:])
        for token, score in score_of.items()
        for cut in range(1, len(token))
        if token[:cut] in score_of and token[cut:] in score_of
    ]
    pairs.sort(key=lambda pair: -pair[0])  # stable: equal scores keep the order of the vocabulary
    return [(left, right) for _, left, right in pairs]


def _bpe(metadata: _Metadata, merges: list[Any], **settings: Any) -> BPE:
    vocabulary = dict(zip(metadata.tokens, range(len(metadata.tokens))))
    if len(vocabulary) != len(metadata.tokens):
        twice = next(token for token_id, token in enumerate(metadata.tokens) if vocabulary[token] != token_id)
        metadata.fail("tokens", f"holds {twice!r} twice; each token must have one id")
    try:
        return BPE(vocabulary, merges, **settings)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{metadata.path}: tokenizer.ggml.merges and tokens do not fit together: {error}") from error


def _add_matched_tokens(library: Tokenizer, metadata: _Metadata, always_control: set[int]) -> None:
    controls, plain = [], []
    for token_id, (token, kind) in enumerate(zip(metadata.tokens, metadata.types)):
        if not token:
            continue
        if kind in (_CONTROL, _UNKNOWN) or token_id in always_control:
            controls.append(AddedToken(token, normalized=False, special=True))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    library.add_special_tokens(controls)
    library.add_tokens(plain)


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
            if "tokenizer.ggml.token_type" in self._values
            else [_NORMAL] * len(self.tokens)
        )
        if len(self.types) != len(self.tokens):
            self.fail("token_type", f"has {len(self.types)} entries for {len(self.tokens)} tokens")

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
