"""Whatever our OpenAPI document allows, and much that it does not: never an answer of 5xx, and always one in time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.core.server.served_app import ServedApp
from tokenloom import LLM
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.observability.engine_metrics import EngineMetrics

MAX_EXAMPLES = int(os.environ.get("TOKENLOOM_FUZZ_EXAMPLES", "15"))
pytestmark = pytest.mark.slow

WITH_BODY = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
WITHOUT_BODY = ("/v1/models", "/v1/models/{name}", "/health", "/ping", "/ready", "/version", "/metrics")
MODES = [(path, mode) for path in WITH_BODY for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
MODES += [(path, GenerationMode.POSITIVE) for path in WITHOUT_BODY]


@pytest.fixture(scope="module")
def app(served_folder: Path) -> Iterator[ServedApp]:
    """A short context, so that no request can ask for much."""
    overrides = ("model.dtype=float32", "engine.num_threads=1", "model.max_model_len=48", "cache.num_blocks=100")
    limits = ("scheduler.max_num_seqs=8", "scheduler.max_queued_requests=8")
    llm = LLM(str(served_folder), (*overrides, *limits), show_progress=False)
    with (
        LocalEngine(llm, observers=[EngineMetrics(llm.engine, llm.config.engine)]) as engine,
        ServedApp(engine, served_model_names=("tiny",)) as served,
    ):
        yield served
    llm.close()


@pytest.fixture(scope="module")
def schema(app: ServedApp) -> Any:
    return schemathesis.openapi.from_url(f"{app.url}/openapi.json")


def test_every_path_is_in_the_document(schema: Any) -> None:
    assert {operation.ok().path for operation in schema.get_all_operations()} == {*WITH_BODY, *WITHOUT_BODY}


@pytest.mark.parametrize(("path", "mode"), MODES)
def test_no_request_gets_a_server_error(app: ServedApp, schema: Any, path: str, mode: GenerationMode) -> None:
    operation = next(op.ok() for op in schema.get_all_operations() if op.ok().path == path)

    @settings(
        max_examples=MAX_EXAMPLES if path in WITH_BODY else 3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(timeout=30)
        assert response.status_code < 500, (case.body, response.text)
        if response.status_code >= 400:
            assert set(response.json()) == {"error"}
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    ask()
    assert app.complete(prompt="x", max_tokens=2).status == 200
    assert app.place.reserved == [0]
