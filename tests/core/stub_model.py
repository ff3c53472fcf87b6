"""Moved to tokenloom.testing.stub_model."""

from tokenloom.testing.stub_model import *  # noqa: F403
