"""The operations between logits and tokens, and the implementations to choose from; `table` has those of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from torch import Tensor

from tokenloom.ops.native_sampling import NATIVE_ROWS
from tokenloom.ops.table import OpsName
from tokenloom.sampling.batch import SamplingBatch
from tokenloom.sampling.sampler import choose_tokens
from tokenloom.sampling.verify import Verification, verify_chain, verify_tree

__all__ = ["TORCH_SAMPLING", "SamplingOps", "build_sampling_ops"]


@final
@dataclass(frozen=True, slots=True)
class SamplingOps:
    """One implementation of each operation. All choose the same tokens, but where sums are equal to the last bits.

    Attributes:
        choose_tokens: (processed logits [R, V], their settings) -> (token ids [R], invalid rows [R]), see
            `sampling.sampler.choose_tokens`.
        verify_chain: see `sampling.verify.verify_chain`.
        verify_tree: see `sampling.verify.verify_tree`.
    """

    choose_tokens: Callable[[Tensor, SamplingBatch], tuple[Tensor, Tensor]]
    verify_chain: Callable[[Tensor, Tensor, Tensor], Verification]
    verify_tree: Callable[[Tensor, Tensor, Tensor, Tensor], Verification]


TORCH_SAMPLING = SamplingOps(choose_tokens, verify_chain, verify_tree)
"""For any device; what the others are tested against."""


def build_sampling_ops(ops: OpsName) -> SamplingOps:
    """The operations that go with a choice of `engine.operations`; native has operations on rows of its own."""
    if ops == "torch":
        return TORCH_SAMPLING
    if ops == "native":
        return replace(TORCH_SAMPLING, choose_tokens=partial(choose_tokens, operations=NATIVE_ROWS))
    # Triton is there on Linux only.
    from tokenloom.ops import triton_sampling

    return SamplingOps(triton_sampling.choose_tokens, triton_sampling.verify_chain, triton_sampling.verify_tree)
