"""Tables of `tokenloom eval`: the figures of one model, and variants side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom.cli.console import print_table
from tokenloom.cli.sizes import size_text

__all__ = ["print_tasks", "print_variants"]

_Figures = Mapping[str, Any]


def print_tasks(result: _Figures) -> None:
    """Prints the figures of every task that ran, with their intervals."""
    rows: list[Sequence[str]] = []
    for task, figures in result["tasks"].items():
        rows += [(task, *row) for row in _TASK_ROWS[task](figures)]
    if result["reference"] is not None:
        found = result["reference"]["tasks"]["perplexity"]
        rows.append(("reference", *_row(found, "perplexity", "perplexity", "{:.4f}")))
    print_table(("task", "figure", "value", f"{result['confidence']:.0%} interval"), rows)


def _perplexity_rows(figures: _Figures) -> list[tuple[str, str, str]]:
    rows = [_row(figures, "perplexity", "perplexity", "{:.4f}")]
    if "kl_mean" in figures:
        rows += [
            _row(figures, "perplexity_ratio", "perplexity / reference's", "{:.5f}"),
            _row(figures, "top1_agreement", "same likeliest token", "{:.2%}"),
            _row(figures, "kl_mean", "KL, mean, nats", "{:.6f}"),
            *((f"KL, {p}th percentile", f"{figures[f'kl_p{p}']:.6f}", "") for p in (50, 90, 99)),
            ("KL, greatest", f"{figures['kl_max']:.6f}", ""),
        ]
    rows.append(("scored", f"{figures['num_tokens']} tokens, {figures['num_windows']} windows", ""))
    return rows


def _choice_rows(figures: _Figures) -> list[tuple[str, str, str]]:
    return [
        _row(figures, "acc", "acc", "{:.2%}"),
        _row(figures, "acc_norm", "acc_norm", "{:.2%}"),
        ("questions", str(figures["num_questions"]), ""),
    ]


def _retrieval_rows(figures: _Figures) -> list[tuple[str, str, str]]:
    rows = [_row(own, "accuracy", f"{length} tokens", "{:.0%}") for length, own in figures["by_length"].items()]
    return [*rows, _row(figures, "accuracy", "all lengths", "{:.0%}")]


_TASK_ROWS = {"perplexity": _perplexity_rows, "multiple_choice": _choice_rows, "retrieval": _retrieval_rows}


def print_variants(variants: Mapping[str, _Figures], reference: _Figures | None) -> None:
    """Prints a row for each variant; `reference` is what they are compared with, None where perplexity did not run."""
    columns = {name: cells for name, cells in _COLUMNS.items() if any(cells(result) for result in variants.values())}
    rows: list[Sequence[str]] = []
    if reference is not None:
        known = ("weights", "perplexity", "KV bytes/token")
        rows.append(("reference", *(cells(reference) if name in known else "" for name, cells in columns.items())))
    rows += [(name, *(cells(result) for cells in columns.values())) for name, result in variants.items()]
    print_table(("variant", *columns), rows)


def _cell(task: str, name: str, form: str) -> Any:
    def text(result: _Figures) -> str:
        figures = result["tasks"].get(task, {})
        if name not in figures:
            return ""
        _, value, interval = _row(figures, name, name, form)
        return f"{value} ({interval})" if interval else value

    return text


def _rate(name: str) -> Any:
    return lambda result: f"{result['speed'][name]:.1f}" if "speed" in result else ""


_COLUMNS: Mapping[str, Any] = {
    "weights": lambda result: size_text(result["memory"]["weight_bytes"]),
    "perplexity": _cell("perplexity", "perplexity", "{:.3f}"),
    "ratio": _cell("perplexity", "perplexity_ratio", "{:.4f}"),
    "same token": _cell("perplexity", "top1_agreement", "{:.1%}"),
    "KL": _cell("perplexity", "kl_mean", "{:.4f}"),
    "acc": _cell("multiple_choice", "acc", "{:.1%}"),
    "acc_norm": _cell("multiple_choice", "acc_norm", "{:.1%}"),
    "retrieval": _cell("retrieval", "accuracy", "{:.0%}"),
    "prefill tok/s": _rate("prefill_tok_s"),
    "decode tok/s": _rate("decode_tok_s"),
    "KV bytes/token": lambda result: f"{result['memory']['kv_bytes_per_token']:.0f}",
}


def _row(figures: _Figures, name: str, label: str, form: str) -> tuple[str, str, str]:
    interval = figures.get(f"{name}_interval")
    spread = "" if interval is None else "..".join(form.format(bound) for bound in interval)
    return label, form.format(figures[name]), spread
