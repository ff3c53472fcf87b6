"""/metrics and /debug/profile of a tiny model that is served, from the request to what Prometheus reads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.observability.samples import sample, samples_of
from tests.core.server.served_app import ServedApp
from tests.e2e.served_process import wait_until
from tests.tiny_model import write_tiny_llama
from tokenloom.compose import compose_config
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.engine_process.served_engine import served_engine
from tokenloom.llm import LLM
from tokenloom.observability.engine_metrics import EngineMetrics
from tokenloom.observability.profile_observer import ProfileObserver
from tokenloom.observability.timeline import StepTimeline

OVERRIDES = ("model.dtype=float32", "engine.num_threads=1", "cache.num_blocks=100", "scheduler.max_num_seqs=4")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)
    config = compose_config([f"model={folder}", *OVERRIDES])
    timeline = StepTimeline()
    with LLM(config=config, show_progress=False, taps=(timeline,)) as llm:
        served = served_engine(llm)
        observers = (EngineMetrics(llm.engine, config.engine), ProfileObserver(llm.engine, timeline, {}))
        with LocalEngine(served, observers=observers) as engine, ServedApp(engine) as app:
            yield app


def read(app: ServedApp) -> str:
    answer = app.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return answer.body.decode()


def test_requests_show_in_the_metrics(app: ServedApp) -> None:
    assert app.complete(prompt="x" * 40, max_tokens=6, ttft_slo_s=1000.0).status == 200
    assert app.complete(prompt="x" * 40, max_tokens=3, n=2).status == 200
    assert app.complete(prompt="x" * 40, max_tokens=3, stream=True).status == 200
    assert app.complete(prompt="x" * 600, max_tokens=3).status == 400
    assert app.get("/nothing").status == 404
    text = read(app)
    assert (sample(text, "engine_up"), sample(text, "engine_restarts_total")) == (1, 0)
    assert sample(text, "prompt_tokens_total") == 160
    assert sample(text, "generation_tokens_total") == 15
    assert sample(text, "prefix_cache_hits_total") > 0
    assert sample(text, "request_success_total", finished_reason="length") == 4
    assert [sample(text, f"request_params_n_{part}") for part in ("count", "sum")] == [3, 4]
    assert sample(text, "slo_requests_met_total", slo="ttft") == 1
    assert sample(text, "request_rejections_total", reason="invalid") == 1
    assert sample(text, "http_requests_total", route="/v1/completions", status="200") == 3
    assert sample(text, "http_requests_total", route="/v1/completions", status="400") == 1
    assert sample(text, "http_requests_total", route="other", status="404") == 1
    times = [sample(text, "front_end_time_seconds_count", stage=f"{side}_engine") for side in ("before", "after")]
    assert times == [3, 1]
    phases = {dict(labels)["phase"] for name, labels in samples_of(text) if "phase" in dict(labels)}
    assert phases >= {"plan", "build", "forward", "logits", "sample", "results", "commit"}


def test_nothing_runs_when_all_has_ended(app: ServedApp) -> None:
    text = read(app)
    assert [sample(text, f"num_requests_{name}") for name in ("running", "waiting")] == [0, 0]
    assert sample(text, "kv_cache_usage_perc") == 0
    # The scrape itself is being answered.
    assert sample(text, "http_requests_in_progress") == 1


def test_served_engine_is_profiled_over_http(app: ServedApp) -> None:
    busy = threading.Thread(target=lambda: app.complete(prompt="profile", max_tokens=400))
    busy.start()
    try:
        answer = app.get("/debug/profile?steps=5&timeout_s=60")
    finally:
        busy.join()
    assert answer.status == 200
    names = [event["name"] for event in answer.json["traceEvents"]]
    assert sum(name.startswith("step ") for name in names) == 5
    assert {"schedule", "forward", "commit"} <= set(names)


def test_profile_of_an_idle_engine_ends_in_time(app: ServedApp) -> None:
    answer = app.get("/debug/profile?timeout_s=0")
    assert answer.status == 200
    assert not [event for event in answer.json["traceEvents"] if event.get("cat") == "step"]


def test_profile_ends_when_the_server_drains(app: ServedApp) -> None:
    app.place.is_draining = True
    try:
        assert app.get("/debug/profile?timeout_s=300").status == 200
    finally:
        app.place.is_draining = False


def test_profile_ends_when_its_client_leaves(app: ServedApp) -> None:
    with socket.create_connection(("127.0.0.1", int(app.url.rpartition(":")[2]))) as client:
        client.sendall(b"GET /debug/profile?timeout_s=300 HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until("its begin", lambda: sample(read(app), "http_requests_in_progress") == 2)
    wait_until("its end", lambda: sample(read(app), "http_requests_in_progress") == 1)
    assert sample(read(app), "http_requests_total", route="/debug/profile", status="499") == 1


@pytest.mark.parametrize(
    "query",
    ["steps=0", "steps=1001", "steps=-1", "steps=nan", "steps=9223372036854775808", "timeout_s=nan", "timeout_s=301"],
)
def test_profile_refuses_what_makes_no_sense(app: ServedApp, query: str) -> None:
    answer = app.get(f"/debug/profile?{query}")
    assert answer.status == 400
    assert answer.error["param"] == query.partition("=")[0]


def test_profile_is_no_part_of_the_api(app: ServedApp) -> None:
    assert "/debug/profile" not in app.get("/openapi.json").json["paths"]


def test_front_ends_load_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    names = ("front_end_metrics", "http_observer", "spans", "request_trace", "shared_snapshots", "timeline")
    imports = "; ".join(f"import tokenloom.observability.{name}" for name in names)
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}; import sys; sys.exit('torch' in sys.modules)"], check=False, cwd=tmp_path
    )
    assert done.returncode == 0
