"""From what the fused projection gives to the queries, keys and values that attention takes."""

from __future__ import annotations

from typing import final

import torch

from tokenloom.model_config import ModelConfig
from tokenloom.models.norms import HeadNorms
from tokenloom.models.rotary_cache import Rotation
from tokenloom.ops.table import OpTable

__all__ = ["ProjectedHeads"]


@final
class ProjectedHeads:
    """Cuts heads apart, and norms and rotates those of queries and keys.

    Args:
        config: numbers and size of heads.
        ops: fused operations.
        qk_norm: norms of queries and keys, or None.
        keys_only: what comes are keys and values alone, and Hq is 0.
    """

    def __init__(
        self, config: ModelConfig, ops: OpTable, qk_norm: HeadNorms | None, *, keys_only: bool = False
    ) -> None:
        self._num_heads = 0 if keys_only else config.num_heads
        self._num_kv_heads, self._head_dim = config.num_kv_heads, config.head_dim
        self._norm = None if qk_norm is None else qk_norm.of_keys if keys_only else qk_norm
        self._rotary = ops.rotary
        self._split_rotary = ops.split_rotary

    def __call__(
        self, projected: torch.Tensor, rotation: Rotation | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [T, Hq, D], keys and values [T, Hkv, D], with strided rows.

        Args:
            projected: [T, (Hq + 2 * Hkv) * D]: queries, keys, values.
            rotation: of the tokens' positions; None in a layer without rotary embedding.
        """
        num_heads, num_kv_heads = self._num_heads, self._num_kv_heads
        if self._norm is None and rotation is not None:
            return self._split_rotary(projected, num_heads, num_kv_heads, rotation.cos, rotation.signed_sin)
        num_rotated = num_heads + num_kv_heads
        heads = projected.view(projected.shape[0], num_rotated + num_kv_heads, self._head_dim)
        turned = heads[:, :num_rotated]  # [T, Hq + Hkv, D]
        if self._norm is not None:
            turned = self._norm(turned)
        if rotation is not None:
            turned = self._rotary(turned, rotation.cos, rotation.signed_sin)
        return turned[:, :num_heads], turned[:, num_heads:], heads[:, num_rotated:]
