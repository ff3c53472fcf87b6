"""The drafter that never drafts, the fixed policy, and what the package declares."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

import tokenloom_spec_decode
from tokenloom.interfaces.spec_decode import DraftBatch, DrafterNeeds, DraftPolicyContext, Proposal, VerifiedDrafts
from tokenloom.plugins import Registry
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.none import NoneConfig, NoneDrafter


def test_none_has_no_policy_and_proposes_nothing() -> None:
    assert NoneConfig().draft_policy() is None
    drafter = NoneDrafter()
    token_ids = np.array([4, 4, 4, 4], dtype=np.int32)
    batch = DraftBatch(["a", "b"], [token_ids, token_ids], [4, 4], [3, 3])
    assert list(drafter.propose(batch)) == [Proposal(), Proposal()]
    assert drafter.needs() == DrafterNeeds()


def test_fixed_policy_always_asks_for_the_same_number() -> None:
    policy = FixedPolicyConfig(num_draft_tokens=3).build(DraftPolicyContext(8, 64))
    request = Request("r", [1, 2, 3], SamplingParams(), seed=0, max_total_tokens=10)
    counts = [policy.num_drafts(request, num_running) for num_running in (1, 64)]
    policy.observe([VerifiedDrafts("r", 3, 0, 3)], 0.1)
    policy.forget("r")
    assert [*counts, policy.num_drafts(request, 1)] == [3, 3, 3]


@pytest.mark.parametrize("count", [0, -1, 65, True, 2.0])
def test_fixed_policy_config_refuses(count: object) -> None:
    with pytest.raises(ValidationError):
        FixedPolicyConfig.model_validate({"num_draft_tokens": count})


def test_package_declares_plugins_whose_config_classes_exist() -> None:
    registry = Registry.from_modules([tokenloom_spec_decode])
    assert registry.load_config_class("spec_decode", "none") is NoneConfig
    assert registry.load_config_class("spec_decode.policy", "fixed") is FixedPolicyConfig
    for kind, ending in (("spec_decode", "Config"), ("spec_decode.policy", "PolicyConfig")):
        for name in registry.names(kind):
            found = registry.load_config_class(kind, name).__name__
            assert found == f"{name.title().replace('_', '')}{ending}"


def test_package_imports_without_torch() -> None:
    code = "import sys, tokenloom_spec_decode; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
