"""Perplexity over the windows of a text, and how far a model is from a reference on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.evaluation.divergence import ReferenceStates, compare_states
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.prompt_capture import PromptCapture
from tokenloom.evaluation.prompt_scores import check_length, score_prompts
from tokenloom.evaluation.windows import Window, WindowPlan, cut_windows
from tokenloom.llm import LLM

__all__ = ["PerplexityTask", "WindowScores", "perplexity_figures"]

_PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class WindowScores:
    """What a model made of the windows of a text, one entry for each.

    Attributes:
        counts: tokens that count.
        losses: their summed negative log-likelihoods, nats.
        agreements: how many of their positions have the same likeliest token in the model and in the reference; empty
            without a reference.
        kl: KL(reference || model) at each of them, nats, fp64 [count]; empty without a reference.
    """

    counts: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    agreements: list[int] = field(default_factory=list)
    kl: list[NDArray[np.float64]] = field(default_factory=list)


@final
class PerplexityTask:
    """One text, cut once by the first model's tokenizer, scored by any number of models.

    Args:
        text: what to score.
        plan: how it is cut.
    """

    def __init__(self, text: str, plan: WindowPlan) -> None:
        self._text = text
        self._plan = plan
        self._token_ids: list[int] | None = None

    def windows(self, llm: LLM) -> list[Window]:
        """The windows, in the tokens of a model.

        Raises:
            ConfigError: the text is too short, a window too long for the model, or an earlier model's tokenizer makes
                other tokens of the text.
        """
        check_length(llm, self._plan.size, f"window={self._plan.size}")
        token_ids = llm.tokenizer.encode(self._text)
        if self._token_ids is not None and token_ids != self._token_ids:
            raise ConfigError(
                f"model={llm.config.engine.model.source} cuts the text into other tokens than the reference; models "
                "can be compared token by token only if they share a tokenizer"
            )
        self._token_ids = token_ids
        return cut_windows(token_ids, self._plan)

    def score_reference(
        self, llm: LLM, capture: PromptCapture, kept: ReferenceStates, progress: Callable[[int, int], None]
    ) -> WindowScores:
        """Scores all windows, and keeps the states of each.

        Args:
            llm: the reference, built with `capture` among its taps.
            capture: hears its states.
            kept: gets them.
            progress: told (windows done, windows in all).
        """
        scores, windows = WindowScores(), self.windows(llm)
        for index, window in enumerate(windows):
            _score(llm, window, scores)
            kept.keep(index, capture.take()[window.first_scored - 1 :], capture.model)
            progress(index + 1, len(windows))
        return scores

    def score(
        self,
        llm: LLM,
        progress: Callable[[int, int], None],
        capture: PromptCapture | None = None,
        reference: ReferenceStates | None = None,
    ) -> WindowScores:
        """Scores all windows, and compares them with what `reference` kept, if there is one.

        Args:
            llm: the model; built with `capture` among its taps if there is a reference.
            progress: told (windows done, windows in all).
            capture: hears its states.
            reference: of the same windows.
        """
        scores, windows = WindowScores(), self.windows(llm)
        for index, window in enumerate(windows):
            _score(llm, window, scores)
            if reference is not None and capture is not None:
                states = capture.take()[window.first_scored - 1 :]
                found = compare_states(states, capture.model, reference.states(index), reference.model)
                scores.agreements.append(int(found.agrees.sum()))
                scores.kl.append(found.kl.numpy())
            progress(index + 1, len(windows))
        return scores


def _score(llm: LLM, window: Window, scores: WindowScores) -> None:
    (logprobs,) = score_prompts(llm, [list(window.token_ids)])  # of the tokens from the second one on
    scores.counts.append(window.num_scored)
    scores.losses.append(-math.fsum(logprobs[window.first_scored - 1 :]))


def perplexity_figures(
    scores: WindowScores, bootstrap: Bootstrap, reference: WindowScores | None = None
) -> dict[str, Any]:
    """Figures of a model, each with an interval over windows where there are two at least.

    Args:
        scores: of the model.
        bootstrap: draws the windows.
        reference: of the reference, on the same windows.

    Returns:
        - perplexity: exp of the mean negative log-likelihood of all tokens that count; perplexity_interval.
        - num_windows, num_tokens: what was scored; window_losses, window_tokens: of each window, to work further with.
        With a reference also
        - perplexity_ratio: over the reference's, and its interval, from windows drawn for both alike.
        - top1_agreement: share of positions where both expect the same token, and its interval.
        - kl_mean, its interval, and percentiles: of KL(reference || model) over positions, nats.
    """
    figures: dict[str, Any] = {
        "perplexity": _perplexity(scores),
        "perplexity_interval": bootstrap.interval(scores.losses, scores.counts, np.exp),
        "num_windows": len(scores.counts),
        "num_tokens": sum(scores.counts),
        "window_losses": scores.losses,
        "window_tokens": scores.counts,
    }
    if reference is not None:
        figures |= _distances(scores, reference, bootstrap)
    return figures


def _distances(scores: WindowScores, reference: WindowScores, bootstrap: Bootstrap) -> dict[str, Any]:
    excess = [own - other for own, other in zip(scores.losses, reference.losses, strict=True)]
    kl_sums = [float(values.sum()) for values in scores.kl]
    all_kl = np.concatenate(scores.kl)
    num_tokens = sum(scores.counts)
    return {
        "perplexity_ratio": math.exp(math.fsum(excess) / num_tokens),
        "perplexity_ratio_interval": bootstrap.interval(excess, scores.counts, np.exp),
        "top1_agreement": sum(scores.agreements) / num_tokens,
        "top1_agreement_interval": bootstrap.interval(scores.agreements, scores.counts),
        "kl_mean": math.fsum(kl_sums) / num_tokens,
        "kl_mean_interval": bootstrap.interval(kl_sums, scores.counts),
        **{f"kl_p{p}": float(value) for p, value in zip(_PERCENTILES, _percentiles(all_kl), strict=True)},
        "kl_max": float(all_kl.max()),
        "window_agreements": scores.agreements,
        "window_kl": kl_sums,
    }


def _percentiles(values: NDArray[np.float64]) -> Sequence[float]:
    found: list[float] = np.percentile(values, _PERCENTILES).tolist()
    return found


def _perplexity(scores: WindowScores) -> float:
    return math.exp(math.fsum(scores.losses) / sum(scores.counts))
