"""Random cases of the stress test: which plugins meet which traffic on how little memory. All of a case follows from
its seed and its number, so that one can be run again alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast, final, get_args

from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.contract import PluginChoice, PluginConfig
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.plugins import Registry, default_registry
from tokenloom.testing.stress_traffic import StressRequest, draw_requests
from tokenloom.testing.stub_model import full_group
from tokenloom.testing.suite import build_choice
from tokenloom.testing.varied_settings import varied_settings

__all__ = ["Combination", "Mode", "StressCase", "all_combinations", "draw_case", "draw_combination"]

Mode = Literal["recompute", "swap", "cheaper"]
"""`scheduler.preempt_mode`."""

_LAYOUTS: Mapping[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "pools": (full_group(), full_group(1, window=9, pool_id=1)),
    "drafter": (full_group(), full_group(1, lookahead=2, is_drafter=True)),
}
_PLENTY = 10**9
_BLOCK_BYTES = full_group().page_bytes
_SHORT_WAITS: Mapping[str, Sequence[float]] = {"max_wait_s": (2.0, 8.0), "ageing_s": (1.0, 4.0, 20.0)}
_PRESSING = 0.75
"""Share of the cases whose memory is short for what comes."""
_RESERVING_ADMISSION = frozenset({"reserve_all"})
_RESERVING_CACHES = frozenset({"contiguous"})
_DISPLACING = frozenset({"priority"})
"""Schedulers that preempt not only for want of memory."""


@final
@dataclass(frozen=True, slots=True, order=True)
class Combination:
    """Names of the plugins that decide, "" where a plugin has no such part; and what becomes of victims' KV."""

    scheduler: str
    victim: str
    admission: str
    cache: str
    eviction: str
    preempt_mode: Mode

    @property
    def names(self) -> Mapping[str, str]:
        """What is chosen, by config key, without the parts that a plugin does not have."""
        names = {
            "scheduler": self.scheduler,
            "scheduler.victim": self.victim,
            "scheduler.admission": self.admission,
            "scheduler.preempt_mode": self.preempt_mode,
            "cache": self.cache,
            "cache.eviction": self.eviction,
        }
        return {key: name for key, name in names.items() if name}

    def __str__(self) -> str:
        return " ".join(f"{key}={name}" for key, name in self.names.items())

    @property
    def can_run_short(self) -> bool:
        """Whether those that run may come to lack memory."""
        return not (self.admission in _RESERVING_ADMISSION or self.cache in _RESERVING_CACHES)

    @property
    def can_preempt(self) -> bool:
        """Whether anybody can be preempted: for want of memory, or because a more urgent request takes its place."""
        return self.can_run_short or self.scheduler in _DISPLACING

    @property
    def can_swap(self) -> bool:
        """Whether KV may go to host memory for want of memory."""
        return self.can_run_short and self.preempt_mode != "recompute"

    @property
    def can_keep_blocks(self) -> bool:
        """Whether victims may keep blocks: what goes to host memory goes whole."""
        return self.can_run_short and self.preempt_mode != "swap"


@final
@dataclass(frozen=True, slots=True)
class StressCase:
    """An engine and its traffic.

    Attributes:
        groups: KV groups of the model.
        num_drafts: drafts that follow every token, some of them right.
        swap_delay_s: how much longer a step takes that moves KV.
        resets: steps before which the prefix cache is emptied.
    """

    number: int
    combination: Combination
    scheduler: SchedulerConfig
    cache: CacheConfig
    groups: tuple[KVGroupSpec, ...]
    num_blocks: tuple[int, ...]
    block_size: int
    max_model_len: int
    vocab_size: int
    num_drafts: int
    host_memory_bytes: int
    partial_preemption: bool
    swap_delay_s: float
    resets: frozenset[int]
    requests: tuple[StressRequest, ...]

    def __str__(self) -> str:
        changed = {
            **_changes(f"scheduler={self.combination.scheduler}", self.scheduler),
            **_changes(f"cache={self.combination.cache}", self.cache),
        }
        return (
            f"case {self.number}: {self.combination}, settings {changed}; {len(self.requests)} requests, blocks "
            f"{self.num_blocks} of {self.block_size}, max_model_len {self.max_model_len}, host memory "
            f"{self.host_memory_bytes}, partial {self.partial_preemption}, {len(self.groups)} KV groups, "
            f"{self.num_drafts} drafts"
        )


