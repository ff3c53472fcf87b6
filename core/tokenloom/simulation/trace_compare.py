"""Compares decision traces: the first plan or result that differs, and whose it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, final

from tokenloom.tracing.records import Record
from tokenloom.tracing.trace_file import TraceFile

__all__ = ["Divergence", "TraceDiff", "compare_traces", "first_difference"]


@final
@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two runs part.

    Attributes:
        step: of the plan; None before the first or behind the last one.
        what: "plan", "result", "arrive" or "end".
        request: whose part differs; None if it is not about one.
        detail: which value differs, or what went wrong.
        first, second: the whole record of both; None where one has none.
    """

    step: int | None
    what: str
    request: str | None
    detail: str
    first: Record | None
    second: Record | None


@final
@dataclass(frozen=True, slots=True)
class TraceDiff:
    """Two traces side by side: the first divergence, None if all decisions are equal, and counts of each."""

    divergence: Divergence | None
    counts: tuple[dict[str, int], dict[str, int]]


def compare_traces(first: TraceFile, second: TraceFile) -> TraceDiff:
    """Compares arrivals, ends, plans and results in order. Times and the clock's readings may differ."""
    divergence, step = None, None
    counters: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for one, other in zip_longest(_counted(first, counters[0]), _counted(second, counters[1])):
        if divergence is not None:
            continue
        step = next((record["step"] for record in (one, other) if record and "step" in record), step)
        divergence = _compare(step, one, other)
    return TraceDiff(divergence, (dict(counters[0]), dict(counters[1])))


def _compare(step: int | None, one: Record | None, other: Record | None) -> Divergence | None:
    what = str((one or other or {})["event"])
    if one is None or other is None:
        return Divergence(step, what, _request_of(one or other), "only one of the traces goes on", one, other)
    if one["event"] != other["event"]:
        detail = f"{one['event']} in the first, {other['event']} in the second"
        return Divergence(step, what, _request_of(one), detail, one, other)
    found = first_difference(one, other)
    return None if found is None else Divergence(step, what, *found, one, other)


_TIMES = frozenset({"clock", "times_s", "arrival_s"})
"""What differs from run to run."""


def first_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str | None, str] | None:
    """The request whose part of two records of one kind differs first, and how; None if they are equal."""
    for row, other_row in zip_longest(first.get("rows", ()), second.get("rows", ())):
        if row != other_row:
            return _row_difference(row, other_row)
    for name in sorted((first.keys() | second.keys()) - _TIMES - {"rows"}):
        one, other = first.get(name), second.get(name)
        if one != other:
            return _request_of(first, name), f"{name} is {one} in the first, {other} in the second"
    return None


def _row_difference(one: Record | None, other: Record | None) -> tuple[str | None, str]:
    names = [None if row is None else _request_of(row) for row in (one, other)]
    if one is None or other is None:
        return names[0] or names[1], "only one of them has a row for it"
    if names[0] != names[1]:
        return names[0], f"{names[1]} stands in its place"
    key = next(name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))
    return names[0], f"{key} is {one.get(key)} in the first, {other.get(key)} in the second"


def _request_of(record: Mapping[str, Any] | None, name: str = "") -> str | None:
    """Whose record or row this is; of a list of preemptions, the first one's."""
    if record is None:
        return None
    found = record.get("request", record.get("request_id", record.get("id")))
    if found is None and name == "preempted" and record["preempted"]:
        found = record["preempted"][0]["request_id"]
    return None if found is None else str(found)


def _counted(trace: TraceFile, counter: Counter[str]) -> Iterator[Record]:
    for record in trace.records():
        counter.update(_counts(record))
        yield record


def _counts(record: Record) -> dict[str, int]:
    rows: Sequence[Record] = record.get("rows", ())
    if record["event"] == "arrive":
        return {"requests": 1, "prompt tokens": len(record["prompt"])}
    if record["event"] == "end":
        return {f"ended by {record['reason']}": 1}
    if record["event"] == "plan":
        scheduled = sum(row["tokens"] for row in rows)
        return {"steps": 1, "scheduled tokens": scheduled, "preemptions": len(record["preempted"])}
    emitted = sum(len(row["token_ids"]) for row in rows)
    return {"output tokens": emitted, "lost swaps": len(record["lost"])}
