"""The drafter of executor=local, and the KV memory of its own layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, final

import torch

from tokenloom.batch_state import BatchState
from tokenloom.draft_passes import DraftPasses
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import CapabilityError, PluginContractError
from tokenloom.executors.kv_memory import allocate_kv, draft_groups
from tokenloom.executors.memory_errors import out_of_memory
from tokenloom.executors.model_contexts import draft_attention_context
from tokenloom.interfaces.attention import AttentionBackend, AttentionConfig
from tokenloom.interfaces.contract import Capabilities
from tokenloom.interfaces.draft_memory import DraftKVGroup
from tokenloom.interfaces.executor import ExecutorContext, KVGroupSpec
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.interfaces.spec_decode import Drafter, DrafterContext, SpecDecodeConfig, TensorFunction
from tokenloom.kv.memory_plan import MemoryPlan
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import CausalLM
from tokenloom.ops.table import OpsName

__all__ = ["DraftTarget", "Drafting", "build_drafting", "head_shape"]


@final
@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The loaded target, as a drafter is told of it."""

    model: CausalLM
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    path: Path


@final
@dataclass(frozen=True, slots=True)
class Drafting:
    """A built drafter.

    Attributes:
        drafter: it.
        groups: all KV groups of the engine, the drafter's last.
        attention: made for the drafter's heads; None if it has no KV.
        plugin: names it in errors.
    """

    drafter: Drafter
    groups: tuple[KVGroupSpec, ...]
    attention: AttentionBackend | None
    plugin: str

    def allocate(self, plan: MemoryPlan, device: torch.device) -> list[list[torch.Tensor]]:
        """Cache tensors of the drafter's layers; none without KV."""
        if self.attention is None:
            return []
        layers = [group.group_id for group in self.groups if group.is_drafter for _ in group.layers]
        return allocate_kv(layers, self.groups, plan, self.attention, device)

    def memory(self, state: BatchState, kv: Sequence[Sequence[torch.Tensor]]) -> DraftPasses | None:
        """What the drafter's passes are built from; None without KV."""
        if self.attention is None:
            return None
        own = [group for group in self.groups if group.is_drafter]
        return DraftPasses(state, own, self.attention, kv, self.plugin)


def build_drafting(
    context: ExecutorContext, target: DraftTarget, operations: OpsName, groups: tuple[KVGroupSpec, ...]
) -> Drafting:
    """Builds the chosen drafter.

    Args:
        context: of the executor.
        target: loaded.
        operations: as the target's layers compute.
        groups: the target's KV groups.

    Raises:
        CapabilityError: the attention plugin cannot serve the drafter's layers.
        ConfigError, ModelError: see the drafter's docs.
    """
    config, name = context.config, f"spec_decode={context.config.spec_decode.name}"
    with out_of_memory("the drafter's weights", "choose a smaller drafter, or spec_decode=ngram, which has none"):
        drafter = cast(SpecDecodeConfig, config.spec_decode.config).build(_drafter_context(context, target, operations))
    needed = drafter.needs().kv_groups
    if not needed:
        return Drafting(drafter, groups, None, name)
    shape = head_shape(needed, name)
    _check_attention(context.capabilities["attention"], config, needed, shape[2], name)
    attention_context = draft_attention_context(config, shape, target.device, target.dtype, target.max_model_len)
    attention = cast(AttentionConfig, config.attention.config).build(attention_context)
    return Drafting(drafter, (*groups, *draft_groups(needed, attention, groups)), attention, name)


def head_shape(needed: Sequence[DraftKVGroup], plugin: str) -> tuple[int, int, int]:
    """(query heads, KV heads, head_dim) of all groups. Raises PluginContractError where they differ."""
    shapes = {(group.num_heads or group.num_kv_heads, group.num_kv_heads, group.head_dim) for group in needed}
    if len(shapes) > 1:
        rule = "heads have the same numbers and size in all groups of a drafter"
        raise PluginContractError(plugin, rule, f"(query heads, KV heads, head_dim) are {sorted(shapes)}")
    return shapes.pop()


def _check_attention(
    can: Capabilities, config: EngineConfig, needed: Sequence[DraftKVGroup], head_dim: int, name: str
) -> None:
    label, reasons = f"attention={config.attention.name}", list[str]()
    if can.head_dims is not None and head_dim not in can.head_dims:
        allowed = ", ".join(map(str, can.head_dims))
        reasons.append(f"{label} needs head_dim in ({allowed}), {name} has {head_dim}; try attention=torch_sdpa")
    asked = {
        "sliding_window": any(group.window is not None for group in needed),
        "soft_cap": any(group.has_soft_cap for group in needed),
    }
    lacking = [flag for flag, is_asked in asked.items() if is_asked and flag not in can.flags]
    reasons += [f"{label} lacks the ability {flag}, which {name} needs; try attention=torch_sdpa" for flag in lacking]
    if reasons:
        raise CapabilityError(reasons)


def _drafter_context(context: ExecutorContext, target: DraftTarget, operations: OpsName) -> DrafterContext:
    scheduler = cast(SchedulerConfig, context.config.scheduler.config)
    return DrafterContext(
        vocab_size=target.config.vocab_size,
        hidden_size=target.config.hidden_size,
        num_layers=target.config.num_layers,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=target.max_model_len,
        dtype=target.dtype,
        device=target.device,
        embed=_Embed(target.model),
        compute_logits=_ComputeLogits(target.model),
        operations=operations,
        deterministic=context.config.engine.deterministic,
        model_path=target.path,
        progress=context.progress,
    )


@final
class _Embed(TensorFunction):
    def __init__(self, model: CausalLM) -> None:
        self._model = model

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self._model.embed(value)


@final
class _ComputeLogits(TensorFunction):
    def __init__(self, model: CausalLM) -> None:
        self._model = model

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self._model.compute_logits(value)
