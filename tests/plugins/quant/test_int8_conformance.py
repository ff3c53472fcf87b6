"""`quant=int8` through the conformance suite of its contract."""

from __future__ import annotations

from tokenloom.testing import QuantSuite


class TestInt8(QuantSuite):
    plugin = "int8"


class TestInt8WithEmbedding(QuantSuite):
    plugin = "int8"
    settings = {"include_embedding": True}
