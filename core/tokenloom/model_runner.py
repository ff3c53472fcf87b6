"""One step next to the weights: inputs, forward, logits, sampling, verification, proposals for the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch

from tokenloom.batch import RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs
from tokenloom.batch_state import BatchState
from tokenloom.clock import Clock
from tokenloom.errors import PluginContractError
from tokenloom.interfaces.attention import AttentionBackend
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, Proposal
from tokenloom.models.causal_lm import CausalLM, ForwardContext
from tokenloom.plugin_guard import plugin_call
from tokenloom.sampling.constraint import AllowedTokens, ConstrainedRows, allowed_tokens
from tokenloom.sampling.sampler import SampleResult, sample
from tokenloom.sampling.verify import Verification, verify_chain, verify_tree
from tokenloom.step_inputs import StepInputs, StepInputsBuilder

__all__ = ["ModelRunner", "ModelRunnerParts"]


@dataclass(frozen=True, slots=True)
class ModelRunnerParts:
    """What a ModelRunner is made of. `kv` holds each layer's cache tensors."""

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


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Host outcome of the rows that sampled, by request id."""

    token_ids: dict[str, list[int]]
    logprobs: dict[str, tuple[TokenLogprobs, ...]]
    invalid: frozenset[str]
    accepted_rows: dict[str, list[int]]
    """Per request with drafts, the emitted logits rows counted from its own first one; 0 is the last own token."""


@final
class ModelRunner:
    """Executes step plans. Holds the only copy of what the device knows of each request."""

    def __init__(self, parts: ModelRunnerParts) -> None:
        self._parts = parts
        self._state = parts.state
        needs = parts.drafter.needs()
        self._capture_layers = needs.hidden_layers
        self._sees_every_row = bool(needs.hidden_layers and needs.kv_groups)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step to its end."""
        clock = self._parts.clock
        start_s = clock.now()
        self._state.remove(plan.removed)
        self._parts.drafter.forget(plan.removed)
        for row in plan.rows:
            self._state.update(row)
        inputs = self._parts.inputs.build(plan)
        built_s = clock.now()
        hidden, captured = self._forward(inputs)
        forward_s = clock.now()
        sampled = self._sample(plan, inputs, hidden)
        sampled_s = clock.now()
        self._compact_trees(plan, inputs, sampled)
        for request_id, token_ids in sampled.token_ids.items():
            self._state.append_tokens(self._state.row(request_id), token_ids)
        proposals = self._propose(plan, inputs, sampled, captured)
        rows = tuple(_row_result(row, sampled, proposals) for row in plan.rows)
        times = {
            "build": built_s - start_s,
            "forward": forward_s - built_s,
            "sample": sampled_s - forward_s,
            "propose": clock.now() - sampled_s,
        }
        return StepResult(plan.step_id, rows, times)

    def _forward(self, inputs: StepInputs) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        attention = self._parts.attention
        context = ForwardContext(
            positions=inputs.positions,
            attention=attention,
            metadata=tuple(attention.prepare(batch) for batch in inputs.attention),
            kv=self._parts.kv,
            capture_layers=self._capture_layers,
        )
        output = self._parts.model.forward(inputs.token_ids, context)
        return output.hidden, output.captured

    def _sample(self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor) -> _Sampled:
        if not inputs.sampling_ids:
            return _Sampled({}, {}, frozenset(), {})
        by_id = {row.request_id: row for row in plan.rows if row.samples}
        logits = self._parts.model.compute_logits(hidden[inputs.logits_rows])  # [R, V]
        batch = self._state.sampling(inputs.sampling_ids, inputs.num_logits_rows, inputs.logits_offsets)
        cu_rows = np.zeros(len(inputs.sampling_ids) + 1, np.int64)
        np.cumsum(inputs.num_logits_rows, out=cu_rows[1:])
        result = sample(logits, batch, self._allowed(by_id, inputs, cu_rows))
        bounds = list(zip(inputs.sampling_ids, pairwise(cu_rows.tolist()), strict=True))
        emitted = self._emitted_rows(by_id, inputs, result, cu_rows)
        tokens, invalid_rows = result.token_ids.tolist(), result.invalid.tolist()
        logprobs = {} if result.logprobs is None else result.logprobs.to_host()
        token_ids: dict[str, list[int]] = {}
        row_logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        accepted: dict[str, list[int]] = {}
        invalid: set[str] = set()
        for request_id, (first, end) in bounds:
            # Rows behind a rejected draft may be invalid (a constraint's dead end, say) without harm.
            rows = [row for row in range(first, end) if emitted is None or emitted[row]]
            if any(invalid_rows[row] for row in rows):
                invalid.add(request_id)
            token_ids[request_id] = [] if request_id in invalid else [tokens[row] for row in rows]
            row_logprobs[request_id] = tuple(logprobs[row] for row in rows if row in logprobs)
            if end - first > 1:
                accepted[request_id] = [row - first for row in rows]
        self._advance_constraints(token_ids)
        return _Sampled(token_ids, row_logprobs, frozenset(invalid), accepted)

    def _emitted_rows(
        self, by_id: dict[str, RowPlan], inputs: StepInputs, result: SampleResult, cu_rows: np.ndarray
    ) -> list[bool] | None:
        """Which logits rows yield tokens; None when no request has drafts, so that all do."""
        if len(result.token_ids) == len(inputs.sampling_ids):
            return None
        device = self._parts.device
        rows = [by_id[request_id] for request_id in inputs.sampling_ids]
        drafts = torch.tensor([d for row in rows for d in row.draft_token_ids], dtype=torch.int64, device=device)
        starts = torch.from_numpy(cu_rows).to(device)
        verification: Verification
        if any(row.draft_parents for row in rows):
            parents = [p for row in rows for p in (row.draft_parents or range(-1, len(row.draft_token_ids) - 1))]
            parent_ids = torch.tensor(parents, dtype=torch.int64, device=device)
            verification = verify_tree(result.token_ids, drafts, parent_ids, starts)
        else:
            verification = verify_chain(result.token_ids, drafts, starts)
        emitted: list[bool] = verification.is_emitted.tolist()
        return emitted

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

    def _compact_trees(self, plan: StepPlan, inputs: StepInputs, sampled: _Sampled) -> None:
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

    def _propose(
        self, plan: StepPlan, inputs: StepInputs, sampled: _Sampled, captured: dict[int, torch.Tensor]
    ) -> dict[str, Proposal]:
        chosen = [
            (row, first)
            for row, first in zip(plan.rows, inputs.first_rows.tolist(), strict=True)
            if self._sees_every_row or (row.max_drafts > 0 and sampled.token_ids.get(row.request_id))
        ]
        if not chosen:
            return {}
        state = self._state
        ids = [row.request_id for row, _ in chosen]
        hidden_rows = [_verified_rows(row, first, sampled) for row, first in chosen]
        cu_hidden = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum([len(rows) for rows in hidden_rows], out=cu_hidden[1:])
        gather = torch.tensor([i for rows in hidden_rows for i in rows], dtype=torch.int64, device=self._parts.device)
        batch = DraftBatch(
            request_ids=ids,
            token_ids=[state.tokens(i) for i in ids],
            num_prompt_tokens=[state.info(i).num_prompt_tokens for i in ids],
            max_drafts=[row.max_drafts if sampled.token_ids.get(row.request_id) else 0 for row, _ in chosen],
            chain_only=[not self._parts.takes_trees or state.constraint(i) is not None for i in ids],
            first_positions=[row.num_computed_tokens for row, _ in chosen],
            hidden_states={layer: states[gather] for layer, states in captured.items()},
            cu_hidden=cu_hidden,
        )
        with plugin_call(f"spec_decode={self._parts.drafter_name}", "propose() returns proposals"):
            proposals = self._parts.drafter.propose(batch)
        self._check_proposals(proposals, batch)
        return dict(zip(ids, proposals, strict=True))

    def _check_proposals(self, proposals: Sequence[Proposal], batch: DraftBatch) -> None:
        plugin = f"spec_decode={self._parts.drafter_name}"
        if len(proposals) != len(batch.request_ids):
            detail = f"{len(proposals)} proposals for {len(batch.request_ids)} requests"
            raise PluginContractError(plugin, "one proposal for each request", detail)
        limits = zip(batch.request_ids, batch.max_drafts, batch.chain_only, proposals, strict=True)
        for request_id, limit, is_chain_only, proposal in limits:
            ids = proposal.token_ids
            if is_chain_only and proposal.parents:
                detail = f"{request_id}: parents {proposal.parents}"
                raise PluginContractError(plugin, "no tree where only chains are legal", detail)
            if len(ids) > limit:
                raise PluginContractError(plugin, "at most max_drafts drafts", f"{request_id}: {len(ids)} > {limit}")
            if ids and not (min(ids) >= 0 and max(ids) < self._parts.vocab_size):
                detail = f"{request_id}: {ids} not in 0..{self._parts.vocab_size - 1}"
                raise PluginContractError(plugin, "drafts are token ids of the target", detail)
            is_tree = len(proposal.parents) == len(ids) and all(-1 <= p < i for i, p in enumerate(proposal.parents))
            if proposal.parents and not is_tree:
                detail = f"{request_id}: parents {proposal.parents} of {len(ids)} nodes"
                raise PluginContractError(plugin, "parents come before their children", detail)
            if proposal.parents and len(set(zip(proposal.parents, ids, strict=True))) < len(ids):
                detail = f"{request_id}: tokens {ids} with parents {proposal.parents}"
                raise PluginContractError(plugin, "siblings have distinct tokens", detail)


def _verified_rows(row: RowPlan, first: int, sampled: _Sampled) -> list[int]:
    """Rows of the hidden states of a request's verified new tokens: its own ones, then the accepted drafts."""
    num_own = row.num_scheduled_tokens - len(row.draft_token_ids)
    accepted = sampled.accepted_rows.get(row.request_id, [0])[1:]
    return [*range(first, first + num_own), *(first + num_own - 1 + node for node in accepted)]


def _row_result(row: RowPlan, sampled: _Sampled, proposals: dict[str, Proposal]) -> RowResult:
    request_id = row.request_id
    if not row.samples:
        return RowResult(request_id, [])
    if request_id in sampled.invalid:
        return RowResult(
            request_id, [], error="no token can be sampled: the logits are not finite, or every token is masked"
        )
    token_ids = sampled.token_ids[request_id]
    proposal = proposals.get(request_id, Proposal())
    return RowResult(
        request_id=request_id,
        token_ids=token_ids,
        num_accepted_tokens=len(token_ids) - 1 if row.draft_token_ids else 0,
        next_draft_token_ids=proposal.token_ids,
        next_draft_parents=proposal.parents,
        logprobs=sampled.logprobs.get(request_id, ()),
    )
