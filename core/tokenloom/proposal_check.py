"""Whether a drafter's proposals are legal. An illegal one is a breach of contract that names plugin and rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tokenloom.errors import PluginContractError
from tokenloom.interfaces.spec_decode import DraftBatch, Proposal

__all__ = ["check_proposals"]


def check_proposals(
    plugin: str, proposals: Sequence[Proposal], batch: DraftBatch, vocab_size: int, device: torch.device
) -> None:
    """Checks one step's proposals against the batch that was asked about; reads no tensor's values.

    Args:
        plugin: as the user chose it, e.g. "spec_decode=ngram".
        proposals: what `propose` returned.
        batch: what it was given.
        vocab_size, device: of the target.

    Raises:
        PluginContractError: the first broken rule.
    """
    if len(proposals) != len(batch.request_ids):
        detail = f"{len(proposals)} proposals for {len(batch.request_ids)} requests"
        raise PluginContractError(plugin, "one proposal for each request", detail)
    limits = zip(batch.request_ids, batch.max_drafts, batch.chain_only, proposals, strict=True)
    for request_id, limit, is_chain_only, proposal in limits:
        for rule, detail in _breaches(proposal, limit, is_chain_only, vocab_size, device):
            raise PluginContractError(plugin, rule, f"{request_id}: {detail}")


def _breaches(
    proposal: Proposal, limit: int, is_chain_only: bool, vocab_size: int, device: torch.device
) -> Iterator[tuple[str, str]]:
    """(rule, detail) of what is wrong with one proposal."""
    ids, parents, probs = proposal.token_ids, proposal.parents, proposal.probs
    if is_chain_only and parents:
        yield "no tree where only chains are legal", f"parents {parents}"
    if len(ids) > limit:
        yield "at most max_drafts drafts", f"{len(ids)} > {limit}"
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        yield "drafts are token ids of the target", f"{ids} not in 0..{vocab_size - 1}"
    is_tree = len(parents) == len(ids) and all(-1 <= parent < node for node, parent in enumerate(parents))
    if parents and not is_tree:
        yield "parents come before their children", f"parents {parents} of {len(ids)} nodes"
    if parents and len(set(zip(parents, ids, strict=False))) < len(ids):
        yield "siblings have distinct tokens", f"tokens {ids} with parents {parents}"
    if probs is None:
        return
    if probs.shape != (len(ids), vocab_size) or probs.dtype != torch.float32 or probs.device.type != device.type:
        detail = f"{tuple(probs.shape)} of {probs.dtype} on {probs.device} for {len(ids)} drafts of {vocab_size} tokens"
        yield f"probs are fp32 [drafts, vocabulary] on {device}", detail
