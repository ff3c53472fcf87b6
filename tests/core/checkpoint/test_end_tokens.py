"""Which tokens end a reply by their text."""

from __future__ import annotations

import pytest

from tokenloom.checkpoint.end_tokens import end_tokens_by_text

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def test_end_tokens_are_found_by_text_in_ascending_order() -> None:
    tokens = ["a", "<|im_end|>", "<|im_start|>", "<end_of_turn>", "<|end|>"]
    assert end_tokens_by_text(tokens, [NORMAL, CONTROL, CONTROL, USER_DEFINED, NORMAL]) == (1, 3)


def test_end_of_a_section_ends_no_reply_of_harmony() -> None:
    tokens = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"]
    assert end_tokens_by_text(tokens, [CONTROL] * 4) == (1, 2)
    assert end_tokens_by_text(tokens[:2], [CONTROL] * 2) == (0, 1)


@pytest.mark.parametrize("types", [[], [NORMAL], ["control", "control"], [None, None]])
def test_tokens_without_a_type_end_nothing(types: list[int]) -> None:
    assert end_tokens_by_text(["a", "<|im_end|>"], types) == ()
