"""Whether two servers say the same: greedy answers to the same prompts, side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from tokenloom.errors import RemoteServerError
from tokenloom.load_generator.endpoint import Prompt
from tokenloom.load_generator.http_client import LoadClient, StatusError

__all__ = ["Agreement", "Answer", "PromptAgreement", "ask_greedily", "compare_answers", "summarize_agreement"]

_LEAST_SHARE = 0.9
_MOST_LOGPROB_DIFFERENCE = 0.1
_TIE = 0.25
"""Logprobs of the two best tokens that are nearer than this may change places by rounding alone."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer.

    Attributes:
        text: all of it.
        tokens, logprobs: of each token; None if the server offers no logprobs.
        leads: how far the best token's logprob is above the second's; None where that is not told.
    """

    text: str
    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    leads: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptAgreement:
    """Two answers to one prompt. Units are tokens where both servers name theirs, else characters of text.

    Attributes:
        num_equal: leading units that are equal.
        num_units: units of the longer answer.
        first_divergence: index of the first unit that differs; None if the answers are equal.
        at_divergence: what each server says from there on (some characters).
        is_tie: whether, by a server's own logprobs, the first token that differs was as good as the other one's.
        mean_logprob_difference: mean of |difference| over the leading equal tokens; None without logprobs.
        max_logprob_difference: the largest.
    """

    num_equal: int
    num_units: int
    first_divergence: int | None
    at_divergence: tuple[str, str] | None
    is_tie: bool
    mean_logprob_difference: float | None
    max_logprob_difference: float | None

    @property
    def share(self) -> float:
        """Of leading units that are equal."""
        return self.num_equal / self.num_units if self.num_units else 1.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over all prompts.

    Attributes:
        unit: tokens or characters.
        mean_share: mean share of leading equal units.
        share_identical: share of prompts with wholly equal answers.
        num_ties: answers that part at a tie, which rounding explains.
        mean_logprob_difference, max_logprob_difference: over prompts; None without logprobs.
        prompts: each one.
        doubts: why the servers may not run the same model; empty if they agree.
    """

    unit: str
    mean_share: float
    share_identical: float
    num_ties: int
    mean_logprob_difference: float | None
    max_logprob_difference: float | None
    prompts: tuple[PromptAgreement, ...]
    doubts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result."""
        return asdict(self)


async def ask_greedily(client: LoadClient, prompts: Sequence[Prompt], max_tokens: int) -> list[Answer]:
    """Asks for greedy answers, one after the other, with logprobs if the server offers them.

    Raises:
        RemoteServerError: a request fails.
    """
    chat = client.endpoint.api == "chat"
    wanted: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    answers: list[Answer] = []
    for prompt in prompts:
        try:
            body = await client.complete(client.endpoint.plain_body(prompt, max_tokens, wanted))
        except StatusError as error:
            if not wanted or not 400 <= error.status < 500:
                raise
            wanted = {}
            body = await client.complete(client.endpoint.plain_body(prompt, max_tokens))
        answers.append(_answer(body))
    return answers


def compare_answers(a: Answer, b: Answer) -> PromptAgreement:
    """Compares two answers to one prompt."""
    units_a: Sequence[str] = a.text
    units_b: Sequence[str] = b.text
    differences: list[float] = []
    # Servers may spell one token in several ways; equal texts are equal answers.
    if a.tokens is not None and b.tokens is not None and (a.tokens == b.tokens or a.text != b.text):
        units_a, units_b = a.tokens, b.tokens
    num_equal = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(units_a, units_b, strict=False))
    )
    if units_a is a.tokens and a.logprobs is not None and b.logprobs is not None:
        differences = [abs(x - y) for x, y in zip(a.logprobs[:num_equal], b.logprobs[:num_equal], strict=True)]
    num_units = max(len(units_a), len(units_b))
    is_equal = num_equal == num_units
    leads = [x.leads[num_equal] for x in (a, b) if units_a is a.tokens and num_equal < len(x.leads)]
    return PromptAgreement(
        num_equal=num_equal,
        num_units=num_units,
        first_divergence=None if is_equal else num_equal,
        at_divergence=None if is_equal else (_from(units_a, num_equal), _from(units_b, num_equal)),
        is_tie=not is_equal and any(lead is not None and lead < _TIE for lead in leads),
        mean_logprob_difference=fmean(differences) if differences else None,
        max_logprob_difference=max(differences) if differences else None,
    )


def summarize_agreement(a: Sequence[Answer], b: Sequence[Answer]) -> Agreement:
    """Compares the answers of two servers to the same prompts."""
    assert len(a) == len(b) > 0, f"{len(a)} and {len(b)} answers"
    prompts = tuple(compare_answers(x, y) for x, y in zip(a, b, strict=True))
    has_tokens = all(answer.tokens is not None for answer in (*a, *b))
    means = [p.mean_logprob_difference for p in prompts if p.mean_logprob_difference is not None]
    largest = [p.max_logprob_difference for p in prompts if p.max_logprob_difference is not None]
    mean_difference = fmean(means) if means else None
    return Agreement(
        unit="tokens" if has_tokens else "characters",
        mean_share=fmean(p.share for p in prompts),
        share_identical=fmean(p.first_divergence is None for p in prompts),
        num_ties=sum(p.is_tie for p in prompts),
        mean_logprob_difference=mean_difference,
        max_logprob_difference=max(largest) if largest else None,
        prompts=prompts,
        doubts=tuple(_doubts(prompts, mean_difference)),
    )


def _doubts(prompts: Sequence[PromptAgreement], mean_difference: float | None) -> list[str]:
    doubts: list[str] = []
    num_at_once = sum(p.first_divergence == 0 and not p.is_tie for p in prompts)
    if num_at_once:
        doubts.append(
            f"{num_at_once} of {len(prompts)} answers differ from the first token on: other weights, another tokenizer "
            "or chat template, or a start-of-sequence token that only one server adds"
        )
    share = fmean(1.0 if p.is_tie else p.share for p in prompts)
    if share < _LEAST_SHARE:
        doubts.append(
            f"answers agree over {share:.0%} of their length on average: other weights, quantization or dtype"
        )
    if mean_difference is not None and mean_difference > _MOST_LOGPROB_DIFFERENCE:
        doubts.append(f"logprobs of equal tokens differ by {mean_difference:.3f} on average")
    return doubts


def _answer(body: Mapping[str, Any]) -> Answer:
    try:
        (choice, *_) = body["choices"]
        logprobs = choice.get("logprobs") or {}
        # Some servers use the form of the chat in both.
        rows = logprobs.get("content") or []
        tokens = [row["token"] for row in rows] or logprobs.get("tokens") or []
        values = [row["logprob"] for row in rows] or logprobs.get("token_logprobs") or []
        best = [row.get("top_logprobs") for row in rows] or logprobs.get("top_logprobs") or []
        leads = tuple(map(_lead, best))
        message = choice.get("message")
        text = choice["text"] if message is None else _said(message)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteServerError(f"an answer is no completion: {body!r:.200}") from error
    has_logprobs = bool(tokens) and len(tokens) == len(values) and None not in values
    return Answer(text, tuple(tokens) if tokens else None, tuple(values) if has_logprobs else None, leads)


def _lead(best: Any) -> float | None:
    """Between the two best tokens, from {token: logprob} or from [{"logprob": ...}, ...]."""
    values = best.values() if isinstance(best, dict) else [row["logprob"] for row in best or ()]
    first, second, *_ = [*sorted(values, reverse=True), None, None]
    return None if first is None or second is None else float(first - second)


def _said(message: Mapping[str, Any]) -> str:
    parts = (message.get("reasoning_content") or message.get("reasoning"), message.get("content"))
    return "".join(part for part in parts if part)


def _from(units: Sequence[str], index: int) -> str:
    return "".join(units[index:])[:40]