def _changes(label: str, config: PluginConfig) -> dict[str, Any]:
    changed = {name for name in type(config).model_fields if not isinstance(dict(config)[name], PluginChoice)}
    defaults = {name: field.default for name, field in type(config).model_fields.items()}
    return {f"{label}.{name}": dict(config)[name] for name in sorted(changed) if dict(config)[name] != defaults[name]}


def all_combinations(registry: Registry | None = None) -> list[Combination]:
    """Every scheduler with each victim and admission policy, times every cache with each evictor, times every mode."""
    plugins = default_registry() if registry is None else registry

    def parts(kind: str, *sub_kinds: str) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name in plugins.names(kind):
            has = plugins.get(kind, name).info.sub_kinds
            choices = [plugins.names(sub_kind) if sub_kind in has else ("",) for sub_kind in sub_kinds]
            found += [(name, *chosen) for chosen in itertools.product(*choices)]
        return found

    schedulers = parts("scheduler", "scheduler.victim", "scheduler.admission")
    caches, modes = parts("cache", "cache.eviction"), get_args(Mode)
    return sorted(
        Combination(scheduler, victim, admission, cache, eviction, mode)
        for (scheduler, victim, admission), (cache, eviction), mode in itertools.product(schedulers, caches, modes)
    )


@cache
def _turn(seed: int, turn: int) -> Sequence[Combination]:
    """All combinations in random order, such that the first of them are even.

    First come so many that all but admission policies and modes have met, and of these first each scheduler with each
    cache and eviction policy. `optimistic` comes early, for it leaves most to preemption.
    """
    rng = random.Random(f"{seed} {turn}")

    def place(combination: Combination) -> float:
        return rng.expovariate(4.0 if combination.admission == "optimistic" else 1.0)

    rounds = _spread(all_combinations(), lambda one: (one.scheduler, one.victim, one.cache, one.eviction), place)
    order: list[Combination] = []
    for combinations in rounds:
        for few in _spread(combinations, lambda one: (one.scheduler, one.cache, one.eviction), lambda _: rng.random()):
            rng.shuffle(few)
            order += few
    return order


def _spread(
    combinations: Iterable[Combination],
    key: Callable[[Combination], tuple[str, ...]],
    place: Callable[[Combination], float],
) -> list[list[Combination]]:
    """Rounds, each with one at most of those with an equal key: of those, in ascending order of `place`."""
    rounds: list[list[Combination]] = []
    for _, group in itertools.groupby(sorted(combinations, key=lambda one: (key(one), one)), key):
        alike = sorted(group, key=place)
        rounds += [[] for _ in range(len(alike) - len(rounds))]
        for chosen, combination in zip(rounds, alike, strict=False):
            chosen.append(combination)
    return rounds


@cache
def _settings(
    kind: str, name: str, parts: tuple[tuple[str, str], ...] = (), variant: int = 0
) -> Sequence[PluginConfig]:
    """The plugin's defaults and variations of its settings, with variant number `variant` (or fewer) of its parts."""
    given: dict[str, Any] = {}
    for sub_kind, part in parts:
        if part:
            configs = _settings(sub_kind, part)
            config = configs[variant % len(configs)]
            given[sub_kind.rpartition(".")[2]] = PluginChoice(sub_kind, part, config)
    info = default_registry().get(kind, name).info
    return (build_choice(info, given).config, *varied_settings(info, given))


def draw_combination(seed: int, number: int) -> Combination:
    """The plugins of case `number`. Any so many in a row as there are combinations have each of them once."""
    turn, place = divmod(number, len(_turn(seed, 0)))
    return _turn(seed, turn)[place]


