"""Attention in C++ and its writes to the KV cache beside `torch_sdpa`, with a cache in bfloat16 and in int8."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attention_step import make_batch
from native_op_case import Call, Case, Make, Shapes, random_bfloat16

from tokenloom.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionConfig,
    AttentionContext,
    AttentionLayer,
)
from tokenloom.ops.table import OpTable
from tokenloom_attention.native_cpu import NativeCpuConfig
from tokenloom_attention.torch_sdpa import TorchSdpaConfig

__all__ = ["attention_cases"]

_BLOCK_SIZE = 16


def attention_cases(shapes: Shapes, rows: int, context: int) -> Iterator[Case]:
    """One layer of a step in which each row decodes one token; int8 stands beside torch's bfloat16, as it has no other.

    Args:
        shapes: of the model.
        rows: requests.
        context: tokens of each, a quarter more or less.
    """
    batch = make_batch(rows, 1, context, _BLOCK_SIZE)
    num_elements = 2 * shapes.kv_heads * shapes.head_dim
    for name, config, width in (("bf16", NativeCpuConfig(), 2), ("int8", NativeCpuConfig(kv_dtype="int8"), 1)):
        num_bytes = width * num_elements * sum(batch.seq_lens_cpu)
        yield Case(f"attention {context} {name} KV", num_bytes, _forward(shapes, batch, config))
        yield Case(f"write {name} KV", (2 + width) * num_elements * rows, _write(shapes, batch, config))


def _forward(shapes: Shapes, batch: AttentionBatch, native: AttentionConfig) -> Make:
    def make(name: str, _ops: OpTable) -> Call:
        backend, kv = _backend(shapes, batch, native if name == "native" else TorchSdpaConfig())
        for part in kv:
            part.copy_(torch.randn(part.shape))
        query = random_bfloat16(batch.num_tokens, shapes.heads, shapes.head_dim)
        layer, metadata = AttentionLayer(0, 0, shapes.head_dim**-0.5), backend.prepare(batch)
        return lambda: backend.forward(query, kv, layer, metadata)

    return make


def _write(shapes: Shapes, batch: AttentionBatch, native: AttentionConfig) -> Make:
    def make(name: str, _ops: OpTable) -> Call:
        backend, kv = _backend(shapes, batch, native if name == "native" else TorchSdpaConfig())
        key, value = (random_bfloat16(batch.num_tokens, shapes.kv_heads, shapes.head_dim) for _ in range(2))
        metadata = backend.prepare(batch)
        return lambda: backend.write_kv(kv, key, value, metadata)

    return make


def _backend(
    shapes: Shapes, batch: AttentionBatch, config: AttentionConfig
) -> tuple[AttentionBackend, list[torch.Tensor]]:
    backend = config.build(
        AttentionContext(
            num_heads=shapes.heads,
            num_kv_heads=shapes.kv_heads,
            head_dim=shapes.head_dim,
            block_size=_BLOCK_SIZE,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            max_num_seqs=len(batch.seq_lens_cpu),
            max_num_batched_tokens=batch.num_tokens,
            max_model_len=max(batch.seq_lens_cpu),
        )
    )
    spec = backend.kv_cache_spec(int(batch.block_table.max()) + 1)
    kv = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
    return backend, kv
