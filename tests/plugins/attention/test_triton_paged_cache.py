"""The cache of `triton_paged`: what quantized tokens are rounded to, what a block takes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from tests.plugins.attention.triton_paged_steps import make_pool
from tokenloom.errors import CapabilityError
from tokenloom.testing.paged_pool import Shape
from tokenloom_attention.triton_flash import TritonFlashConfig
from tokenloom_attention.triton_paged import TritonPagedConfig, reference, validity
from tokenloom_attention.triton_paged.launches import store_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("num_tokens", [0, 1, 17, 129])
def test_tokens_are_stored_as_the_reference_stores_them(num_tokens: int, dtype: torch.dtype) -> None:
    key, value, slots = _tokens(num_tokens, dtype)
    cache, expected = (torch.full((12, 2, 3, 16, 20), torch.nan, dtype=dtype) for _ in range(2))
    store_tokens(cache, None, key, value, slots)
    reference.store_tokens(expected, None, key, value, slots)
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_int8_stores_what_the_reference_rounds(dtype: torch.dtype) -> None:
    """Bit for bit, with a head of zeros, a tiny one, a huge one, and halves that round to even."""
    key, value, slots = _tokens(17, dtype)
    key[0] = 0.0
    key[1] *= 1e-4
    value[2] *= 1e4
    value[3, 0] = torch.arange(20) - 9.5
    value[3, 0, 0] = 127.0
    cache, expected = (torch.full((12, 2, 3, 16, 20), -1, dtype=torch.int8) for _ in range(2))
    scales, expected_scales = (torch.full((12, 2, 3, 16), torch.nan) for _ in range(2))
    store_tokens(cache, scales, key, value, slots)
    reference.store_tokens(expected, expected_scales, key, value, slots)
    assert torch.equal(cache, expected)
    assert torch.equal(scales.view(torch.uint8), expected_scales.view(torch.uint8))


def test_e4m3_stores_what_the_reference_rounds() -> None:
    """But for a few: the interpreter, unlike a card, truncates, and loses the carry into the exponent."""
    key, value, slots = _tokens(17, torch.float32)
    cache, expected = (torch.zeros(12, 2, 3, 16, 20, dtype=torch.float8_e4m3fn) for _ in range(2))
    scales, expected_scales = (torch.zeros(12, 2, 3, 16) for _ in range(2))
    store_tokens(cache, scales, key, value, slots)
    reference.store_tokens(expected, expected_scales, key, value, slots)
    assert torch.equal(scales, expected_scales)
    is_stored = expected.view(torch.uint8) != 0
    is_equal = cache.view(torch.uint8) == expected.view(torch.uint8)
    assert bool(is_equal[~is_stored].all())
    assert float(is_equal[is_stored].float().mean()) > 0.9


def _tokens(num_tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values as slices of one projection, and slots in any order, some of them negative."""
    generator = torch.Generator().manual_seed(num_tokens)
    fused = torch.randn(num_tokens, 9, 20, generator=generator).to(dtype)
    slots = torch.randperm(12 * 16, generator=generator)[:num_tokens]
    slots[5::7] = -1 - slots[5::7]
    return fused[:, 3:6], fused[:, 6:], slots


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
def test_quantized_caches_take_half_the_memory_and_their_scales(kv_dtype: str) -> None:
    shape = Shape(4, 2, head_dim=64, block_size=16, dtype=torch.float16)
    plain, small = (
        TritonPagedConfig(kv_dtype=kind).build(shape.context()).kv_cache_spec(10).page_bytes  # type: ignore[arg-type]
        for kind in ("auto", kv_dtype)
    )
    assert plain == 2 * 2 * 16 * 64 * 2
    assert small == plain // 2 + 2 * 2 * 16 * 4


def test_quantized_blocks_travel_with_their_scales() -> None:
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=4), 20, "fp8_e4m3")
    paged = pool.paged(8, 8)
    content = pool.backend.export_blocks(pool.kv, pool.index(paged.blocks))
    assert [part.dtype for part in content] == [torch.float8_e4m3fn] * 2 + [torch.float32] * 2
    assert [tuple(part.shape) for part in content] == [(2, 4, 2, 16)] * 2 + [(2, 4, 2)] * 2
    stored = reference.dequantized(*pool.kv)[paged.blocks].transpose(2, 3)  # [2, 2, BS, Hkv, D]
    for which in (0, 1):
        assert torch.equal(content[which].float() * content[2 + which][..., None], stored[:, which])


def test_build_names_every_reason_against_a_context() -> None:
    context = replace(Shape().context(), num_heads=5, dtype=torch.float64, device=torch.device("meta"), head_dim=18)
    for config in (TritonPagedConfig(), TritonFlashConfig()):
        with pytest.raises(CapabilityError) as caught:
            config.build(context)
        assert len(caught.value.reasons) == 4
        for reason, words in zip(caught.value.reasons, ("got meta", "got 5 and 2", "got torch.float64", "got 18")):
            assert words in reason
            assert "try" in reason or "check" in reason


def test_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "is_interpreted", lambda: False)
    with pytest.raises(CapabilityError, match="runs on cuda, got cpu; try attention=auto, attention=native_cpu or"):
        TritonPagedConfig().build(Shape().context())


def test_bfloat16_is_refused_in_the_interpreter() -> None:
    with pytest.raises(CapabilityError, match="no bfloat16 in Triton's interpreter"):
        TritonPagedConfig().build(Shape(dtype=torch.bfloat16).context())


def test_equal_bits_in_every_batch_are_not_promised() -> None:
    context = replace(Shape(dtype=torch.float16).context(), deterministic=True)
    with pytest.raises(CapabilityError, match="does not promise the same bits in every batch"):
        TritonPagedConfig().build(context)
    TritonPagedConfig().build(replace(context, dtype=torch.float32))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
def test_e4m3_is_refused_on_cards_that_lack_it(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_card(monkeypatch, capability)
    context = replace(Shape().context(), device=torch.device("cuda"))
    assert validity.reasons_against("triton_paged", context, "int8") == []
    (reason,) = validity.reasons_against("triton_paged", context, "fp8_e4m3")
    assert f"got sm_{capability[0]}{capability[1]}; try attention.kv_dtype=int8" in reason


def test_cards_without_a_tuning_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_card(monkeypatch, (7, 5))
    context = replace(Shape().context(), device=torch.device("cuda"))
    (reason,) = validity.reasons_against("triton_flash", context, "auto")
    assert "got sm_75; try attention=torch_sdpa" in reason


def _pretend_card(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=108))


def test_config_refuses_another_kv_dtype() -> None:
    with pytest.raises(ValidationError, match="kv_dtype"):
        TritonPagedConfig(kv_dtype="int4")  # type: ignore[arg-type]
