"""Texts to calibrate with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ConfigError
from tokenloom.evaluation.texts import read_text
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.quantization.calibration_text import CalibrationText, calibration_sequences, calibration_text
from tokenloom.text.tokenizer import Tokenizer, build_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path / "model", with_tokenizer=True))
    return build_tokenizer(checkpoint.tokenizer_source(), 256)


def paragraphs(text: str) -> set[str]:
    return {" ".join(part.split()) for part in text.split("\n\n")} - {""}


def test_the_built_in_text_shares_no_paragraph_with_that_of_evaluation() -> None:
    text = calibration_text(None)
    assert len("".join(text.pieces)) > 500_000
    judged = paragraphs(read_text(None).text)
    assert judged & {paragraph for piece in text.pieces for paragraph in paragraphs(piece)} == set()


def test_a_file_is_one_piece(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one\n\ntwo")
    assert calibration_text(file).pieces == ("one\n\ntwo",)
    assert calibration_text(file).name == "text.txt"


@pytest.mark.parametrize(("content", "expected"), [(b"", "is empty"), (b"\xff\xfe\xfa", "is not text in UTF-8")])
def test_a_file_without_text_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        calibration_text(file)
    with pytest.raises(ConfigError, match="No such file"):
        calibration_text(tmp_path / "absent.txt")


def test_sequences_follow_from_the_seed(tokenizer: Tokenizer) -> None:
    text = CalibrationText("t", tuple(chr(97 + number) * 50 for number in range(20)))
    first = calibration_sequences(text, tokenizer, 5, 40, seed=0)
    assert first == calibration_sequences(text, tokenizer, 5, 40, seed=0)
    assert first != calibration_sequences(text, tokenizer, 5, 40, seed=1)
    assert [len(each) for each in first] == [40] * 5
    long = CalibrationText("t", ("".join(chr(32 + number % 90) for number in range(1000)),))
    assert calibration_sequences(long, tokenizer, 3, 20, seed=0) != calibration_sequences(
        long, tokenizer, 3, 20, seed=1
    )


def test_each_part_begins_as_a_prompt_does(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"bos_token": "!", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = build_tokenizer(open_checkpoint(folder).tokenizer_source(), 256)
    assert tokenizer.encode("a")[0] == ord("!")
    found = calibration_sequences(CalibrationText("t", ("abcdefgh" * 20,)), tokenizer, 4, 9, seed=0)
    assert all(part[0] == ord("!") and len(part) == 9 for part in found)
    assert len({bytes(part[1:]) for part in found}) == 1  # 8 tokens of the text each
    with pytest.raises(ConfigError, match="sample_tokens=1: the model begins every text by 1 tokens"):
        calibration_sequences(CalibrationText("t", ("text",)), tokenizer, 1, 1, seed=0)


def test_a_text_that_is_too_short_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="the text has 12 tokens, and num_samples=2 of sample_tokens=10 need 20"):
        calibration_sequences(CalibrationText("t", ("ten bytes.",)), tokenizer, 2, 10, seed=0)
