"""Log-probabilities of given tokens, by the engine's own prompt logprobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokenloom.batch import TokenLogprobs
from tokenloom.errors import ConfigError, RequestError
from tokenloom.llm import LLM
from tokenloom.results import RequestOutput
from tokenloom.sampling_params import SamplingParams

__all__ = ["check_length", "score_prompts"]


def check_length(llm: LLM, num_tokens: int, setting: str) -> None:
    """Raises ConfigError if a prompt of so many tokens, and one token behind it, do not fit into the context."""
    limit = llm.engine.facts.max_model_len - 1
    if num_tokens > limit:
        raise ConfigError(
            f"{setting} needs prompts of {num_tokens} tokens, but the context holds {limit} and one that follows; "
            "choose something shorter, or raise model.max_model_len if the model allows it"
        )


def score_prompts(llm: LLM, prompts: Sequence[list[int]]) -> list[list[float]]:
    """Natural log-probabilities of each prompt's tokens but its first, which nothing comes before.

    All prompts run in one batch.

    Raises:
        RequestError: a prompt can never run, or failed.
        ConfigError: a log-probability is not finite, which no figure can be made of.
    """
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)
    return [_scores_of(output) for output in llm.generate(list(prompts), params)]


def _scores_of(output: RequestOutput) -> list[float]:
    entries: list[TokenLogprobs | None] | None = output.prompt_logprobs
    if entries is None or output.outputs[0].finish_reason == "error":
        raise RequestError(f"a prompt could not be scored: {output.outputs[0].error}", "prompt")
    scores = [entry.logprob for entry in entries if entry is not None]
    if not all(map(math.isfinite, scores)):
        raise ConfigError("the model gives log-probabilities that are not finite; try model.dtype=float32")
    return scores
