"""How the suite of drafters builds a plugin: alone, or in the real engine on a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, cast, final

import pytest

from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    DraftPolicy,
    DraftPolicyContext,
    Proposal,
    SpecDecodeConfig,
)
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.draft_driver import DraftDriver
from tokenloom.testing.numeric_device import numeric_device, require_dtype
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings, drafter_context

__all__ = ["DrafterRig", "NoDrafts"]

_MODEL = TinyDecoder()
_PROMPTS = ((3, 1, 4), (1, 5, 9, 2), (6, 5, 3, 5, 8), (9, 7, 9) * 3, (3, 2, 3, 8, 4, 6, 2, 6), (7,))
"""Around the borders of blocks of 4; one repeats itself."""
_NUM_OUTPUT_TOKENS = 24


class DrafterRig(PluginSuite):
    """What the tests of `SpecDecodeSuite` are made of."""

    kind: ClassVar[str] = "spec_decode"

    @property
    def context(self) -> DrafterContext:
        """What the plugin is built with: the sizes of the tiny model, which runs in fp32 on the CPU."""
        require_dtype(self.capabilities, "float32")
        if numeric_device(self.capabilities).type != "cpu":
            pytest.skip("the plugin does not run on the CPU, where this suite runs")
        return drafter_context(_MODEL, max_num_seqs=64)

    def drafter(self) -> Drafter:
        """A new drafter of the plugin."""
        drafter = cast(SpecDecodeConfig, self.make_config()).build(self.context)
        assert isinstance(drafter, Drafter), f"build() returned {drafter!r}, which is no Drafter"
        return drafter

    def driver(self, drafter: Drafter | None = None, *, is_poisoned: bool = False, filler: int = 0) -> DraftDriver:
        """A driver of a new drafter, or of the one given."""
        drafter = self.drafter() if drafter is None else drafter
        return DraftDriver(drafter, self.context, is_poisoned=is_poisoned, filler=filler)

    def policy(self) -> DraftPolicy | None:
        """The plugin's draft-length policy, as it is configured."""
        choice = cast(SpecDecodeConfig, self.make_config()).draft_policy()
        return None if choice is None else cast(DraftPolicy, choice.build(DraftPolicyContext(8, 64)))

    def settings_of(self, **changes: Any) -> TinySettings:
        """Limits of an engine."""
        return TinySettings(**changes)

    def expect_plain_output(
        self,
        settings: TinySettings,
        temperature: float = 0.0,
        drafter: Drafter | None = None,
        policy: DraftPolicy | None = None,
    ) -> TinyEngine:
        """Runs some requests with the plugin and without it, and expects the same tokens; returns the first engine.

        `drafter` and `policy` stand for new ones of the plugin.
        """
        drafter, policy = drafter or self.drafter(), policy or self.policy()
        drafting = TinyEngine(_MODEL, drafter, policy, settings, f"spec_decode={self.info.name}")
        outputs = _generate(drafting, temperature)
        for request_id, expected in _plain_outputs(temperature).items():
            found = outputs[request_id]
            assert found == expected, f"{request_id}: {found} with the drafter, {expected} without it ({settings})"
        return drafting


def _generate(engine: TinyEngine, temperature: float) -> dict[str, list[int]]:
    params = SamplingParams(temperature=temperature, max_tokens=_NUM_OUTPUT_TOKENS)
    for number, prompt in enumerate(_PROMPTS):
        engine.add(f"r{number}", prompt, params, seed=number)
    return engine.run()


@cache
def _plain_outputs(temperature: float) -> dict[str, list[int]]:
    """What the tiny model says without drafts."""
    return _generate(TinyEngine(_MODEL, NoDrafts()), temperature)


@final
class NoDrafts(Drafter):
    """Never proposes."""

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [Proposal()] * len(batch.request_ids)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""
