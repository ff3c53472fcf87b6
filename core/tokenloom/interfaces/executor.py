"""Contract `executor` 1.3: where the model runs. A step is launched, and lands when its handle is asked for the result.

A synchronous executor computes inside `launch` and returns a finished handle. One with the capability "async_launch"
returns at once; the engine then plans step n + 1 while step n runs (`engine.pipeline_depth=2`).

Version 1.1 adds `StepPlan.transfers` and `StepResult.lost`. Only an executor with the capability "swap" is ever given
exports, imports and steps without rows, and only one with the capability "block_copy" is given copies. Version 1.2 adds
`ExecutorConfig.place`, 1.3 `KVGroupSpec.takes_drafts`, `ModelTraits.has_sinks` and
`ModelFacts.weight_remarks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from tokenloom.batch import StepPlan, StepResult
from tokenloom.clock import Clock
from tokenloom.engine_config import EngineConfig
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, Capabilities, PluginConfig

__all__ = [
    "CONTRACT_VERSION",
    "Executor",
    "ExecutorConfig",
    "ExecutorContext",
    "FinishedStep",
    "KVGroupSpec",
    "ModelFacts",
    "ModelTraits",
    "StepHandle",
]

CONTRACT_VERSION = CONTRACT_VERSIONS["executor"]


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers that share a block table and a frontier.

    Attributes:
        group_id: index of the group, 0..; the target's groups come before a drafter's.
        layers: names of the layers, for reports.
        window: tokens a layer looks back, or None for all.
        page_bytes: bytes of one block over all layers of the group.
        pool_id: pool that the group's blocks come from; groups share one only if their page_bytes are equal.
        lookahead: how many tokens past t an entry at t depends on.
        is_drafter: a drafter's group; behind the frontier it may hold what was drafted.
        takes_drafts: the same may be said of a target's group, whose layers the drafter runs.
    """

    group_id: int
    layers: tuple[str, ...]
    window: int | None
    page_bytes: int
    pool_id: int = 0
    lookahead: int = 0
    is_drafter: bool = False
    takes_drafts: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine needs to know about the loaded model.

    Attributes:
        max_model_len: longest sequence, in tokens.
        vocab_size: of the model's head; token ids are below it.
        eos_token_ids: ids that end a sequence.
        kv_groups: KV memory layout.
        num_blocks: per pool, blocks allocated, the null block included.
        block_root: digest input of every block key: weights, quantization, KV dtype and layout.
        memory: breakdown in bytes: weights, kv_cache, activation_peak, workspace, available.
        device, dtype, operations: what `auto` was resolved to.
        weight_remarks: how the quantizer stores weights, a sentence each; see `Quantizer.remarks`.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    kv_groups: tuple[KVGroupSpec, ...]
    num_blocks: tuple[int, ...]
    block_root: bytes
    memory: Mapping[str, int] = field(default_factory=dict)
    device: str = "cpu"
    dtype: str = "float32"
    operations: str = "torch"
    weight_remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What plugins are measured against.

    Attributes:
        head_dim: size of an attention head.
        has_window: whether any layer has a sliding window.
        has_soft_cap: whether any layer caps its attention scores.
        device: resolved device type, e.g. "cpu"; never "auto".
        dtype: resolved activation dtype, e.g. "bfloat16"; never "auto".
        has_sinks: whether any layer has attention sinks.
    """

    head_dim: int
    has_window: bool
    has_soft_cap: bool
    device: str
    dtype: str
    has_sinks: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """What an executor knows when it is built.

    Attributes:
        config: the whole config.
        clock: the engine's.
        progress: called as progress(stage, done, total) with growing `done`; total 0 means unknown.
        capabilities: what each chosen plugin declares, by kind.
        check_model: raises CapabilityError with every reason if the chosen plugins cannot run a model of these traits;
            an executor calls it before it loads weights.
    """

    config: EngineConfig
    clock: Clock
    progress: Callable[[str, int, int], None]
    capabilities: Mapping[str, Capabilities]
    check_model: Callable[[ModelTraits], None]


class ExecutorConfig(PluginConfig):
    """Base of executor Configs. `build` takes an `ExecutorContext`; it loads the model."""

    def place(self, device: str, dtype: str) -> tuple[str, str]:
        """`model.device` and `model.dtype`, with "auto" replaced where this executor alone knows what it means.

        Plugins called `auto` are asked what they stand for there. Raises ConfigError where its own settings are wrong.
        """
        return device, dtype

    @abstractmethod
    def build(self, context: ExecutorContext) -> Executor: ...


class StepHandle(ABC):
    """A launched step."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether `result` would return without waiting."""

    @abstractmethod
    def result(self) -> StepResult:
        """Waits for the step and returns what it yields. Every call returns the same object."""


@final
@dataclass(frozen=True, slots=True)
class FinishedStep(StepHandle):
    """The handle of a step that has run: what a synchronous executor returns."""

    step: StepResult

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self.step


class Executor(ABC):
    """Runs steps."""

    @abstractmethod
    def model_facts(self) -> ModelFacts:
        """Facts of the loaded model; constant."""

    @abstractmethod
    def launch(self, plan: StepPlan) -> StepHandle:
        """Starts a step.

        Plans arrive in order of step_id, and results are asked for in that order; at most `engine.pipeline_depth`
        handles are open. Requests in `removed` are forgotten first, which takes nothing from the results of steps
        launched before. A request id is not used again while a step that holds it is in flight.

        A failure of one request is reported in its `RowResult.error`; an exception means the executor is dead.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the model and its memory; idempotent."""
