"""docs/observability.md: its table is the code's, and its commands run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom import LLM
from tokenloom.cli import main
from tokenloom.observability.metric_table import METRICS
from tokenloom.observability.profile_run import Profiler
from tokenloom.server.settings import ServerSettings

DOCUMENT = (Path(__file__).resolve().parent.parent / "docs" / "observability.md").read_text(encoding="utf-8")
SMALL = ("cache.num_blocks=64", "engine.num_threads=1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)


def test_table_shows_every_metric_as_it_is() -> None:
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOCUMENT.splitlines()
        if re.match(r"\| `\w+` \| (counter|gauge|histogram) ", line)
    ]
    expected = [
        [
            f"`{metric.name}{'_total' if metric.kind == 'counter' else ''}`",
            metric.kind,
            " ".join(f"`{label}`" for label in metric.labels),
            metric.meaning,
            "yes" if metric.is_in_vllm else "",
        ]
        for metric in METRICS.values()
    ]
    assert shown == expected


def test_reasons_of_rejections_are_named() -> None:
    (line,) = re.findall(r"- \*\*Rejections\*\*.*?(?=\n-)", DOCUMENT, re.DOTALL)
    assert all(f"`{reason}`" in line for (reason,) in METRICS["request_rejections"].initial)


def test_keys_exist() -> None:
    keys = set(re.findall(r"`server\.(\w+)=", DOCUMENT))
    assert keys == {"vllm_metric_names", "metrics_tenant_label", "otel_endpoint"}
    assert keys <= set(ServerSettings.model_fields)


def test_profile_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    (command,) = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom ")]
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:], f"model={model}", *SMALL]) == 0
    named = set(re.findall(r"`([a-z ]+)`", DOCUMENT.partition("Each step is a slice")[2].partition("A step's")[0]))
    printed = {line.strip().split("  ")[0] for line in capsys.readouterr().out.splitlines()}
    # Without a drafter nothing is verified or proposed.
    assert named - printed == {"verify", "propose"}
    trace: dict[str, Any] = json.loads((tmp_path / "trace.json").read_text())
    assert sum(event["name"].startswith("step ") for event in trace["traceEvents"]) == 20


def test_python_example_runs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("LLM(", f"LLM({str(model)!r}, {SMALL!r}, "), names)
    assert "('forward', " in capsys.readouterr().out
    assert isinstance(names["profiler"], Profiler)
    assert isinstance(names["llm"], LLM)
