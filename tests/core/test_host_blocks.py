"""HostBlocks: KV goes to host memory and comes back bit for bit, into other blocks and in part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tokenloom.batch import BlockCopy, BlockExport, BlockImport
from tokenloom.host_blocks import HostBlocks, stored_layers
from tokenloom.interfaces.attention import AttentionBackend, AttentionContext, AttentionLayer
from tokenloom.plugins import default_registry
from tokenloom.testing.suite import build_choice

BLOCK, HEADS, DIM = 4, 2, 8
LAYERS = [AttentionLayer(0, 0, 1.0), AttentionLayer(1, 1, 1.0, window=6)]


def backend(name: str) -> AttentionBackend:
    context = AttentionContext(
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=DIM,
        block_size=BLOCK,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        max_num_seqs=2,
        max_num_batched_tokens=8,
        max_model_len=64,
        deterministic=False,
    )
    built = build_choice(default_registry().get("attention", name).info, {}).build(context)
    assert isinstance(built, AttentionBackend)
    return built


def random_kv(attention: AttentionBackend, num_blocks: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    spec = attention.kv_cache_spec(num_blocks)
    kv = []
    for _ in LAYERS:
        tensors = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
        for tensor in tensors:
            raw = tensor.view(torch.uint8)
            raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, dtype=torch.uint8))
        kv.append(tensors)
    return kv


def content(attention: AttentionBackend, kv: Sequence[torch.Tensor], ids: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.view(torch.uint8) for tensor in attention.export_blocks(kv, torch.tensor(ids))]


def test_blocks_come_back_bit_for_bit_and_others_are_not_touched() -> None:
    """Random bytes, NaN among them; group 0 brings back two of three blocks, group 1 its only one."""
    attention = backend("torch_sdpa")
    kv = random_kv(attention, 12)
    host = HostBlocks(stored_layers(attention, LAYERS, kv), BLOCK)
    before = [content(attention, kv[0], [2, 5, 3]), content(attention, kv[1], [7])]
    assert host.export([BlockExport("a", ((2, 5, 3), (7,)))]) == ()
    for tensors in kv:
        for tensor in tensors:
            tensor.view(torch.uint8).bitwise_xor_(255)
    rest = [content(attention, kv[0], [1, 2, 3, 5]), content(attention, kv[1], [1, 7])]
    host.restore([BlockImport("a", ((0, 2), (0,)), ((9, 4), (8,)))])
    for found, expected in zip(content(attention, kv[0], [9, 4]), before[0], strict=True):
        assert torch.equal(found, expected[[0, 2]])
    for found, expected in zip(content(attention, kv[1], [8]), before[1], strict=True):
        assert torch.equal(found, expected)
    after = [content(attention, kv[0], [1, 2, 3, 5]), content(attention, kv[1], [1, 7])]
    for old, new in zip(rest, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
    with pytest.raises(KeyError):
        host.restore([BlockImport("a", ((0,), ()), ((9,), ()))])


def test_copies_that_find_no_memory_are_reported_and_other_errors_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attention = backend("torch_sdpa")
    host = HostBlocks(stored_layers(attention, LAYERS, random_kv(attention, 4)), BLOCK)
    for message, is_lost in (("DefaultCPUAllocator: not enough memory: you tried to allocate", True), ("bad", False)):

        def fail(*_: object, message: str = message) -> None:
            raise RuntimeError(message)

        monkeypatch.setattr(type(attention), "export_blocks", fail)
        if is_lost:
            assert host.export([BlockExport("a", ((1,), (2,)))]) == ("a",)
            host.drop(["a"])
        else:
            with pytest.raises(RuntimeError, match="bad"):
                host.export([BlockExport("a", ((1,), (2,)))])


def test_copies_read_all_sources_first() -> None:
    """Block 2 is a source and a target."""
    attention = backend("torch_sdpa")
    kv = random_kv(attention, 6)
    before = [content(attention, kv[0], [1, 2]), content(attention, kv[1], [4, 3])]
    host = HostBlocks(stored_layers(attention, LAYERS, kv), BLOCK)
    host.copy([BlockCopy((1, 4), (2, 5)), BlockCopy((2, 3), (3, 1))])
    after = [content(attention, kv[0], [2, 3]), content(attention, kv[1], [5, 1])]
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
    host.copy([])
