"""How a byte-level vocabulary splits text into words before it merges: a table of the names in `tokenizer.ggml.pre`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from tokenloom.errors import ModelError, did_you_mean

__all__ = ["PRE_TOKENIZERS", "SplitStyle", "split_style"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class SplitStyle:
    """One way to split.

    Attributes:
        build: makes the pre-tokenizer; called once for each tokenizer.
        ignore_merges: a word that is in the vocabulary is one token, whatever the merges say.
        add_bos: a text gets a BOS token unless the file says otherwise.
        nfc: text is brought into Unicode's composed form first.
    """

    build: Callable[[], PreTokenizer]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _gpt2()])


def _by_regex(digits: str) -> Callable[[], PreTokenizer]:
    pattern = "|".join((_CONTRACTIONS, _WORDS, digits, _PUNCTUATION_AND_SPACE))

    def build() -> PreTokenizer:
        return Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


_GPT2 = SplitStyle(_gpt2)
_SINGLE_DIGITS = SplitStyle(_single_digits)
_LLAMA3 = SplitStyle(_by_regex(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)
_LLAMA3_PLAIN = SplitStyle(_by_regex(r"\p{N}{1,3}"))
_QWEN2 = SplitStyle(_by_regex(r"\p{N}"), nfc=True)

PRE_TOKENIZERS: dict[str, SplitStyle] = {
    # Files without a name are older than the key; what was converted then split like GPT-2.
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "smaug-bpe": _LLAMA3_PLAIN,
    "dbrx": _LLAMA3_PLAIN,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
}


def split_style(name: str) -> SplitStyle:
    """Looks `name` up. Raises ModelError, with every known name, for one that is not in the table."""
    style = PRE_TOKENIZERS.get(name)
    if style is None:
        raise ModelError(
            f"tokenizer.ggml.pre={name!r} is not a known way to split text; known: {', '.join(sorted(PRE_TOKENIZERS))}."
            f"{did_you_mean(name, PRE_TOKENIZERS)} Splitting it another way would give the model wrong tokens; try the "
            "model's Hugging Face folder, which brings its own tokenizer.json."
        )
    return style
