"""An eviction policy that is right, retention included, and the same with one bug planted."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any, Literal, final

from tokenloom.interfaces.cache import CacheContext, EvictionConfig, EvictionKey, EvictionPolicy, Touch
from tokenloom.interfaces.contract import Capabilities, PluginInfo

__all__ = ["Bug", "PlantedConfig", "eviction_info"]

Bug = Literal[
    "none",
    "ignores_touches",
    "ignores_releases",
    "returns_a_stranger",
    "keys_of_two_lengths",
    "key_is_a_number",
    "nan_for_the_first",
    "reads_the_clock",
    "draws_at_random",
    "refreshes_the_removed",
    "remembers_the_removed",
    "keeps_a_history",
    "head_first",
    "hits_do_not_count",
    "never_expires",
    "expires_unasked",
    "depth_in_three_bits",
    "ticks_wrap",
    "whole_seconds",
    "retention_yes_or_no",
    "negative_retention_lost",
]


def eviction_info(*flags: str) -> PluginInfo:
    """The declaration of the policy below, with flags."""
    target = "tests.testing.planted_eviction:PlantedConfig"
    return PluginInfo("cache.eviction", "planted", target, (1, 0), "", Capabilities(flags=frozenset(flags)))


class PlantedConfig(EvictionConfig):
    """Settings of the policy below."""

    bug: Bug = "none"

    def build(self, context: CacheContext) -> EvictionPolicy:
        return Planted(self.bug)


@final
class Planted(EvictionPolicy):
    """The key is (retention priority, tick of the last use, -depth); the priority is 0 once its time has passed."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug
        self._last: dict[int, Touch] = {}
        self._expires_s: dict[int, float] = {}
        self._history: list[Touch] = []

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        if self._bug == "ignores_touches":
            return ()
        if self._bug == "ignores_releases" and not touch.is_hit and touch.block_id in self._last:
            return ()
        if self._bug == "keeps_a_history":
            self._history.append(touch)
        if self._bug == "hits_do_not_count" and touch.is_hit and touch.block_id in self._last:
            return [(touch.block_id, self._key(touch.block_id))]
        if self._bug == "remembers_the_removed" and touch.block_id in self._last:
            kept = max(touch.retention_priority, self._last[touch.block_id].retention_priority)
            touch = Touch(touch.block_id, touch.tick, touch.now_s, touch.depth, touch.is_hit, kept)
        self._last[touch.block_id] = touch
        self._expires_s.pop(touch.block_id, None)
        if touch.retention_ttl_s is not None:
            self._expires_s[touch.block_id] = touch.now_s + touch.retention_ttl_s
        stranger = [(0, self._key(touch.block_id))] if self._bug == "returns_a_stranger" else []
        return [(touch.block_id, self._key(touch.block_id)), *stranger]

    def on_remove(self, block_id: int) -> None:
        if self._bug not in ("remembers_the_removed", "refreshes_the_removed"):
            self._last.pop(block_id, None)
            self._expires_s.pop(block_id, None)

    def refresh(self, now_s: float) -> Iterable[tuple[int, EvictionKey]]:
        if self._bug == "never_expires":
            return ()
        expired = [block_id for block_id, end_s in self._expires_s.items() if end_s <= now_s]
        for block_id in expired:
            del self._expires_s[block_id]
            last = self._last[block_id]
            self._last[block_id] = Touch(block_id, last.tick, last.now_s, last.depth, last.is_hit)
        return [(block_id, self._key(block_id)) for block_id in expired] if self._bug != "expires_unasked" else ()

    def _key(self, block_id: int) -> Any:
        last = self._last[block_id]
        depth = last.depth if self._bug == "head_first" else -last.depth
        key: tuple[float, ...] = (last.retention_priority, last.tick, depth)
        if self._bug == "depth_in_three_bits":
            key = (key[0], key[1], -(last.depth & 7))
        if self._bug == "ticks_wrap":
            key = (key[0], last.tick % 1024, depth)
        if self._bug == "whole_seconds":
            key = (key[0], int(last.now_s), depth)
        if self._bug == "retention_yes_or_no":
            key = (min(key[0], 1), key[1], depth)
        if self._bug == "negative_retention_lost":
            key = (max(key[0], 0), key[1], depth)
        if self._bug == "keys_of_two_lengths" and last.depth == 0:
            return key[:2]
        if self._bug == "nan_for_the_first" and last.depth == 0:
            return (float("nan"), *key[1:])
        if self._bug == "reads_the_clock":
            return (key[0], time.perf_counter(), key[2])
        if self._bug == "draws_at_random":
            return (key[0], random.random(), key[2])
        return last.tick if self._bug == "key_is_a_number" else key
