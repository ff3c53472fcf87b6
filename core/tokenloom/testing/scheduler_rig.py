"""How the scheduler suite builds its plugin into an engine, or calls it at a desk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.request import Request, RequestStatus
from tokenloom.scheduling.plan_check import check_plan, check_plan_shape
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, oracle_drafts
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.watched_scheduler import Decision, PreemptBetween, WatchedScheduler
from tokenloom.testing.workloads import Workload

__all__ = ["SchedulerRig", "assert_equal_runs", "request_in_state"]

_MAX_MODEL_LEN = 256
_HOST_BYTES = 10**9


class SchedulerRig(PluginSuite):
    """Builds the scheduler under test; holds no tests."""

    kind = "scheduler"

    def build(self, context: SchedulerContext, **changes: Any) -> Scheduler:
        """The scheduler under test, with settings that agree with the context's limits."""
        limits = {"max_num_seqs": context.max_num_seqs, "max_num_batched_tokens": context.max_num_batched_tokens}
        scheduler = self.make_config(**limits, **changes).build(context)
        assert isinstance(scheduler, Scheduler), f"build() returned a {type(scheduler).__name__}, not a Scheduler"
        return scheduler

    def budget(self, num_tokens: int) -> int:
        """A step's budget; a scheduler that never cuts a prompt needs room for the longest."""
        return max(num_tokens, _MAX_MODEL_LEN) if "whole_prompts" in self.capabilities.flags else num_tokens

    @property
    def spares_budget(self) -> bool:
        """Whether steps may stay below the budget while prompts wait."""
        return "spare_budget" in self.capabilities.flags or self.settings.get("max_chunk_tokens") is not None

    def engine(
        self,
        workload: Workload,
        *,
        asks_twice: bool = False,
        tells_twice: bool = False,
        preempts: tuple[str, int, PreemptMode] | None = None,
        **changes: Any,
    ) -> tuple[EngineHarness, WatchedScheduler]:
        """An engine of the workload's size, on which nothing has arrived yet, and the decisions of its scheduler.

        Args:
            workload: its traffic is not played.
            asks_twice: see `WatchedScheduler`.
            tells_twice: the same.
            preempts: (request_id, number of output tokens, mode) of a preemption that is forced on the scheduler.
            changes: settings of the plugin.
        """
        watched: list[WatchedScheduler] = []

        def build(context: SchedulerContext) -> Scheduler:
            built = self.build(context, **changes)
            watched.append(WatchedScheduler(built, asks_twice=asks_twice, tells_twice=tells_twice))
            return watched[0] if preempts is None else PreemptBetween(watched[0], *preempts)

        most = workload.num_drafts
        harness = EngineHarness(
            num_blocks=(workload.num_blocks,),
            block_size=workload.block_size,
            cache=workload.cache,
            max_num_seqs=workload.max_num_seqs,
            budget=self.budget(workload.budget),
            max_model_len=_MAX_MODEL_LEN,
            scheduler=build,
            host_memory_bytes=_HOST_BYTES,
            draft_policy=ChosenDrafts(lambda *_: most) if most else None,
            drafts=(lambda model: oracle_drafts(model, lambda _, length: length % (most + 1))) if most else None,
        )
        return harness, watched[0]

    def plan(self, desk: Desk, num_inflight: int = 0) -> SchedulePlan:
        """The plan for what lies on a desk, checked as the engine checks it."""
        scheduler = self.build(desk.limits)
        view = desk.view()
        plan = scheduler.schedule(view, desk.ledger())
        check_plan_shape(plan, "under test")
        check_plan(plan, view, lambda: desk.ledger(defers=False), "under test", num_inflight=num_inflight)
        return plan


def assert_equal_runs(first: Sequence[Decision], second: Sequence[Decision]) -> None:
    """Fails with the first step at which two runs of the same traffic differ."""
    assert len(first) == len(second), f"{len(first)} steps, then {len(second)}"
    for one, other in zip(first, second, strict=True):
        assert one == other, f"first {one}, then {other}"


def request_in_state(harness: EngineHarness, state: str, max_steps: int = 60) -> Request | None:
    """Steps until a request is in a state, and returns it; None if none ever is, or the state is "unknown"."""
    for _ in range(max_steps if state != "unknown" else 0):
        for request in harness.requests.values():
            if _state(request) == state:
                return request
        harness.step()
    return None


def _state(request: Request) -> str:
    if request.status is not RequestStatus.RUNNING:
        return str(request.status)
    return "decoding" if request.output_token_ids else "prefilling"
