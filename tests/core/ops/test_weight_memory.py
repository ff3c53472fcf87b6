"""Weights lie one after another in chunks, and never on each other."""

from __future__ import annotations

import pytest
import torch

from tokenloom.ops import weight_memory
from tokenloom.ops.weight_memory import WeightMemory


def test_empty_gives_tensors_that_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "_CHUNK_BYTES", 1 << 12)
    memory = WeightMemory()
    shapes = [(3, 5), (1,), (0, 4), (700, 1000), (2, 3, 4), (1 << 21,), (7,)]  # some larger than a chunk
    found = [memory.empty(shape, torch.bfloat16) for shape in shapes]
    for number, tensor in enumerate(found):
        tensor.fill_(number)
    for number, (tensor, shape) in enumerate(zip(found, shapes, strict=True)):
        assert tensor.shape == shape
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0 or tensor.numel() == 0
        assert (tensor == number).all()


def test_empty_memory_outlives_its_giver() -> None:
    tensor = WeightMemory().empty((4, 4), torch.float32).fill_(2.0)
    assert tensor.sum() == 32.0
