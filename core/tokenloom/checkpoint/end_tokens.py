"""Tokens that end a reply by their text alone: GGUF files of many chat models name only the end of a whole text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["END_TOKEN_TEXTS", "end_tokens_by_text"]

END_TOKEN_TEXTS = frozenset(
    {
        "<end_of_turn>",  # Gemma 2 and 3
        "<turn|>",  # Gemma 4
        "<eos>",
        "<|end|>",  # Phi-3
        "<|eot_id|>",  # Llama 3
        "<|eom_id|>",
        "<|end_of_text|>",  # Llama 3, Granite
        "<|im_end|>",  # ChatML
        "<|endoftext|>",
        "<|END_OF_TURN_TOKEN|>",  # Command R
        "<|end_of_turn|>",  # OpenChat
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
        "<end_of_utterance>",  # SmolVLM
        "<|return|>",  # Harmony
        "<|call|>",
        "[EOT]",  # Kimi
        "[EOS]",
        "<EOT>",
        "</s>",
    }
)
"""What other engines end at as well, where a file does not say it in a key."""

_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type
_WITHIN_HARMONY = "<|end|>"  # there it parts a reply's sections; `<|return|>` ends it


def end_tokens_by_text(tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    """The ids of all tokens whose text ends a reply, ascending.

    Args:
        tokens: their texts, by id.
        types: of the same ids, in the numbers of `tokenizer.ggml.token_type`. Only control tokens count, and
            user-defined ones, as older converters call them; ordinary text that looks like one ends nothing.
    """
    known = [(token, token_id) for token_id, token in enumerate(tokens) if token in END_TOKEN_TEXTS]
    ids = {
        token: token_id
        for token, token_id in known
        if token_id < len(types) and types[token_id] in (_CONTROL, _USER_DEFINED)
    }
    if "<|return|>" in ids:
        ids.pop(_WITHIN_HARMONY, None)
    return tuple(sorted(ids.values()))
