"""Part of contract `spec_decode`, since 1.2: KV memory for the layers of a drafter.

The core allocates it in the chosen attention plugin's layout, owns blocks and slots, moves and frees them with the
target's, and publishes full blocks to the prefix cache. The drafter says which new tokens a pass of its layers is over,
and runs its layers with what it gets for that.

    slot       0 ... first_position - 1 | first_position ... F - 1 | F ... F + max_drafts - 1
    holds      entries of earlier steps | written in this call     | free to use while drafting
               and of cached prefixes   | from verified tokens     | overwritten by later calls

F is where the request's frontier stands after the step: first_position plus its new verified tokens. The token at F is
known if the step has sampled, but the target has not run over it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tokenloom.interfaces.attention import AttentionBackend, AttentionMetadata

__all__ = ["DraftKVGroup", "DraftMemory", "DraftPass"]


@dataclass(frozen=True, slots=True)
class DraftKVGroup:
    """KV memory of a drafter's own layers; becomes a KV group of the engine, with its own block table and frontier.

    Attributes:
        num_layers, num_kv_heads, head_dim: shape of those layers.
        lookahead: how many tokens past t the entry at t depends on (1 for EAGLE and MTP, 0 for a plain draft model); a
            prefix hit ends that much earlier for this group.
        window: as in `AttentionLayer.window`.
        num_heads: query heads; None stands for num_kv_heads.
        has_soft_cap: whether these layers cap their attention scores.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    lookahead: int = 0
    window: int | None = None
    num_heads: int | None = None
    has_soft_cap: bool = False


@dataclass(frozen=True, slots=True)
class DraftPass:
    """What one pass of a drafter's layers over T new tokens takes; valid until the next pass begins.

    Attributes:
        positions: int64 [T], device; rotary position of each token.
        attention: writes K and V and attends; made for the heads of the drafter's groups.
        metadata: of this pass, by the drafter's own groups in the order of `DrafterNeeds.kv_groups`.
        kv: cache tensors of each layer, the layers of the first group first; mutated by `attention`.
    """

    positions: torch.Tensor
    attention: AttentionBackend
    metadata: tuple[AttentionMetadata, ...]
    kv: Sequence[Sequence[torch.Tensor]]


class DraftMemory(ABC):
    """The KV memory of a drafter in one call of `Drafter.propose`."""

    @abstractmethod
    def begin(
        self,
        request_ids: Sequence[str],
        starts: Sequence[int],
        counts: Sequence[int],
        parents: Sequence[Sequence[int]] = (),
    ) -> DraftPass:
        """Begins a pass over new tokens of some requests, one request after another.

        Args:
            request_ids: n requests of the batch, each once.
            starts: per request, slot and position of its first new token. All slots before it must have been written.
            counts: per request, its new tokens, at least 1. The last one's slot is below F + max_drafts.
            parents: () where all new tokens follow each other. Else per request for each new token the index of the one
                before it among them, -1 for one that follows the slots before; parents come first. Slots follow the
                order of the tokens, positions their depth, and a token sees its ancestors and all slots before. Only
                for requests that are not `chain_only`.

        Returns:
            What the T = sum(counts) tokens need.

        Raises:
            PluginContractError: a request has no memory for one of the slots.
        """
