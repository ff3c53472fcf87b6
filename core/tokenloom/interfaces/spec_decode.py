"""Contract `spec_decode` 1.4 (proposes tokens). How many is decided by `tokenloom.interfaces.draft_policy`.

A drafter guesses the next tokens of each sequence; the core verifies them with the target model in the next step, keeps
what the target would have said anyway, and rolls back the rest. A wrong guess costs time, never correctness.

Words: B requests that draft, k the most drafts of any of them, V the target's vocabulary.

Flag in the capabilities: "shared_statistics", what earlier requests have taught it enters its answers for later ones.

Changes of `spec_decode`:
    1.1  `DraftBatch.sampling`, for drafters that sample; `SpecDecodeConfig.verifier`, which every Config inherits.
    1.2  `SpecDecodeConfig.simulated_acceptance`. KV memory for layers of a drafter's own (`DraftBatch.memory`; before,
         such drafters were refused); what `DrafterContext` says of the engine; `Drafter.num_weight_bytes`.
    1.3  The target's layers for drafters that run some of them: `DrafterContext.target_layers`,
         `DrafterNeeds.target_kv`.
    1.4  A drafter with kv_groups may be told of tokens later than their step, while nobody wants drafts.
    Drafters written for an older minor version run as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginChoice, PluginConfig
from tokenloom.interfaces.draft_memory import DraftKVGroup, DraftMemory
from tokenloom.interfaces.draft_policy import (
    POLICY_CONTRACT_VERSION,
    DraftPolicy,
    DraftPolicyConfig,
    DraftPolicyContext,
    VerifiedDrafts,
)
from tokenloom.interfaces.target_layers import LayerParts, TargetLayers
from tokenloom.parallel import ParallelContext
from tokenloom.sampling_params import SamplingParams

__all__ = [
    "CONTRACT_VERSION",
    "POLICY_CONTRACT_VERSION",
    "DraftBatch",
    "DraftKVGroup",
    "DraftMemory",
    "DraftPolicy",
    "DraftPolicyConfig",
    "DraftPolicyContext",
    "DraftSampling",
    "Drafter",
    "DrafterContext",
    "DrafterNeeds",
    "LayerParts",
    "Proposal",
    "SpecDecodeConfig",
    "TargetLayers",
    "VerifiedDrafts",
    "Verifier",
]

CONTRACT_VERSION = CONTRACT_VERSIONS["spec_decode"]

Verifier = Literal["position_noise", "rejection"]
"""How drafts of requests that sample are verified, see `SpecDecodeConfig.verifier`."""


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a drafter knows when it is built.

    Attributes:
        vocab_size: V of the target model.
        hidden_size: size of the target's hidden states.
        num_layers: decoder layers of the target.
        max_num_seqs: most requests in one step.
        max_model_len: longest sequence, in tokens.
        dtype, device: of the target's hidden states.
        embed: target's embedding, token ids int64 [n] -> [n, hidden_size].
        compute_logits: target's head, final hidden states [n, hidden_size] -> logits [n, V].
        parallel: rank and size.
        operations: what computes linear layers and norms, "torch", "native" or "triton"; see `engine.operations`.
        deterministic: results of a request must not depend on the rest of the batch, bit for bit.
        model_path: the target's checkpoint; None if it has none.
        progress: is told (stage, done, total) while the drafter loads weights.
        target_layers: the target's layers; None from an executor that lends none.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_num_seqs: int
    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    embed: TensorFunction
    compute_logits: TensorFunction
    parallel: ParallelContext = field(default_factory=ParallelContext)
    operations: Literal["torch", "native", "triton"] = "torch"
    deterministic: bool = False
    model_path: Path | None = None
    progress: Callable[[str, int, int], None] = lambda _stage, _done, _total: None
    target_layers: TargetLayers | None = None


class TensorFunction(ABC):
    """A function from tensor to tensor that the target lends to its drafter."""

    @abstractmethod
    def __call__(self, value: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class DrafterNeeds:
    """What a drafter wants from the target's forward pass; nothing by default.

    Attributes:
        hidden_layers: decoder layers whose output (residual stream) it reads; -1 is the final normed state.
        kv_groups: KV memory of its own layers. Heads have the same numbers and size in all groups.
        kv_fingerprint: names what the entries of its KV depend on beside the tokens: weights, quantization, settings.
        target_kv: its passes run the target's layers on the target's own KV memory, which `DraftBatch.memory` then is.
            Excludes kv_groups. What it writes behind the frontier is never read by anybody else.
    """

    hidden_layers: tuple[int, ...] = ()
    kv_groups: tuple[DraftKVGroup, ...] = ()
    kv_fingerprint: str = ""
    target_kv: bool = False


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How one request samples, for drafters that draw their drafts instead of taking the most likely token.

    `tokenloom.sampling.DraftSampler` draws with the noise that the target will use at the same positions, which makes
    the two agree as often as they can.

    Attributes:
        params: what the user asked for. A drafter may honour it in part, or not at all.
        seed, choice: key of the request's noise.
        position: index in the output of the token that a first draft stands for; a draft at depth d, counted from 0,
            stands for position + d.
    """

    params: SamplingParams
    seed: int
    choice: int
    position: int


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The requests to draft for, after this step's verification. Only verified tokens are in here.

    A drafter with kv_groups hears of every new verified token (of prefill chunks and rows with max_drafts 0 too), once
    and in order, and writes its entries of them in that call, or its KV would have holes. Of steps that want no drafts
    it may hear some steps later, of several at once, in a call that wants none either; but before anything else reads,
    moves or gives away the memory of these tokens. A row of such a call may have found a prefix that another row of it
    writes. Any other drafter only gets rows that want drafts.

    Attributes:
        request_ids: B ids.
        token_ids: per request, all its tokens so far, int32 [num_tokens], a read-only view valid in this call. Of a
            prompt that is not computed to its end, the whole prompt.
        num_prompt_tokens: per request.
        max_drafts: per request, most drafts (tree nodes) that make sense; 0 asks for none.
        chain_only: per request, whether a tree is illegal (its logits constraint moves along one path, the attention
            backend cannot mask a tree, or drafts are verified by rejection sampling).
        first_positions: per request, the position of its first new verified token: where the drafter's own frontier
            stands if it has KV memory.
        hidden_states: per layer of `DrafterNeeds.hidden_layers`, [R, hidden_size]: one row for each new verified token,
            in sequence order, requests after one another.
        cu_hidden: int64 [B + 1], host: request b's rows of hidden_states are cu_hidden[b]..cu_hidden[b + 1] - 1.
        sampling: per request, how it samples.
        memory: of a drafter with kv_groups or target_kv; see `tokenloom.interfaces.draft_memory`.
    """

    request_ids: Sequence[str]
    token_ids: Sequence[npt.NDArray[np.int32]]
    num_prompt_tokens: Sequence[int]
    max_drafts: Sequence[int]
    chain_only: Sequence[bool] = ()
    first_positions: Sequence[int] = ()
    hidden_states: Mapping[int, torch.Tensor] = field(default_factory=dict)
    cu_hidden: npt.NDArray[np.int64] | None = None
    sampling: Sequence[DraftSampling] = ()
    memory: DraftMemory | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts for one request.

    Attributes:
        token_ids: at most max_drafts ids, each in 0..V-1. A chain, or tree nodes in an order where parents come first
            (so that any prefix of the list is a tree); siblings have distinct tokens.
        parents: for a tree, per node the index of its parent, -1 for a child of the last verified token; () is a chain.
        probs: fp32 [len(token_ids), V] on the target's device, the distribution each token was *drawn* from, given the
            drafts before it; None when the drafts were chosen deterministically (then they count as one-hot, whatever
            the drafter's own softmax was). Draws are independent over depths, steps and choices, given the drafts
            before: the noise of two output positions, or of two choices of one seed, has nothing in common
            (`DraftSampler` sees to it; two draws for one position may share it). Drafts must not be left out because
            of what was drawn. The core keeps the tensor until the drafts are verified. Only `verifier=rejection` reads
            it.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: torch.Tensor | None = None


class SpecDecodeConfig(PluginConfig):
    """Base of spec_decode Configs. `build` takes a `DrafterContext`.

    `verifier` is the core's own key, the same for every drafter. Both verifiers yield what the target alone would, in
    distribution; greedy requests yield its very tokens under both.

    - position_noise: the target samples every position with that position's own noise, and a draft stays if it equals
      the sample. A seed's tokens depend on nothing but the logits. Takes chains and trees.
    - rejection: a draft d drawn from q stays with probability min(1, p(d) / q(d)), else max(p - q, 0) is sampled. Of
      drafts with `Proposal.probs` it keeps as many as can be kept; but a seed's tokens depend on the drafts, with
      engine.deterministic=true as well. Takes chains only, so every request is marked `chain_only`.
    """

    verifier: Verifier = Field(
        default="position_noise",
        description="Judge of sampled drafts: position_noise (seeds hold) or rejection (classical, chains only).",
    )

    def draft_policy(self) -> PluginChoice | None:
        """The chosen `spec_decode.policy`: the Config's field `policy`. None means that nothing is ever drafted."""
        return None

    def simulated_acceptance(self) -> tuple[float, ...] | None:
        """How often drafts are right by depth, if those before them are, for executors that run no model.

        None, as for nearly all, says nothing: only a model can tell. The last rate holds for deeper drafts.
        """
        return None

    @abstractmethod
    def build(self, context: DrafterContext) -> Drafter: ...


class Drafter(ABC):
    """Proposes tokens."""

    @abstractmethod
    def needs(self) -> DrafterNeeds:
        """What it wants from the target; fixed from the start."""

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of weights of its own, for the memory plan; 0 by default."""
        return 0

    @abstractmethod
    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        """Proposes for every request of the batch, in its order; an empty Proposal is always legal.

        Called next to the weights, after verification. The result for a request may depend on that request's verified
        tokens (and on statistics of earlier ones), never on what else is in the batch.
        """

    @abstractmethod
    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops all state of requests that ended or were preempted; unknown ids are ignored."""
