"""A whole engine with `engine.operations=triton`, in Triton's interpreter: the tokens are those of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tokenloom import LLM, SamplingParams

PROMPTS = [[5, 6, 7] * 3, [9, 8, 7, 6], [17]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def test_an_engine_s_tokens_are_those_of_torch(build_llm: Callable[..., LLM]) -> None:
    """Greedy, over the vocabulary, and ranked; with and without drafts, some of which are accepted."""
    params = [
        GREEDY,
        replace(GREEDY, temperature=0.8, seed=11),
        replace(GREEDY, temperature=1.2, top_k=40, top_p=0.8, min_p=0.01, seed=12),
    ]
    found: dict[str, list[list[int]]] = {}
    for name in ("torch", "triton"):
        llm = build_llm(f"engine.operations={name}", "spec_decode=ngram")
        assert llm.engine.facts.operations == name
        outputs = llm.generate(PROMPTS, params)
        found[name] = [output.outputs[0].token_ids for output in outputs]
    assert found["triton"] == found["torch"]
    assert len({tuple(tokens) for tokens in found["torch"]}) == 3
