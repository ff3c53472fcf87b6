"""Admits who fits at the peak: requests grow together, and those that end leave their memory to those that go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

from pydantic import Field

from tokenloom.interfaces.scheduler import Ledger, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestFinished, SchedulerEvent
from tokenloom.interfaces.scheduling_policy import AdmissionConfig, AdmissionPolicy
from tokenloom.request import RequestView
from tokenloom_schedulers.block_growth import BlockGrowth
from tokenloom_schedulers.output_estimate import Estimate, OutputEstimate

__all__ = ["PeakMemory", "PeakMemoryConfig"]


class PeakMemoryConfig(AdmissionConfig):
    """Settings of peak_memory."""

    estimate: Estimate = Field(
        default="cap",
        description="How long an output will be: cap (max_tokens), or tenant_mean (of the tenant's requests so far).",
    )

    def build(self, context: SchedulerContext) -> AdmissionPolicy:
        return PeakMemory(self)


class _Future(NamedTuple):
    """What is expected of a request.

    Attributes:
        end: in how many steps, this one included, it yields its last token; infinite if that cannot be said.
        num_slots: that it fills before this step, if it grows by one in each; None if it counts with all it will need.
        num_held: blocks that it holds.
        num_more: blocks that it lacks for all it will need.
        request: whose.
    """

    end: float
    num_slots: int | None
    num_held: int
    num_more: int
    request: RequestView


@final
class PeakMemory(AdmissionPolicy):
    """Looks at each moment at which a request is expected to end: by then the others have grown as much.

    With requests sorted by what is left of them, longest first, the i-th ends when i + 1 are there, each longer by what
    the i-th had left: peak = max over i of (left_i * (i + 1) + what the first i + 1 hold). Here that is counted in
    blocks, and blocks that others hold, too, are not counted on to come back. A request whose prompt is not computed
    whole in this step ends later, at the pace of this step; until then it counts with all that it will need.

    Exact where outputs are as long as expected and every running request gets a token a step: nobody is preempted.
    Drafts, urgent prompts and budgets below the number of running requests shift the ends; then it can be wrong, and
    somebody is.

    Source: R. Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025 (LightLLM).
    """

    def __init__(self, config: PeakMemoryConfig) -> None:
        self._output = OutputEstimate(config.estimate)

    def num_missing_blocks(
        self, request: RequestView, others: Sequence[RequestView], view: SchedulerView, ledger: Ledger
    ) -> int:
        block_size, spare = view.limits.block_size, ledger.spare_blocks
        futures = [self._future(one, block_size, ledger) for one in (*others, request)]
        if sum(one.num_more for one in futures) <= spare:
            return 0
        return max(0, _peak(futures, block_size, ledger) - spare)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestFinished):
            self._output.observe(event)

    def _future(self, request: RequestView, block_size: int, ledger: Ledger) -> _Future:
        num_tokens = request.num_tokens + request.num_placeholder_tokens
        num_left = math.ceil(self._output.num_left(request))
        num_held, num_granted = ledger.num_blocks(request), ledger.num_granted_tokens(request)
        # The last token is never stored.
        num_more = max(0, -(-(num_tokens + num_left - 1) // block_size) - num_held)
        num_own = ledger.need(request) - request.num_drafts
        if num_granted >= num_own > 0:
            # What drafts took, or a reservation, is used before anything new is.
            num_slots = max(num_tokens - 1, (num_held - 1) * block_size)
            return _Future(num_left, num_slots if num_more else None, num_held, num_more, request)
        delay = -(-(num_own - num_granted) // num_granted) if num_granted else math.inf
        return _Future(num_left + delay, None, num_held, num_more, request)


def _peak(futures: Sequence[_Future], block_size: int, ledger: Ledger) -> int:
    """The most blocks that all of them together will take of what is spare now."""
    growing, num_held, num_fixed, num_freed, peak = BlockGrowth(block_size), 0, 0, 0, 0
    for one in futures:
        if one.num_slots is None:
            num_fixed += one.num_more
        else:
            growing.add(one.num_slots)
            num_held += one.num_held
    for one in sorted(futures, key=lambda future: future.end):
        num_grown = growing.num_blocks(int(one.end)) - num_held if growing.num_sequences else 0
        peak = max(peak, num_grown + num_fixed - num_freed)
        if one.end == math.inf:
            break
        if one.num_slots is None:
            num_fixed -= one.num_more
        else:
            growing.remove(one.num_slots)
            num_held -= one.num_held
        num_freed += ledger.num_own_blocks(one.request)
    return peak
