"""SentencePiece vocabularies: pieces with scores, `▁` for spaces, bytes for what no piece covers.

Source: Kudo and Richardson, 2018, "SentencePiece"; BPE merges by score, Unigram looks for the best-scored path.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, normalizers
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import Metaspace, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Stages

from tokenloom.text.token_bytes import SPACE_MARK, TextForm

__all__ = ["PieceKind", "SentencePieces", "SpacePrefix", "duplicate_in", "matched_tokens", "merges_by_score"]

SpacePrefix = Literal["each", "first", "never"]
"""Where a `▁` is put that the text lacks.

"each": before every stretch of text, also after a control token (llama.cpp; Transformers with `legacy=True`);
"first": before a text that does not begin with a control token (Transformers with `legacy=False`);
"never": nowhere (Gemma).
"""

# Text that spells a byte token, as "<0x0A>" does, is cut here: Unigram looks pieces up by their spelling.
_SPELLED_BYTE = r"<(?=0x[0-9A-Fa-f]{2}>)"


class PieceKind(IntEnum):
    """What a piece is for: the numbers of SentencePiece, and of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """A vocabulary as SentencePiece has it.

    Attributes:
        tokens: the pieces, by id; no two are equal.
        scores: one for each piece; higher is better.
        kinds: one for each piece, as PieceKind.
        is_unigram: the best path over all pieces counts, instead of merges.
        unknown_id: the token for what no piece and no byte token covers, or None.
        space_prefix: see SpacePrefix.
        squeezes_spaces: spaces at both ends go, and of several in a row one is left.
        charsmap: SentencePiece's compiled table of normalized characters, or None.
    """

    tokens: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    is_unigram: bool
    unknown_id: int | None
    space_prefix: SpacePrefix
    squeezes_spaces: bool = False
    charsmap: bytes | None = None

    @property
    def has_bytes(self) -> bool:
        """Whether there is a token for every byte."""
        return {f"<0x{byte:02X}>" for byte in range(256)}.issubset(self.tokens)

    @property
    def text_form(self) -> TextForm:
        """How the tokens turn into text."""
        return TextForm(
            byte_level=False,
            byte_fallback=self.has_bytes,
            strip_leading_space=self.space_prefix != "never",
            doubles_leading_space=self.space_prefix == "first",
        )

    def build(self) -> Tokenizer:
        """Builds the tokenizer, without added tokens. Raises ValueError where the library refuses the vocabulary."""
        try:
            library = Tokenizer(self._unigram() if self.is_unigram else self._bpe())
            library.normalizer = normalizers.Sequence(list(self._normalizers()))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)) from error
        stages: list[PreTokenizer] = []
        if self.space_prefix == "first":
            stages.append(Metaspace(replacement=SPACE_MARK, prepend_scheme="first", split=False))
        if self.is_unigram and self.has_bytes:
            stages.append(Split(Regex(_SPELLED_BYTE), "isolated"))
        if stages:
            library.pre_tokenizer = Stages(stages)
        return library

    def _bpe(self) -> BPE:
        score_of = {
            token: score
            for token, score, kind in zip(self.tokens, self.scores, self.kinds)
            if kind == PieceKind.NORMAL and token
        }
        return BPE(
            {token: token_id for token_id, token in enumerate(self.tokens)},
            merges_by_score(score_of),
            byte_fallback=self.has_bytes,
            fuse_unk=True,
            unk_token=None if self.unknown_id is None else self.tokens[self.unknown_id],
        )

    def _unigram(self) -> Unigram:
        pieces = [(token, float(score)) for token, score in zip(self.tokens, self.scores)]
        return Unigram(pieces, self.unknown_id, self.has_bytes)

    def _normalizers(self) -> Iterator[normalizers.Normalizer]:
        if self.charsmap:
            yield normalizers.Precompiled(self.charsmap)
        if self.squeezes_spaces:
            yield normalizers.Replace(Regex(r"\A +| +\z"), "")
            yield normalizers.Replace(Regex(" {2,}"), " ")
        if self.space_prefix == "each":
            yield normalizers.Prepend(SPACE_MARK)
        yield normalizers.Replace(" ", SPACE_MARK)


def merges_by_score(score_of: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges that scores imply: any two pieces that make a piece, the best-scored result first.

    Args:
        score_of: the pieces that may be merged; equal scores keep their order.
    """
    best_first = sorted(score_of, key=score_of.__getitem__, reverse=True)  # stable, also in reverse
    return [
        (token[:cut], token[cut:])
        for token in best_first
        for cut in range(1, len(token))
        if token[:cut] in score_of and token[cut:] in score_of
    ]


def matched_tokens(
    tokens: Sequence[str], kinds: Sequence[int], also_control: Container[int] = ()
) -> tuple[list[AddedToken], list[AddedToken]]:
    """The tokens that are found in the text as it stands, before anything else: control tokens, user-defined ones."""
    controls, plain = [], []
    for token_id, (token, kind) in enumerate(zip(tokens, kinds)):
        if token and (kind in (PieceKind.CONTROL, PieceKind.UNKNOWN) or token_id in also_control):
            controls.append(AddedToken(token, normalized=False, special=True))
        elif token and kind == PieceKind.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    return controls, plain


def duplicate_in(tokens: Sequence[str]) -> str | None:
    """Returns a token that stands in the vocabulary twice, or None."""
    first_ids: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if first_ids.setdefault(token, token_id) != token_id:
            return token
    return None
