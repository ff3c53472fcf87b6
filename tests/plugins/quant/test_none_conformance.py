"""`quant=none` through the conformance suite: it covers nothing, so that little of it applies."""

from __future__ import annotations

from tokenloom.testing import QuantSuite


class TestNone(QuantSuite):
    plugin = "none"
    max_relative_error = 0.0
