"""Profiles of a tiny model that really runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.bench.workload import WorkloadItem
from tokenloom.errors import ConfigError
from tokenloom.llm import LLM
from tokenloom.models.decoder_layer import PreNormLayer
from tokenloom.observability.profile_run import Profiler

SMALL = ("cache.num_blocks=64", "scheduler.max_num_batched_tokens=48", "engine.num_threads=1", "model.dtype=float32")
WORKLOAD = [WorkloadItem(prompt=[7 * number + position for position in range(20)], max_tokens=8) for number in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)


def test_phases_of_a_real_model_follow_each_other(model: Path) -> None:
    profiler = Profiler()
    told: list[int] = []
    words = (*SMALL, "spec_decode=ngram", "spec_decode.min_n=1")
    with LLM(str(model), words, taps=profiler.taps) as llm:
        # Whatever token comes, it stood in the prompt: there is always something to propose.
        workload = [WorkloadItem(prompt=list(range(256)), max_tokens=8)]
        profiler.run(llm, workload, num_steps=3, num_skipped=6, progress=told.append)
        assert not llm.engine.has_work()
        assert llm.generate([1, 2, 3])[0].outputs[0].token_ids
    assert told == [*range(1, 10)]
    assert [step.step_id for step in profiler.steps] == [6, 7, 8]
    for step in profiler.steps:
        outer = [phase for phase in step.phases if not phase.is_inner]
        inner = [phase for phase in step.phases if phase.is_inner]
        assert [phase.name for phase in outer] == [
            *("schedule", "commit plan", "launch", "commit", "finish", "detokenize"),
        ]
        assert all(phase.start_s <= phase.end_s for phase in step.phases)
        assert [phase.name for phase in inner][:3] == ["build", "forward", "logits"]
        assert ("verify" in {phase.name for phase in inner}) == (step.num_draft_tokens > 0)
        launch = outer[2]
        assert inner[0].start_s == launch.start_s
        assert inner[-1].end_s <= launch.end_s
    assert any(step.num_draft_tokens for step in profiler.steps)


def test_operations_lie_within_their_steps_and_name_the_layers(model: Path) -> None:
    original = PreNormLayer.attention_part
    profiler = Profiler(with_ops=True)
    with LLM(str(model), SMALL, taps=profiler.taps) as llm:
        trace = profiler.run(llm, WORKLOAD, num_steps=5)
    assert PreNormLayer.attention_part is original
    events: list[dict[str, Any]] = trace["traceEvents"]
    launches = [event for event in events if event.get("cat") == "step" and event["name"] == "launch"]
    marks = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("step ")]
    assert [mark["name"] for mark in marks] == [f"step {number}" for number in range(5)]
    for launch, mark in zip(launches, marks, strict=True):
        assert launch["ts"] < mark["ts"] + mark["dur"] / 2 < launch["ts"] + launch["dur"]
    names = [event.get("name") for event in events]
    for layer in range(2):
        assert names.count(f"layer {layer} attention") == 5
        assert names.count(f"layer {layer} ffn") == 5
    assert any(str(name).startswith("aten::") for name in names)


def test_workload_that_ends_before_is_refused_and_a_short_one_is_not(model: Path) -> None:
    profiler = Profiler()
    with LLM(str(model), SMALL, taps=profiler.taps) as llm:
        with pytest.raises(ConfigError, match="skip=50: the workload ended after 9 steps"):
            profiler.run(llm, WORKLOAD, num_steps=3, num_skipped=50)
        profiler.run(llm, WORKLOAD, num_steps=100)
        assert 7 < len(profiler.steps) < 12
