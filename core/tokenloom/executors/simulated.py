"""Executor `simulated`: no model and no device; steps take virtual time, tokens are synthetic.

Scheduler, KV manager, prefix cache and draft policy are the real ones and cannot tell the difference: given equal
arrivals, token ids, acceptance and step times, they decide as they would on a real device. The attention plugin, the
quantizer and the drafter are checked for what they can run, but not built; the device preset stands for them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, cast, final

from pydantic import Field

from tokenloom.batch import NewRow, RowPlan, RowResult, StepPlan, StepResult
from tokenloom.clock import VirtualClock
from tokenloom.errors import CapabilityError, ConfigError
from tokenloom.executors.device_presets import DevicePreset, load_preset
from tokenloom.executors.simulated_host import SimulatedHostMemory
from tokenloom.executors.simulated_memory import simulated_groups, simulated_memory
from tokenloom.executors.step_time import AttentionSpan, StepCosts, step_shape
from tokenloom.executors.synthetic_tokens import SyntheticTokens, TokenSource, propose_drafts
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.executor import (
    Executor,
    ExecutorConfig,
    ExecutorContext,
    ModelFacts,
    ModelTraits,
    StepHandle,
)
from tokenloom.interfaces.spec_decode import SpecDecodeConfig
from tokenloom.settings_base import UserPath

__all__ = ["SimulatedExecutor", "SimulatedExecutorConfig", "SimulatedModel"]

_USUAL_ACCEPTANCE = (0.7,)
_Share = Annotated[float, Field(ge=0.0, le=1.0)]


class SimulatedExecutorConfig(ExecutorConfig):
    """Settings of the simulated executor."""

    device: UserPath = Field(
        default="h100_8b", description="Device preset, or the file of one that `tokenloom calibrate` wrote."
    )
    acceptance: Annotated[tuple[_Share, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="How likely a draft is right if those before it are, by depth; null: as spec_decode says, or 0.7.",
    )
    draft_step_s: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0, description="Seconds that a step takes longer for each draft of its longest proposal."
    )
    drafter_layers: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Decoder layers of the drafter, with KV memory of their own and the model's sizes."
    )
    swap_loss: _Share = Field(
        default=0.0, description="Share of swaps to host memory that fail, to see what becomes of their requests."
    )

    def place(self, device: str, dtype: str) -> tuple[str, str]:
        """Those of the device preset."""
        if "auto" not in (device, dtype):
            return device, dtype
        preset = load_preset(self.device)
        return preset.device if device == "auto" else device, preset.dtype if dtype == "auto" else dtype

    def build(self, context: ExecutorContext) -> Executor:
        if not isinstance(context.clock, VirtualClock):
            raise ConfigError(
                "executor=simulated computes no text and runs under a virtual clock; use it with `tokenloom simulate`, "
                "or choose executor=local"
            )
        preset = load_preset(self.device)
        _check_settings(context, preset)
        _check_drafter(context, self.drafter_layers)
        facts = _facts(context, preset, self.drafter_layers)
        tokens = SyntheticTokens(facts.vocab_size, _acceptance(context, self.acceptance))
        model = SimulatedModel(
            facts, preset.costs, preset.attention_spans, preset.host_bytes_per_s, self.draft_step_s, self.swap_loss
        )
        return SimulatedExecutor(model, tokens, context.clock)


def _check_settings(context: ExecutorContext, preset: DevicePreset) -> None:
    """Refuses settings that would change a real run, but that the preset has fixed."""
    config = context.config
    fixed = {
        "model.source": (config.model.source, "default"),
        "model.revision": (config.model.revision, None),
        "model.dtype": (config.model.dtype, "auto", preset.dtype),
        "model.device": (config.model.device, "auto", preset.device),
        "quant": (config.quant.name, preset.quant),
    }
    reasons = [
        f"{key}={value} is not what executor.device={preset.name} stands for; leave it at {allowed[0]}, or choose a "
        "preset that was made with it"
        for key, (value, *allowed) in fixed.items()
        if value not in allowed
    ]
    longest = config.model.max_model_len
    if longest is not None and longest > preset.model.max_model_len:
        reasons.append(f"model.max_model_len={longest} exceeds the model's own {preset.model.max_model_len}")
    if reasons:
        raise CapabilityError(reasons)
    has_window = any(window is not None for window in preset.model.windows)
    context.check_model(ModelTraits(preset.model.head_dim, has_window, False, preset.device, preset.dtype))


def _acceptance(context: ExecutorContext, wanted: tuple[float, ...] | None) -> tuple[float, ...]:
    """Rates from the one place that gives some: the executor's key, or a drafter with rates of its own."""
    drafter = context.config.spec_decode
    own = cast(SpecDecodeConfig, drafter.config).simulated_acceptance()
    if own is not None and wanted is not None:
        raise ConfigError(
            f"executor.acceptance={list(wanted)}: spec_decode={drafter.name} has rates of its own, {list(own)}; leave "
            "executor.acceptance out, or choose another drafter"
        )
    return own or wanted or _USUAL_ACCEPTANCE


def _check_drafter(context: ExecutorContext, num_layers: int) -> None:
    if num_layers and context.config.spec_decode.name == "none":
        raise ConfigError(
            f"executor.drafter_layers={num_layers}: spec_decode=none has no drafter; choose one, or leave the key out"
        )


