"""Moved to tokenloom.testing.engine_harness."""

from tokenloom.testing.engine_harness import *  # noqa: F403