def draw_case(seed: int, number: int) -> StressCase:
    """Case `number` of a run."""
    chosen, rng = draw_combination(seed, number), random.Random(f"{seed}/{number}")
    is_pressing = rng.random() < _PRESSING
    block_size, max_model_len = rng.choice([1, 2, 4, 8]), rng.choice([24, 40] if is_pressing else [24, 40, 64])
    groups = _LAYOUTS[rng.choice(["full", "full", "full", *_LAYOUTS])]
    # Too few for those that may run at once; else also less than one longest sequence, or room for all.
    sizes = [1.0, 1.2, 1.5] if is_pressing else [0.6, 1.0, 1.3, 1.8, 4.0]
    num_blocks = max(2, int(rng.choice(sizes) * max_model_len / block_size)) + rng.randrange(1, 4)
    pool_ids = [group.pool_id for group in groups]
    vocab_size, limits = rng.choice([5, 50_000]), _draw_limits(rng, chosen, max_model_len, is_pressing=is_pressing)
    few_bytes = [_PLENTY, _PLENTY, 16 * _BLOCK_BYTES, 4 * _BLOCK_BYTES]
    return StressCase(
        number=number,
        combination=chosen,
        scheduler=_draw_scheduler(rng, chosen, limits, is_pressing=is_pressing),
        cache=_draw_cache(rng, chosen),
        groups=groups,
        num_blocks=tuple(1 + (num_blocks - 1) * pool_ids.count(pool_id) for pool_id in sorted(set(pool_ids))),
        block_size=block_size,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        num_drafts=rng.choice([0, 0, 1, 3]),
        host_memory_bytes=0 if chosen.preempt_mode == "recompute" else rng.choice(few_bytes),
        partial_preemption=rng.random() < 0.4,
        swap_delay_s=rng.choice([0.0, 0.0, 5.0]),
        resets=frozenset(rng.choices(range(80), k=rng.choice([0, 0, 2]))),
        requests=draw_requests(rng, max_model_len, vocab_size, is_pressing=is_pressing),
    )


def _draw_limits(
    rng: random.Random, chosen: Combination, max_model_len: int, *, is_pressing: bool
) -> dict[str, int | None]:
    limits: dict[str, int | None] = {
        "max_num_seqs": rng.choice([3, 3, 6, 12] if is_pressing else [1, 3, 6, 12]),
        "max_num_batched_tokens": rng.choice([8, 20, 64] if is_pressing else [2, 8, 20, 64]),
        "max_queued_requests": None if is_pressing else rng.choice([*[None] * 4, 2, 4]),
        "max_queued_tokens": None if is_pressing else rng.choice([*[None] * 4, 60]),
    }
    if "whole_prompts" in default_registry().get("scheduler", chosen.scheduler).info.capabilities.flags:
        limits["max_num_batched_tokens"] = max_model_len
    return limits


def _draw_scheduler(
    rng: random.Random, chosen: Combination, limits: Mapping[str, int | None], *, is_pressing: bool
) -> SchedulerConfig:
    parts = (("scheduler.victim", chosen.victim), ("scheduler.admission", chosen.admission))
    # The last variant is the furthest from the defaults: an estimate that can be wrong leaves more to preemption.
    variant = rng.choice([-1, -1, rng.randrange(100)] if is_pressing else [rng.randrange(100)])
    configs = _settings("scheduler", chosen.scheduler, parts, variant)
    config = configs[0] if rng.random() < 0.4 else rng.choice(configs)
    changes: dict[str, Any] = dict(limits)
    # Long waits within the length of a case, so that the bounds that they set can be missed.
    for name, values in _SHORT_WAITS.items():
        if name in type(config).model_fields and rng.random() < 0.7:
            changes[name] = rng.choice(values)
    return cast(SchedulerConfig, config.model_copy(update=changes))


def _draw_cache(rng: random.Random, chosen: Combination) -> CacheConfig:
    configs = _settings("cache", chosen.cache, (("cache.eviction", chosen.eviction),), rng.randrange(100))
    return cast(CacheConfig, rng.choice(configs))
