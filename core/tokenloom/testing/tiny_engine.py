"""The real engine and the real model runner on a `TinyDecoder`, for tests of drafters and of the core around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch

from tokenloom.batch import StepPlan, TokenLogprobs
from tokenloom.batch_state import BatchState
from tokenloom.clock import Clock, VirtualClock
from tokenloom.engine import Engine
from tokenloom.engine_output import EngineOutput
from tokenloom.engine_parts import EngineParts
from tokenloom.executors.drafting import Drafting, LentLayers, TargetKV, head_shape, lend_groups
from tokenloom.executors.kv_memory import allocate_kv, draft_groups, kv_groups
from tokenloom.interfaces.attention import AttentionBackend, AttentionContext
from tokenloom.interfaces.cache import CacheContext, PrefixCache
from tokenloom.interfaces.executor import Executor, FinishedStep, KVGroupSpec, ModelFacts, StepHandle
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.interfaces.spec_decode import Drafter, DrafterContext, DraftPolicy, TensorFunction, Verifier
from tokenloom.kv.manager import KVManager
from tokenloom.kv.memory_plan import MemoryPlan
from tokenloom.model_runner import ModelRunner, ModelRunnerParts
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.step_inputs import StepInputsBuilder
from tokenloom.testing.engine_harness import build_fcfs, build_prefix_cache
from tokenloom.testing.reference_backend import ReferenceBackend
from tokenloom.testing.tiny_decoder import TinyDecoder

__all__ = ["TinyEngine", "TinyExecutor", "TinySettings", "drafter_context"]

_CPU = torch.device("cpu")
MAX_MODEL_LEN = 128
_HOST_BYTES = 10**9


@final
@dataclass(frozen=True, slots=True)
class TinySettings:
    """Limits of a tiny engine; `num_blocks` has the null block in it."""

    block_size: int = 4
    num_blocks: int = 400
    budget: int = 64
    max_num_seqs: int = 8
    cache: str = "hash"
    checks: str = "full"
    verifier: Verifier = "position_noise"
    takes_trees: bool = True
    max_waiting_states: int = 24
    preempt_mode: Literal["recompute", "swap", "cheaper"] = "recompute"
    partial_preemption: bool = False
    attention: Callable[[AttentionContext], AttentionBackend] = ReferenceBackend
    scheduler: Callable[[SchedulerContext], Scheduler] = build_fcfs


def drafter_context(model: TinyDecoder, max_num_seqs: int = 8) -> DrafterContext:
    """What a drafter is told of the tiny model."""
    return DrafterContext(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        max_num_seqs=max_num_seqs,
        max_model_len=MAX_MODEL_LEN,
        dtype=torch.float32,
        device=_CPU,
        embed=_Lent(model.embed),
        compute_logits=_Lent(model.compute_logits),
        target_layers=LentLayers(model, {}),
    )


@final
class TinyEngine:
    """One engine, and what its requests yielded so far. Unwritten KV memory holds NaN; every invariant is checked.

    Attributes:
        engine: the engine itself.
        kv: its block tables and prefix cache.
        plans: every step's plan, in order.
        outputs: per request id, its output tokens.
        logprobs: per request id, one entry for each output token, if it asked for them.
        last: per request id, its last news; says why it ended.
    """

    def __init__(
        self,
        model: TinyDecoder,
        drafter: Drafter,
        policy: DraftPolicy | None = None,
        settings: TinySettings | None = None,
        name: str = "test",
    ) -> None:
        settings = TinySettings() if settings is None else settings
        clock = VirtualClock()
        executor = TinyExecutor(model, drafter, settings, clock, name)
        self.plans = executor.plans
        self.kv = _build_kv(executor.model_facts(), settings, clock)
        limits = SchedulerContext(
            settings.max_num_seqs,
            settings.budget,
            MAX_MODEL_LEN,
            settings.block_size,
            self.kv.num_usable_blocks,
            settings.preempt_mode,
            settings.partial_preemption,
        )
        labels = {
            "scheduler": "scheduler=fcfs",
            "cache": f"cache={settings.cache}",
            "spec_decode.policy": f"policy of {name}",
        }
        self.engine = Engine(
            EngineParts(
                executor=executor,
                scheduler=settings.scheduler(limits),
                kv=self.kv,
                draft_policy=policy,
                limits=limits,
                clock=clock,
                checks=settings.checks,
                labels=labels,
                on_close=lambda _totals: None,
            )
        )
        self.outputs: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.last: dict[str, EngineOutput] = {}

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        seed: int = 0,
        stop: Sequence[int] = (),
        choice: int = 0,
        constraint: LogitsConstraint | None = None,
    ) -> Request:
        """Adds a request; without max_tokens it runs to the model's limit."""
        longest = self.engine.limits.max_total_tokens
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            params=params,
            seed=seed if params.seed is None else params.seed,
            max_total_tokens=longest if params.max_tokens is None else min(longest, len(prompt) + params.max_tokens),
            choice_index=choice,
            stop_token_ids=frozenset(stop),
            constraint=constraint,
        )
        self.engine.add_request(request)
        return request

    def step(self) -> list[EngineOutput]:
        """One step."""
        outputs = self.engine.step()
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).extend(output.token_ids)
            self.logprobs.setdefault(output.request_id, []).extend(output.logprobs)
            self.last[output.request_id] = output
        return outputs

    def run(self, max_steps: int = 5_000) -> dict[str, list[int]]:
        """Steps until every request has ended, and returns all outputs."""
        for _ in range(max_steps):
            if not self.engine.has_work():
                return self.outputs
            self.step()
        raise AssertionError(f"work left after {max_steps} steps")


