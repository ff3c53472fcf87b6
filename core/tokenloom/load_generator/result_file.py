"""Result files: figures to read, then every request in one line each, with its raw times."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenloom.load_generator.load_request import RequestRecord

__all__ = ["record_to_dict", "result_text", "write_results"]


def write_results(path: Path, results: Mapping[str, tuple[Mapping[str, Any], Sequence[RequestRecord]]]) -> None:
    """Writes one result as an object, several as an object of objects by name."""
    texts = [result_text(result, records) for result, records in results.values()]
    if len(texts) > 1:
        named = (f"{json.dumps(name)}: {text}" for name, text in zip(results, texts, strict=True))
        texts = ["{\n" + ",\n".join(named) + "\n}"]
    path.write_text(f"{texts[0]}\n", encoding="utf-8")


def result_text(result: Mapping[str, Any], records: Sequence[RequestRecord]) -> str:
    """One result as JSON, its requests behind the figures."""
    figures = json.dumps(result, indent=1, allow_nan=False).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(record_to_dict(r), separators=(",", ":"), allow_nan=False) for r in records)
    return f'{figures},\n "requests": [\n  {lines}\n ]\n}}'


def record_to_dict(record: RequestRecord) -> dict[str, Any]:
    """One request as plain data, without what is empty.

    `chunks_us` holds microseconds: from `sent_s` to the first chunk, then from each chunk to the next.
    """
    fields = {
        "number": record.number,
        "outcome": str(record.outcome),
        "failure": record.failure,
        "message": record.message,
        "scheduled_s": round(record.scheduled_s, 6),
        "sent_s": round(record.sent_s, 6),
        "end_s": round(record.end_s, 6),
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "max_tokens": record.max_tokens,
        "output_tokens": record.num_output_tokens,
        "finish_reason": record.finish_reason,
        "slo_factor": None if record.slo_factor == 1.0 else record.slo_factor,
        "chunk_tokens": None if set(record.chunk_tokens) <= {1} else list(record.chunk_tokens),
        "chunks_us": _gaps_us(record.sent_s, record.chunk_times_s),
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}


def _gaps_us(sent_s: float, times_s: array[float]) -> list[int]:
    # Rounded before the difference is taken, so that the sum of gaps does not drift.
    moments = [round(1e6 * time_s) for time_s in (sent_s, *times_s)]
    return [later - earlier for earlier, later in pairwise(moments)]
