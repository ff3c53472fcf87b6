"""Fixed scales of keys and values: what backends that take them store, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from tokenloom.errors import ConfigError
from tokenloom.interfaces.attention import AttentionBatch, AttentionConfig, KVScales
from tokenloom.ops.native import why_not_buildable
from tokenloom.testing.paged_pool import CPU, Shape
from tokenloom_attention.native_cpu.backend import NativeCpuConfig
from tokenloom_attention.torch_sdpa.backend import TorchSdpaConfig
from tokenloom_attention.triton_paged.backend import TritonPagedConfig

NATIVE = pytest.param(
    NativeCpuConfig(kv_dtype="int8", kv_scales="checkpoint"),
    marks=pytest.mark.skipif(why_not_buildable() is not None, reason=str(why_not_buildable())),
    id="native_cpu-int8",
)
PAGED = [
    pytest.param(TritonPagedConfig(kv_dtype="int8", kv_scales="checkpoint"), id="triton_paged-int8"),
    pytest.param(TritonPagedConfig(kv_dtype="fp8_e4m3", kv_scales="checkpoint"), id="triton_paged-e4m3"),
]


def batch_of(slots: list[int]) -> AttentionBatch:
    num_tokens = len(slots)
    return AttentionBatch(
        cu_seqlens_q=torch.tensor([0, num_tokens], dtype=torch.int32),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32),
        positions=torch.arange(num_tokens),
        block_table=torch.tensor([[1, 2]], dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        tree_mask=None,
        query_lens_cpu=(num_tokens,),
        seq_lens_cpu=(num_tokens,),
    )


@pytest.mark.parametrize("block_size", [5, 48])
@pytest.mark.parametrize("config", [NATIVE, *PAGED])
def test_codes_and_scales_are_what_the_scales_say(config: AttentionConfig, block_size: int) -> None:
    """In every layout, blocks of one tile and of several.

    A value beyond the range becomes its end, and tokens without a slot are not stored.
    """
    shape = Shape(num_kv_heads=2, head_dim=16, block_size=block_size)
    backend = config.build(shape.context())
    spec = backend.kv_cache_spec(3)
    kv = [torch.zeros(size, dtype=dtype) for size, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
    draw = torch.Generator().manual_seed(0)
    key, value = (torch.randn(4, 2, 16, generator=draw) for _ in range(2))
    key[0, 1, 3] = 1e4
    scales = KVScales(torch.tensor([0.01, 0.02]), torch.tensor([0.03, 0.005]))
    slots = [block_size + 1, 2 * block_size - 1, -1, 2 * block_size + 2]
    backend.write_scaled_kv(kv, key, value, scales, backend.prepare(batch_of(slots)))
    keys, values, key_scales, value_scales = backend.export_blocks(kv, torch.tensor([1, 2]))
    for stored, stored_scales, rows, scale in (
        (keys, key_scales, key, scales.key),
        (values, value_scales, value, scales.value),
    ):
        limit = 127.0 if stored.dtype == torch.int8 else 448.0
        for token, (block, offset) in {0: (0, 1), 1: (0, block_size - 1), 3: (1, 2)}.items():
            assert torch.equal(stored_scales[block, offset], scale)
            wanted = (rows[token] / scale[:, None]).clamp(-limit, limit)
            wanted = wanted.round() if stored.dtype == torch.int8 else wanted.to(stored.dtype).float()
            assert torch.equal(stored[block, offset].float(), wanted)
        assert int((stored_scales != 0).sum()) == 3 * 2


@pytest.mark.parametrize(
    "config", [NativeCpuConfig(kv_scales="checkpoint"), TritonPagedConfig(kv_scales="a.safetensors")]
)
def test_scales_of_what_is_not_rounded_are_refused(config: AttentionConfig) -> None:
    with pytest.raises(ConfigError, match=r"got attention\.kv_dtype=auto; try attention\.kv_dtype=int8, or"):
        config.build(Shape(device=CPU).context())


def test_a_backend_without_scales_asks_for_none() -> None:
    assert TorchSdpaConfig().fixed_kv_scales() is None
    assert NativeCpuConfig(kv_dtype="int8").fixed_kv_scales() is None
    backend = TorchSdpaConfig().build(Shape().context())
    scales = KVScales(torch.ones(2), torch.ones(2))
    with pytest.raises(AssertionError, match="TorchSdpaBackend has no use for fixed scales"):
        backend.write_scaled_kv((), torch.zeros(0), torch.zeros(0), scales, backend.prepare(batch_of([5])))
