"""The verifier as a user chooses it: the key, what it refuses, and that it reaches the model runner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenloom import LLM, SamplingParams
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.interfaces.spec_decode import SpecDecodeConfig

PROMPT = [11, 12, 13, 14] * 4 + [7]


def test_position_noise_is_the_default() -> None:
    config = compose_config(["spec_decode=ngram"]).engine.spec_decode.config
    assert isinstance(config, SpecDecodeConfig)
    assert config.verifier == "position_noise"


def test_no_drafts_have_no_verifier_to_choose() -> None:
    with pytest.raises(ConfigError, match=r"spec_decode=none has no such key.*it belongs to .*spec_decode=ngram"):
        compose_config(["spec_decode=none", "spec_decode.verifier=rejection"])


def test_an_unknown_verifier_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="must be 'position_noise' or 'rejection'"):
        compose_config(["spec_decode=ngram", "spec_decode.verifier=typical"])


@pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
def test_greedy_requests_are_the_same_under_both(build_llm: Callable[..., LLM], verifier: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    plain = build_llm("cache=none").generate([PROMPT], params)[0].outputs[0].token_ids
    llm = build_llm("spec_decode=ngram", f"spec_decode.verifier={verifier}")
    assert llm.generate([PROMPT], params)[0].outputs[0].token_ids == plain
    assert 0 < llm.engine.stats.num_accepted_tokens < llm.engine.stats.num_draft_tokens


def test_sampled_requests_tell_which_verifier_runs(build_llm: Callable[..., LLM]) -> None:
    """Position noise keeps a seed's tokens; rejection sampling gives others, but the same again."""
    params = SamplingParams(temperature=0.5, seed=5, max_tokens=60, ignore_eos=True)

    def tokens(*overrides: str) -> list[int]:
        return build_llm(*overrides).generate([PROMPT], params)[0].outputs[0].token_ids

    plain = tokens("cache=none")
    assert tokens("spec_decode=ngram", "spec_decode.min_n=1") == plain
    rejection = tokens("spec_decode=ngram", "spec_decode.min_n=1", "spec_decode.verifier=rejection")
    assert rejection != plain
    assert tokens("spec_decode=ngram", "spec_decode.min_n=1", "spec_decode.verifier=rejection") == rejection
