"""Several choices of one prompt on a real model: they share its memory, and say what each of them says alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenloom import LLM, SamplingParams

PROMPT = [(31 * index * index + 7 * index) % 251 for index in range(1, 24)]


@pytest.mark.parametrize("settings", [(), ("model.dtype=bfloat16",), ("spec_decode=ngram",)])
def test_choices_share_the_prompt_and_change_no_token(build_llm: Callable[..., LLM], settings: tuple[str, ...]) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)
    texts = []
    for cache in ("none", "hash"):
        llm = build_llm(f"cache={cache}", "cache.block_size=16", *settings)
        (output,) = llm.generate([PROMPT], params)
        texts.append([choice.token_ids for choice in output.outputs])
        if cache == "hash" and "spec_decode=ngram" not in settings:
            # The prompt once, its last token by each other choice, and all but the last token of each output.
            assert llm.engine.stats.num_computed_tokens == len(PROMPT) + 3 + 4 * 11
    if "model.dtype=bfloat16" not in settings:
        assert texts[0] == texts[1]
    assert len({tuple(tokens) for tokens in texts[1]}) == 4
