"""The operations of sampling in C++, for fp32 logits on CPUs: one pass over a row each, on all threads."""

from __future__ import annotations

from torch import Tensor

from tokenloom.ops.native_ops import native_module
from tokenloom.sampling.batch import SamplingBatch
from tokenloom.sampling.noise import Purpose
from tokenloom.sampling.row_max import RowMax
from tokenloom.sampling.sampler import RowOperations

__all__ = ["NATIVE_ROWS", "native_draw", "native_rank", "native_row_max", "native_total_mass"]


def native_row_max(scores: Tensor) -> RowMax:
    """`sampling.row_max.row_max`: fp32 [R, V] -> values and indices [R]."""
    return RowMax(*native_module().row_max(scores.contiguous()))


def native_rank(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """`sampling.filtering.rank_tokens` without a key for every token: fp32 [S, V] -> ids and scores [S, width]."""
    ids, ranked = native_module().rank(scores.contiguous(), width)
    return ids, ranked


def native_total_mass(scores: Tensor) -> Tensor:
    """`sampling.filtering.total_mass`: fp32 [S, V] -> int64 [S]."""
    mass: Tensor = native_module().total_mass(scores.contiguous())
    return mass


def native_draw(processed: Tensor, tops: Tensor, batch: SamplingBatch) -> Tensor:
    """`sampling.sampler.draw_tokens` without scores or noise in memory: fp32 [R, V], tops [R] -> int64 [plain rows]."""
    rows = batch.groups.plain_rows
    token_ids: Tensor = native_module().noisy_choice(
        processed.contiguous(),
        rows,
        tops[rows],
        batch.temperature[rows].flatten(),
        batch.min_p[rows].flatten().log(),
        *batch.noise_keys(rows),
        int(Purpose.SAMPLE),
    )
    return token_ids


NATIVE_ROWS = RowOperations(native_row_max, native_rank, native_total_mass, native_draw)