@final
class TinyExecutor(Executor):
    """A model runner in this process."""

    def __init__(self, model: TinyDecoder, drafter: Drafter, settings: TinySettings, clock: Clock, name: str) -> None:
        self.plans: list[StepPlan] = []
        heads = (model.num_heads, model.num_kv_heads, model.head_dim)
        attention = settings.attention(_attention_context(heads, settings, settings.budget))
        own_groups = kv_groups(model.attention_layers(), attention)
        drafting = _drafting(drafter, own_groups, settings, name)
        groups = drafting.groups
        num_blocks = (settings.num_blocks,) * len({group.pool_id for group in groups})
        plan = MemoryPlan(num_blocks, {})
        kv = allocate_kv([layer.group_id for layer in model.attention_layers()], groups, plan, attention, _CPU)
        draft_kv = drafting.allocate(plan, _CPU)
        for tensor in (tensor for tensors in (*kv, *draft_kv) for tensor in tensors):
            tensor.fill_(float("nan"))
        state = BatchState(
            settings.max_num_seqs, MAX_MODEL_LEN, settings.block_size, len(groups), model.vocab_size, _CPU
        )
        self._facts = ModelFacts(
            max_model_len=MAX_MODEL_LEN,
            vocab_size=model.vocab_size,
            eos_token_ids=(),
            kv_groups=groups,
            num_blocks=num_blocks,
            block_root=b"tiny",
        )
        windows = [group.window for group in own_groups]
        self._runner = ModelRunner(
            ModelRunnerParts(
                model=model,
                attention=attention,
                drafter=drafter,
                drafter_name=name,
                kv=kv,
                state=state,
                inputs=StepInputsBuilder(state, windows, settings.budget, settings.max_num_seqs, _CPU),
                vocab_size=model.vocab_size,
                device=_CPU,
                clock=clock,
                takes_trees=settings.takes_trees,
                verifier=settings.verifier,
                draft_memory=drafting.memory(state, draft_kv, TargetKV(attention, kv)),
                max_waiting_states=settings.max_waiting_states,
            )
        )

    def model_facts(self) -> ModelFacts:
        return self._facts

    def launch(self, plan: StepPlan) -> StepHandle:
        self.plans.append(plan)
        return FinishedStep(self._runner.execute(plan))

    def close(self) -> None:
        """Holds nothing that must be given back."""


@final
class _Lent(TensorFunction):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self._function(value)


def _build_kv(facts: ModelFacts, settings: TinySettings, clock: Clock) -> KVManager:
    def build_cache(num_blocks: int) -> PrefixCache:
        return build_prefix_cache(settings.cache, CacheContext(settings.block_size, num_blocks, facts.max_model_len))

    return KVManager(
        facts.kv_groups,
        facts.num_blocks,
        settings.block_size,
        facts.block_root,
        build_cache,
        clock,
        f"cache={settings.cache}",
        0 if settings.preempt_mode == "recompute" else _HOST_BYTES,
        copies_blocks=True,
    )


def _drafting(drafter: Drafter, groups: tuple[KVGroupSpec, ...], settings: TinySettings, name: str) -> Drafting:
    """The drafter with memory for its own layers, if it wants any; `groups` are the target's."""
    groups, needed = lend_groups(drafter, groups, name), drafter.needs().kv_groups
    if not needed:
        return Drafting(drafter, groups, None, name)
    num_tokens = settings.budget + settings.max_num_seqs
    attention = settings.attention(_attention_context(head_shape(needed, name), settings, num_tokens))
    return Drafting(drafter, (*groups, *draft_groups(needed, attention, groups)), attention, name)


def _attention_context(heads: tuple[int, int, int], settings: TinySettings, num_tokens: int) -> AttentionContext:
    """For query heads, KV heads and head_dim."""
    num_heads, num_kv_heads, head_dim = heads
    return AttentionContext(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=settings.block_size,
        dtype=torch.float32,
        device=_CPU,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=num_tokens,
        max_model_len=MAX_MODEL_LEN,
        deterministic=False,
    )
