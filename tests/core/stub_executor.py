"""Moved to tokenloom.testing.stub_executor."""

from tokenloom.testing.stub_executor import *  # noqa: F403
