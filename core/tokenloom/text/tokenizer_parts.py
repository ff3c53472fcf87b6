"""What a checkpoint says about its tokenizer, in one form for GGUF and Hugging Face: the input of `Tokenizer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from tokenloom.text.token_bytes import TextForm

__all__ = ["TokenizerParts"]


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A built tokenizer and the facts that the `tokenizers` library does not keep.

    Attributes:
        library: vocabulary, splitting and added tokens; its own post-processor and decoder are not used.
        text_form: how a token's string turns into the bytes of the text.
        bos_token_id: the token that begins a sequence, or None.
        eos_token_ids: every token that ends a reply, the most usual one first.
        prefix_ids: tokens that `add_special_tokens=True` puts before a text.
        suffix_ids: tokens that it puts after a text.
        named_tokens: `bos_token`, `eos_token`, ... with their strings, as chat templates know them.
        chat_template: Jinja source, or None.
    """

    library: tokenizers.Tokenizer
    text_form: TextForm
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    named_tokens: Mapping[str, str]
    chat_template: str | None
