"""The drafter of executor=local, and the KV memory of its own layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from tokenloom.interfaces.attention import AttentionBackend, AttentionConfig, KVScales
from tokenloom.interfaces.contract import Capabilities
from tokenloom.interfaces.draft_memory import DraftKVGroup, DraftPass
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.interfaces.spec_decode import Drafter, DrafterContext, SpecDecodeConfig, TensorFunction
from tokenloom.interfaces.target_layers import LayerParts, TargetLayers
from tokenloom.kv.memory_plan import MemoryPlan
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import CausalLM, ForwardContext
from tokenloom.ops.table import OpsName

__all__ = ["DraftTarget", "Drafting", "LentLayers", "TargetKV", "build_drafting", "head_shape", "lend_groups"]


DraftProgress = Callable[[str, int, int], None]
"""Told (stage, done, total)."""


@final
@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The target, as a drafter is told of it; its layers compute with `operations`, and store keys and values with
    `kv_scales` where these are fixed. An outline has no weights."""

    model: CausalLM
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    path: Path
    operations: OpsName
    is_outline: bool = False
    kv_scales: Mapping[int, KVScales] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class TargetKV:
    """The target's attention, and the cache tensors of each of its layers."""

    attention: AttentionBackend
    kv: Sequence[Sequence[torch.Tensor]]


@final
@dataclass(frozen=True, slots=True)
class Drafting:
    """A built drafter.

    Attributes:
        drafter: it.
        groups: all KV groups of the engine, the drafter's last.
        attention: made for the drafter's heads; None if it has no KV of its own.
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

    def memory(self, state: BatchState, kv: Sequence[Sequence[torch.Tensor]], target: TargetKV) -> DraftPasses | None:
        """What the drafter's passes are built from: its own cache tensors or the target's; None if it has no passes."""
        if self.drafter.needs().target_kv:
            return DraftPasses(state, self.groups, target.attention, target.kv, self.plugin)
        if self.attention is None:
            return None
        own = [group for group in self.groups if group.is_drafter]
        return DraftPasses(state, own, self.attention, kv, self.plugin)


def build_drafting(
    config: EngineConfig,
    can: Capabilities,
    target: DraftTarget,
    groups: tuple[KVGroupSpec, ...],
    progress: DraftProgress = lambda _stage, _done, _total: None,
) -> Drafting:
    """Builds the chosen drafter.

    Args:
        config: of the engine.
        can: what the attention plugin declares.
        target: loaded, or an outline that is never run.
        groups: the target's KV groups.
        progress: told while the drafter loads weights.

    Raises:
        CapabilityError: the attention plugin cannot serve the drafter's layers.
        ConfigError, ModelError: see the drafter's docs.
    """
    name = f"spec_decode={config.spec_decode.name}"
    with out_of_memory("the drafter's weights", "choose a smaller drafter, or spec_decode=ngram, which has none"):
        drafter = cast(SpecDecodeConfig, config.spec_decode.config).build(_drafter_context(config, target, progress))
    groups, needed = lend_groups(drafter, groups, name), drafter.needs().kv_groups
    if not needed:
        return Drafting(drafter, groups, None, name)
    shape = head_shape(needed, name)
    _check_attention(can, config, needed, (shape[2], target.device.type), name)
    attention_context = draft_attention_context(config, shape, target.device, target.dtype, target.max_model_len)
    attention = cast(AttentionConfig, config.attention.config).build(attention_context)
    return Drafting(drafter, (*groups, *draft_groups(needed, attention, groups)), attention, name)


def lend_groups(drafter: Drafter, groups: tuple[KVGroupSpec, ...], plugin: str) -> tuple[KVGroupSpec, ...]:
    """The target's groups, with room for drafts where the drafter runs the target's layers.

    Raises:
        PluginContractError: it also asks for groups of its own.
    """
    needs = drafter.needs()
    if not needs.target_kv:
        return groups
    if needs.kv_groups:
        raise PluginContractError(plugin, "target_kv excludes kv_groups", f"{len(needs.kv_groups)} groups are wanted")
    return tuple(replace(group, takes_drafts=True) for group in groups)


def head_shape(needed: Sequence[DraftKVGroup], plugin: str) -> tuple[int, int, int]:
    """(query heads, KV heads, head_dim) of all groups. Raises PluginContractError where they differ."""
    shapes = {(group.num_heads or group.num_kv_heads, group.num_kv_heads, group.head_dim) for group in needed}
    if len(shapes) > 1:
        rule = "heads have the same numbers and size in all groups of a drafter"
        raise PluginContractError(plugin, rule, f"(query heads, KV heads, head_dim) are {sorted(shapes)}")
    return shapes.pop()


def _check_attention(
    can: Capabilities, config: EngineConfig, needed: Sequence[DraftKVGroup], where: tuple[int, str], name: str
) -> None:
    """Refuses layers with heads of a size, on a type of device, that the attention plugin lacks something for."""
    head_dim, device = where
    label, reasons = f"attention={config.attention.name}", list[str]()
    if can.head_dims is not None and head_dim not in can.head_dims:
        allowed = ", ".join(map(str, can.head_dims))
        reasons.append(f"{label} needs head_dim in ({allowed}), {name} has {head_dim}; try attention=torch_sdpa")
    asked = {
        "sliding_window": any(group.window is not None for group in needed),
        "soft_cap": any(group.has_soft_cap for group in needed),
    }
    lacking = [flag for flag, is_asked in asked.items() if is_asked and not can.has_flag(flag, device)]
    reasons += [f"{label} lacks the ability {flag}, which {name} needs; try attention=torch_sdpa" for flag in lacking]
    if reasons:
        raise CapabilityError(reasons)


def _drafter_context(config: EngineConfig, target: DraftTarget, progress: DraftProgress) -> DrafterContext:
    scheduler = cast(SchedulerConfig, config.scheduler.config)
    return DrafterContext(
        vocab_size=target.config.vocab_size,
        hidden_size=target.config.hidden_size,
        num_layers=target.config.num_layers,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=target.max_model_len,
        dtype=target.dtype,
        device=target.device,
        embed=_Embed(target.model),
        compute_logits=_NoLogits(target.config.vocab_size) if target.is_outline else _ComputeLogits(target.model),
        operations=target.operations,
        deterministic=config.engine.deterministic,
        model_path=target.path,
        progress=progress,
        target_layers=LentLayers(target.model, target.kv_scales),
    )


@final
class LentLayers(TargetLayers):
    """The layers of a loaded model, and the fixed scales that it stores keys and values with."""

    def __init__(self, model: CausalLM, kv_scales: Mapping[int, KVScales]) -> None:
        self._model = model
        self._kv_scales = kv_scales

    def run(self, token_ids: torch.Tensor, draft_pass: DraftPass, parts: LayerParts) -> torch.Tensor:
        context = ForwardContext(
            positions=draft_pass.positions,
            attention=draft_pass.attention,
            metadata=draft_pass.metadata,
            kv=draft_pass.kv,
            parts=parts,
            kv_scales=self._kv_scales,
        )
        return self._model.forward(token_ids, context).hidden


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


@final
class _NoLogits(TensorFunction):
    """Of an outline: as many as a model gives, for drafters that keep some of its rows."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value.new_zeros((len(value), self._vocab_size), dtype=torch.float32)
