"""Readers of request traces: Azure CSV, Mooncake JSON lines, and workload files of `tokenloom bench`.

Sources: AzurePublicDataset, "LLM inference traces 2023" (TIMESTAMP,ContextTokens,GeneratedTokens); Qin et al.,
"Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving" (2024), whose traces hold timestamp (ms),
input_length, output_length and hash_ids: the ids of the prompt's blocks of 512 tokens, each standing for all before it.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tokenloom.bench.workload import read_workload
from tokenloom.errors import ConfigError
from tokenloom.settings_validation import located_fault
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["MOONCAKE_BLOCK_TOKENS", "BlockChain", "read_block_chains", "read_requests", "spread_buckets"]

MOONCAKE_BLOCK_TOKENS = 512

_Line = TypeVar("_Line", bound=BaseModel)

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class BlockChain:
    """The blocks of one prompt, from its start, and when it came (seconds)."""

    arrival_s: float
    block_ids: tuple[int, ...]


class _ChainLine(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", strict=True)

    timestamp: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    hash_ids: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...]


class _MooncakeLine(_ChainLine):
    timestamp: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    input_length: Annotated[int, Field(ge=1)]
    output_length: Annotated[int, Field(ge=1)]


def read_requests(path: Path, *, limit: int | None = None, seed: int = 0) -> list[TimedRequest]:
    """Reads a workload in order of arrival; the first request arrives at 0.

    Args:
        path: .csv (Azure), .jsonl (Mooncake), or .json (`tokenloom bench`; all arrive at once).
        limit: only the first so many requests.
        seed: places the arrivals of a Mooncake trace within their bucket.

    Raises:
        ConfigError: the file cannot be read; names the file, the line and what is wrong.
    """
    readers = {".csv": _azure, ".jsonl": _mooncake, ".json": _workload}
    if path.suffix not in readers:
        raise ConfigError(
            f"workload={path}: its name must end in .csv (Azure), .jsonl (Mooncake) or .json (a list of "
            '{"prompt": [ids], "max_tokens": n})'
        )
    requests = sorted(islice(readers[path.suffix](path), limit), key=lambda request: request.arrival_s)
    if not requests:
        raise ConfigError(f"workload={path} has no requests")
    if path.suffix == ".jsonl":
        requests = spread_buckets(requests, seed)
    first_s = requests[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - first_s) for request in requests]


def read_block_chains(path: Path, *, limit: int | None = None) -> list[BlockChain]:
    """Reads the `hash_ids` (and the timestamps, if there are any) of a Mooncake trace, in the order of the file.

    Raises:
        ConfigError: the file cannot be read; names the file, the line and what is wrong.
    """
    if path.suffix != ".jsonl":
        raise ConfigError(f"workload={path}: a replay of the cache needs hash_ids; name a Mooncake trace (.jsonl)")
    lines = (_parse(path, number, text, _ChainLine) for number, text in _lines(path))
    chains = [BlockChain(line.timestamp / 1000, line.hash_ids) for line in islice(lines, limit)]
    if not chains:
        raise ConfigError(f"workload={path} has no requests")
    return chains


def spread_buckets(requests: Sequence[TimedRequest], seed: int) -> list[TimedRequest]:
    """Spreads requests that bear one timestamp over the time until the next: uniformly at random, order kept.

    A timestamp stands for a bucket as wide as most gaps between timestamps. A trace without repeated timestamps is left
    as it is.
    """
    counts = Counter(request.arrival_s for request in requests)
    times = sorted(counts)
    if len(times) == len(requests) or len(times) < 2:
        return list(requests)
    gaps = {earlier: later - earlier for earlier, later in pairwise(times)}
    width_s = Counter(round(gap, 3) for gap in gaps.values()).most_common(1)[0][0]
    draw = random.Random(seed)
    spread = [
        time_s + offset
        for time_s in times
        for offset in sorted(draw.random() * min(width_s, gaps.get(time_s, width_s)) for _ in range(counts[time_s]))
    ]
    return [replace(request, arrival_s=time_s) for request, time_s in zip(requests, spread, strict=True)]


def _azure(path: Path) -> Iterator[TimedRequest]:
    start: datetime | None = None
    for number, row in enumerate(csv.reader(text for _, text in _lines(path)), start=1):
        if number == 1:
            if tuple(row) != _AZURE_COLUMNS:
                raise ConfigError(f"workload={path}: line 1: expected the columns {','.join(_AZURE_COLUMNS)}")
            continue
        try:
            time, num_prompt, num_output = datetime.fromisoformat(row[0]), int(row[1]), int(row[2])
            # Two clocks in one file would be a fault of the file, too.
            start = time if start is None else start
            arrival_s = (time - start).total_seconds()
        except (ValueError, IndexError, TypeError) as error:
            raise ConfigError(f"workload={path}: line {number}: {error}") from error
        if num_prompt < 1 or num_output < 1:
            raise ConfigError(f"workload={path}: line {number}: lengths must be at least 1, got {row[1]} and {row[2]}")
        yield TimedRequest(arrival_s, num_prompt, num_output)


def _mooncake(path: Path) -> Iterator[TimedRequest]:
    for number, text in _lines(path):
        line = _parse(path, number, text, _MooncakeLine)
        yield TimedRequest(
            line.timestamp / 1000, line.input_length, line.output_length, line.hash_ids, MOONCAKE_BLOCK_TOKENS
        )


def _workload(path: Path) -> Iterator[TimedRequest]:
    for item in read_workload(path):
        yield TimedRequest(0.0, len(item.prompt), item.max_tokens, token_ids=tuple(item.prompt))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except OSError as error:
        raise ConfigError(f"workload={path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"workload={path} is not text: {error}") from error


def _parse(path: Path, number: int, text: str, kind: type[_Line]) -> _Line:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        fault = located_fault(error.errors(include_url=False)[0], "the line")
        raise ConfigError(f"workload={path}: line {number}: {fault}") from error
