"""Decision traces that are not as they were written: each field of each kind of record missing, or of another type."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.simulation.test_trace_replay import lines_of, record
from tokenloom.cli import main
from tokenloom.errors import ConfigError, PluginError
from tokenloom.simulation.trace_compare import compare_traces
from tokenloom.simulation.trace_replay import replay_trace
from tokenloom.tracing.trace_file import TraceFile

WRONG: tuple[Any, ...] = (None, "x", -1, 1.5, True, 10**30, [], [[]], {}, {"x": 1})
"""Values of every type; for any field all but a few are wrong."""

OPTIONAL = frozenset(
    {
        *("priority", "tenant", "retention_priority", "retention_ttl_s", "max_tokens", "mode", "keep_blocks"),
        *("drafts", "parents", "max_drafts", "num_accepted_tokens", "next_draft_token_ids", "next_draft_parents"),
        *("exports", "imports", "dropped", "copies", "transfer", "forward", "temperature", "ignore_eos"),
        "takes_drafts",
    }
)
"""Fields that records leave out where they have their default, and entries of mappings."""

Lines = list[dict[str, Any]]
Place = tuple[str | int, ...]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """A trace in which everything happens: swaps, lost ones, drafts, an abort, a cut."""
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    swaps = ("scheduler=priority", "scheduler.preempt_mode=swap", "executor.swap_loss=0.4")
    record(path, *swaps, "spec_decode=ngram", "executor.acceptance=[0.7]")
    return lines_of(path)


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every field in a record; of the entries of a list, the first."""
    members = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, member in members:
        yield (*place, name)
        yield from places(member, (*place, name))


def fields_of(lines: Lines, event: str) -> dict[Place, int]:
    """The fields that records of a kind have, and the first line that has each; indices of lists count as equal."""
    found: dict[Place, int] = {}
    for number, line in enumerate(lines):
        if line.get("event", "header") == event:
            for place in places(line):
                found.setdefault(place, number)
    return found


def damaged(lines: Lines, number: int, place: Place, value: Any, *, is_missing: bool = False) -> Lines:
    """The trace up to a little behind a line, with one field of that line changed."""
    changed = lines[: number + 6]
    changed[number] = copy.deepcopy(lines[number])
    holder: Any = changed[number]
    for part in place[:-1]:
        holder = holder[part]
    if is_missing:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return changed


