"""The scheduler `fcfs` keeps the contract."""

from __future__ import annotations

from tokenloom.testing import SchedulerSuite


class TestFcfs(SchedulerSuite):
    """At its defaults."""

    plugin = "fcfs"


class TestFcfsInChunks(SchedulerSuite):
    """With prompts cut small, which leaves budget unused when few wait."""

    plugin = "fcfs"
    settings = {"max_chunk_tokens": 5}
