"""Readers of traces: what they take, what they refuse, and where arrivals land."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tokenloom.errors import ConfigError
from tokenloom.simulation.timed_request import TimedRequest
from tokenloom.simulation.trace_files import BlockChain, read_block_chains, read_requests, spread_buckets

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:51.2224670,879,55
"""


def mooncake(path: Path, lines: Sequence[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_azure_csv_gives_lengths_and_seconds_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    requests = read_requests(path)
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in requests] == [(374, 44), (396, 109), (879, 55)]
    assert [r.arrival_s for r in requests] == pytest.approx([0.0, 4.314579, 64.541877], abs=1e-6)
    assert len(read_requests(path, limit=2)) == 2


def test_mooncake_lines_give_shared_blocks(tmp_path: Path) -> None:
    path = mooncake(
        tmp_path / "trace.jsonl",
        [
            {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
            {"timestamp": 6000, "input_length": 700, "output_length": 6, "hash_ids": [0, 2]},
        ],
    )
    assert read_requests(path) == [TimedRequest(0.0, 600, 5, (0, 1)), TimedRequest(3.0, 700, 6, (0, 2))]
    assert read_block_chains(path) == [BlockChain(3.0, (0, 1)), BlockChain(6.0, (0, 2))]


def test_a_bench_workload_arrives_at_once(tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text(json.dumps([{"prompt": [3, 4], "max_tokens": 2}, {"prompt": [5], "max_tokens": 1}]))
    assert read_requests(path) == [
        TimedRequest(0.0, 2, 2, token_ids=(3, 4)),
        TimedRequest(0.0, 1, 1, token_ids=(5,)),
    ]


def test_arrivals_are_spread_inside_their_bucket_and_keep_their_order() -> None:
    counts = {0.0: 3, 3.0: 5, 6.0: 1, 12.0: 4}
    requests = [TimedRequest(time_s, 1, number) for time_s, count in counts.items() for number in range(count)]
    spread = spread_buckets(requests, seed=1)
    assert [r.num_output_tokens for r in spread] == [r.num_output_tokens for r in requests]
    assert [r.arrival_s for r in spread] == sorted(r.arrival_s for r in spread)
    for before, after in zip(requests, spread, strict=True):
        # A bucket is 3 s wide, also the one before the gap of 6 s and the last.
        assert before.arrival_s <= after.arrival_s < before.arrival_s + 3.0
    assert len({r.arrival_s for r in spread}) == len(spread)
    assert spread == spread_buckets(requests, seed=1) != spread_buckets(requests, seed=2)


def test_a_trace_without_buckets_is_left_alone() -> None:
    requests = [TimedRequest(time_s, 1, 1) for time_s in (0.0, 0.1, 7.0)]
    assert spread_buckets(requests, seed=0) == requests


def test_requests_come_in_order_of_arrival(tmp_path: Path) -> None:
    path = mooncake(
        tmp_path / "trace.jsonl",
        [
            {"timestamp": time_ms, "input_length": 1, "output_length": 1, "hash_ids": [0]}
            for time_ms in (9000, 1000, 5000)
        ],
    )
    assert [r.arrival_s for r in read_requests(path)] == [0.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "time,in,out\n", "line 1: expected the columns TIMESTAMP,ContextTokens"),
        ("a.csv", AZURE + "2023-11-16 18:17:00,x,1\n", "line 5: ContextTokens must be a whole number from 1 to"),
        ("a.csv", AZURE + "2023-11-16 18:17:00,1\n", "line 5: expected a value for each of TIMESTAMP,ContextTokens,"),
        ("a.csv", AZURE + "2023-11-16 18:17", "line 5: expected a value for each of TIMESTAMP,ContextTokens,"),
        ("a.csv", AZURE + "2023-11-16 18:17:00,1,2,3\n", "line 5: expected a value for each of"),
        ("a.csv", AZURE + "\n\n2023-11-16 18:17:00,1\n", "line 7: expected a value for each of"),
        ("a.csv", AZURE + "yesterday,1,1\n", "line 5: TIMESTAMP: "),
        ("a.csv", AZURE + "2023-11-16 18:17:00+00:00,1,1\n", "line 5: TIMESTAMP: "),
        ("a.csv", AZURE + "2023-11-16 18:17:00,0,1\n", "line 5: ContextTokens must be a whole number"),
        ("a.csv", AZURE + "2023-11-16 18:17:00,1,-1\n", "line 5: GeneratedTokens must be a whole number from 1 to"),
        ("a.csv", AZURE + f"2023-11-16 18:17:00,{10**12},1\n", "line 5: ContextTokens must be a whole number"),
        ("a.csv", AZURE + f"2023-11-16 18:17:00,{'9' * 5000},1\n", "line 5: ContextTokens must be a whole number"),
        ("a.csv", AZURE + "x" * 200_000 + "\n", "line 5: "),
        ("a.csv", "", "line 1: expected the columns"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("a.jsonl", "", "no requests"),
        ("a.jsonl", "{}\n", "line 1: timestamp"),
        ("a.jsonl", "\n\n[", "line 3"),
        (
            "a.jsonl",
            '{"timestamp": 0, "input_length": 10000000000, "output_length": 1, "hash_ids": []}',
            "input_length",
        ),
        ("a.json", "[" * 100_000, "is not JSON"),
        ("a.jsonl", '{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []}', "line 1: timestamp"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["x"]}', "hash_ids.0"),
        ("a.json", "[]", "no requests"),
        ("a.txt", "", "must end in"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_requests(path)
    assert message in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.csv: No such file"):
        read_requests(tmp_path / "gone.csv")
    with pytest.raises(ConfigError, match="hash_ids"):
        read_block_chains(tmp_path / "gone.csv")


@pytest.mark.parametrize(
    ("chains", "line", "message"),
    [
        ([[11, 12, 4, 6], [2], [14], [14, 12, 15, 6, 2]], 4, "12 follows 14 here, but follows 11 on line 1"),
        ([[1, 2], [2]], 2, "2 comes first here, but follows 1 on line 1"),
        ([[2], [1], [1, 2]], 3, "2 follows 1 here, but comes first on line 1"),
        ([[1, 2], [5, 5]], 2, "5 follows 5 here, but comes first on line 2"),
        ([[1, 2, 1]], 1, "1 follows 2 here, but comes first on line 1"),
    ],
)
def test_an_id_that_follows_two_others_is_refused(
    tmp_path: Path, chains: list[list[int]], line: int, message: str
) -> None:
    path = mooncake(tmp_path / "trace.jsonl", [{"hash_ids": ids} for ids in chains])
    with pytest.raises(ConfigError) as caught:
        read_block_chains(path)
    told = f"trace.jsonl: line {line}: hash_ids: {message}; an id stands for a block and all before it"
    assert told in str(caught.value)
    assert line == 1 or read_block_chains(path, limit=line - 1), "what comes behind the limit is not read"


def test_chains_need_no_lengths(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "trace.jsonl", [{"hash_ids": [4, 5]}, {"hash_ids": []}, {"hash_ids": [4]}])
    assert read_block_chains(path, limit=2) == [BlockChain(0.0, (4, 5)), BlockChain(0.0, ())]