def refusal(path: Path, lines: Lines) -> str | None:
    """What replaying and comparing say of a trace, which both name its file; None if both take it."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = None
    for use in (replay_trace, lambda trace: compare_traces(trace, trace)):
        try:
            use(TraceFile.open(path))
        except ConfigError as error:
            told = str(error)
            assert told.startswith(f"{path}:"), told
    return told


@pytest.mark.parametrize("event", ["header", "arrive", "end", "plan", "result"])
def test_every_field_that_is_missing_or_of_a_wrong_type_is_refused(lines: Lines, event: str, tmp_path: Path) -> None:
    path, fields = tmp_path / "t.jsonl", {p: n for p, n in fields_of(lines, event).items() if p[0] != "config"}
    assert len(fields) >= 5
    for place, number in fields.items():
        told = [refusal(path, damaged(lines, number, place, value)) for value in WRONG]
        if place[0] == "params" and len(place) == 2 and place[1] not in ("max_tokens", "min_tokens"):
            continue  # of the other sampling parameters, no decision depends
        # For a mapping, two are legal; else at most a number of either sort, and null.
        assert sum(text is None for text in told) <= 4, (place, told)
        if not isinstance(place[-1], int) and place[-1] not in OPTIONAL:
            missing = refusal(path, damaged(lines, number, place, None, is_missing=True))
            assert missing is not None, place
            assert missing.startswith(f"{path}:{number + 1}: "), missing
            assert str(place[-1]) in missing or place == ("format",)


def test_a_config_that_cannot_be_used_is_refused_with_the_file(lines: Lines, tmp_path: Path) -> None:
    for place in fields_of(lines, "header"):
        if place[0] == "config":
            for value in WRONG:
                with contextlib.suppress(PluginError):  # a name that no plugin has
                    refusal(tmp_path / "t.jsonl", damaged(lines, 0, place, value))


def test_lines_that_are_lost_doubled_or_in_another_order_end_no_command_by_a_bug(lines: Lines, tmp_path: Path) -> None:
    path, kept = tmp_path / "t.jsonl", lines[:40]
    for number in range(1, len(kept)):
        before, line, behind = kept[:number], kept[number], kept[number + 1 :]
        for changed in ([*before, *behind], [*before, line, line, *behind], [*before, *behind[:1], line, *behind[1:]]):
            refusal(path, changed)


def test_a_line_that_a_step_reads_ahead_is_damage_and_no_divergence(lines: Lines, tmp_path: Path) -> None:
    """Its readings of the clock are wanted before the line itself is."""
    path = tmp_path / "t.jsonl"
    for number in range(1, 40):
        text = [json.dumps(line) + "\n" for line in lines]
        text[number] = "{broken}\n"
        path.write_text("".join(text))
        with pytest.raises(ConfigError) as refusal:
            replay_trace(TraceFile.open(path))
        assert str(refusal.value).startswith(f"{path}:{number + 1}: no JSON object"), number


@pytest.mark.parametrize(
    ("event", "place", "value", "message"),
    [
        ("result", ("step",), 99, "a result, but of step 99, and the plan before it is of step"),
        ("result", ("rows",), [], "a result, but for the requests []"),
        ("result", ("rows", 0, "num_accepted_tokens"), 99, "rows.0: 99 accepted tokens exceed the"),
        ("end", ("num_output_tokens",), 1000, "num_output_tokens: 1000 of"),
        ("arrive", ("max_total_tokens",), 1000, "max_total_tokens: 1000 exceeds the 40 tokens"),
        ("arrive", ("prompt",), [10**6], "the replay cannot take this request: token id 1000000"),
        ("plan", ("clock",), [0.5], "clock: must be pairs of a time and how often it was read"),
    ],
)
def test_records_that_contradict_others_are_refused(
    lines: Lines, event: str, place: Place, value: Any, message: str, tmp_path: Path
) -> None:
    number = max(n for n, line in enumerate(lines) if line.get("event") == event)
    told = refusal(tmp_path / "t.jsonl", damaged(lines, number, place, value))
    assert told is not None
    assert told.startswith(f"{tmp_path / 't.jsonl'}:{number + 1}: {message}")


def test_more_accepted_drafts_than_were_planned_are_refused(lines: Lines, tmp_path: Path) -> None:
    """The computed frontier would run away."""
    firsts = [line["rows"][0] if line.get("rows") else {} for line in lines]
    number = next(n for n, row in enumerate(firsts) if row.get("token_ids") and "drafts" not in firsts[n - 1])
    told = refusal(tmp_path / "t.jsonl", damaged(lines, number, ("rows", 0, "num_accepted_tokens"), 1))
    assert f":{number + 1}: a result, but with 1 accepted drafts of r0, and the plan has 0" in str(told)


def test_plans_and_results_come_in_turn(lines: Lines, tmp_path: Path) -> None:
    plan, result = (next(n for n, line in enumerate(lines) if line.get("event") == e) for e in ("plan", "result"))
    path = tmp_path / "t.jsonl"
    assert "a result, but step 0 has no plan" in str(refusal(path, lines[:plan] + lines[plan + 1 :]))
    assert "a plan, but that of step 0 has no result yet" in str(refusal(path, lines[:result] + lines[result + 1 :]))


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\x80\x02\xff\x00" * 100, 1),
        (b"", 1),
        (b"[" * 100_000, 1),
        (b'{"format":"tokenloom.trace","version":1}\n', 1),
        (b"HEADER\n\xff\xfe\n", 2),
        (b'HEADER\n{"event":"pl\n', 2),
        (b'HEADER\n{"event":["plan"]}\n', 2),
        (b"HEADER\n\n", 2),
        (b"HEADER\nnull\n", 2),
    ],
)
@pytest.mark.parametrize("command", ["replay", "diff"])
def test_files_of_other_kinds_end_with_2_and_name_the_line(
    lines: Lines, content: bytes, place: int, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content.replace(b"HEADER", json.dumps(lines[0]).encode()))
    assert main(["trace", command, *[str(path)] * (2 if command == "diff" else 1)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {path}:{place}: ")
