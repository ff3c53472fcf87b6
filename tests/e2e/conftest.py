"""Engines on a tiny fp32 model, with every plugin that is installed plus the tests' own scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom import LLM
from tokenloom.compose import compose_config
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.plugins import Registry

TINY_OVERRIDES = (
    "model.dtype=float32",
    "cache.num_blocks=400",
    "debug.checks=full",
    "executor.poison_kv=true",
    "engine.num_threads=1",
)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a byte-level tokenizer."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), with_tokenizer=True, vocab_size=320)


@pytest.fixture(scope="session")
def test_registry() -> Registry:
    """The installed plugins and the tests' own."""
    own = EntryPoint("tests", "tests.e2e.preempting_scheduler", "tokenloom")
    return Registry.discover([*entry_points(group="tokenloom"), own])


@pytest.fixture
def build_llm(tiny_folder: Path, test_registry: Registry) -> Iterator[Callable[..., LLM]]:
    """Builds engines on the tiny model, build_llm("cache=none", scheduler=PluginChoice(...)); closes them last."""
    built: list[LLM] = []

    def build(*overrides: str, scheduler: PluginChoice | None = None, **keywords: Any) -> LLM:
        composed = compose_config(
            [f"model={tiny_folder}", *TINY_OVERRIDES, *overrides], keywords=keywords, registry=test_registry
        )
        if scheduler is not None:
            engine = composed.engine.model_copy(update={"scheduler": scheduler})
            composed = type(composed)(engine, composed.extras, composed.sources, composed.choices)
        llm = LLM(config=composed, registry=test_registry, show_progress=False)
        built.append(llm)
        return llm

    yield build
    for llm in built:
        llm.close()
