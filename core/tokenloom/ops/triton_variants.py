"""The fused Triton kernels in the sizes that models use, as launches without memory: what is compiled ahead of time.

`tokenloom.testing.kernel_gate` compiles them for cards that are not here, and tells spills and shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tokenloom.ops.kernel_launch import KernelLaunch, KernelVariant
from tokenloom.ops.triton_layers import operations as layers
from tokenloom.ops.triton_sampling import operations as sampling
from tokenloom.sampling.batch import SamplingBatch, SamplingRow
from tokenloom.sampling.verify import Verification
from tokenloom.sampling_params import SamplingParams

__all__ = ["fused_variants"]

_HIDDEN_SIZES = (576, 2048, 4096, 8192, 16384)
_HEADS = ((64, 64), (80, 80), (96, 32), (128, 128), (256, 256))
"""(head_dim, how much of it turns)."""
_VOCAB_SIZES = (49152, 128256)
_EPS = 1e-5

_INEXACT_LOG = ("lg2.approx",)
"""The hardware's own logarithm has an absolute error: it would lose the small ones that noise is made of."""


def fused_variants(dtype: torch.dtype = torch.bfloat16) -> Iterator[KernelVariant]:
    """Every kernel with its name and size, for activations of `dtype`; sampling is always fp32."""
    for name, launch in _layer_launches(dtype):
        yield KernelVariant(name, launch)
    for name, launch in _sampling_launches():
        yield KernelVariant(name, launch, forbidden=_INEXACT_LOG)


def _layer_launches(dtype: torch.dtype) -> Iterator[tuple[str, KernelLaunch]]:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    for size in _HIDDEN_SIZES:
        rows, weight = empty(4, size), empty(size)
        yield f"rms_norm {size}", layers.rms_norm_launch(rows, rows, weight, _EPS)
        yield f"rms_norm {size}, weight in fp32", layers.rms_norm_launch(rows, rows, weight.float(), _EPS)
        yield f"add_rms_norm {size}", layers.add_rms_norm_launch(rows, rows, rows, weight, _EPS)
        gates = empty(4, 8 * size)
        yield f"silu_and_mul {4 * size}", layers.gated_launch(empty(4, 4 * size), gates, is_gelu=False)
        yield f"gelu_tanh_and_mul {4 * size}", layers.gated_launch(empty(4, 4 * size), gates, is_gelu=True)
    for head_dim, turned in _HEADS:
        heads, angles = empty(4, 48, head_dim)[:, :40], empty(4, 1, turned)
        out = empty(4, 40, head_dim)
        yield f"head_rms_norm {head_dim}", layers.head_rms_norm_launch(out, heads, empty(2, head_dim), 32, _EPS)
        yield f"rotary {turned} of {head_dim}", layers.rotary_launch(out, heads, angles, angles)


def _sampling_launches() -> Iterator[tuple[str, KernelLaunch]]:
    def ints(num: int) -> torch.Tensor:
        return torch.empty(num, dtype=torch.int64, device="meta")

    def bools(num: int) -> torch.Tensor:
        return torch.empty(num, dtype=torch.bool, device="meta")

    settings = [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=50, top_p=0.9)]
    rows = [SamplingRow(params, seed=0) for params in settings]
    for vocab_size in _VOCAB_SIZES:
        batch = SamplingBatch.build(rows, vocab_size, "meta")
        logits = torch.empty(len(rows), vocab_size, device="meta")
        launches = sampling.choose_launches(ints(len(rows)), bools(len(rows)), logits, batch)
        for kind, launch in zip(("greedy", "plain", "ranked"), launches, strict=True):
            yield f"choose_tokens {kind} {vocab_size}", launch
    result = Verification(ints(9), bools(9), ints(3), ints(3))
    yield "verify_chain", sampling.verify_launch(result, ints(6), None, ints(4))
    yield "verify_tree", sampling.verify_launch(result, ints(6), ints(6), ints(4))
