"""One step next to the weights: inputs, forward, logits, sampling, verification, proposals for the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

import numpy as np
import torch

from tokenloom.batch import RowPlan, StepPlan, StepResult, TokenLogprobs
from tokenloom.batch_state import BatchState
from tokenloom.clock import Clock, LapTimer
from tokenloom.draft_passes import DraftPasses
from tokenloom.draft_proposals import DraftProposals, DraftTask
from tokenloom.host_blocks import HostBlocks, stored_layers
from tokenloom.interfaces.attention import AttentionBackend, KVScales
from tokenloom.interfaces.spec_decode import Drafter, Verifier
from tokenloom.models.causal_lm import CausalLM, ForwardContext, KVSink, PromptSink, StateSink
from tokenloom.ops.sampling_table import TORCH_SAMPLING, SamplingOps
from tokenloom.sampled_rows import SampledRows, row_result
from tokenloom.sampling.constraint import AllowedTokens, ConstrainedRows, allowed_tokens
from tokenloom.sampling.logprobs import prompt_logprobs
from tokenloom.sampling.processing import why_no_token
from tokenloom.step_inputs import StepInputs, StepInputsBuilder
from tokenloom.verification import DraftVerification, StepLogits

__all__ = ["ModelRunner", "ModelRunnerParts"]


@dataclass(frozen=True, slots=True)
class ModelRunnerParts:
    """What a ModelRunner is made of. `kv` holds the cache tensors of each of the model's layers."""

    model: CausalLM
    attention: AttentionBackend
    drafter: Drafter
    drafter_name: str
    kv: Sequence[Sequence[torch.Tensor]]
    state: BatchState
    inputs: StepInputsBuilder
    vocab_size: int
    device: torch.device
    clock: Clock
    takes_trees: bool
    """Whether the attention backend can mask a draft tree."""
    verifier: Verifier = "position_noise"
    sampling: SamplingOps = TORCH_SAMPLING
    draft_memory: DraftPasses | None = None
    """KV memory of the drafter's own layers if it has any, or the target's if it runs the target's layers."""
    kv_scales: Mapping[int, KVScales] = field(default_factory=dict)
    """Fixed scales of the target's keys and values, by layer."""
    max_waiting_states: int = 0
    """Most tokens whose states wait for the drafter while nothing is drafted, see `DraftProposals`."""


