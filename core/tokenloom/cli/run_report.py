"""What the generating commands say about a run: the resolved plan before it, times after it. All on stderr."""

from __future__ import annotations

import click

from tokenloom.executors.device_choice import describe_threads
from tokenloom.kv.memory_plan import format_bytes
from tokenloom.llm import LLM
from tokenloom.session import TextStream

__all__ = ["print_plan", "print_times"]


def print_plan(llm: LLM) -> None:
    """Prints what was resolved: model, device, dtype, threads, plugins, KV memory."""
    facts = llm.engine.facts
    plugins = "  ".join(f"{choice.kind}={choice.name}" for choice in llm.config.engine.choices())
    resolved = f"{facts.device}, {facts.dtype}, {facts.operations} operations, context {facts.max_model_len}"
    click.echo(f"model    {llm.model_path.name}  ({resolved})", err=True)
    if facts.device == "cpu":
        click.echo(f"threads  {describe_threads()}", err=True)
    click.echo(f"plugins  {plugins}", err=True)
    for name, size in facts.memory.items():
        click.echo(f"memory   {name:<16}{format_bytes(size):>12}", err=True)
    for group in facts.kv_groups:
        count = facts.num_blocks[group.pool_id]
        window = "" if group.window is None else f", window {group.window}"
        click.echo(
            f"kv       group {group.group_id}: {len(group.layers)} layers{window}, {count} blocks of "
            f"{format_bytes(group.page_bytes)}",
            err=True,
        )


def print_times(stream: TextStream) -> None:
    """Prints one line: TTFT, TPOT and cached tokens of the first choice, tokens and tokens per second of all."""
    metrics = stream.metrics
    parts = []
    if metrics is not None and metrics.ttft_s is not None:
        parts.append(f"TTFT {1000 * metrics.ttft_s:.0f} ms")
    if metrics is not None and metrics.tpot_s is not None:
        parts.append(f"TPOT {1000 * metrics.tpot_s:.1f} ms")
    if stream.wall_s:
        parts.append(f"{stream.num_tokens / stream.wall_s:.1f} tokens/s")
    parts.append(f"{stream.num_tokens} tokens")
    parts.append(f"{stream.num_cached_tokens} prompt tokens cached")
    click.secho("[" + ", ".join(parts) + "]", err=True, dim=True)
