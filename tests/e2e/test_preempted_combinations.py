"""Victims, evictors, admission, partial preemption, swaps and windows, each with each: the plain model's greedy tokens.

Every case preempts: memory is short, and beside that every few steps the victim policy names somebody who must go.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.models.family_checkpoints import write_family
from tests.e2e.conftest import TINY_OVERRIDES
from tests.e2e.covering_array import pairwise_cases
from tests.e2e.forcing_scheduler import Forced, ForcingConfig
from tests.e2e.plain_model import load_plain_model
from tests.tiny_model import write_byte_tokenizer
from tokenloom import LLM, SamplingParams
from tokenloom.compose import compose_config
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.plugins import Registry, default_registry
from tokenloom.request_factory import RequestTraits

NUM_OUTPUT_TOKENS = 14
AXES: dict[str, tuple[Any, ...]] = {
    "scheduler": (
        "fcfs",
        "priority",
        "sjf",
        "fair_share",
        "deadline",
        "prefix_affinity",
        "slo_adaptive",
        "static_batch",
    ),
    "victim": ("last_in", "lowest_priority", "least_recompute", "most_blocks"),
    "admission": ("optimistic", "reserve_all", "peak_memory"),
    "index": ("hash", "radix"),
    "eviction": ("lru", "fifo", "lfu", "slru", "priority_ttl", "none"),  # none: cache=none, which finds nothing again
    "victims_kv": ("dropped", "kept in part", "swapped", "swapped if there is room", "cheaper"),
    "windows": ("none", "all", "half", "most"),
    "spec_decode": ("none", "ngram", "draft_model", "self_spec"),
    "block_size": (2, 5),
    "budget": (9, 64),
}
PLUGIN_KINDS = {"scheduler", "victim", "admission", "eviction"}
KV_SETTINGS: dict[str, tuple[str, bool, int]] = {
    "dropped": ("recompute", False, 2**30),
    "kept in part": ("recompute", True, 2**30),
    "swapped": ("swap", False, 2**30),
    "swapped if there is room": ("swap", True, 9_000),
    "cheaper": ("cheaper", True, 2**30),
}
"""What becomes of a victim's KV: preempt_mode, partial_preemption and host_memory_bytes."""
SMOLLM = {"use_sliding_window": True, "sliding_window": 7}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("mistral", {}),
    "half": ("smollm3", {**SMOLLM, "no_rope_layer_interval": 2}),
    "most": ("smollm3", {**SMOLLM, "no_rope_layer_interval": 4}),
}
"""By which layers look back 7 tokens only: a family, and its settings."""
NUM_GROUPS = {"none": 1, "all": 1, "half": 2, "most": 2}
NUM_POOLS = {"none": 1, "all": 1, "half": 1, "most": 2}
"""Groups of equally many layers share a pool."""
CASES = pairwise_cases(AXES)


def test_axes_name_every_installed_policy() -> None:
    """A new plugin must join the matrix."""
    for name in PLUGIN_KINDS:
        kinds = {"scheduler": "scheduler", "eviction": "cache.eviction"}
        assert set(default_registry().names(kinds.get(name, f"scheduler.{name}"))) == set(AXES[name]) - {"none"}, name


def test_cases_hold_every_pair_of_options_and_are_few() -> None:
    for first, second in itertools.combinations(AXES, 2):
        pairs = {(case[first], case[second]) for case in CASES}
        assert pairs == set(itertools.product(AXES[first], AXES[second]))
    assert len(CASES) <= 60


@pytest.mark.parametrize("case", CASES, ids=["-".join(map(str, case.values())) for case in CASES])
def test_preempted_combination_equals_the_plain_model(
    case: dict[str, Any], model_folder: Callable[[str], Path], build_forced: Callable[..., tuple[LLM, ForcingConfig]]
) -> None:
    block_size, num_groups, num_pools = case["block_size"], NUM_GROUPS[case["windows"]], NUM_POOLS[case["windows"]]
    longest = max(map(len, PROMPTS)) + NUM_OUTPUT_TOKENS
    num_blocks = 1 + num_groups // num_pools * -(-longest * 5 // (4 * block_size))  # in each pool
    llm, config = build_forced(case, num_blocks)
    if case["spec_decode"] == "draft_model":  # a copy of the target, with pools of its own
        num_groups, num_pools = 2 * num_groups, 2 * num_pools
    assert len(llm.engine.facts.kv_groups) == num_groups
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
    outputs = llm.generate([list(prompt) for prompt in PROMPTS], params, traits=TRAITS)
    plain = load_plain_model(model_folder(case["windows"]))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len(output.outputs[0].token_ids) == NUM_OUTPUT_TOKENS
        plain.assert_greedy(list(prompt), output.outputs[0].token_ids)
    usage = llm.engine.kv_usage()
    assert usage["active"] == usage["in_transfer"] == 0
    assert usage["free"] + usage["cached"] == num_pools * (num_blocks - 1)
    # More blocks were published than there are: somebody was evicted.
    assert sum(len(prompt) + NUM_OUTPUT_TOKENS - 1 for prompt in PROMPTS) // block_size > num_blocks
    check_preemptions(case, llm, config.forced)
    if case["spec_decode"] == "draft_model":
        assert llm.engine.stats.num_accepted_tokens == llm.engine.stats.num_draft_tokens > 0