@final
class ModelRunner:
    """Executes step plans. Holds the only copy of what the device knows of each request."""

    def __init__(self, parts: ModelRunnerParts) -> None:
        self._parts = parts
        self._state = parts.state
        layers = stored_layers(parts.attention, parts.model.attention_layers(), parts.kv)
        needs = parts.drafter.needs()
        own_memory = None if needs.target_kv else parts.draft_memory
        draft_layers = () if own_memory is None else own_memory.stored_layers
        self._host = HostBlocks((*layers, *draft_layers), parts.state.block_size)
        self._verification = DraftVerification(parts.verifier, parts.sampling)
        self._proposals = DraftProposals(
            DraftTask(
                drafter=parts.drafter,
                plugin=f"spec_decode={parts.drafter_name}",
                state=parts.state,
                memory=parts.draft_memory,
                takes_trees=parts.takes_trees and self._verification.takes_trees,
                vocab_size=parts.vocab_size,
                device=parts.device,
                max_waiting=parts.max_waiting_states,
            )
        )
        self.capture_layers = needs.hidden_layers
        self.prompt_sink: PromptSink | None = None
        self.state_sink: StateSink | None = None
        self.kv_sink: KVSink | None = None

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step to its end."""
        timer = LapTimer(self._parts.clock)
        if self._proposals.settle(plan):
            timer.lap("propose")
        lost = self._move_blocks(plan)
        if plan.transfers:
            timer.lap("transfer")
        self._state.remove(plan.removed)
        self._verification.forget(plan.removed)
        self._parts.drafter.forget(plan.removed)
        if not plan.rows:
            return StepResult(plan.step_id, (), timer.times_s, lost)
        self._state.update(plan.rows)
        inputs = self._parts.inputs.build(plan)
        timer.lap("build")
        hidden, captured = self._forward(inputs)
        timer.lap("forward")
        sampled = self._sample(plan, inputs, hidden, timer)
        prompt = self._prompt_logprobs(plan, inputs, hidden)
        timer.lap("verify" if sampled.accepted_rows else "sample")
        self._compact_trees(plan, inputs, sampled)
        for request_id, token_ids in sampled.token_ids.items():
            self._state.append_tokens(self._state.row(request_id), token_ids)
        proposals = self._proposals.propose(plan, inputs.first_rows.tolist(), sampled, captured)
        if proposals is not None:
            self._verification.keep(proposals)
            timer.lap("propose")
        drafts = proposals or {}
        rows = tuple(row_result(row, sampled, drafts, prompt.get(row.request_id, ())) for row in plan.rows)
        timer.lap("results")
        return StepResult(plan.step_id, rows, timer.times_s, lost)

    def _move_blocks(self, plan: StepPlan) -> tuple[str, ...]:
        """Copies KV to the host and back, and within the device; returns the requests whose KV found no room there."""
        self._host.drop(plan.transfers.dropped)
        lost = self._host.export(plan.transfers.exports)
        self._host.copy(plan.transfers.copies)
        self._host.restore(plan.transfers.imports)
        return lost

    def _forward(self, inputs: StepInputs) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        attention = self._parts.attention
        context = ForwardContext(
            positions=inputs.positions,
            attention=attention,
            metadata=tuple(attention.prepare(batch) for batch in inputs.attention),
            kv=self._parts.kv,
            capture_layers=self.capture_layers,
            kv_scales=self._parts.kv_scales,
            kv_sink=self.kv_sink,
        )
        output = self._parts.model.forward(inputs.token_ids, context)
        if self.state_sink is not None:
            self.state_sink(output.captured)
        return output.hidden, output.captured

    def _sample(self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, timer: LapTimer) -> SampledRows:
        if not inputs.sampling_ids:
            return SampledRows({}, {}, {}, {})
        by_id = {row.request_id: row for row in plan.rows if row.samples}
        logits = self._parts.model.compute_logits(hidden[inputs.logits_rows])  # [R, V]
        timer.lap("logits")
        batch = self._state.sampling(inputs.sampling_ids, inputs.num_logits_rows, inputs.logits_offsets, by_id)
        cu_rows = np.zeros(len(inputs.sampling_ids) + 1, np.int64)
        np.cumsum(inputs.num_logits_rows, out=cu_rows[1:])
        bounds = list(zip(inputs.sampling_ids, pairwise(cu_rows.tolist()), strict=True))
        rows = [by_id[request_id] for request_id in inputs.sampling_ids]
        allowed = self._allowed(by_id, inputs, cu_rows)
        verified = self._verification.verify(StepLogits(rows, cu_rows.tolist(), logits, batch, allowed))
        token_ids: dict[str, list[int]] = {}
        row_logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        accepted: dict[str, list[int]] = {}
        errors: dict[str, str] = {}
        for request_id, (first, end) in bounds:
            # Rows behind a rejected draft may be invalid (a constraint's dead end, say) without harm.
            emitted = [i for i in range(first, end) if verified.is_emitted is None or verified.is_emitted[i]]
            invalid = next((i for i in emitted if verified.invalid[i]), None)
            if invalid is not None:
                # What comes before it stands: a stop among these tokens ends the request before the fault is met.
                errors[request_id] = why_no_token(logits, batch, allowed, invalid)
                emitted = emitted[: emitted.index(invalid)]
            token_ids[request_id] = [verified.token_ids[i] for i in emitted]
            row_logprobs[request_id] = tuple(verified.logprobs[i] for i in emitted if i in verified.logprobs)
            if end - first > 1:
                accepted[request_id] = [i - first for i in emitted]
        self._advance_constraints(token_ids)
        return SampledRows(token_ids, row_logprobs, errors, accepted)

    def _prompt_logprobs(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor
    ) -> dict[str, tuple[TokenLogprobs, ...]]:
        """Logprobs of prompt tokens, of the requests whose plans ask for some."""
        found: dict[str, tuple[TokenLogprobs, ...]] = {}
        if not any(row.prompt_logprob_slots[1] for row in plan.rows):
            return found
        for row, first_row in zip(plan.rows, inputs.first_rows.tolist(), strict=True):
            first, end = row.prompt_logprob_slots
            if first == end:
                continue
            num_top = self._state.info(row.request_id).params.prompt_logprobs
            assert num_top is not None, f"{row.request_id} is asked for prompt logprobs that it does not want"
            rows = hidden[first_row + first - row.num_computed_tokens : first_row + end - row.num_computed_tokens]
            if self.prompt_sink is not None:
                self.prompt_sink(rows)
            token_ids = torch.tensor(self._state.tokens(row.request_id)[first + 1 : end + 1], device=hidden.device)
            found[row.request_id] = prompt_logprobs(
                rows, token_ids.long(), num_top, self._parts.vocab_size, self._parts.model.compute_logits
            )
        return found

    def _allowed(self, by_id: dict[str, RowPlan], inputs: StepInputs, cu_rows: np.ndarray) -> AllowedTokens | None:
        constrained = []
        for request_id, first in zip(inputs.sampling_ids, cu_rows.tolist()):
            constraint = self._state.constraint(request_id)
            if constraint is not None:
                constrained.append(ConstrainedRows(constraint, first, by_id[request_id].draft_token_ids))
        return allowed_tokens(constrained, self._parts.vocab_size, self._parts.device)

    def _advance_constraints(self, token_ids: dict[str, list[int]]) -> None:
        for request_id, ids in token_ids.items():
            constraint = self._state.constraint(request_id)
            for token_id in ids if constraint is not None else ():
                if constraint is None or constraint.is_terminated:
                    break
                is_legal = constraint.advance(token_id)
                assert is_legal, f"token {token_id} of {request_id} was sampled under a mask that forbids it"

    def _compact_trees(self, plan: StepPlan, inputs: StepInputs, sampled: SampledRows) -> None:
        """Moves the K and V of accepted tree nodes to the slots that follow the last own token."""
        source_rows: list[int] = []
        target_rows: list[int] = []
        for row, first in zip(plan.rows, inputs.first_rows.tolist(), strict=True):
            if row.draft_parents and row.request_id in sampled.accepted_rows:
                last_own = first + row.num_scheduled_tokens - len(row.draft_token_ids) - 1
                for depth, node_row in enumerate(sampled.accepted_rows[row.request_id]):
                    if node_row != depth:
                        source_rows.append(last_own + node_row)
                        target_rows.append(last_own + depth)
        if not source_rows:
            return
        layers = self._parts.model.attention_layers()
        for layer, kv in zip(layers, self._parts.kv, strict=False):
            slots = inputs.attention[layer.group_id].slot_mapping
            self._parts.attention.copy_slots(kv, slots[source_rows], slots[target_rows])
