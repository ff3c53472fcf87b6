"""Speed of the fused operations and of sampling on a device, beside the torch versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from gpu_check_attention import backend_dtype
from gpu_check_timing import timed

from tokenloom.ops.sampling_table import TORCH_SAMPLING, SamplingOps, build_sampling_ops
from tokenloom.ops.table import OpTable, build_op_table
from tokenloom.sampling.batch import SamplingBatch, SamplingRow
from tokenloom.sampling_params import SamplingParams

__all__ = ["OperationRow", "operation_rows"]


@dataclass(frozen=True, slots=True)
class OperationRow:
    """Seconds of one operation."""

    name: str
    torch_s: float
    triton_s: float


def operation_rows(device: torch.device, size: int, vocab_size: int, num_rows: int) -> Iterator[OperationRow]:
    """Each operation on `num_rows` rows: of `size` elements, or of a vocabulary."""
    dtype = backend_dtype(device)

    def random_rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    x, residual, weight = random_rows(num_rows, size), random_rows(num_rows, size), random_rows(size)
    heads, angles, gates = random_rows(num_rows, 40, 64), random_rows(num_rows, 1, 64), random_rows(num_rows, 2 * size)
    calls: dict[str, Callable[[OpTable], object]] = {
        f"add_rms_norm {num_rows} x {size}": lambda ops: ops.add_rms_norm(x, residual, weight, 1e-5),
        f"rotary {num_rows} x 40 x 64": lambda ops: ops.rotary(heads, angles, angles),
        f"silu_and_mul {num_rows} x {size}": lambda ops: ops.silu_and_mul(gates),
    }
    tables = (build_op_table(device), build_op_table(device, "triton"))
    for name, call in calls.items():
        times = [timed(lambda ops=ops, call=call: call(ops), device) for ops in tables]  # type: ignore[misc]
        yield OperationRow(name, *times)
    logits = 3 * torch.randn(num_rows, vocab_size, device=device)
    settings = {
        "greedy": SamplingParams(temperature=0.0),
        "temperature": SamplingParams(),
        "top_k 50, top_p 0.9": SamplingParams(top_k=50, top_p=0.9),
        "top_p 0.9": SamplingParams(top_p=0.9),
    }
    sampling = (TORCH_SAMPLING, build_sampling_ops("triton"))
    for name, params in settings.items():
        batch = SamplingBatch.build([SamplingRow(params, seed=row) for row in range(num_rows)], vocab_size, device)

        def choose(ops: SamplingOps, batch: SamplingBatch = batch) -> object:
            return ops.choose_tokens(logits, batch)

        times = [timed(lambda ops=ops, choose=choose: choose(ops), device) for ops in sampling]  # type: ignore[misc]
        yield OperationRow(f"choose_tokens {num_rows} x {vocab_size}, {name}", *times)
