"""What is asked for: generated requests, files, and the prompts written for them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tokenloom.errors import ConfigError
from tokenloom.load_generator.endpoint import Endpoint
from tokenloom.load_generator.prompt_files import read_planned_requests
from tokenloom.load_generator.prompts import PromptWriter, load_requests, read_tokenizer
from tokenloom.load_generator.workloads import FileWorkload, GeneratedWorkload, PlannedRequest
from tokenloom.simulation.load_generation import LoadShape, generate_load
from tokenloom.simulation.request_mix import RequestMix
from tokenloom.simulation.timed_request import TimedRequest

PLAIN = RequestMix()


class Spelling:
    """Decodes each id to itself and a space."""

    def decode(self, token_ids: list[int]) -> str:
        return "".join(f"{token_id} " for token_id in token_ids)


def planned(num_prompt: int, shared: tuple[int, ...] = (), block: int = 4) -> PlannedRequest:
    return PlannedRequest(TimedRequest(0.0, num_prompt, 5, shared, block))


def test_generated_requests_are_those_of_the_simulator() -> None:
    shape = LoadShape(rate=4.0, prompt_tokens=20, length_spread=0.5)
    found = list(GeneratedWorkload(shape, PLAIN, 10).requests(seed=3))
    assert [request.timed for request in found] == generate_load(shape, 10, 3)


def test_an_endless_workload_does_not_repeat_itself() -> None:
    workload = GeneratedWorkload(LoadShape(prompt_tokens=1000, length_spread=1.0), PLAIN, None)
    lengths = [r.timed.num_prompt_tokens for r in itertools.islice(workload.requests(seed=1), 1024)]
    assert len({tuple(lengths[start : start + 256]) for start in range(0, 1024, 256)}) == 4
    again = itertools.islice(workload.requests(seed=1), 1024)
    assert lengths == [r.timed.num_prompt_tokens for r in again]


def test_arrivals_of_a_file_are_kept_stretched_or_drawn() -> None:
    requests = [PlannedRequest(TimedRequest(time_s, 3, 1)) for time_s in (0.0, 1.0, 4.0)]

    def arrivals(**settings: float) -> list[float]:
        return [r.timed.arrival_s for r in FileWorkload(requests, PLAIN, **settings).requests(seed=2)]

    assert arrivals() == [0.0, 1.0, 4.0]
    assert arrivals(rate=1.0) == [0.0, 0.5, 2.0]
    drawn = arrivals(rate=1.0, burstiness=1.0)
    assert drawn == [r.arrival_s for r in generate_load(LoadShape(rate=1.0), 3, 2)]


def test_priorities_and_targets_are_drawn() -> None:
    mix = RequestMix(num_priorities=3, relaxed_share=0.5, relaxed_factor=4.0)
    found = [r.timed for r in GeneratedWorkload(LoadShape(), mix, 50).requests(seed=0)]
    assert {request.priority for request in found} == {0, 1, 2}
    assert {request.slo_factor for request in found} == {1.0, 4.0}


@pytest.mark.parametrize("form", ["token_ids", "text"])
def test_prompts_are_equal_exactly_as_far_as_they_are_shared(form: str) -> None:
    writer = PromptWriter("token_ids" if form == "token_ids" else "text", seed=1, vocab_size=32000)

    def units(request: PlannedRequest, number: int) -> list[object]:
        prompt = writer.write(request, number)
        return list(prompt.split() if isinstance(prompt, str) else prompt)

    first, second, other = units(planned(10, (7,)), 0), units(planned(10, (7,)), 1), units(planned(10, (8,)), 2)
    assert [len(found) for found in (first, second, other)] == [10, 10, 10]
    assert first[:4] == second[:4]
    assert first[4:] != second[4:]
    assert first[:4] != other[:4]
    assert units(planned(10, (7,)), 0) == first
    # A prompt may end within a shared block.
    assert units(planned(6, (7, 9)), 3) == units(planned(6, (7, 9)), 4)


@pytest.mark.parametrize(("vocab_size", "lowest"), [(32000, 256), (300, 150), (2, 1)])
def test_token_ids_stay_within_the_vocabulary(vocab_size: int, lowest: int) -> None:
    prompt = PromptWriter("token_ids", 0, vocab_size).write(planned(500), 0)
    assert isinstance(prompt, list)
    assert lowest <= min(prompt)
    assert max(prompt) < vocab_size


def test_token_ids_become_text_where_only_text_is_taken() -> None:
    own = PlannedRequest(TimedRequest(0.0, 2, 1, token_ids=(5, 6)))
    assert PromptWriter("token_ids", 0, 100).write(own, 0) == [5, 6]
    assert PromptWriter("text", 0, 100, Spelling()).write(own, 0) == "5 6 "
    drawn = PromptWriter("text", 0, 100, Spelling()).write(planned(3), 0)
    assert [int(word) for word in str(drawn).split()] == PromptWriter("token_ids", 0, 100).write(planned(3), 0)
    with pytest.raises(ConfigError, match="tokenizer="):
        PromptWriter("text", 0, 100).write(own, 0)


def test_requests_carry_bodies_with_priorities_where_there_are_any() -> None:
    endpoint = Endpoint("http://localhost/v1", "completions", "tiny")
    requests = [
        PlannedRequest(TimedRequest(0.0, 0, 5), "Hello"),
        PlannedRequest(TimedRequest(1.5, 0, 6, priority=2, slo_factor=3.0), "World"),
    ]
    first, second = load_requests(iter(requests), PromptWriter("text", 0, 100), endpoint)
    assert json.loads(first.body) == {
        "model": "tiny",
        "prompt": "Hello",
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert json.loads(second.body)["priority"] == 2
    assert (second.number, second.arrival_s, second.max_tokens, second.slo_factor) == (1, 1.5, 6, 3.0)


def read(path: Path, limit: int | None = None) -> list[PlannedRequest]:
    return read_planned_requests(path, limit=limit, seed=0, output_tokens=9)


def test_prompts_are_read_from_lines_and_json_lines(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("one\n\n  two words \nthree\n", encoding="utf-8")
    assert [(r.text, r.timed.num_output_tokens) for r in read(lines, 2)] == [("one", 9), ("two words", 9)]
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["first turn", "second turn"]},
        {"prompt": "plain", "max_tokens": 3},
    ]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert [(r.text, r.timed.num_output_tokens) for r in read(questions)] == [("first turn", 9), ("plain", 3)]


def test_workloads_of_the_simulator_are_read_too(tmp_path: Path) -> None:
    mooncake = tmp_path / "trace.jsonl"
    mooncake.write_text('{"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [4]}')
    (request,) = read(mooncake)
    assert (request.text, request.timed.shared_ids) == (None, (4,))
    ids = tmp_path / "bench.json"
    ids.write_text('[{"prompt": [1, 2], "max_tokens": 3}]')
    assert read(ids)[0].timed.token_ids == (1, 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", " \n", "has no requests"),
        ("p.jsonl", '{"prompt": "a", "turns": ["b"]}', "line 1: the line: expected either"),
        ("p.jsonl", '{"prompt": "a"}\n{"turns": []}', "line 2: turns"),
        ("p.jsonl", '{"prompt": 3}', "line 1: prompt"),
        ("p.xml", "", r"\.csv"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_a_missing_file_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not text"):
        read(tmp_path / "bytes.txt")


def test_a_tokenizer_is_read_from_its_file_or_folder(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert read_tokenizer(path).decode([1, 0]) == "b a"
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path / "elsewhere")
