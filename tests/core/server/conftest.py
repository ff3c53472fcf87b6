"""A tiny model behind the whole HTTP application: in process for most tests, on a socket for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.server.served_app import ServedApp
from tests.tiny_model import write_tiny_llama
from tokenloom import LLM
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.observability.engine_live import EngineLive
from tokenloom.observability.engine_metrics import EngineMetrics
from tokenloom.server.model_text import load_model_text
from tokenloom.text.tokenizer import Tokenizer

ENGINE_OVERRIDES = (
    "model.dtype=float32",
    "engine.num_threads=1",
    "model.max_model_len=256",
    "cache.num_blocks=300",
    "scheduler.max_num_seqs=8",
    "scheduler.max_queued_requests=56",
)


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a byte-level tokenizer; a padded row ends the text."""
    end = {"eos_token_id": 256}
    folder = tmp_path_factory.mktemp("served")
    return write_tiny_llama(folder, with_tokenizer=True, vocab_size=320, extra_config=end)


@pytest.fixture(scope="session")
def byte_tokenizer(served_folder: Path) -> Tokenizer:
    """The tiny model's tokenizer: a token is a byte; ids from 256 on have no text."""
    return load_model_text(str(served_folder)).tokenizer


@pytest.fixture(scope="session")
def served_engine(served_folder: Path) -> Iterator[LocalEngine]:
    """An engine in a thread."""
    llm = LLM(str(served_folder), ENGINE_OVERRIDES, show_progress=False)
    metrics = EngineMetrics(llm.engine, llm.config.engine)
    with LocalEngine(llm, observers=[metrics, EngineLive(llm.engine)]) as engine:
        yield engine
    llm.close()


@pytest.fixture(scope="session")
def api(served_engine: LocalEngine) -> Iterator[ServedApp]:
    """The application with its default settings."""
    with ServedApp(served_engine, served_model_names=("tiny",)) as app:
        yield app


@pytest.fixture
def serve(served_engine: LocalEngine) -> Iterator[Callable[..., ServedApp]]:
    """Serves the same engine with other settings: serve(api_keys=("secret",))."""
    apps: list[ServedApp] = []

    def start(**settings: Any) -> ServedApp:
        apps.append(ServedApp(served_engine, **{"served_model_names": ("tiny",), **settings}))
        return apps[-1]

    yield start
    for app in apps:
        app.close()
