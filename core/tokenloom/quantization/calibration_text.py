"""Texts to calibrate with: a file of the user's, or one made of what Python and Debian ship.

The built-in text has the docstrings of the standard library's modules (those that are one file), of their classes and
functions, and Debian's licenses.
Evaluation's built-in text is another one, and a paragraph that both would have is left out here: nothing is judged by
what it was fitted to.
"""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenloom.errors import ConfigError
from tokenloom.evaluation.texts import read_file, read_text
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["BUILT_IN_CALIBRATION", "CalibrationText", "calibration_sequences", "calibration_text"]

BUILT_IN_CALIBRATION = "docstrings of Python's standard library, Debian's licenses"
"""What model cards call the built-in text."""

_LICENSES = Path("/usr/share/common-licenses")
_LEAST_CHARACTERS = 40
"""Of a docstring; shorter ones are much alike."""


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Pieces that may be run in any order, and what model cards call them."""

    name: str
    pieces: tuple[str, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of all pieces, in hexadecimal digits."""
        return hashlib.sha256("\n\n".join(self.pieces).encode()).hexdigest()


def calibration_text(path: Path | None) -> CalibrationText:
    """Reads a file, as one piece, or makes the built-in text for None.

    Raises:
        ConfigError: the file cannot be read, is no UTF-8 or is empty.
    """
    if path is None:
        judged = set(_paragraphs(read_text(None).text))
        pieces = (_without(piece, judged) for piece in (*_docstrings(), *_licenses()))
        return CalibrationText(BUILT_IN_CALIBRATION, tuple(dict.fromkeys(piece for piece in pieces if piece)))
    text = read_file(path, f"calibration={path}", "text like that which the model will see")
    return CalibrationText(path.name, (text,))


def calibration_sequences(
    text: CalibrationText, tokenizer: Tokenizer, num_sequences: int, num_tokens: int, seed: int
) -> list[list[int]]:
    """Token ids of equally long parts of a text, each begun as a prompt is: by BOS where the model has one.

    Args:
        text: its pieces are put behind each other in an order that `seed` decides.
        tokenizer: of the model.
        num_sequences: how many parts.
        num_tokens: tokens of each, BOS counted.
        seed: also decides which parts of a long piece are taken.

    Returns:
        [num_sequences][num_tokens]

    Raises:
        ConfigError: the text is too short, and says how long it is; or parts are no longer than what begins them.
    """
    prefix = list(tokenizer.prefix_ids)
    length = num_tokens - len(prefix)  # of a part's text
    if length < 1:
        raise ConfigError(f"sample_tokens={num_tokens}: the model begins every text by {len(prefix)} tokens; take more")
    draw = random.Random(seed)
    pieces = list(text.pieces)
    draw.shuffle(pieces)
    wanted, token_ids = num_sequences * length, list[int]()
    for piece in pieces:
        token_ids += tokenizer.encode(piece + "\n\n", add_special_tokens=False, allow_special=False)
        if len(pieces) > 1 and len(token_ids) >= wanted:
            break
    if len(token_ids) < wanted:
        raise ConfigError(
            f"calibration: the text has {len(token_ids)} tokens, and num_samples={num_sequences} of "
            f"sample_tokens={num_tokens} need {wanted}; lower one of them, or name a longer file"
        )
    starts = range(0, len(token_ids) - length + 1, length)
    chosen: Sequence[int] = sorted(draw.sample(starts, num_sequences))
    return [prefix + token_ids[start : start + length] for start in chosen]


def _docstrings() -> Iterator[str]:
    """Of the standard library, a module's at a time, in the order of file names."""
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.glob("*.py")):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):  # what a distribution left out or broke is no text
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented))
        yield "\n\n".join(each for each in found if len(each) >= _LEAST_CHARACTERS)


def _licenses() -> Iterator[str]:
    if _LICENSES.is_dir():
        for file in sorted(_LICENSES.iterdir()):
            if file.is_file() and not file.is_symlink():
                yield file.read_text(encoding="utf-8", errors="replace")


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs with their white space made one blank each, so that indentation hides nothing."""
    return (" ".join(part.split()) for part in text.split("\n\n"))


def _without(piece: str, judged: set[str]) -> str:
    """The piece without paragraphs of the evaluation text."""
    kept = (part for part in piece.split("\n\n") if " ".join(part.split()) not in judged)
    return "\n\n".join(kept).strip()
