"""`tokenloom plan memory`: where a device's memory would go, before a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import click
from pydantic import Field

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_table
from tokenloom.cli.effective_keys import refuse_idle_keys
from tokenloom.compose import compose_config
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import ConfigError
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.kv.memory_plan import format_bytes
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.sources import resolve_model
from tokenloom.memory_forecast import MemoryForecast, RequestLengths, forecast_memory, largest_batch
from tokenloom.model_config import ModelConfig
from tokenloom.output_files import check_output_files
from tokenloom.settings_base import Settings, UserPath

__all__ = ["PlanMemorySettings", "plan"]

_BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
_EFFECTIVE = (
    *("model.*", "attention.*", "cache.*", "spec_decode.*", "quant.*", "executor.*", "scheduler.max_num_seqs"),
    *("scheduler.max_num_batched_tokens", "scheduler.preempt_mode", "engine.deterministic", "engine.pipeline_depth"),
    "*.name",
)
"""What decides how much memory an engine takes, and whether it can run at all."""


class PlanMemorySettings(Settings):
    """Keys of `tokenloom plan memory`."""

    prompt_tokens: Annotated[int, Field(ge=1)] = Field(default=512, description="Prompt of the requests to plan for.")
    output_tokens: Annotated[int, Field(ge=1)] = Field(default=128, description="Output of the requests to plan for.")
    memory_bytes: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Memory of the device, weights included; null takes what is free on this machine."
    )
    output: UserPath | None = Field(default=None, description="File for the plan as JSON.")


@click.group()
def plan() -> None:
    """Work out what a model would need, before it is loaded."""


@plan.command()
@overrides_argument
@config_dir_option
def memory(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Work out weights, KV cache, activations, largest batch.

    From the checkpoint's config, without loading weights.

    For example: tokenloom plan memory model.dtype=bfloat16 memory_bytes=24000000000 prompt_tokens=2000
    """
    composed = compose_config(overrides, config_dir=config_dir, command=PlanMemorySettings)
    refuse_idle_keys(composed, "plan memory", _EFFECTIVE)
    settings, config = composed.extras_of(PlanMemorySettings), composed.engine
    check_output_files({}, {"output": settings.output})
    checkpoint = open_checkpoint(resolve_model(config.model.source, revision=config.model.revision))
    try:
        forecast = forecast_memory(config, checkpoint, settings.memory_bytes)
        model = checkpoint.config
    finally:
        checkpoint.close()
    lengths = RequestLengths(settings.prompt_tokens, settings.output_tokens)
    if lengths.prompt + lengths.output > forecast.max_model_len:
        raise ConfigError(
            f"prompt_tokens={lengths.prompt} and output_tokens={lengths.output} exceed the {forecast.max_model_len} "
            "tokens that a sequence may have; lower one of them"
        )
    figures = _figures(config, forecast, lengths)
    _print(figures, forecast, model)
    if settings.output is not None:
        Path(settings.output).write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _figures(config: EngineConfig, forecast: MemoryForecast, lengths: RequestLengths) -> dict[str, Any]:
    sizes = sorted({*_BLOCK_SIZES, forecast.block_size})
    batches = {size: largest_batch(config, forecast, lengths, size) for size in sizes}
    own = batches[forecast.block_size]
    most = cast(SchedulerConfig, config.scheduler.config).max_num_seqs
    return {
        "device": forecast.device,
        "dtype": forecast.dtype,
        "max_model_len": forecast.max_model_len,
        "memory_bytes": dict(forecast.plan.breakdown),
        "kv_bytes_per_token": forecast.kv_bytes_per_token,
        "num_blocks": list(forecast.plan.num_blocks),
        "block_size": forecast.block_size,
        "kv_groups": [
            {"layers": len(group.layers), "window": group.window, "block_bytes": group.page_bytes}
            for group in forecast.groups
        ],
        "prompt_tokens": lengths.prompt,
        "output_tokens": lengths.output,
        "largest_batch": own.num_requests,
        "max_num_seqs": most,
        "block_sizes": {
            str(size): {
                "blocks_per_request": batch.num_blocks,
                "internal_fragmentation": batch.internal,
                "mean_internal_fragmentation": batch.mean_internal,
                "largest_batch": batch.num_requests,
            }
            for size, batch in batches.items()
        },
    }


def _print(figures: Mapping[str, Any], forecast: MemoryForecast, model: ModelConfig) -> None:
    most, largest = figures["max_num_seqs"], figures["largest_batch"]
    limit = f", scheduler.max_num_seqs={most} lets {most} run" if most < largest else ""
    item_bytes = forecast.kv_bytes_per_token // (2 * model.num_layers * model.num_kv_heads * model.head_dim)
    blocks = " + ".join(str(count) for count in figures["num_blocks"])
    rows = [
        ("device, dtype, context", f"{forecast.device}, {forecast.dtype}, {forecast.max_model_len} tokens"),
        *((name.replace("_", " "), format_bytes(size)) for name, size in figures["memory_bytes"].items()),
        (
            "KV per token",
            f"{format_bytes(forecast.kv_bytes_per_token)} = 2 x {model.num_layers} layers x {model.num_kv_heads} KV "
            f"heads x {model.head_dim} x {item_bytes} bytes",
        ),
        ("KV blocks", f"{blocks} of {forecast.block_size} tokens, the null block included"),
        *(
            (
                f"KV group {number}",
                f"{len(group.layers)} layers, {'full attention' if group.window is None else f'window {group.window}'}"
                f", {format_bytes(group.page_bytes)} a block",
            )
            for number, group in enumerate(forecast.groups)
        ),
        (
            "largest batch",
            f"{largest} requests of {figures['prompt_tokens']} + {figures['output_tokens']} tokens{limit}",
        ),
    ]
    print_table(("memory", "value"), rows)
    print_table(
        ("block size", "blocks a request", "slots without a token", "on average", "largest batch"),
        [
            (
                size,
                str(row["blocks_per_request"]),
                f"{row['internal_fragmentation']:.1%}",
                f"{row['mean_internal_fragmentation']:.1%}",
                str(row["largest_batch"]),
            )
            for size, row in figures["block_sizes"].items()
        ],
        title="At these lengths, with equal KV memory",
    )
