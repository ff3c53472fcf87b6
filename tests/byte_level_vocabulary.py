"""A small byte-level BPE vocabulary, trained here, as GGUF metadata."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

__all__ = ["CHATML", "CONTROLS", "byte_level_metadata"]

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all; isn't that so? It's 1234567.",
    "system user assistant: say hello to the world! im_start im_end endoftext 0123456789 3.14159 2024-01-31",
    "日本語のテキスト 中文文本 한국어 텍스트 é è ü ñ e\u0301 o\u0308 😀👍🏽 🇩🇪\n\n\n    indented\ttext",
)


def byte_level_metadata(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
    """The keys `tokenizer.ggml.*` and `tokenizer.chat_template`; `changes` to the former, without prefix."""
    tokens, merges = _trained()
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS) - 1) + [4],
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 2,
        **changes,
    }
    return {"tokenizer.chat_template": CHATML} | {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@cache
def _trained() -> tuple[list[str], list[str]]:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(CONTROLS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(_CORPUS * 3, trainer)
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return [*tokens, "<tool_call>"], [" ".join(pair) for pair in model["merges"]]
