"""The Triton backends through the conformance suite of their contract, in Triton's interpreter."""

from __future__ import annotations

import pytest

from tokenloom.testing import AttentionSuite


class TritonSuite(AttentionSuite):
    """One block size, and heads that are padded: programs take their time here. All other sizes are tried in
    test_triton_paged_forward.py."""

    def block_sizes(self) -> tuple[int, ...]:
        return (16,)

    def head_dims(self) -> tuple[int, ...]:
        return (80,)


class TestTritonPaged(TritonSuite):
    plugin = "triton_paged"


@pytest.mark.slow
class TestTritonFlash(TritonSuite):
    plugin = "triton_flash"
