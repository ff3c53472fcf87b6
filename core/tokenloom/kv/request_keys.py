"""The keys of each live request's full blocks: made once, kept until it ends, as its tokens only ever grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.cache import BlockKey
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.block_hash import extend_keys, root_key
from tokenloom.request import Request

__all__ = ["RequestKeys"]


@final
class RequestKeys:
    """Block keys by request and KV group."""

    def __init__(self, block_root: bytes, groups: Sequence[KVGroupSpec], block_size: int) -> None:
        self._block_root = block_root
        self._groups = tuple(groups)
        self._block_size = block_size
        self._keys: dict[str, list[list[BlockKey]]] = {}

    def first(self, request: Request, group: int, num_blocks: int) -> list[BlockKey]:
        """Keys of a request's first blocks."""
        keys = self._keys.setdefault(request.request_id, [[] for _ in self._groups])[group]
        if len(keys) < num_blocks:
            root = keys[0] if keys else root_key(self._block_root, group, self._block_size, request.cache_salt)
            start, lookahead = len(keys) * self._block_size, self._groups[group].lookahead
            extend_keys(keys, root, _tokens_from(request, start), self._block_size, num_blocks, lookahead, start)
        return keys[:num_blocks]

    def __len__(self) -> int:
        """Number of requests that have keys."""
        return len(self._keys)

    def forget(self, request_id: str) -> None:
        """Drops the keys of a request that ended."""
        self._keys.pop(request_id, None)


def _tokens_from(request: Request, start: int) -> Sequence[int]:
    """A request's tokens from index `start` on; most of a long sequence has its keys already."""
    num_prompt = request.num_prompt_tokens
    if start >= num_prompt:
        return request.output_token_ids[start - num_prompt :]
    return request.prompt_token_ids[start:] + request.output_token_ids
