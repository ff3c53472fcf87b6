"""The rules that every plan must keep, whoever made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenloom.batch import Preemption, PreemptMode, SchedulePlan
from tokenloom.errors import PluginContractError
from tokenloom.interfaces.scheduler import SchedulerView, Shortfall
from tokenloom.request import RequestView
from tokenloom.scheduling.ledger import StepLedger

__all__ = ["check_plan", "check_plan_shape"]


def check_plan(
    plan: SchedulePlan, view: SchedulerView, build_ledger: Callable[[], StepLedger], plugin: str, *, num_inflight: int
) -> StepLedger:
    """Replays a plan on a fresh ledger, which it returns.

    Args:
        plan: what the scheduler returned.
        view: what it saw.
        build_ledger: makes a fresh ledger over the same state.
        plugin: name for the message.
        num_inflight: steps launched but not landed; with none, a plan without tokens breaks the progress rule.

    Raises:
        PluginContractError: naming the rule that was broken and the values.
    """
    requests = {request.request_id: request for request in (*view.running, *view.waiting)}
    ledger = build_ledger()
    try:
        for victim in plan.preemptions:
            ledger.preempt(_known(requests, victim.request_id, plugin), victim.mode, victim.keep_blocks)
        for request_id, count in plan.num_scheduled_tokens.items():
            outcome = ledger.reserve(_known(requests, request_id, plugin), count)
            if isinstance(outcome, Shortfall):
                detail = f"request {request_id} with {count} tokens lacks {outcome.missing} {outcome.resource}"
                raise PluginContractError(plugin, f"a plan fits the {outcome.resource}", detail)
    except ValueError as error:
        raise PluginContractError(plugin, "a plan is legal", str(error)) from error
    # A step may do nothing but move a victim's memory away: that ends, and then there is room.
    moves = any(victim.mode is PreemptMode.SWAP for victim in ledger.preemptions)
    if requests and not plan.num_scheduled_tokens and num_inflight == 0 and not moves:
        detail = f"{len(view.running)} running and {len(view.waiting)} waiting requests, but no token is scheduled"
        raise PluginContractError(plugin, "every step makes progress", detail)
    return ledger


def check_plan_shape(plan: object, plugin: str) -> None:
    """Raises PluginContractError unless `plan` is a SchedulePlan of counts and preemptions."""
    is_plan = (
        isinstance(plan, SchedulePlan)
        and isinstance(plan.num_scheduled_tokens, Mapping)
        and isinstance(plan.preemptions, tuple)
        and all(isinstance(victim, Preemption) for victim in plan.preemptions)
    )
    if not is_plan:
        raise PluginContractError(plugin, "schedule() returns a SchedulePlan", f"got {plan!r:.200}")


def _known(requests: dict[str, RequestView], request_id: str, plugin: str) -> RequestView:
    if request_id not in requests:
        raise PluginContractError(plugin, "a plan names requests of its view", f"unknown request {request_id!r}")
    return requests[request_id]
