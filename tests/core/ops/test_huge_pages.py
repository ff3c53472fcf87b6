"""Memory is zero, aligned and of the asked size, whether or not huge pages can back it."""

from __future__ import annotations

import pytest

from tokenloom.ops.huge_pages import zeroed_memory


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, (8 << 20) - 1, 8 << 20, (9 << 20) + 3])
def test_memory_is_zero_and_aligned(num_bytes: int) -> None:
    memory = zeroed_memory(num_bytes)
    assert memory.shape == (num_bytes,)
    assert not memory.any()
    if num_bytes:
        assert memory.data_ptr() % (2 << 20 if num_bytes >= 8 << 20 else 64) == 0
        memory.fill_(7)  # all of it is ours
        assert memory.min() == memory.max() == 7
