"""A scheduler for tests: another one, and every few steps a victim that a policy chose, short of memory or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from pydantic import Field, PrivateAttr

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerConfig, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestPreempted, SchedulerEvent
from tokenloom.interfaces.scheduling_policy import VictimPolicy

__all__ = ["Forced", "ForcingConfig"]


@final
@dataclass(slots=True)
class Forced:
    """What came of it: preemptions in all, those that were forced, and how often victims kept blocks."""

    num_preemptions: int = 0
    num_forced: int = 0
    num_partial: int = 0


class ForcingConfig(SchedulerConfig):
    """Settings of the scheduler below, which counts in `forced`."""

    inner: PluginChoice
    victim: PluginChoice
    stride: Annotated[int, Field(ge=1)] = 3
    most: Annotated[int, Field(ge=1)] = 3
    _forced: Forced = PrivateAttr(default_factory=Forced)

    @property
    def forced(self) -> Forced:
        """Counts so far."""
        return self._forced

    def build(self, context: SchedulerContext) -> Scheduler:
        inner, victims = self.inner.build(context), self.victim.build(context)
        assert isinstance(inner, Scheduler)
        assert isinstance(victims, VictimPolicy)
        return Forcing(self, inner, victims)


@final
class Forcing(Scheduler):
    """Every `stride` steps preempts one of all but the first that run, as long as it was preempted fewer than `most`
    times; then the other scheduler plans as it would."""

    def __init__(self, config: ForcingConfig, inner: Scheduler, victims: VictimPolicy) -> None:
        self._config = config
        self._inner = inner
        self._victims = victims

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        candidates = [one for one in view.running[1:] if one.num_preemptions < self._config.most]
        if candidates and view.step_id % self._config.stride == 0:
            victim = self._victims.select(view.running[0], candidates, view)
            assert victim in candidates
            mode = ledger.preempt_mode(victim)
            ledger.preempt(victim, mode, 0 if mode is PreemptMode.SWAP else ledger.keep_blocks(victim, 1))
            self._config.forced.num_forced += 1
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestPreempted):
            self._config.forced.num_preemptions += 1
            self._config.forced.num_partial += event.num_kept_tokens > 0
        self._inner.observe(event)