def _facts(context: ExecutorContext, preset: DevicePreset, drafter_layers: int) -> ModelFacts:
    cache = cast(CacheConfig, context.config.cache.config)
    groups = simulated_groups(preset, cache.block_size, drafter_layers)
    plan = simulated_memory(context, preset, groups)
    longest = context.config.model.max_model_len
    return ModelFacts(
        max_model_len=preset.model.max_model_len if longest is None else longest,
        vocab_size=preset.model.vocab_size,
        eos_token_ids=(),
        kv_groups=groups,
        num_blocks=plan.num_blocks,
        block_root=hashlib.sha256(f"simulated {preset.model_dump_json()} {cache.block_size}".encode()).digest(),
        memory=plan.breakdown,
        device=f"simulated {preset.name}",
        dtype=preset.dtype,
    )


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """What runs.

    Attributes:
        facts: as the engine knows them.
        costs: what a step costs.
        spans: how far its layers look back.
        host_bytes_per_s: bandwidth between device and host memory.
        draft_step_s: what a step costs more for each draft of its longest proposal.
        swap_loss: share of exports that never arrive.
    """

    facts: ModelFacts
    costs: StepCosts
    spans: tuple[AttentionSpan, ...]
    host_bytes_per_s: float = 1e9
    draft_step_s: float = 0.0
    swap_loss: float = 0.0


@final
class _Pending(StepHandle):
    """A step that ends at a moment of virtual time; waiting for it moves the clock there."""

    def __init__(self, step: StepResult, end_s: float, clock: VirtualClock) -> None:
        self._step = step
        self._end_s = end_s
        self._clock = clock

    def is_done(self) -> bool:
        return self._clock.now() >= self._end_s

    def result(self) -> StepResult:
        self._clock.advance_to(self._end_s)
        return self._step


@dataclass(slots=True)
class _Row:
    """A request that the executor knows: what its tokens depend on, how many there are, and why it cannot run."""

    seed: int
    choice_index: int
    num_outputs: int
    refusal: str | None


@final
class SimulatedExecutor(Executor):
    """Answers each step at once, and lets it end when the model says so. Steps run one after the other."""

    def __init__(self, model: SimulatedModel, tokens: TokenSource, clock: VirtualClock) -> None:
        self._model = model
        self._tokens = tokens
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._host = SimulatedHostMemory(model.facts.kv_groups, model.host_bytes_per_s, model.swap_loss)
        self._free_at_s = clock.now()

    def model_facts(self) -> ModelFacts:
        return self._model.facts

    def launch(self, plan: StepPlan) -> StepHandle:
        for request_id in plan.removed:
            del self._rows[request_id]
        times_s: dict[str, float] = {"forward": 0.0}
        lost: tuple[str, ...] = ()
        if plan.transfers:
            times_s["transfer"], lost = self._host.move(plan.transfers)
        rows = tuple([self._run(row) for row in plan.rows])
        if rows:
            model = self._model
            times_s["forward"] = model.costs.duration_s(step_shape(plan, model.spans))
            longest = max(len(row.next_draft_token_ids) for row in rows)
            if longest and model.draft_step_s:
                times_s["propose"] = model.draft_step_s * longest
        self._free_at_s = max(self._free_at_s, self._clock.now()) + sum(times_s.values())
        return _Pending(StepResult(plan.step_id, rows, times_s, lost), self._free_at_s, self._clock)

    def close(self) -> None:
        self._rows.clear()

    def _run(self, plan: RowPlan) -> RowResult:
        name = plan.request_id
        if plan.new is not None:
            assert name not in self._rows, f"{name} joins twice"
            self._rows[name] = _join(plan.new)
        row = self._rows[name]
        if row.refusal is not None:
            return RowResult(name, [], error=row.refusal)
        if not plan.samples:
            return RowResult(name, [])
        emitted = self._verify(row, plan.draft_token_ids)
        drafts: tuple[int, ...] = ()
        if plan.max_drafts:
            vocab_size = self._model.facts.vocab_size
            drafts = propose_drafts(
                self._tokens, vocab_size, row.seed, row.choice_index, row.num_outputs, plan.max_drafts
            )
        return RowResult(name, emitted, len(emitted) - 1, drafts)

    def _verify(self, row: _Row, drafts: tuple[int, ...]) -> list[int]:
        """The accepted drafts and the token behind them."""
        emitted = [self._tokens.token(row.seed, row.choice_index, row.num_outputs)]
        for draft in drafts:
            if draft != emitted[-1]:
                break
            emitted.append(self._tokens.token(row.seed, row.choice_index, row.num_outputs + len(emitted)))
        row.num_outputs += len(emitted)
        return emitted


def _join(new: NewRow) -> _Row:
    params = new.params
    needs = {
        "logprobs": params.logprobs is not None,
        "prompt_logprobs": params.prompt_logprobs is not None,
        "a constraint": new.constraint is not None,
        "logits processors": bool(new.processors),
        "min_tokens with stop tokens": params.min_tokens > 0 and bool(new.forbidden_stop_ids),
    }
    asked = ", ".join(name for name, is_asked in needs.items() if is_asked)
    refusal = f"executor=simulated has no logits for {asked}; leave it out" if asked else None
    return _Row(new.seed, new.choice_index, len(new.token_ids) - new.num_prompt_tokens, refusal)
