"""Figures of a drafter beside no drafts: speed, acceptance, what drafting took, and what theory makes of that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from tokenloom.bench.spec_run import CategoryRun

__all__ = ["category_figures", "category_means", "expected_tokens", "plain_figures", "speculation_theory"]


def plain_figures(runs: Sequence[CategoryRun]) -> dict[str, Any]:
    """Figures of a category without drafts, over repetitions: medians."""
    return {
        "num_requests": runs[0].num_requests,
        "num_failed": max(run.num_failed for run in runs),
        "num_output_tokens": runs[0].num_output_tokens,
        "output_tok_s": median(_rate(run.num_output_tokens, run.wall_s) for run in runs),
        "decode_tok_s": median(_rate(run.num_decode_tokens, run.decode_s) for run in runs),
        "wall_s": median(run.wall_s for run in runs),
    }


def category_figures(drafting: Sequence[CategoryRun], plain: Sequence[CategoryRun]) -> dict[str, Any]:
    """Figures of a category with a drafter.

    Args:
        drafting, plain: the runs of each repetition, with drafts and without.

    Returns:
        Beside those of `plain_figures`:
        - speedups: output tokens per second over those without drafts, of each repetition; speedup: their median.
        - decode_speedups, decode_speedup: the same of decoding alone, from each request's first token on, so without
          its prompt.
        - num_equal_answers: answers that are the same tokens as without drafts.
        - acceptance_length: tokens for each step of a request, the target's own one among them.
        - acceptance_by_position: how often a draft at a depth is right if those before it are.
        - accepted_by_position: drafts accepted at a depth, for each proposal that was verified.
        - drafting_share: of the wall time, what proposing took.
        - theory: see `speculation_theory`.
    """
    first = drafting[0]
    pairs = list(zip(drafting, plain, strict=True))
    tried, accepted = first.tried_by_position, first.accepted_by_position
    positions = range(max(tried, default=-1) + 1)
    return {
        **plain_figures(drafting),
        "speedup": median(_speedups(pairs)),
        "speedups": _speedups(pairs),
        "decode_speedup": median(_decode_speedups(pairs)),
        "decode_speedups": _decode_speedups(pairs),
        "num_equal_answers": sum(a == b for a, b in zip(first.token_ids, plain[0].token_ids, strict=True)),
        "acceptance_length": _ratio(first.num_decode_tokens, first.num_decode_steps),
        "num_proposals": first.num_proposals,
        "num_draft_tokens": first.num_draft_tokens,
        "num_accepted_tokens": first.num_accepted_tokens,
        "acceptance_by_position": [_ratio(accepted.get(i, 0), tried.get(i, 0)) for i in positions],
        "accepted_by_position": [_ratio(accepted.get(i, 0), first.num_proposals) for i in positions],
        "drafting_share": median(_ratio(run.propose_s, run.wall_s) for run in drafting),
        "theory": _median_theory([speculation_theory(run, other) for run, other in pairs]),
    }


def category_means(categories: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Speed-ups where every category counts alike, however many tokens its answers have.

    Args:
        categories: figures of each category, from `category_figures`; none is the sum of others.

    Returns:
        speedups, decode_speedups: of each repetition, the mean over categories; speedup, decode_speedup: their medians.
    """
    means: dict[str, Any] = {}
    for name in ("speedup", "decode_speedup"):
        means[f"{name}s"] = [
            fmean(values) for values in zip(*(figures[f"{name}s"] for figures in categories), strict=True)
        ]
        means[name] = median(means[f"{name}s"])
    return means


def speculation_theory(drafting: CategoryRun, plain: CategoryRun) -> dict[str, float] | None:
    """What the formula of Leviathan et al. (2023), (1 - a^(k+1)) / ((1 - a) (c k + 1)), says of a run.

    Steps without drafts, where the drafter had none, count as they are: with a share f of steps that verify drafts the
    speed-up is (1 - f + f E) / (1 + f c k), where E = (1 - a^(k+1)) / (1 - a). With f = 1 that is the formula.

    Returns:
        None where nothing was drafted or decoded. Else
        - rate a: how often a draft is right if those before it are.
        - drafts k: for each proposal. drafted_share f.
        - draft_cost c: seconds of proposing for each draft, in plain steps.
        - verify_cost: what a draft adds to the forward pass, in plain steps, as measured; the formula takes it for 0.
        - predicted: the formula.
        - predicted_with_verification: the formula with verify_cost added to c. What is left between this and
          decode_speedup is that acceptance is not the same at every depth.
    """
    num_tried = sum(drafting.tried_by_position.values())
    steps, plain_step_s = drafting.num_decode_steps, _ratio(plain.decode_s, plain.num_decode_steps)
    if not (num_tried and steps and plain_step_s and drafting.num_draft_tokens):
        return None
    rate = drafting.num_accepted_tokens / num_tried
    share = min(1.0, drafting.num_proposals / steps)
    count = drafting.num_draft_tokens / drafting.num_proposals
    # Of the requests that run side by side, each waits while drafts are proposed for all of them.
    num_running = _ratio(drafting.running_s, drafting.wall_s)
    draft_cost = drafting.propose_s * num_running / drafting.num_draft_tokens / plain_step_s
    step_cost = drafting.decode_s / steps / plain_step_s
    verify_cost = (step_cost - 1.0) / (share * count) - draft_cost
    num_tokens = 1.0 - share + share * expected_tokens(rate, count)
    return {
        "rate": rate,
        "drafts": count,
        "drafted_share": share,
        "draft_cost": draft_cost,
        "verify_cost": verify_cost,
        "predicted": num_tokens / (1.0 + share * count * draft_cost),
        "predicted_with_verification": num_tokens / step_cost,
    }


def expected_tokens(rate: float, num_drafts: float) -> float:
    """Tokens that a step yields with so many drafts, each right at that rate if those before it are."""
    if rate >= 1.0:
        return num_drafts + 1.0
    return (1.0 - math.pow(rate, num_drafts + 1.0)) / (1.0 - rate)


def _speedups(pairs: Sequence[tuple[CategoryRun, CategoryRun]]) -> list[float]:
    return [
        _ratio(_rate(run.num_output_tokens, run.wall_s), _rate(other.num_output_tokens, other.wall_s))
        for run, other in pairs
    ]


def _decode_speedups(pairs: Sequence[tuple[CategoryRun, CategoryRun]]) -> list[float]:
    return [
        _ratio(_rate(run.num_decode_tokens, run.decode_s), _rate(other.num_decode_tokens, other.decode_s))
        for run, other in pairs
    ]


def _median_theory(found: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    known = [theory for theory in found if theory is not None]
    return {key: median(theory[key] for theory in known) for key in known[0]} if known else None


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
