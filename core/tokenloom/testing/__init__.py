"""The conformance kit: one suite of tests for each contract, for built-in and third-party plugins alike.

A suite is imported when it is first named, so that a scheduler's tests load no attention reference.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenloom.testing.suite import PluginSuite

if TYPE_CHECKING:
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

_MODULES = {
    "AttentionSuite": "tokenloom.testing.attention_suite",
    "CacheSuite": "tokenloom.testing.cache_suite",
    "DraftPolicySuite": "tokenloom.testing.draft_policy_suite",
    "EvictionSuite": "tokenloom.testing.eviction_suite",
    "LogitsProcessorSuite": "tokenloom.testing.logits_processor_suite",
    "QuantSuite": "tokenloom.testing.quant_suite",
    "SchedulerSuite": "tokenloom.testing.scheduler_suite",
    "SpecDecodeSuite": "tokenloom.testing.spec_decode_suite",
    "VictimSuite": "tokenloom.testing.victim_suite",
}
"""Where each suite lives. A new one gets a line here, one under TYPE_CHECKING and one in `__all__`."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return vars(import_module(_MODULES[name]))[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
