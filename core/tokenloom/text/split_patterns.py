# ruff: noqa: RUF001 - the patterns are about such characters
r"""How byte-level vocabularies split text into words: patterns in the dialect of Oniguruma.

Each tuple is applied in order: what a pattern matches becomes a word, and so does what lies between two matches; the
next pattern splits those words further. They are facts about models, as their tokenizer.json files or, where those
are not public, llama.cpp's src/llama-vocab.cpp state them.
"""

from __future__ import annotations

__all__ = [
    "AYA",
    "BAILING",
    "BLOOM",
    "DEEPSEEK_CODER",
    "DEEPSEEK_LLM",
    "DEEPSEEK_V3",
    "DEFAULT",
    "EXAONE_MOE",
    "GPT_4O",
    "JAIS2",
    "KIMI",
    "LLAMA3",
    "MINICPM5",
    "QWEN2",
    "QWEN35",
    "SEED_CODER",
    "TEKKEN",
    "VIKING",
    "YOUTU",
]

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_AND_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CJK = r"[一-龥\x{800}-一가-\x{D7FF}]+"
_HAN_AND_KANA = r"[一-龥\x{3040}-\x{30FF}]+"

# Letters that have case, of the scripts that the first DeepSeek tokenizer lists; the exceptions are those it lacks.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2F}\x{A790}-\x{A7FF}"
    r"\x{AB30}-\x{AB6F}\x{10570}-\x{105BF}\x{10D50}-\x{10D8F}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DFFF}]]"
)


def _one_of(*alternatives: str) -> tuple[str]:
    return ("|".join(alternatives),)


def _camel_case(suffix: str = "", but: str = "") -> str:
    """Words that end before a capital letter that follows a small one; `but` takes letters out."""
    upper, lower = (rf"[{kinds}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]" for kinds in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}"


DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
LLAMA3 = _one_of(_SUFFIXES, _WORD, r"\p{N}{1,3}", _SYMBOLS, _LINES, _SPACES)
JAIS2 = _one_of(
    *(_SUFFIXES, _WORD, r"\p{N}{1,3}", _SYMBOLS, _LINES),
    *(rf"\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")),
    r"\s{1}",
)
MINICPM5 = (r"\p{N}{1,3}", *_one_of(_SUFFIXES, _WORD, r"\p{N}+", _SYMBOLS, _LINES, _SPACES))
QWEN2 = _one_of(_SUFFIXES, _WORD, r"\p{N}", _SYMBOLS, _LINES, _SPACES)
QWEN35 = _one_of(
    *(_SUFFIXES, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _LINES, _SPACES)
)
SEED_CODER = _one_of(_SUFFIXES, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _SPACES)
BAILING = _one_of(_SUFFIXES, _WORD, r"\p{N}", _SYMBOLS, r"\s*[\r\n]", _SPACES)
EXAONE_MOE = _one_of(
    *(_SUFFIXES, r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", r"\p{N}"),
    *(r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]", _SPACES),
)
TEKKEN = _one_of(_camel_case(), r"\p{N}", _SYMBOLS_AND_PATHS, _LINES, _SPACES)
GPT_4O = _one_of(_camel_case(f"{_SUFFIXES}?"), r"\p{N}{1,3}", _SYMBOLS_AND_PATHS, _LINES, _SPACES)
AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", *GPT_4O)
KIMI = _one_of(*(r"\p{Han}+", _camel_case(f"{_SUFFIXES}?", r"&&[^\p{Han}]"), r"\p{N}{1,3}", _SYMBOLS, _LINES, _SPACES))
YOUTU = (
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN_AND_KANA,
    *_one_of(_camel_case(f"{_SUFFIXES}?"), r"\p{N}", _SYMBOLS_AND_PATHS, _LINES, _SPACES),
)
DEEPSEEK_LLM = (r"[\r\n]", rf"\s?{_CASED}+", r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+", r"\s+$", _CJK, r"\p{N}+")
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    _HAN_AND_KANA,
    *_one_of(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
        *(r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _SPACES),
    ),
)
BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)
VIKING = (*BLOOM, r"\p{N}")
