"""The cache of `native_cpu`: what a block takes, what int8 stores, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from tests.plugins.attention.native_cpu_pool import make_pool
from tokenloom.errors import CapabilityError, NativeBuildError
from tokenloom.testing.paged_pool import Shape, Work, layer_of
from tokenloom_attention.native_cpu import NativeCpuConfig
from tokenloom_attention.native_cpu.reference import dequantized, quantize


@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 64), (1, 64), (5, 20)])
def test_blocks_take_no_more_than_their_elements_but_for_padding(block_size: int, head_dim: int) -> None:
    """Values of an odd block size are padded to words, those of odd head sizes to vectors."""
    shape = Shape(4, 2, head_dim=head_dim, block_size=block_size, dtype=torch.bfloat16)
    page_bytes = NativeCpuConfig().build(shape.context()).kv_cache_spec(1).page_bytes
    key_bytes = 2 * block_size * head_dim * 2
    value_bytes = 2 * (block_size + block_size % 2) * -(-head_dim // 16) * 16 * 2
    assert page_bytes == key_bytes + value_bytes


def test_int8_takes_half_the_memory_and_its_scales() -> None:
    shape = Shape(4, 2, head_dim=64, block_size=16, dtype=torch.bfloat16)
    plain, small = (
        NativeCpuConfig(kv_dtype=kind).build(shape.context()).kv_cache_spec(10).page_bytes for kind in ("auto", "int8")
    )
    assert small == plain // 2 + 2 * 2 * 16 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_stores_what_the_reference_rounds(dtype: torch.dtype) -> None:
    """Bit for bit, with a head of zeros, a tiny one, a huge one, and halves that round to even."""
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=8, dtype=dtype), num_blocks=9, kv_dtype="int8")
    paged = pool.paged(8)
    paged.key[0] = 0.0
    paged.key[1] *= 1e-30
    paged.value[2] *= 1e30
    paged.value[3, 0] = torch.arange(16) - 7.5
    paged.value[3, 0, 0] = 127.0
    pool.write([Work(paged, 8)])
    content = pool.backend.export_blocks(pool.kv, pool.index(paged.blocks))
    assert [part.dtype for part in content] == [torch.int8, torch.int8, torch.float32, torch.float32]
    for tokens, stored, scales in ((paged.key, content[0], content[2]), (paged.value, content[1], content[3])):
        wanted, wanted_scales = quantize(tokens)
        assert torch.equal(stored[0], wanted)
        assert torch.equal(scales[0], wanted_scales)
    keys, values = dequantized(content)
    assert torch.allclose(keys[0], paged.key.float(), atol=0.03)
    assert torch.allclose(values[0, :2], paged.value[:2].float(), atol=0.03)


@pytest.mark.slow
def test_slots_beyond_two_to_the_31_elements_are_reached() -> None:
    shape = Shape(8, 8, head_dim=256, block_size=32, dtype=torch.bfloat16)
    num_blocks = 2**31 // (8 * 256 * 32) + 8
    pool = make_pool(shape, num_blocks=2)
    # Untouched pages of `empty` take no memory.
    pool.kv = [torch.empty(size, dtype=torch.bfloat16) for size in pool.backend.kv_cache_spec(num_blocks).shapes]
    paged = pool.paged(40)
    paged.blocks = [num_blocks - 1, num_blocks - 2]
    pool.check([Work(paged, 40)], layer_of(shape))
    paged.num_computed = 39
    pool.check([Work(paged, 1)], layer_of(shape))


def test_build_names_every_reason_against_a_context() -> None:
    context = replace(Shape().context(), num_heads=5, dtype=torch.float16, device=torch.device("meta"), head_dim=18)
    with pytest.raises(CapabilityError) as caught:
        NativeCpuConfig(kv_dtype="int8").build(context)
    assert len(caught.value.reasons) == 4
    for reason, words in zip(caught.value.reasons, ("got meta", "got 5 and 2", "got torch.float16", "got 18")):
        assert words in reason
        assert "try" in reason or "check" in reason


def test_build_refuses_odd_heads_in_bfloat16() -> None:
    with pytest.raises(CapabilityError, match="even head_dim in bfloat16, got 15; try attention=torch_sdpa"):
        NativeCpuConfig().build(Shape(head_dim=15, dtype=torch.bfloat16).context())


def test_config_refuses_another_kv_dtype() -> None:
    with pytest.raises(ValidationError, match="kv_dtype"):
        NativeCpuConfig(kv_dtype="int4")  # type: ignore[arg-type]


def test_build_without_a_compiler_names_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(NativeBuildError, match="attention=torch_sdpa"):
        NativeCpuConfig().build(Shape().context())
