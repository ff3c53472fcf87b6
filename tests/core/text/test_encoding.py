"""Encoding gives the library's own ids, and lets other threads go on meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from tokenloom.text import Tokenizer
from tokenloom.text.control_marks import ControlMarks
from tokenloom.text.encoding import encoding_of

LONG = "word é dog, " * 30_000
WAYS: dict[str, Callable[[Tokenizer, str], list[int]]] = {
    "encode": lambda tokenizer, text: tokenizer.encode(text),
    "plain": lambda tokenizer, text: tokenizer.encode(text, allow_special=False),
    "marked": lambda tokenizer, text: tokenizer.encode_marked(text, ControlMarks((), ())),
}


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """How often another thread has had its turn. Nobody has to give one away, only to let it be taken."""
    count, is_over, usual_s = 0, threading.Event(), sys.getswitchinterval()

    def run() -> None:
        nonlocal count
        while not is_over.wait(0.0005):
            count += 1

    thread = threading.Thread(target=run)
    thread.start()
    sys.setswitchinterval(100.0)
    try:
        yield lambda: count
    finally:
        sys.setswitchinterval(usual_s)
        is_over.set()
        thread.join()


@pytest.mark.parametrize("way", WAYS)
def test_other_threads_go_on_while_a_long_text_is_encoded(tokenizer: Tokenizer, way: str) -> None:
    WAYS[way](tokenizer, "word")  # what is built once
    with counting() as count:
        before = count()
        ids = WAYS[way](tokenizer, LONG)
        after = count()
    assert len(ids) > 30_000
    assert after > before


@pytest.mark.parametrize("text", ["", "a", " dog", "<|im_end|>é\n\n 日本\x00", "x" * 3000, "word é " * 500], ids=len)
def test_encoding_is_that_of_the_librarys_encode(tokenizer: Tokenizer, text: str) -> None:
    library: LibraryTokenizer = tokenizer._library
    usual, found = library.encode(text, add_special_tokens=False), encoding_of(library, text)
    assert (found.ids, found.offsets) == (usual.ids, usual.offsets)
