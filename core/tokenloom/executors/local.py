"""Executor `local`: the model in this process. A step is finished when `launch` returns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, cast, final

import torch
from pydantic import Field

from tokenloom.batch import StepPlan
from tokenloom.batch_state import BatchState
from tokenloom.executors.activation_memory import activation_peak_bytes, max_waiting_states, workspace_bytes
from tokenloom.executors.device_choice import (
    available_bytes,
    choose_device,
    choose_dtype,
    choose_max_model_len,
    choose_num_threads,
    choose_ops,
)
from tokenloom.executors.drafting import Drafting, DraftTarget, TargetKV, build_drafting
from tokenloom.executors.kv_memory import allocate_kv, kv_groups
from tokenloom.executors.kv_scales import FixedKVScales, load_kv_scales
from tokenloom.executors.memory_errors import out_of_memory
from tokenloom.executors.model_contexts import attention_context, model_traits
from tokenloom.interfaces.attention import AttentionBackend, AttentionConfig
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.executor import (
    Executor,
    ExecutorConfig,
    ExecutorContext,
    FinishedStep,
    ModelFacts,
    StepHandle,
)
from tokenloom.interfaces.quant import QuantConfig, QuantContext, Quantizer
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.interfaces.spec_decode import Drafter, SpecDecodeConfig
from tokenloom.kv.memory_plan import MemoryBudget, MemoryPlan, plan_memory
from tokenloom.loader.checkpoint import Checkpoint, open_checkpoint
from tokenloom.loader.sources import resolve_model
from tokenloom.model_config import ModelConfig
from tokenloom.model_runner import ModelRunner, ModelRunnerParts
from tokenloom.models.build import build_model
from tokenloom.models.causal_lm import CausalLM, KVSink, PromptSink, StateSink
from tokenloom.ops.sampling_table import build_sampling_ops
from tokenloom.parallel import ParallelContext
from tokenloom.step_inputs import StepInputsBuilder

__all__ = ["LocalExecutor", "LocalExecutorConfig"]


class LocalExecutorConfig(ExecutorConfig):
    """Settings of the local executor."""

    poison_kv: Annotated[bool, Field()] = Field(
        default=False, description="Fill the KV cache with NaN at start, to prove that unwritten memory is never read."
    )

    def build(self, context: ExecutorContext) -> Executor:
        settings = context.config.model
        path = resolve_model(settings.source, revision=settings.revision)
        checkpoint = open_checkpoint(path)
        try:
            return LocalExecutor(_Builder(context, checkpoint, self).build())
        finally:
            checkpoint.close()


@dataclass(frozen=True, slots=True)
class _Built:
    runner: ModelRunner
    model: CausalLM
    facts: ModelFacts


@final
class LocalExecutor(Executor):
    """Runs each step inside `launch`."""

    def __init__(self, built: _Built) -> None:
        self._runner: ModelRunner | None = built.runner
        self._model: CausalLM | None = built.model
        self._facts = built.facts

    def model_facts(self) -> ModelFacts:
        return self._facts

    def launch(self, plan: StepPlan) -> StepHandle:
        assert self._runner is not None, "launch() after close()"
        with out_of_memory(f"a step of {plan.num_tokens} tokens", "lower scheduler.max_num_batched_tokens"):
            return FinishedStep(self._runner.execute(plan))

    def capture_prompts(self, sink: PromptSink) -> CausalLM:
        """Tells `sink` the states that prompt logprobs come from, from now on; for evaluation.

        Returns:
            The model, whose `compute_logits` makes logits of them, also after `close`.
        """
        assert self._runner is not None, "capture_prompts() after close()"
        assert self._model is not None, "capture_prompts() after close()"
        self._runner.prompt_sink = sink
        return self._model

    def capture_states(self, layers: tuple[int, ...], sink: StateSink) -> None:
        """Tells `sink` the outputs of these decoder layers in every step, from now on; for training.

        Args:
            layers: numbers of decoder layers; `FINAL_STATE` is the final normed state.
            sink: told them.
        """
        assert self._runner is not None, "capture_states() after close()"
        self._runner.capture_layers = tuple(dict.fromkeys((*self._runner.capture_layers, *layers)))
        self._runner.state_sink = sink

    def capture_kv(self, sink: KVSink) -> None:
        """Tells `sink` what every layer is about to store, from now on; for calibration."""
        assert self._runner is not None, "capture_kv() after close()"
        self._runner.kv_sink = sink

    def close(self) -> None:
        self._runner, self._model = None, None


@final
class _Builder:
    """Builds one executor: choices, capability check, weights, memory, runner, in this order."""

    def __init__(self, context: ExecutorContext, checkpoint: Checkpoint, own: LocalExecutorConfig) -> None:
        self._context = context
        self._config = context.config
        self._checkpoint = checkpoint
        self._own = own
        self._model_config: ModelConfig = checkpoint.config
        self._device = choose_device(self._config.model)
        self._dtype = choose_dtype(self._config.model, self._model_config, self._device)
        self._max_model_len = choose_max_model_len(self._config.model, self._model_config)
        self._scheduler = cast(SchedulerConfig, self._config.scheduler.config)
        self._cache = cast(CacheConfig, self._config.cache.config)
        self._quant = cast(QuantConfig, self._config.quant.config)

    def build(self) -> _Built:
        config = self._model_config
        self._context.check_model(model_traits(config, self._device, self._dtype))
        self._ops = choose_ops(self._config.engine, self._device, self._dtype)
        if self._device.type == "cpu":
            torch.set_num_threads(choose_num_threads(self._config.engine.num_threads))
        # Plugins come before the weights: what they refuse, they refuse at once.
        quantizer, attention = self._build_quantizer(), self._build_attention()
        with out_of_memory("the model", "try quant=int8, or model.dtype=bfloat16"):
            model = self._build_model(quantizer)
        kv_scales = load_kv_scales(self._config.attention, self._checkpoint, model.attention_layers(), self._device)
        drafting = build_drafting(
            self._config,
            self._context.capabilities["attention"],
            self._target(model, kv_scales),
            kv_groups(model.attention_layers(), attention),
            self._context.progress,
        )
        groups = drafting.groups
        plan = self._plan_memory(model.num_weight_bytes, drafting)
        return _Built(
            runner=self._build_runner(model, attention, drafting, plan, kv_scales),
            model=model,
            facts=ModelFacts(
                max_model_len=self._max_model_len,
                vocab_size=config.vocab_size,
                eos_token_ids=config.eos_token_ids,
                kv_groups=groups,
                num_blocks=plan.num_blocks,
                block_root=self._block_root(quantizer, drafting.drafter, kv_scales),
                memory=plan.breakdown,
                device=str(self._device),
                dtype=str(self._dtype).removeprefix("torch."),
                operations=self._ops,
                weight_remarks=(*quantizer.remarks, *kv_scales.remarks),
            ),
        )

    def _build_model(self, quantizer: Quantizer) -> CausalLM:
        return build_model(
            self._checkpoint,
            quantizer=quantizer,
            dtype=self._dtype,
            device=self._device,
            parallel=ParallelContext(),
            progress=self._context.progress,
            skip=self._quant.skip,
            max_model_len=self._max_model_len,
            ops=self._ops,
            deterministic=self._config.engine.deterministic,
        )

    def _build_quantizer(self) -> Quantizer:
        context = QuantContext(
            dtype=self._dtype,
            device=self._device,
            checkpoint=self._checkpoint.quantization or {},
            deterministic=self._config.engine.deterministic,
            stored_types=self._checkpoint.stored_types,
            operations=self._ops,
        )
        return self._quant.build(context)

    def _build_attention(self) -> AttentionBackend:
        context = attention_context(self._config, self._model_config, self._device, self._dtype, self._max_model_len)
        return cast(AttentionConfig, self._config.attention.config).build(context)

    def _plan_memory(self, target_bytes: int, drafting: Drafting) -> MemoryPlan:
        num_captured = len(drafting.drafter.needs().hidden_layers)
        budget = MemoryBudget(
            weights=target_bytes + drafting.drafter.num_weight_bytes,
            activation_peak=activation_peak_bytes(self._config, self._model_config, self._dtype, num_captured),
            workspace=workspace_bytes(self._scheduler, self._max_model_len),
            available=available_bytes(self._device),
        )
        cache = self._cache
        return plan_memory(budget, drafting.groups, cache.block_size, cache.memory_fraction, cache.num_blocks)

    def _target(self, model: CausalLM, kv_scales: FixedKVScales) -> DraftTarget:
        return DraftTarget(
            model,
            self._model_config,
            self._device,
            self._dtype,
            self._max_model_len,
            self._checkpoint.path,
            self._ops,
            kv_scales=kv_scales.by_layer,
        )

    def _build_runner(
        self,
        model: CausalLM,
        attention: AttentionBackend,
        drafting: Drafting,
        plan: MemoryPlan,
        kv_scales: FixedKVScales,
    ) -> ModelRunner:
        scheduler, vocab_size, layers = self._scheduler, self._model_config.vocab_size, model.attention_layers()
        groups = drafting.groups
        kv = allocate_kv([layer.group_id for layer in layers], groups, plan, attention, self._device)
        draft_kv = drafting.allocate(plan, self._device)
        if self._own.poison_kv:
            for tensor in (tensor for tensors in (*kv, *draft_kv) for tensor in tensors):
                tensor.view(torch.uint8).fill_(0xFF)  # NaN in every float dtype; integers have none
        state = BatchState(
            scheduler.max_num_seqs,
            self._max_model_len,
            self._cache.block_size,
            len(groups),
            vocab_size,
            self._device,
        )
        windows = [group.window for group in groups if not group.is_drafter]
        inputs = StepInputsBuilder(
            state, windows, scheduler.max_num_batched_tokens, scheduler.max_num_seqs, self._device
        )
        parts = ModelRunnerParts(
            model=model,
            attention=attention,
            drafter=drafting.drafter,
            drafter_name=self._config.spec_decode.name,
            kv=kv,
            state=state,
            inputs=inputs,
            vocab_size=vocab_size,
            device=self._device,
            clock=self._context.clock,
            takes_trees=self._context.capabilities["attention"].has_flag("tree_mask", self._device.type),
            verifier=cast(SpecDecodeConfig, self._config.spec_decode.config).verifier,
            sampling=build_sampling_ops(self._ops),
            draft_memory=drafting.memory(state, draft_kv, TargetKV(attention, kv)),
            kv_scales=kv_scales.by_layer,
            max_waiting_states=max_waiting_states(scheduler),
        )
        return ModelRunner(parts)

    def _block_root(self, quantizer: Quantizer, drafter: Drafter, kv_scales: FixedKVScales) -> bytes:
        """Everything but the tokens that a KV block's content depends on."""
        parts = (
            self._checkpoint.weights_digest,
            quantizer.fingerprint,
            ",".join(self._quant.skip),
            f"{self._config.attention.name} {self._config.attention.config}",
            f"{self._dtype} {self._cache.block_size} {self._ops}",
            self._model_config.rope_key(self._max_model_len),
            drafter.needs().kv_fingerprint,
            kv_scales.digest,
        )
        return hashlib.sha256("\n".join(parts).encode()).digest()
