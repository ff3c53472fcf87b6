"""The conformance kit: one suite of tests for each contract, for built-in and third-party plugins alike.

A suite is imported when it is first named, so that a scheduler's tests load no attention reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenloom.testing.suite import PluginSuite

if TYPE_CHECKING:
    from tokenloom.testing.admission_suite import AdmissionSuite
    from tokenloom.testing.attention_suite import AttentionSuite
    from tokenloom.testing.cache_suite import CacheSuite
    from tokenloom.testing.draft_policy_suite import DraftPolicySuite
    from tokenloom.testing.eviction_suite import EvictionSuite
    from tokenloom.testing.logits_processor_suite import LogitsProcessorSuite
    from tokenloom.testing.quant_suite import QuantSuite
    from tokenloom.testing.scheduler_suite import SchedulerSuite
    from tokenloom.testing.spec_decode_suite import SpecDecodeSuite
    from tokenloom.testing.victim_suite import VictimSuite

__all__ = [
    "SUITES",
    "AdmissionSuite",
    "AttentionSuite",
    "CacheSuite",
    "DraftPolicySuite",
    "EvictionSuite",
    "LogitsProcessorSuite",
    "PluginSuite",
    "QuantSuite",
    "SchedulerSuite",
    "SpecDecodeSuite",
    "VictimSuite",
]

SUITES: Mapping[str, str] = {
    "attention": "tokenloom.testing.attention_suite:AttentionSuite",
    "scheduler": "tokenloom.testing.scheduler_suite:SchedulerSuite",
    "scheduler.victim": "tokenloom.testing.victim_suite:VictimSuite",
    "scheduler.admission": "tokenloom.testing.admission_suite:AdmissionSuite",
    "cache": "tokenloom.testing.cache_suite:CacheSuite",
    "cache.eviction": "tokenloom.testing.eviction_suite:EvictionSuite",
    "spec_decode": "tokenloom.testing.spec_decode_suite:SpecDecodeSuite",
    "spec_decode.policy": "tokenloom.testing.draft_policy_suite:DraftPolicySuite",
    "quant": "tokenloom.testing.quant_suite:QuantSuite",
    "logits_processor": "tokenloom.testing.logits_processor_suite:LogitsProcessorSuite",
}
"""The suite of each kind. A kind that is not listed has none. What type checkers read above follows from it."""


def __getattr__(name: str) -> Any:
    for target in SUITES.values():
        module, _, suite = target.partition(":")
        if suite == name:
            return vars(import_module(module))[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
