"""One tiny target and its corpus for all tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.drafter_training.tiny_corpus import CPU, make, write_target
from tokenloom.drafter_training.corpus import Corpus
from tokenloom.drafter_training.target import Target, read_target


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the target."""
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="package")
def corpus_folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    make(model, folder)
    return folder


@pytest.fixture(scope="package")
def target(model: Path) -> Target:
    """The parts of it that training reads."""
    return read_target(model, CPU)


@pytest.fixture
def corpus(corpus_folder: Path) -> Corpus:
    """Every fourth conversation is held out."""
    return Corpus(corpus_folder, max_tokens=400, held_out_every=4)
