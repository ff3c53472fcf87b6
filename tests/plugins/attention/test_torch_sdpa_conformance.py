"""`torch_sdpa` through the conformance suite of its contract, with tiles of its usual size and with many small ones."""

from __future__ import annotations

from tokenloom.testing import AttentionSuite


class TestTorchSdpa(AttentionSuite):
    plugin = "torch_sdpa"


class TestTorchSdpaInSmallTiles(AttentionSuite):
    plugin = "torch_sdpa"
    settings = {"tile_kib": 64}
