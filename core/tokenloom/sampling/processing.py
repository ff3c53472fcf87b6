"""From raw logits to those that a token is drawn from, before temperature and filters; and why none may be left.

Order, in fp32: penalties, bias, logits processors, then everything that forbids tokens: allowed ids, stop ids before
the minimum, bad words, and the logits constraint. A batch without any of these is passed through as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tokenloom.batch import ALL_FORBIDDEN
from tokenloom.sampling.batch import SamplingBatch
from tokenloom.sampling.constraint import AllowedTokens

__all__ = ["process_logits", "why_no_token"]


@final
@dataclass(frozen=True, slots=True)
class _Stage:
    """One change of the logits in place. `apply` returns row -> exception of rows that a plugin failed at."""

    name: str
    apply: Callable[[Tensor], dict[int, str]]
    is_plugin: bool = False


def process_logits(logits: Tensor, batch: SamplingBatch, allowed: AllowedTokens | None = None) -> Tensor:
    """Applies everything that comes before temperature.

    Args:
        logits: [R, V] of any float dtype; not changed.
        batch: settings of the R rows.
        allowed: masks of the rows under a logits constraint.

    Returns:
        fp32 [R, V]; the logits themselves where nothing was to do. Rows in which no token can be chosen, or in which a
        number is NaN or +inf, have no finite maximum.
    """
    shape = (batch.num_rows, batch.vocab_size)
    assert logits.shape == shape, f"logits of shape {tuple(logits.shape)} for a sampling batch of {shape}"
    if allowed is None and not batch.changes_logits:
        return logits.to(torch.float32)
    processed = _copy(logits)
    for stage in _stages(batch, allowed):
        stage.apply(processed)
    return processed


def why_no_token(logits: Tensor, batch: SamplingBatch, allowed: AllowedTokens | None, row: int) -> str:
    """Why a row without a finite maximum has none, for the request's error; does everything once more.

    Args:
        logits, batch, allowed: as given to `process_logits`.
        row: the row in question.
    """
    processed = _copy(logits)
    if not _has_token(processed, row):
        return "no token can be sampled: the model's logits are not finite"
    where = f"at output position {int(batch.position[row])}"
    num_forbidden = 0
    forbidding: list[str] = []
    for stage in _stages(batch, allowed):
        errors = stage.apply(processed)
        if row in errors:
            return f"plugin {stage.name} failed {where}: {errors[row]}"
        before, num_forbidden = num_forbidden, int((processed[row] == float("-inf")).sum())
        if num_forbidden > before:
            forbidding.append(stage.name)
        if not _has_token(processed, row):
            if float(processed[row].max()) != float("-inf"):
                fault = "wrote NaN or +inf" if stage.is_plugin else "led to NaN or +inf"
                return f"{'plugin ' if stage.is_plugin else ''}{stage.name} {fault} {where}"
            failure = "" if allowed is None else allowed.failures.get(row, "")
            because = f" ({failure})" if failure else ""
            return f"no token can be sampled {where}: {ALL_FORBIDDEN} {' and '.join(forbidding)}{because}"
    return f"no token can be sampled {where}"


def _copy(logits: Tensor) -> Tensor:
    return logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _has_token(processed: Tensor, row: int) -> bool:
    return bool(processed[row].max().isfinite())


def _stages(batch: SamplingBatch, allowed: AllowedTokens | None) -> Iterator[_Stage]:
    edits, history = batch.edits, batch.history

    def stage(name: str, change: Callable[[Tensor], None]) -> _Stage:
        def apply(logits: Tensor) -> dict[int, str]:
            change(logits)
            return {}

        return _Stage(name, apply)

    if history is not None:
        yield stage("the penalties", history.penalize)
    if edits is not None:
        yield stage("logit_bias", edits.add_bias)
    for call in () if batch.processors is None else batch.processors.calls:
        yield _Stage(call.plugin, call.apply, is_plugin=True)
    if edits is not None:
        yield stage("allowed_token_ids", edits.keep_allowed)
    if edits is not None or history is not None:
        yield stage("bad_words or min_tokens", lambda logits: _forbid(logits, batch))
    if allowed is not None:
        yield stage("the logits constraint", lambda logits: _mask(logits, allowed))


def _forbid(logits: Tensor, batch: SamplingBatch) -> None:
    if batch.edits is not None:
        batch.edits.forbid(logits, batch.position)
    if batch.history is not None:
        batch.history.forbid(logits)


def _mask(logits: Tensor, allowed: AllowedTokens) -> None:
    logits[allowed.rows] = logits[allowed.rows].masked_fill(~allowed.mask, float("-inf"))
