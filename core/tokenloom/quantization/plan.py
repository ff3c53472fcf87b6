"""What a checkpoint is to be made of: method, grid, format and text, put together and checked against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ConfigError
from tokenloom.models.skip_list import SkipList, part_names
from tokenloom.quantization.gptq import GPTQ
from tokenloom.quantization.layer_runner import linear_layers
from tokenloom.quantization.method import RoundingMethod
from tokenloom.quantization.rounded_weight import RoundingScheme
from tokenloom.quantization.writer import CheckpointWriter, Making, usual_group_size

__all__ = [
    "USUAL_GROUPS",
    "QuantizePlan",
    "blocks_before",
    "described",
    "making_of",
    "rounded_layers",
    "row_ranges",
]

USUAL_GROUPS = 0
"""Stands for the largest usual group size that divides the input features of all layers."""
_HEAD = "lm_head"
_IN_LAYERS = "model.layers."


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """One run.

    Attributes:
        method: rounds the weights.
        writer: of the format.
        scheme: the grid; a group size of `USUAL_GROUPS` is settled by `for_model`.
        dtype: of everything that is not rounded; None takes the model's own.
        skip: linear layers to leave plain, by full dotted name or prefix.
        calibration: a text file; None takes the built-in text.
        num_samples, sample_tokens: how many sequences of how many tokens are run.
        seed: decides which.
        max_shard_bytes: most bytes of tensors in a file.
    """

    method: RoundingMethod
    writer: CheckpointWriter
    scheme: RoundingScheme
    dtype: torch.dtype | None = None
    skip: tuple[str, ...] = ()
    calibration: Path | None = None
    num_samples: int = 64
    sample_tokens: int = 2048
    seed: int = 0
    max_shard_bytes: int = 5 * 10**9

    def for_model(self, checkpoint: Checkpoint) -> QuantizePlan:
        """The same with what only the model tells: dtypes, the longest sample.

        Raises:
            ConfigError: samples are longer than the model's longest sequence; or the writer and the method do not go
                together.
        """
        if self.method.rounds_activations and not self.writer.takes_activations:
            raise ConfigError(
                f"format={self.writer.name} stores weights alone, but method=smoothquant rounds activations as well; "
                "try format=compressed-tensors"
            )
        if is_ordered(self.method) and not self.writer.stores_order:
            raise ConfigError(
                f"static_groups=false: format={self.writer.name} cannot store which column is in which group; leave "
                "static_groups at true, set act_order=false, or try format=gptq"
            )
        longest = checkpoint.config.max_position_embeddings
        if self.method.needs_inputs and self.sample_tokens > longest:
            raise ConfigError(
                f"sample_tokens={self.sample_tokens}: the model takes {longest} tokens at most; try "
                f"sample_tokens={longest}"
            )
        dtype = self.dtype or getattr(torch, checkpoint.config.dtype)
        group_size = self.scheme.group_size
        if group_size == USUAL_GROUPS:
            specs = [linear.spec for linear in linear_layers(checkpoint) if linear.spec.name.startswith(_IN_LAYERS)]
            group_size = usual_group_size(spec.in_features for spec in specs)
        scheme = replace(self.scheme, group_size=group_size, scale_dtype=self.writer.scale_dtype(dtype))
        return replace(self, dtype=dtype, scheme=scheme)


def is_ordered(method: RoundingMethod) -> bool:
    """Whether groups are formed in the order of rounding."""
    return isinstance(method, GPTQ) and method.act_order and not method.static_groups


def rounded_layers(checkpoint: Checkpoint, plan: QuantizePlan) -> dict[str, RoundingScheme]:
    """The linear layers that are rounded, by full dotted name; others, embeddings and the head stay as they are.

    Raises:
        ConfigError: the skip list names no layer; or a layer's size has no place in the format.
    """
    skip = SkipList((), tuple(entry for entry in plan.skip if entry != _HEAD))
    specs = [linear.spec for linear in linear_layers(checkpoint)]
    chosen = [spec for spec in specs if not skip.names(spec) and spec.name.startswith(_IN_LAYERS)]
    skip.check_used()
    if not chosen:
        raise ConfigError(f"skip={list(plan.skip)} leaves no layer to quantize; name fewer")
    sizes = {
        part: (shard.out_features, spec.in_features)
        for spec in chosen
        for part, shard in zip(part_names(spec), spec.shards)
    }
    plan.writer.check(sizes, plan.scheme)
    return {spec.name: plan.scheme for spec in chosen}


def blocks_before(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The types of blocks that the layers' weights are rounded to already, such as "Q4_1"; () where they are plain."""
    stored = (checkpoint.stored_type(name) for name in checkpoint.tensor_names() if name.startswith(_IN_LAYERS))
    return tuple(sorted({each for each in stored if each is not None}))


def making_of(checkpoint: Checkpoint, plan: QuantizePlan, rounded: Mapping[str, RoundingScheme]) -> Making:
    """What the checkpoint's settings are to say."""
    gptq = plan.method if isinstance(plan.method, GPTQ) else None
    plain = [linear.spec for linear in linear_layers(checkpoint) if linear.spec.name not in rounded]
    return Making(
        scheme=plan.scheme,
        rounds_activations=plan.method.rounds_activations,
        skipped=tuple(part for spec in plain if spec.name != _HEAD for part in part_names(spec)),
        act_order=gptq is not None and gptq.act_order,
        static_groups=gptq is None or gptq.static_groups,
        damping=None if gptq is None else gptq.damping,
        version=version("tokenloom"),
    )


def row_ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(first row, row behind the last) of layers that lie below each other."""
    stops = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return list(zip([0, *stops], stops))


def described(plan: QuantizePlan) -> dict[str, Any]:
    """What decides the result beside model and text, as plain data under the names of the command's keys."""
    return {
        "method": plan.method.title,
        "bits": plan.scheme.bits,
        "group_size": plan.scheme.group_size,
        "symmetric": plan.scheme.is_symmetric,
        "format": plan.writer.name,
        "dtype": str(plan.dtype).removeprefix("torch."),
        "skip": list(plan.skip),
        "num_samples": plan.num_samples if plan.method.needs_inputs else None,
        "sample_tokens": plan.sample_tokens if plan.method.needs_inputs else None,
        "seed": plan.seed if plan.method.needs_inputs else None,
    }