def check_preemptions(case: dict[str, Any], llm: LLM, forced: Forced) -> None:
    """They happened, and to victims' KV happened what the case wants."""
    stats = llm.engine.stats
    # Drafts that are always right end a request in half as many steps.
    assert forced.num_forced >= (1 if case["spec_decode"] == "draft_model" else 3)
    if case["admission"] == "reserve_all" and case["scheduler"] != "priority":
        assert stats.num_preemptions == forced.num_forced, "nobody else lacks memory"
    may_swap = case["victims_kv"] in ("swapped", "swapped if there is room", "cheaper")
    if case["victims_kv"] == "swapped if there is room" and forced.num_forced < 3:
        assert stats.num_swaps + stats.num_refused_swaps > 0, "there was no room for any of the few"
    else:
        assert (stats.num_swaps > 0) == may_swap
    assert (stats.num_refused_swaps > 0) <= (case["victims_kv"] == "swapped if there is room")
    if case["victims_kv"] in ("dropped", "kept in part", "swapped"):
        assert (forced.num_partial > 0) == (case["victims_kv"] == "kept in part")


SHARED = tuple((31 * index * index + 7 * index) % 251 for index in range(17))
PROMPTS = (
    SHARED,
    (*SHARED, 5, 6),
    (3,),
    tuple(range(11, 20)),
    (*SHARED[:9], 7),
    (5, 6, 7) * 5,
    SHARED,
    tuple(range(200, 216)),
)
TRAITS = [
    RequestTraits(priority=index % 3, tenant="ab"[index % 2], retention_priority=index % 2, tpot_slo_s=0.1)
    for index in range(len(PROMPTS))
]


@pytest.fixture(scope="session")
def model_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny model by which of its layers have windows, written once."""
    folders = {"none": tiny_folder}

    def get(windows: str) -> Path:
        if windows not in folders:
            family, settings = FAMILIES[windows]
            folder = write_family(tmp_path_factory.mktemp(family), family, {"vocab_size": 288, **settings}, seed=3)
            write_byte_tokenizer(folder)
            folders[windows] = folder
        return folders[windows]

    return get


@pytest.fixture
def build_forced(
    model_folder: Callable[[str], Path], test_registry: Registry
) -> Iterator[Callable[..., tuple[LLM, ForcingConfig]]]:
    """Builds the engine of a case, whose scheduler is forced to preempt; closes it at the end."""
    built: list[LLM] = []

    def build(case: dict[str, Any], num_blocks: int) -> tuple[LLM, ForcingConfig]:
        names = [f"scheduler={case['scheduler']}", f"spec_decode={case['spec_decode']}"]
        names += [f"scheduler.{key}={case[key]}" for key in ("victim", "admission")]
        has_cache = case["eviction"] != "none"
        names += [f"cache={case['index']}", f"cache.eviction={case['eviction']}"] if has_cache else ["cache=none"]
        preempt_mode, is_partial, host_bytes = KV_SETTINGS[case["victims_kv"]]
        names += [f"scheduler.preempt_mode={preempt_mode}", f"scheduler.partial_preemption={is_partial}"]
        sizes = {"scheduler.max_num_seqs": 4, "scheduler.max_num_batched_tokens": case["budget"]}
        sizes |= {"cache.block_size": case["block_size"], "cache.num_blocks": num_blocks}
        num_models = 2 if case["spec_decode"] == "draft_model" else 1
        sizes |= {"cache.host_memory_bytes": num_models * host_bytes}
        overrides = [*names, *(f"{key}={size}" for key, size in sizes.items())]
        folder = model_folder(case["windows"])
        if case["spec_decode"] == "draft_model":
            # Always right, so that more drafts would end a request before anybody is preempted.
            overrides += [f"spec_decode.source={folder}", "spec_decode.policy.num_draft_tokens=1"]
        if case["spec_decode"] == "self_spec":
            # Drafts into the target's own memory, mostly wrong ones.
            overrides += ["spec_decode.exit_layer=1", "spec_decode/policy=fixed"]
        composed = compose_config([f"model={folder}", *TINY_OVERRIDES, *overrides], registry=test_registry)
        inner = composed.engine.scheduler
        assert isinstance(inner.config, SchedulerConfig)
        limits = {name: getattr(inner.config, name) for name in SchedulerConfig.model_fields}
        config = ForcingConfig(**limits, inner=inner, victim=dict(inner.config)["victim"])
        engine = composed.engine.model_copy(update={"scheduler": PluginChoice("scheduler", "forcing", config)})
        composed = type(composed)(engine, composed.extras, composed.sources, composed.choices)
        built.append(LLM(config=composed, registry=test_registry, show_progress=False))
        return built[-1], config

    yield build
    for llm in built:
        llm.close()
