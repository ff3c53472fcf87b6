"""How a byte-level vocabulary splits text into words before it merges: a table of the names in `tokenizer.ggml.pre`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Sequence, Split

from tokenloom.errors import ModelError, did_you_mean
from tokenloom.text import split_patterns

__all__ = ["PRE_TOKENIZERS", "SplitStyle", "split_style"]


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


def _falcon() -> PreTokenizer:
    # The last two steps see bytes, written as characters of which some (½, ²) count as digits.
    groups_of_three = Split(Regex("[0-9][0-9][0-9]"), "isolated")
    return Sequence([Punctuation("contiguous"), _gpt2(), Digits(individual_digits=False), groups_of_three])


def _by(patterns: tuple[str, ...]) -> Callable[[], PreTokenizer]:
    def build() -> PreTokenizer:
        splits: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


_GPT2 = SplitStyle(_gpt2)
_NEOX = SplitStyle(_gpt2, nfc=True)
_SINGLE_DIGITS = SplitStyle(_single_digits)
_LLAMA3 = SplitStyle(_by(split_patterns.LLAMA3), ignore_merges=True, add_bos=True)
_LLAMA3_PLAIN = SplitStyle(_by(split_patterns.LLAMA3))
_QWEN2 = SplitStyle(_by(split_patterns.QWEN2), nfc=True)
_QWEN2_PLAIN = SplitStyle(_by(split_patterns.QWEN2))
_GPT_4O = SplitStyle(_by(split_patterns.GPT_4O))
_DEEPSEEK_V3 = SplitStyle(_by(split_patterns.DEEPSEEK_V3))
_BLOOM = SplitStyle(_by(split_patterns.BLOOM))
_BAILING = SplitStyle(_by(split_patterns.BAILING))
_AYA = SplitStyle(_by(split_patterns.AYA))

_STYLES: dict[SplitStyle, str] = {
    SplitStyle(_by(split_patterns.DEFAULT)): "default",
    _GPT2: (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 jais trillion "
        "granite-docling"
    ),
    _NEOX: "mpt olmo",
    _SINGLE_DIGITS: "starcoder refact smollm codeshell exaone minerva-7b mellum2",
    SplitStyle(_single_digits, nfc=True): "command-r",
    SplitStyle(_falcon): "falcon",
    _LLAMA3: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    _LLAMA3_PLAIN: "smaug-bpe dbrx glm4 chatglm-bpe",
    _QWEN2: "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2",
    _QWEN2_PLAIN: "hunyuan solar-open grok-2",
    SplitStyle(_by(split_patterns.QWEN35), nfc=True): "qwen35",
    SplitStyle(_by(split_patterns.TEKKEN), ignore_merges=True, add_bos=True): "tekken",
    _GPT_4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    SplitStyle(_by(split_patterns.DEEPSEEK_LLM)): "deepseek-llm",
    SplitStyle(_by(split_patterns.DEEPSEEK_CODER)): "deepseek-coder",
    _DEEPSEEK_V3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    SplitStyle(_by(split_patterns.KIMI)): "kimi-k2",
    SplitStyle(_by(split_patterns.SEED_CODER)): "seed-coder",
    _BAILING: "bailingmoe bailingmoe2 llada-moe",
    SplitStyle(_by(split_patterns.EXAONE_MOE)): "exaone-moe",
    SplitStyle(_by(split_patterns.YOUTU), ignore_merges=True): "youtu",
    SplitStyle(_by(split_patterns.MINICPM5), ignore_merges=True): "minicpm5",
    SplitStyle(_by(split_patterns.JAIS2)): "jais-2",
    _AYA: "tiny_aya cohere2moe",
    _BLOOM: "bloom poro-chat gpt3-finnish",
    SplitStyle(_by(split_patterns.VIKING)): "viking",
}

PRE_TOKENIZERS: dict[str, SplitStyle] = {name: style for style, names in _STYLES.items() for name in names.split()}


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
