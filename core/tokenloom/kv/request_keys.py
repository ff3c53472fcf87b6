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
            root = root_key(self._block_root, group, self._block_size, request.cache_salt)
            token_ids = request.prompt_token_ids + request.output_token_ids
            extend_keys(keys, root, token_ids, self._block_size, num_blocks, self._groups[group].lookahead)
        return keys[:num_blocks]

    def __len__(self) -> int:
        """Number of requests that have keys."""
        return len(self._keys)

    def forget(self, request_id: str) -> None:
        """Drops the keys of a request that ended."""
        self._keys.pop(request_id, None)
