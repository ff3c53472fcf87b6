"""A tokenizer that an engine leaves for front ends, so that they need not open the model, which takes torch."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import cast

from tokenloom.text.tokenizer import Tokenizer

__all__ = ["TOKENIZER_SUFFIX", "read_tokenizer", "write_tokenizer"]

TOKENIZER_SUFFIX = ".tokenizer"


def write_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Writes a file whose name ends in `TOKENIZER_SUFFIX`, in a folder that only this user may enter."""
    assert path.suffix == TOKENIZER_SUFFIX, f"{path} does not say what it is"
    path.write_bytes(pickle.dumps(tokenizer))


def read_tokenizer(path: Path) -> Tokenizer:
    """Reads what an engine of this user has written."""
    return cast(Tokenizer, pickle.loads(path.read_bytes()))
