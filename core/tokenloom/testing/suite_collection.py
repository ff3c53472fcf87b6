"""The module that pytest collects when a plugin is checked: it holds the one suite that is to run."""

from __future__ import annotations

from tokenloom.testing.suite_run import chosen_suite

__all__ = ["TestPlugin"]

TestPlugin = chosen_suite()
