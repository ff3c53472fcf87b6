"""A right drafter and a right policy, and the same with one bug each, chosen by the setting `bug`.

The drafter keeps a table of followers for each request; requests that sample get drafts drawn from a fixed table of
distributions; trees are proposed where they are legal. So every rule of the contract is in play.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.interfaces.contract import Capabilities, PluginChoice, PluginInfo
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    DraftPolicy,
    DraftPolicyConfig,
    DraftPolicyContext,
    Proposal,
    SpecDecodeConfig,
    VerifiedDrafts,
)
from tokenloom.request import RequestView
from tokenloom.sampling import DraftSampler

__all__ = ["PLANTED_DRAFTER", "PLANTED_POLICY", "drafter_info", "policy_info"]


def drafter_info(flags: frozenset[str] = frozenset()) -> PluginInfo:
    return PluginInfo(
        kind="spec_decode",
        name="planted",
        config="tests.testing.planted_spec_decode:PlantedConfig",
        contract=(1, 1),
        summary="For tests.",
        capabilities=Capabilities(flags=flags),
        sub_kinds={"spec_decode.policy": "fixed"},
    )


def policy_info(flags: frozenset[str] = frozenset()) -> PluginInfo:
    return PluginInfo(
        kind="spec_decode.policy",
        name="planted",
        config="tests.testing.planted_spec_decode:PlantedPolicyConfig",
        contract=(1, 0),
        summary="For tests.",
        capabilities=Capabilities(flags=flags),
    )


PLANTED_DRAFTER = drafter_info()
PLANTED_POLICY = policy_info()


class PlantedConfig(SpecDecodeConfig):
    """Settings of the drafter."""

    policy: PluginChoice
    bug: str = ""

    def draft_policy(self) -> PluginChoice:
        return self.policy

    def build(self, context: DrafterContext) -> Drafter:
        return PlantedDrafter(context, self.bug)


@dataclass
class _History:
    """What one request has taught: followers of each token, and how many tokens were read."""

    followers: dict[int, Counter[int]] = field(default_factory=dict)
    num_read: int = 0
    view: npt.NDArray[np.int32] | None = None

    def read(self, token_ids: Sequence[int]) -> None:
        for first, second in pairwise(token_ids[max(0, self.num_read - 1) :]):
            self.followers.setdefault(first, Counter())[second] += 1
        self.num_read = len(token_ids)

    def best(self, token_id: int, count: int) -> list[int]:
        """The most frequent followers, equals by lowest id."""
        counts = self.followers.get(token_id, Counter())
        return sorted(counts, key=lambda follower: (-counts[follower], follower))[:count]


@final
class PlantedDrafter(Drafter):
    """Right, but for its bug."""

    def __init__(self, context: DrafterContext, bug: str) -> None:
        self._bug = bug
        self._vocab_size = context.vocab_size
        self._histories: dict[str, _History] = {}
        self._by_place: dict[int, _History] = {}
        self._random = random.Random()
        self._num_calls = 0
        self._table = torch.randn(context.vocab_size, context.vocab_size, generator=torch.Generator().manual_seed(5))
        self._buffer = torch.zeros(16, context.vocab_size)
        self._left: list[torch.Tensor] = []

    def needs(self) -> DrafterNeeds:
        self._num_calls += 1
        if self._bug == "layer beyond the last":
            return DrafterNeeds(hidden_layers=(99,))
        if self._bug == "needs change" and self._num_calls > 2:
            return DrafterNeeds(hidden_layers=(-1,))
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        if self._bug == "seeds the generator of all":
            torch.manual_seed(0)
        places = list(range(len(batch.request_ids)))
        if self._bug == "answers sorted by id":
            places.sort(key=lambda place: batch.request_ids[place])
        drawn = self._drawn(batch)
        proposals = [self._proposal(batch, place, drawn.get(place)) for place in places]
        if self._bug == "drafts for the longest only":
            longest = max(len(token_ids) for token_ids in batch.token_ids)
            proposals = [
                proposal if len(token_ids) == longest else Proposal()
                for proposal, token_ids in zip(proposals, batch.token_ids, strict=True)
            ]
        return proposals[:-1] if self._bug == "one request goes without answer" else proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        if self._bug == "forgets all":
            self._histories = {
                request_id: _History(num_read=history.num_read) for request_id, history in self._histories.items()
            }
        if self._bug in ("never forgets", "frontier of its own"):
            return
        if self._bug == "keeps a buffer of each request":
            self._left += [torch.zeros(16) for _ in request_ids]
        for request_id in request_ids:
            if self._bug == "forget of unknown ids fails":
                del self._histories[request_id]
            else:
                self._histories.pop(request_id, None)

    def _proposal(self, batch: DraftBatch, place: int, drawn: Proposal | None) -> Proposal:
        token_ids, limit = batch.token_ids[place], self._limit(batch.max_drafts[place])
        history = self._history(batch, place)
        tokens = self._read(token_ids, history)
        if self._bug == "frontier of its own" and batch.first_positions[place] < history.num_read - 1 and limit:
            raise RuntimeError(f"tokens {batch.first_positions[place]} and later were seen before")
        if self._bug == "expects two pairs":
            history.best(tokens[-3], 1)
        history.read(tokens)
        if self._bug == "writes to the tokens":
            token_ids.flags.writeable = True
            token_ids[0] = (token_ids[0] + 1) % self._vocab_size
        if drawn is not None:
            proposal = drawn
        elif batch.chain_only[place] and self._bug != "tree though chain_only":
            proposal = self._chain(history, tokens[-1], limit)
        else:
            proposal = self._tree(history, tokens[-1], limit)
        return self._broken(proposal, batch)

    def _history(self, batch: DraftBatch, place: int) -> _History:
        if self._bug == "state by place":
            return self._by_place.setdefault(place, _History())
        if self._bug == "one table for all":
            return self._histories.setdefault("all", _History())
        return self._histories.setdefault(batch.request_ids[place], _History())

    def _read(self, token_ids: npt.NDArray[np.int32], history: _History) -> list[int]:
        if self._bug == "keeps the view":
            history.view, token_ids = token_ids, history.view if history.view is not None else token_ids
            # The tokens of the call before, as if nobody else could write there, and the last one of today.
            return [*token_ids.tolist(), int(history.view[-1])]
        if self._bug == "reads behind the view":
            base = token_ids.base
            assert base is not None, "the kit gives a view"
            return [*token_ids.tolist(), int(base[len(token_ids)])]
        if self._bug == "one table for all":
            history.num_read = 0
        return list(token_ids.tolist())

    def _chain(self, history: _History, last: int, limit: int) -> Proposal:
        ids: list[int] = []
        while len(ids) < limit:
            best = history.best(ids[-1] if ids else last, 1)
            if not best:
                break
            ids += best
        return Proposal(tuple(ids))

    def _tree(self, history: _History, last: int, limit: int) -> Proposal:
        """Two children of each node, breadth first."""
        ids: list[int] = []
        parents: list[int] = []
        node = -1
        while len(ids) < limit and node < len(ids):
            for follower in history.best(last if node < 0 else ids[node], 2)[: limit - len(ids)]:
                ids.append(follower)
                parents.append(node)
            node += 1
        return Proposal(tuple(ids), tuple(parents))

    def _drawn(self, batch: DraftBatch) -> dict[int, Proposal]:
        """Drafts for the requests that sample, by place."""
        places = [place for place, s in enumerate(batch.sampling) if not s.params.is_greedy]
        limits = [self._limit(batch.max_drafts[place]) for place in places]
        last = torch.tensor([int(batch.token_ids[place][-1]) for place in places], dtype=torch.int64)
        sampling = [batch.sampling[place] for place in places]
        if self._bug == "same draw for every seed":
            sampling = [replace(s, seed=0) for s in sampling]
        if self._bug == "noise of the seed alone":
            sampling = [replace(s, position=0) for s in sampling]
        if self._bug == "noise without the choice":
            sampling = [replace(s, choice=0) for s in sampling]
        sampler = DraftSampler(sampling, self._vocab_size)
        ids: list[torch.Tensor] = []
        rows: list[torch.Tensor] = []
        for depth in range(max(limits, default=0)):
            logits = self._table[torch.zeros_like(last) if self._bug == "one table row and one noise" else last]
            is_one = self._bug in ("one noise for every depth", "one table row and one noise")
            drawn = sampler.draw(logits, 0 if is_one else depth)
            last = drawn.token_ids
            ids.append(last)
            rows.append(logits.softmax(dim=-1) if self._bug == "probs before the filters" else drawn.probs)
        found: dict[int, Proposal] = {}
        for index, (place, limit) in enumerate(zip(places, limits, strict=True)):
            tokens = tuple(int(column[index]) for column in ids[:limit])
            found[place] = Proposal()
            if tokens:
                found[place] = Proposal(tokens, probs=self._claimed(torch.stack([row[index] for row in rows[:limit]])))
        return found

    def _claimed(self, probs: torch.Tensor) -> torch.Tensor:
        match self._bug:
            case "probs of the row before":
                return probs.roll(1, dims=0)
            case "probs do not sum to 1":
                return probs * 0.9
            case "probs in bf16":
                return probs.bfloat16()
            case "probs are logits":
                return probs.log()
            case "probs in one buffer":
                self._buffer[: len(probs)] = probs
                return self._buffer[: len(probs)]
            case _:
                return probs

    def _limit(self, max_drafts: int) -> int:
        if self._bug == "too many":
            return max_drafts + 1
        return max(1, max_drafts) if self._bug == "one at least" else max_drafts

    def _broken(self, proposal: Proposal, batch: DraftBatch) -> Proposal:
        ids = proposal.token_ids
        if not ids:
            return proposal
        match self._bug:
            case "token beyond the vocabulary":
                return replace(proposal, token_ids=(*ids[:-1], self._vocab_size))
            case "negative token":
                return replace(proposal, token_ids=(-1, *ids[1:]))
            case "numpy integers":
                return replace(proposal, token_ids=tuple(np.array(ids)))
            case "equal siblings" if proposal.parents:
                return replace(proposal, token_ids=(ids[0],) * len(ids), parents=(-1,) * len(ids))
            case "parents behind their children" if proposal.parents:
                return replace(proposal, parents=tuple(reversed(range(len(ids)))))
            case "parents for some nodes" if len(proposal.parents) > 1:
                return replace(proposal, parents=proposal.parents[:-1])
            case "fewer in company" if proposal.probs is None:
                kept = max(0, len(ids) + 1 - len(batch.request_ids))
                return Proposal(ids[:kept], proposal.parents[:kept])
            case "random lengths" if proposal.probs is None:
                kept = self._random.randint(0, len(ids))
                return Proposal(ids[:kept], proposal.parents[:kept])
            case _:
                return proposal


class PlantedPolicyConfig(DraftPolicyConfig):
    """Settings of the policy."""

    bug: str = ""

    def build(self, context: DraftPolicyContext) -> DraftPolicy:
        return PlantedPolicy(self.bug)


@final
class PlantedPolicy(DraftPolicy):
    """One more than was accepted last, at first two. Right, but for its bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug
        self._accepted: dict[str, int] = {}
        self._num_asked = 0
        self._outcomes: list[VerifiedDrafts] = []
        self._random = random.Random()

    def num_drafts(self, request: RequestView, num_running: int) -> int:
        self._num_asked += 1
        count = self._accepted.get(request.request_id, 1) + 1
        match self._bug:
            case "a fraction":
                return count / 2  # type: ignore[return-value]
            case "below zero":
                return count - 3
            case "true":
                return count > 1
            case "divides by the output":
                return count + 8 // request.num_output_tokens
            case "counts questions":
                return count + self._num_asked % 3
            case "writes to the request":
                request.num_drafts = 0  # type: ignore[misc]
                return count
            case "random":
                return count + self._random.randint(0, 3)
            case "reads the clock":
                return count + int(time.monotonic()) % 2
            case _:
                return count

    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
        if self._bug == "divides by the duration":
            assert sum(drafts.num_accepted_tokens for drafts in verified) / duration_s >= 0
        if self._bug == "keeps every outcome":
            self._outcomes += verified
        for drafts in verified:
            if self._bug == "knows the asked only" and drafts.request_id == "never_asked":
                raise KeyError(drafts.request_id)
            self._accepted[drafts.request_id] = drafts.num_accepted_tokens

    def forget(self, request_id: str) -> None:
        if self._bug == "never forgets":
            return
        if self._bug == "forget of unknown ids fails":
            del self._accepted[request_id]
        self._accepted.pop(request_id, None)
