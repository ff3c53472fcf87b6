"""A model whose next token is a hash of the sequence, and the requests and KV groups of tests that need no real one."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.request import FinishReason, Request
from tokenloom.sampling_params import SamplingParams

__all__ = ["StubModel", "StubVerdict", "full_group", "stub_request"]


def full_group(group_id: int = 0, **changes: object) -> KVGroupSpec:
    """A KV group that sees everything, or with `changes` one that does not."""
    fields: dict[str, object] = {
        "group_id": group_id,
        "layers": (f"layer{group_id}",),
        "window": None,
        "page_bytes": 64,
    }
    return KVGroupSpec(**{**fields, **changes})  # type: ignore[arg-type]


def stub_request(request_id: str, prompt: Sequence[int], max_tokens: int = 1_000, **fields: Any) -> Request:
    """A request for tests below the engine: greedy, without stop tokens, with room for max_tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    total = len(prompt) + max_tokens
    return Request(request_id, list(prompt), params, **{"seed": 0, "max_total_tokens": total, **fields})


@final
@dataclass(frozen=True, slots=True)
class StubVerdict:
    """What a request must come to: its output tokens and why it ends."""

    token_ids: list[int]
    reason: FinishReason


@final
class StubModel:
    """The next token is a hash of the whole sequence. Prefixes get ids: equal ids mean equal tokens, exactly."""

    def __init__(self, vocab_size: int = 50_000) -> None:
        self.vocab_size = vocab_size
        self._ids: dict[tuple[int, int], int] = {}
        self._digests: list[bytes] = [b""]

    def extend(self, prefix: int, token_id: int) -> int:
        """Id of a prefix with one more token; the empty prefix is 0."""
        key = (prefix, token_id)
        if key not in self._ids:
            digest = hashlib.blake2b(self._digests[prefix] + token_id.to_bytes(4, "little"), digest_size=16).digest()
            self._ids[key] = len(self._digests)
            self._digests.append(digest)
        return self._ids[key]

    def prefix(self, token_ids: Sequence[int]) -> int:
        """Id of a whole sequence."""
        prefix = 0
        for token_id in token_ids:
            prefix = self.extend(prefix, token_id)
        return prefix

    def next_token(self, prefix: int, forbidden: Collection[int] = ()) -> int:
        """The token that follows a prefix, passing over forbidden ones."""
        token_id = int.from_bytes(self._digests[prefix][:4], "little") % self.vocab_size
        while token_id in forbidden:
            token_id = (token_id + 1) % self.vocab_size
        return token_id

    def verdict(self, request: Request) -> StubVerdict:
        """What `request` yields when it runs alone, without cache, chunks, drafts or neighbours."""
        prefix, outputs = self.prefix(request.prompt_token_ids), list[int]()
        while True:
            is_early = len(outputs) < request.params.min_tokens
            outputs.append(self.next_token(prefix, request.stop_token_ids if is_early else ()))
            prefix = self.extend(prefix, outputs[-1])
            if outputs[-1] in request.stop_token_ids:
                return StubVerdict(outputs, FinishReason.STOP)
            if request.num_prompt_tokens + len(outputs) >= request.max_total_tokens:
                return StubVerdict(outputs, FinishReason.LENGTH)
