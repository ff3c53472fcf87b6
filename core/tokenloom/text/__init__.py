"""Between text and token ids: tokenizer, chat template, incremental detokenizer."""

from __future__ import annotations

from tokenloom.text.chat_template import ChatTemplate
from tokenloom.text.detokenizer import IncrementalDetokenizer, TextDelta
from tokenloom.text.tokenizer import Tokenizer, build_tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "TextDelta", "Tokenizer", "build_tokenizer"]
