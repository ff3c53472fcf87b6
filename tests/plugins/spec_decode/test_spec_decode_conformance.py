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


class TestSuffix(SpecDecodeSuite):
    plugin = "suffix"


class TestSuffixTrees(SpecDecodeSuite):
    """Bold: from one token on, with unlikely branches."""

    plugin = "suffix"
    settings = {"tree": True, "min_match": 1, "drafts_per_match": 8.0, "min_probability": 0.01}


class TestSuffixByItself(SpecDecodeSuite):
    plugin = "suffix"
    settings = {"shared_tokens": 0}


class TestSynthetic(SpecDecodeSuite):
    plugin = "synthetic"


class TestFixed(DraftPolicySuite):
    plugin = "fixed"


class TestFixedAtItsMost(DraftPolicySuite):
    plugin = "fixed"
    settings = {"num_draft_tokens": 64}


class TestAdaptive(DraftPolicySuite):
    plugin = "adaptive"
