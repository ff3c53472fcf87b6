"""The built-in drafters and draft-length policies keep their contracts."""

from __future__ import annotations

from tokenloom.testing import DraftPolicySuite, SpecDecodeSuite


class TestNone(SpecDecodeSuite):
    plugin = "none"


class TestNgram(SpecDecodeSuite):
    plugin = "ngram"


class TestNgramFromOneToken(SpecDecodeSuite):
    """Guesses at every turn, mostly wrong."""

    plugin = "ngram"
    settings = {"min_n": 1, "max_n": 1}


class TestFixed(DraftPolicySuite):
    plugin = "fixed"


class TestFixedAtItsMost(DraftPolicySuite):
    plugin = "fixed"
    settings = {"num_draft_tokens": 64}
