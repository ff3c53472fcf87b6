"""The built-in logits processors keep their contract."""

from __future__ import annotations

from tokenloom.testing import LogitsProcessorSuite


class TestNoRepeatNgram(LogitsProcessorSuite):
    plugin = "no_repeat_ngram"
    settings = {"size": 3}


class TestNoRepeatNgramOfTheOutput(LogitsProcessorSuite):
    plugin = "no_repeat_ngram"
    settings = {"size": 2, "include_prompt": False}
