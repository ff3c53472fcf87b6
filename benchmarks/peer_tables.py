"""What `cpu_peers.py` found, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

__all__ = ["quality_table", "start_table", "workload_table"]


def workload_table(run: dict[str, Any], quality: dict[str, Any] | None) -> str:
    """One workload; what each engine's precision costs stands beside its speed where that was measured."""
    header = ["engine", "version", "load, s", "wall, s", "output tokens/s", "equal leading tokens"]
    header += ["first row is faster by", "top-1 as fp32", "perplexity / fp32's"]
    judged = {} if quality is None else {row["label"]: row for row in quality["rows"]}
    rows = []
    for row in run["rows"]:
        cells = [row["label"], row["engine"], f"{row['load_s']:.1f}", f"{median(row['wall_s']):.2f}"]
        cells += [f"{row['output_tok_s']:.1f}", f"{row['equal_leading_tokens']:.1%}", _spread(row["speed_ratio"])]
        rows.append([*cells, *_quality_cells(judged.get(row["label"], {}))])
    title = f"{run['workload']}: {run['num_requests']} requests, {run['num_output_tokens']} output tokens"
    return _table(title, header, rows)


def start_table(run: dict[str, Any]) -> str:
    """From the spawn of a process to the first token."""
    header = ["engine", "version", "spawn to first token, s", "of it loading, s", "very first start, s"]
    header += ["first row is quicker by", "first token as the first row's"]
    rows = []
    for row in run["rows"]:
        times = row["first_token_s"]
        seconds = f"{median(times):.2f} ({min(times):.2f} .. {max(times):.2f})"
        cells = [row["label"], row["engine"], seconds, f"{median(row['load_s']):.2f}", f"{row['untimed_s']:.2f}"]
        rows.append([*cells, _spread(row["time_ratio"]), "yes" if row["is_first_token_equal"] else "no"])
    return _table(f"start: a prompt of {run['num_prompt_tokens']} tokens", header, rows)


def quality_table(quality: dict[str, Any]) -> str:
    """What each engine's precision takes from the model."""
    header = ["engine", "top-1 as fp32", "positions", "perplexity / fp32's", "positions with log-probabilities"]
    rows = []
    for row in quality["rows"]:
        agreement, ratio = _quality_cells(row)
        rows.append([row["label"], agreement, str(row["num_positions"]), ratio, str(row["num_scored"])])
    title = f"quality: {quality['num_windows']} windows of {quality['window_tokens']} tokens, teacher forcing, beside "
    return _table(title + quality["reference"], header, rows)


def _quality_cells(row: Mapping[str, Any]) -> tuple[str, str]:
    agreement, ratio = row.get("top1_agreement"), row.get("perplexity_ratio")
    return "-" if agreement is None else f"{agreement:.2%}", "-" if ratio is None else f"{ratio:.4f}"


def _spread(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} .. {ratio['max']:.2f})"


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"### {title}", "", *(f"| {' | '.join(line)} |" for line in lines)])
