"""`quant=none` through the conformance suite: it covers nothing, so that little of it applies."""

from __future__ import annotations

import pytest

from tokenloom.testing import QuantSuite


class TestNone(QuantSuite):
    plugin = "none"
    max_relative_error = 0.0

    @pytest.mark.xfail(reason="quant=none is the choice of no quantization: it covers nothing by design", strict=True)
    def test_covers_a_linear_layer(self) -> None:
        super().test_covers_a_linear_layer()
