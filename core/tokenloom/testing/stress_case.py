"""Random cases of the stress test: which plugins meet which traffic on how little memory. All of a case follows from
its seed and its number, so that one can be run again alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast, final

from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.contract import PluginChoice, PluginConfig
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.plugins import Registry, default_registry
from tokenloom.testing.stub_model import full_group
from tokenloom.testing.suite import build_choice
from tokenloom.testing.varied_settings import varied_settings

__all__ = ["Combination", "StressCase", "StressRequest", "all_combinations", "draw_case"]

_LAYOUTS: Mapping[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "pools": (full_group(), full_group(1, window=9, pool_id=1)),
    "drafter": (full_group(), full_group(1, lookahead=2, is_drafter=True)),
}
_PLENTY = 10**9
_SHORT_WAITS: Mapping[str, Sequence[float]] = {"max_wait_s": (2.0, 8.0), "ageing_s": (1.0, 4.0)}


@final
@dataclass(frozen=True, slots=True, order=True)
class Combination:
    """Names of the plugins that decide; "" where a plugin has no such part."""

    scheduler: str
    victim: str
    admission: str
    cache: str
    eviction: str

    def __str__(self) -> str:
        names = {
            "scheduler": self.scheduler,
            "scheduler.victim": self.victim,
            "scheduler.admission": self.admission,
            "cache": self.cache,
            "cache.eviction": self.eviction,
        }
        return " ".join(f"{kind}={name}" for kind, name in names.items() if name)


@final
@dataclass(frozen=True, slots=True)
class StressRequest:
    """One request and what befalls it. Counts are tokens.

    Attributes:
        step: of its arrival.
        fields: of `Request`, e.g. priority and tenant.
        abort_after: steps from its arrival to its abort.
        cut_after: output tokens at which a stop string ends it.
        fails_at: output tokens at which its row fails.
        loses_swaps: whether its KV never arrives in host memory.
    """

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    fields: Mapping[str, Any]
    abort_after: int | None = None
    cut_after: int | None = None
    fails_at: int | None = None
    loses_swaps: bool = False


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
    preempt_mode: Literal["recompute", "swap", "cheaper"]
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
            f"{self.num_blocks} of {self.block_size}, max_model_len {self.max_model_len}, preempt_mode "
            f"{self.preempt_mode}, host memory {self.host_memory_bytes}, partial {self.partial_preemption}, "
            f"{len(self.groups)} KV groups, {self.num_drafts} drafts"
        )


def _changes(label: str, config: PluginConfig) -> dict[str, Any]:
    changed = {name for name in type(config).model_fields if not isinstance(dict(config)[name], PluginChoice)}
    defaults = {name: field.default for name, field in type(config).model_fields.items()}
    return {f"{label}.{name}": dict(config)[name] for name in sorted(changed) if dict(config)[name] != defaults[name]}


def all_combinations(registry: Registry | None = None) -> list[Combination]:
    """Every registered scheduler with each victim and admission policy, times every cache with each eviction policy."""
    plugins = default_registry() if registry is None else registry

    def parts(kind: str, *sub_kinds: str) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name in plugins.names(kind):
            has = plugins.get(kind, name).info.sub_kinds
            choices = [plugins.names(sub_kind) if sub_kind in has else ("",) for sub_kind in sub_kinds]
            found += [(name, *chosen) for chosen in itertools.product(*choices)]
        return found

    schedulers = parts("scheduler", "scheduler.victim", "scheduler.admission")
    caches = parts("cache", "cache.eviction")
    return sorted(Combination(*scheduler, *cache) for scheduler in schedulers for cache in caches)


@cache
def _turn(seed: int, turn: int) -> Sequence[Combination]:
    """All combinations in random order, such that the first ones already have all but the admission policies."""
    rng = random.Random(f"{seed} {turn}")
    rounds: list[list[Combination]] = []
    for _, group in itertools.groupby(sorted(all_combinations(), key=_but_admission), _but_admission):
        alike = list(group)
        rng.shuffle(alike)
        rounds += [[] for _ in range(len(alike) - len(rounds))]
        for place, combination in enumerate(alike):
            rounds[place].append(combination)
    for combinations in rounds:
        rng.shuffle(combinations)
    return list(itertools.chain(*rounds))


def _but_admission(combination: Combination) -> tuple[str, ...]:
    return (combination.scheduler, combination.victim, combination.cache, combination.eviction)


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


def draw_case(seed: int, number: int) -> StressCase:
    """Case `number` of a run. Any so many in a row as there are combinations have each of them once."""
    turn, place = divmod(number, len(all_combinations()))
    chosen, rng = _turn(seed, turn)[place], random.Random(f"{seed}/{number}")
    block_size, max_model_len = rng.choice([1, 2, 4, 8]), rng.choice([24, 40, 64])
    groups = _LAYOUTS[rng.choice(["full", "full", "full", *_LAYOUTS])]
    # Mostly too few for those that may run at once; now and then less than one longest sequence, or room for all.
    num_blocks = max(2, int(rng.choice([0.6, 1.0, 1.3, 1.8, 4.0]) * max_model_len / block_size)) + rng.randrange(1, 4)
    pool_ids = [group.pool_id for group in groups]
    mode = cast(Literal["recompute", "swap", "cheaper"], rng.choice(["recompute", "swap", "swap", "cheaper"]))
    limits = {
        "max_num_seqs": rng.choice([1, 3, 6, 12]),
        "max_num_batched_tokens": rng.choice([2, 8, 20, 64]),
        "max_queued_requests": rng.choice([*[None] * 8, 2, 4]),
        "max_queued_tokens": rng.choice([*[None] * 8, 60]),
    }
    if "whole_prompts" in default_registry().get("scheduler", chosen.scheduler).info.capabilities.flags:
        limits["max_num_batched_tokens"] = max_model_len
    vocab_size = rng.choice([5, 50_000])
    return StressCase(
        number=number,
        combination=chosen,
        scheduler=_draw_scheduler(rng, chosen, limits),
        cache=_draw_cache(rng, chosen),
        groups=groups,
        num_blocks=tuple(1 + (num_blocks - 1) * pool_ids.count(pool_id) for pool_id in sorted(set(pool_ids))),
        block_size=block_size,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        num_drafts=rng.choice([0, 0, 1, 3]),
        preempt_mode=mode,
        host_memory_bytes=0 if mode == "recompute" else rng.choice([_PLENTY, _PLENTY, 1_000]),
        partial_preemption=rng.random() < 0.3,
        swap_delay_s=rng.choice([0.0, 0.0, 5.0]),
        resets=frozenset(rng.choices(range(80), k=rng.choice([0, 0, 2]))),
        requests=_draw_requests(rng, max_model_len, vocab_size),
    )


def _draw_scheduler(rng: random.Random, chosen: Combination, limits: Mapping[str, int | None]) -> SchedulerConfig:
    parts = (("scheduler.victim", chosen.victim), ("scheduler.admission", chosen.admission))
    configs = _settings("scheduler", chosen.scheduler, parts, rng.randrange(100))
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


def _draw_requests(rng: random.Random, max_model_len: int, vocab_size: int) -> tuple[StressRequest, ...]:
    prefixes = [[1000 * i + j if vocab_size > 5 else j % 3 for j in range(24)] for i in range(1, 4)]
    made: list[StressRequest] = []
    step, gap = 0, rng.choice([0.2, 1.0, 3.0])
    for number in range(rng.randrange(6, 22)):
        step += int(rng.expovariate(1 / gap))
        shared = rng.choice(prefixes)[: rng.choice([0, 0, 4, 9, 24])]
        own = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 12))]
        prompt = tuple((shared + own)[: max_model_len + 2])
        request = _draw_request(rng, step, prompt, vocab_size)
        made.append(request)
        if rng.random() < 0.1:
            pair = f"choices{number}"
            for index, choice in enumerate((made.pop(), _draw_request(rng, step, prompt, vocab_size))):
                fields = {**request.fields, "choice_set": pair, "choice_index": index}
                made.append(StressRequest(step, prompt, choice.max_tokens, fields, choice.abort_after))
    return tuple(made)


def _draw_request(rng: random.Random, step: int, prompt: tuple[int, ...], vocab_size: int) -> StressRequest:
    def sometimes(share: float, value: Any) -> Any:
        return value if rng.random() < share else None

    fields: dict[str, Any] = {
        "priority": rng.randrange(3),
        "tenant": rng.choice(["", "a", "b"]),
        "ttft_slo_s": sometimes(0.4, rng.uniform(1, 30)),
        "tpot_slo_s": sometimes(0.4, rng.uniform(0.5, 4)),
        "retention_priority": rng.choice([0, 0, 1, 5]),
        "retention_ttl_s": sometimes(0.3, rng.uniform(0, 20)),
        "cache_salt": rng.choice(["", "", "", "salt"]),
        "stop_token_ids": frozenset([rng.randrange(vocab_size)] if vocab_size < 100 and rng.random() < 0.3 else []),
    }
    return StressRequest(
        step=step,
        prompt=prompt,
        max_tokens=rng.randrange(1, 25),
        fields=fields,
        abort_after=sometimes(0.15, rng.randrange(30)),
        cut_after=sometimes(0.1, rng.randrange(1, 12)),
        fails_at=sometimes(0.03, rng.randrange(8)),
        loses_swaps=rng.random() < 0.15,
    )
