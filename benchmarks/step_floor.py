"""A decode step of the engine beside its floor: what its operations must take on this machine, whoever computes them.

    python benchmarks/step_floor.py [KEY=VALUE ...] [--rows 1 8 64] [--context 256] [--output floor.json]
        [--plot floor.png]
    python benchmarks/step_floor.py --rows 1 2 4 8 16 32 64 128 --context 256 512 1024 2048 4096 8192 --steps 16 \\
        --plot steps.png model.dtype=bfloat16

The floor of a step is the sum over its operations of max(bytes / bandwidth, operations / rate). Bandwidth is the best
that this machine reads large tensors with; rate is the best of any product at these rows, torch's or native, its
weights in the caches. Both are measured in the same run with the same threads. Bytes are those of weights and of the
KV cache in the model's dtype; norms and the like count none, so the floor is lower than what can be reached.

Several contexts share a prefix cache, so that a longer one only computes what it adds; rows share nothing. Points of
more than --max-tokens in all are left out. --plot draws step times over the bytes that steps read, with a fit to them.
KEY=VALUE are settings of the engine. Needs an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from step_fit import draw, fit_steps

from tokenloom import LLM, SamplingParams
from tokenloom.bench.provenance import provenance
from tokenloom.loader.checkpoint import open_checkpoint

_READ_BYTES = 256 << 20
_FIT_POINTS = 3
"""A fit has as many factors, so it says something about more points only."""
_SHAPES = ((576, 3072), (1024, 1024), (1536, 576), (2048, 2048))
"""(inputs, outputs) of the products that look for the best rate; their weights fit into common caches."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of operation in a step, all layers together."""

    name: str
    num_bytes: int
    num_operations: int

    def floor_s(self, bytes_per_s: float, operations_per_s: float) -> float:
        return max(self.num_bytes / bytes_per_s, self.num_operations / operations_per_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument(
        "--context", type=int, nargs="+", default=[256], help="tokens of each request, in the middle of its steps"
    )
    parser.add_argument("--steps", type=int, default=48, help="decode steps that are timed at each number of rows")
    parser.add_argument("--max-tokens", type=int, default=32768, help="the most tokens of all rows together")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if min(args.context) <= args.steps:
        parser.error(f"--context {min(args.context)} must be more than --steps {args.steps}")
    points = [(rows, context) for context in args.context for rows in args.rows if rows * context <= args.max_tokens]
    cache = "hash" if len(args.context) > 1 else "none"
    with LLM(overrides=[f"cache={cache}", f"scheduler.max_num_seqs={max(args.rows)}", *args.overrides]) as llm:
        bytes_per_s = best_bandwidth()
        rates = {rows: best_rate(rows) for rows in args.rows}
        found = [measure(llm, rows, context, args.steps, bytes_per_s, rates[rows]) for rows, context in points]
        result: dict[str, Any] = {"bytes_per_s": bytes_per_s, "rows": found, "config": llm.config.to_dict()}
    report(found, bytes_per_s)
    fit = fit_steps(found) if len(found) > _FIT_POINTS else None
    if fit is not None:
        print(fit)
        result["fit"] = asdict(fit)
    if args.plot is not None:
        draw(found, fit, args.plot)
    if args.output is not None:
        text = json.dumps({**result, "provenance": provenance()}, indent=1)
        args.output.write_text(text + "\n", encoding="utf-8")


def measure(llm: LLM, rows: int, context: int, num_steps: int, bytes_per_s: float, rate: float) -> dict[str, Any]:
    """The step's time, and its operations with their floors."""
    step_s = decode_step_s(llm, rows, context, num_steps)
    operations = [
        asdict(operation) | {"floor_s": operation.floor_s(bytes_per_s, rate)} for operation in work(llm, rows, context)
    ]
    floor_s = sum(operation["floor_s"] for operation in operations)
    return {
        "rows": rows,
        "context": context,
        "step_s": step_s,
        "floor_s": floor_s,
        "times_floor": step_s / floor_s,
        "operations_per_s": rate,
        "operations": operations,
    }


def work(llm: LLM, rows: int, context: int) -> list[Operation]:
    """What one decode step must read and compute."""
    checkpoint = open_checkpoint(llm.model_path)
    checkpoint.close()
    model = checkpoint.config
    width = 4 if llm.engine.facts.dtype == "float32" else 2
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    products = {
        "q, k, v": model.hidden_size * (q_size + 2 * kv_size),
        "attention's output": q_size * model.hidden_size,
        "gate, up": 2 * model.hidden_size * model.intermediate_size,
        "down": model.hidden_size * model.intermediate_size,
    }
    layers = model.num_layers
    found = [Operation(name, width * layers * size, 2 * rows * layers * size) for name, size in products.items()]
    size = model.hidden_size * model.vocab_size
    found.append(Operation("head", width * size, 2 * rows * size))
    seen = rows * sum(min(context, window or context) for window in model.windows)
    found.append(Operation("attention", 2 * width * seen * kv_size, 4 * seen * q_size))
    return found


def decode_step_s(llm: LLM, rows: int, context: int, num_steps: int) -> float:
    """Median seconds of a step in which every request decodes a token, its own length `context` in the middle.

    A context as long as the model allows ends there.
    """
    limits = llm.engine.limits
    length = min(context - num_steps // 2, limits.max_model_len - num_steps - 1)
    prompts = []
    for row in range(rows):
        # Of the row alone, so that a longer context begins with the shorter one.
        draw = random.Random(row)
        prompts.append([draw.randrange(3, limits.vocab_size) for _ in range(length)])
    ends: list[tuple[int, float]] = []
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 1, ignore_eos=True)
    llm.generate(
        prompts, params, on_step=lambda: ends.append((llm.engine.stats.num_output_tokens, time.perf_counter()))
    )
    times = [
        end_s - start_s for (before, start_s), (after, end_s) in itertools.pairwise(ends) if after - before == rows
    ]
    return median(times[:num_steps])


def best_bandwidth() -> float:
    """Bytes per second of reading large tensors: the best of three ways to do it."""
    import torch

    values = torch.ones(_READ_BYTES // 4)
    matrix = values.view(-1, 2048)
    vector, target = torch.ones(2048), torch.empty_like(values)
    ways: tuple[tuple[Callable[[], object], int], ...] = (
        (values.sum, _READ_BYTES),
        (lambda: torch.mv(matrix, vector), _READ_BYTES),
        (lambda: target.copy_(values), 2 * _READ_BYTES),
    )
    return max(num_bytes / best_s(way, 15) for way, num_bytes in ways)


def best_rate(rows: int) -> float:
    """Operations per second of bfloat16 products at `rows` rows: the best over shapes, torch's and native ones."""
    import torch

    from tokenloom.ops.table import build_op_table

    found = 0.0
    for name in ("torch", "native"):
        ops = build_op_table(torch.device("cpu"), name)
        for k, n in _SHAPES:
            product = ops.pack_linear(torch.randn(n, k).to(torch.bfloat16), None)
            x = torch.randn(rows, k).to(torch.bfloat16)
            seconds = best_s(lambda product=product, x=x: product.apply(x), 60)  # type: ignore[misc]
            found = max(found, 2 * rows * k * n / seconds)
    return found


def best_s(call: Callable[[], object], repeats: int) -> float:
    """The fastest of several calls, in seconds."""
    import torch

    fastest = float("inf")
    with torch.inference_mode():
        for _ in range(repeats):
            start_s = time.perf_counter()
            call()
            fastest = min(fastest, time.perf_counter() - start_s)
    return fastest


def report(found: list[dict[str, Any]], bytes_per_s: float) -> None:
    """Prints a table for each number of rows."""
    console = Console()
    for entry in found:
        title = (
            f"{entry['rows']} rows x {entry['context']} tokens: {1e3 * entry['step_s']:.2f} ms, "
            f"{entry['times_floor']:.2f} times the floor ({bytes_per_s / 1e9:.1f} GB/s, "
            f"{entry['operations_per_s'] / 1e9:.0f} GFLOP/s)"
        )
        table = Table("operation", "MB", "GFLOP", "floor ms", title=title, title_justify="left")
        for operation in entry["operations"]:
            sizes = (operation["num_bytes"] / 1e6, operation["num_operations"] / 1e9, 1e3 * operation["floor_s"])
            table.add_row(operation["name"], *(f"{size:.2f}" for size in sizes))
        table.add_row("all", "", "", f"{1e3 * entry['floor_s']:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
