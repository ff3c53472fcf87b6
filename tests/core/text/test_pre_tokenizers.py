"""Each way to split, against words that were derived from its rule by hand; and that no byte of a text is lost."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.errors import ModelError
from tokenloom.text import Tokenizer
from tokenloom.text.pre_tokenizers import PRE_TOKENIZERS, split_style
from tokenloom.text.token_bytes import BYTE_OF_CHAR

# Of each rule one name; the others are in the table below.
RULES = [
    *("default", "gpt-2", "mpt", "smollm", "command-r", "falcon", "llama-bpe", "smaug-bpe", "qwen2", "hunyuan"),
    *("qwen35", "tekken", "gpt-4o", "deepseek-llm", "deepseek-coder", "deepseek-v3", "kimi-k2", "seed-coder"),
    *("bailingmoe", "exaone-moe", "youtu", "minicpm5", "jais-2", "tiny_aya", "bloom", "viking"),
]

# text -> for each rule the words, joined by "|" (which is in none of the texts).
CASES: dict[str, dict[str, str]] = {
    "a 1234567": {
        "default falcon": "a| |123|456|7",
        "gpt-2 mpt bloom": "a| 1234567",
        "smollm command-r qwen2 hunyuan qwen35 tekken deepseek-coder": "a| |1|2|3|4|5|6|7",
        "seed-coder bailingmoe exaone-moe youtu viking": "a| |1|2|3|4|5|6|7",
        "llama-bpe smaug-bpe gpt-4o deepseek-v3 kimi-k2 minicpm5 jais-2": "a| |123|456|7",
        "tiny_aya": "a| |1|234|567",  # groups of three, counted from the right
        "deepseek-llm": "a| |1234567",
    },
    "He'll say'S": {
        "default falcon deepseek-llm deepseek-coder": "He|'|ll| say|'|S",
        "gpt-2 mpt smollm command-r": "He|'ll| say|'|S",  # only small suffixes count
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe exaone-moe minicpm5 jais-2": "He|'ll| say|'S",
        "tekken": "He|'ll| say|'S",  # no suffixes, but a word may begin with a sign
        "gpt-4o kimi-k2 youtu tiny_aya": "He'll| say'S",
        "deepseek-v3": "He|'ll| say|'S",
        "bloom viking": "He'll| say'S",
    },
    "x'ly": {
        "gpt-2 mpt smollm command-r default falcon deepseek-llm deepseek-coder": "x|'|ly",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe exaone-moe minicpm5 jais-2": "x|'ly",
        "tekken gpt-4o kimi-k2 youtu tiny_aya deepseek-v3": "x|'ly",
        "bloom viking": "x'ly",
    },
    "getURLNow IPhone": {
        "gpt-2 mpt smollm command-r default falcon deepseek-llm deepseek-coder": "getURLNow| IPhone",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe minicpm5 jais-2": "getURLNow| IPhone",
        "exaone-moe": "getURLNow IPhone",  # words that one space parts stay together
        # small letters end a word; capitals before small letters belong to them
        "tekken gpt-4o kimi-k2 youtu tiny_aya": "get|URLNow| IPhone",
        "deepseek-v3 bloom viking": "getURLNow| IPhone",
    },
    "我们go日本": {
        "gpt-2 mpt smollm command-r default falcon bloom viking": "我们go日本",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe exaone-moe minicpm5 jais-2": "我们go日本",
        "tekken gpt-4o tiny_aya": "我们go日本",  # letters without case count as small and as capital
        "deepseek-v3 kimi-k2 youtu": "我们|go|日本",
        "deepseek-llm deepseek-coder": "我们|go|日本",
    },
    "はい。한국": {
        "gpt-2 mpt smollm command-r default falcon": "はい|。|한국",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe minicpm5 jais-2": "はい|。한국",
        "exaone-moe tekken gpt-4o kimi-k2 tiny_aya": "はい|。한국",
        "youtu": "はい|。|한국",
        "deepseek-v3": "はい|。|한국",  # a word does not begin with a sign, except one of ASCII's
        "deepseek-llm deepseek-coder": "はい|。|한국",
        "bloom viking": "はい|。|한국",
    },
    "end.\n\nSo": {
        "default falcon gpt-2 mpt smollm command-r": "end|.|\n|\n|So",  # the last break stands alone
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 minicpm5 jais-2": "end|.\n\n|So",
        "bailingmoe tekken gpt-4o kimi-k2 youtu tiny_aya deepseek-v3": "end|.\n\n|So",
        "exaone-moe": "end|.\n|\n|So",  # a sign takes one line break along
        "seed-coder": "end|.|\n\n|So",  # none
        "deepseek-llm deepseek-coder": "end|.|\n|\n|So",
        "bloom viking": "end|.\n\n|So",
    },
    "a \t\n  b": {
        "default falcon gpt-2 mpt smollm command-r": "a| \t\n | b",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe exaone-moe minicpm5": "a| \t\n| | b",
        "tekken gpt-4o kimi-k2 youtu tiny_aya deepseek-v3 jais-2": "a| \t\n| | b",
        "deepseek-llm deepseek-coder": "a| \t|\n| | b",
        "bloom viking": "a| \t\n | b",
    },
    "a/b": {
        "gpt-2 mpt smollm command-r default falcon deepseek-llm deepseek-coder": "a|/|b",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe exaone-moe minicpm5 jais-2": "a|/b",
        "tekken gpt-4o kimi-k2 youtu tiny_aya deepseek-v3": "a|/b",
        "bloom viking": "a/b",
    },
    "!//\nx": {
        "gpt-2 mpt smollm command-r default falcon seed-coder deepseek-llm deepseek-coder": "!//|\n|x",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 bailingmoe exaone-moe minicpm5 jais-2 deepseek-v3 kimi-k2": "!//\n|x",
        "tekken gpt-4o youtu tiny_aya": "!//\n|x",
        "bloom viking": "!|//|\n|x",
    },
    "x\n/y": {
        "gpt-2 mpt smollm command-r default falcon deepseek-llm deepseek-coder": "x|\n|/|y",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe exaone-moe minicpm5 jais-2": "x|\n|/y",
        "tekken gpt-4o kimi-k2 youtu tiny_aya deepseek-v3": "x|\n|/y",
        "bloom viking": "x|\n|/y",
    },
    "$5+£3": {
        "default": "$|5|+|£|3",
        "falcon": "$|5|+|£|3",
        "gpt-2 mpt smollm command-r": "$|5|+£|3",
        "llama-bpe smaug-bpe qwen2 hunyuan qwen35 seed-coder bailingmoe exaone-moe minicpm5 jais-2": "$|5|+£|3",
        "tekken gpt-4o kimi-k2 youtu tiny_aya deepseek-v3": "$|5|+£|3",
        "deepseek-llm": "$|5|+|£|3",
        "deepseek-coder": "$|5|+£|3",  # neither is punctuation, so they are what lies between the digits
        "bloom": "$5+£3",
        "viking": "$|5|+£|3",
    },
    "e\u0301t": {  # e with a combining accent, and a t
        "gpt-2 mpt smollm command-r default falcon": "e|\u0301|t",
        "llama-bpe smaug-bpe qwen2 hunyuan seed-coder bailingmoe minicpm5 jais-2": "e|\u0301t",
        "qwen35 exaone-moe tekken gpt-4o kimi-k2 youtu tiny_aya deepseek-v3": "e\u0301t",
        "deepseek-llm deepseek-coder": "e|\u0301|t",
        "bloom viking": "e\u0301t",
    },
}


@cache
def _split(name: str, text: str) -> list[str]:
    words = [word for word, _ in PRE_TOKENIZERS[name].build().pre_tokenize_str(text)]
    return [bytes(BYTE_OF_CHAR[char] for char in word).decode(errors="backslashreplace") for word in words]


_FLAT = [
    pytest.param(name, text, words, id=f"{name}-{text!r}")
    for text, expected in CASES.items()
    for names, words in expected.items()
    for name in names.split()
]


@pytest.mark.parametrize(("name", "text", "words"), _FLAT)
def test_each_rule_splits_as_its_models_do(name: str, text: str, words: str) -> None:
    assert _split(name, text) == words.split("|")


@pytest.mark.parametrize("text", CASES)
def test_the_cases_cover_every_rule(text: str) -> None:
    assert sorted(name for names in CASES[text] for name in names.split()) == sorted(RULES)


def test_every_name_belongs_to_a_rule_that_is_tested() -> None:
    tested = {id(PRE_TOKENIZERS[name]) for name in RULES}
    assert len(tested) == len(RULES)
    assert {name for name, style in PRE_TOKENIZERS.items() if id(style) not in tested} == set()


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (("llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), "llama-bpe"),
        (("dbrx",), "smaug-bpe"),
        (("deepseek-r1-qwen", "megrez", "stablelm2"), "qwen2"),
        (("starcoder", "refact", "exaone"), "smollm"),
        (("llama4", "minimax-m2"), "gpt-4o"),
        (("olmo",), "mpt"),
        (("hunyuan-dense",), "deepseek-v3"),
        (("poro-chat",), "bloom"),
    ],
)
def test_names_share_the_rule_of_their_family(names: tuple[str, ...], rule: str) -> None:
    assert all(split_style(name) is split_style(rule) for name in names)


def test_long_runs_of_spaces_end_before_the_word() -> None:
    text = " " * 11 + "x"
    for name in ("gpt-2", "smollm", "falcon", "llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-v3"):
        assert _split(name, text) == [" " * 10, " x"], name
    assert _split("jais-2", text) == [" " * 8, "  ", " x"]  # in powers of two
    assert _split("deepseek-coder", text) == [" " * 10, " x"]


def test_falcon_cuts_bytes_that_look_like_digits() -> None:
    # The second byte of м (d0 bc) is written as ¼, which its last steps take for a digit.
    assert _split("falcon", "м") == ["\\xd0", "\\xbc"]


def test_numerals_of_other_scripts_are_digits() -> None:
    for name in ("smollm", "qwen2", "tekken", "deepseek-coder", "viking"):
        assert _split(name, "٣٤") == ["٣", "٤"], name
    assert _split("llama-bpe", "٣٤٥٦") == ["٣٤٥", "٦"]
    assert _split("default", "٣٤٥٦") == ["٣٤٥٦"]  # groups of three only among ASCII's


def test_deepseek_llm_cuts_accented_letters_from_ascii() -> None:
    assert _split("deepseek-llm", "café") == ["caf", "é"]


def test_deepseek_llm_takes_scripts_without_case_for_cjk() -> None:
    assert _split("deepseek-llm", "a ქართული") == ["a", " ", "ქართული"]


@given(
    text=st.text(alphabet=st.one_of(st.sampled_from(" \t\r\n'aBé1٣.,/_$日は한e\u0301😀"), st.characters()), max_size=30)
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_no_rule_loses_a_byte(from_gguf: Callable[..., Tokenizer], trained_metadata: Any, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    for name in RULES:
        tokenizer = _built(from_gguf, trained_metadata, name)
        expected = unicodedata.normalize("NFC", text) if PRE_TOKENIZERS[name].nfc else text
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False, allow_special=False)) == expected


_TOKENIZERS: dict[str, Tokenizer] = {}


def _built(from_gguf: Callable[..., Tokenizer], metadata: Any, name: str) -> Tokenizer:
    if name not in _TOKENIZERS:
        _TOKENIZERS[name] = from_gguf(metadata | {"tokenizer.ggml.pre": name})
    return _TOKENIZERS[name]


def test_a_file_without_the_name_says_so(
    from_gguf: Callable[..., Tokenizer], metadata: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    del metadata["tokenizer.ggml.pre"]
    tokenizer = from_gguf(metadata)
    assert "tokenizer.ggml.pre is missing" in caplog.text
    named = from_gguf(metadata | {"tokenizer.ggml.pre": "default"})
    assert tokenizer.encode("He'll pay 1234!") == named.encode("He'll pay 1234!")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ModelError, match=r"pre='superbpe' is not a known way"):
        split_style("superbpe")
