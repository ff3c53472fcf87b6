"""Weight-only int8: w is stored as q * s, q = round(w / s) in -127..127, one scale s = max|w| / 127 per output channel.

Weights are rounded while they load; activations never are. The scale is rounded to the activation dtype before q is
chosen, so that |w - q * s| <= s / 2 holds for the weights that are really used.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field

from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import (
    EmbeddingWeights,
    LayerSpec,
    LinearWeights,
    QuantConfig,
    QuantContext,
    Quantizer,
)
from tokenloom.models.rank_part import RankPart, rank_part
from tokenloom_quant.int8_product import Int8Product, quantize_rows
from tokenloom_quant.rounded_shards import RoundedShards

__all__ = ["Int8Config", "Int8Embedding", "Int8Linear", "Int8Quantizer"]

_HEAD = "lm_head"


@final
class Int8Config(QuantConfig):
    """Settings of `quant=int8`."""

    include_embedding: bool = Field(
        default=False, description="Also quantize the token embedding and the output head, tied or not."
    )

    def build(self, context: QuantContext) -> Int8Quantizer:
        return Int8Quantizer(self, context)


@final
class Int8Quantizer(Quantizer):
    """Covers every linear layer, and embedding and head when asked to."""

    def __init__(self, config: Int8Config, context: QuantContext) -> None:
        self._config = config
        self._context = context

    def covers(self, spec: LayerSpec) -> bool:
        if spec.kind == "linear" and spec.name != _HEAD:
            return True
        return self._config.include_embedding and spec.kind in ("linear", "embedding")

    def create_linear(self, spec: LayerSpec) -> Int8Linear:
        return Int8Linear(spec, self._context)

    def create_embedding(self, spec: LayerSpec) -> Int8Embedding:
        return Int8Embedding(spec, self._context)

    @property
    def fingerprint(self) -> str:
        return f"int8:channel:include_embedding={self._config.include_embedding}"


@final
class Int8Linear(LinearWeights):
    """One matrix [N, K] as int8 with a scale per row, and a bias [N] where the spec has one."""

    def __init__(self, spec: LayerSpec, context: QuantContext) -> None:
        self._spec = spec
        self._context = context
        self._shards: RoundedShards[tuple[torch.Tensor, torch.Tensor]]  # q and scale
        self._shards = RoundedShards("int8", spec, context.dtype, context.device)
        self._product: Int8Product | None = None

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        """As in the contract. Raises ModelError for packed parameters and for weights that are not finite numbers."""
        self._shards.load(shard, parameter, tensor, self._encode)

    def finalize(self) -> None:
        rows, bias = self._shards.take()
        self._product = Int8Product(
            torch.cat([quantized for quantized, _ in rows]),
            torch.cat([scale for _, scale in rows]),
            bias,
            deterministic=self._context.deterministic,
        )

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x)

    @property
    def product(self) -> Int8Product:
        """The packed weights; there after `finalize`."""
        assert self._product is not None, f"{self._spec.name} was used before it was finalized"
        return self._product

    @property
    def num_bytes(self) -> int:
        return self.product.num_bytes

    def _encode(self, weight: torch.Tensor, part: RankPart, where: str) -> tuple[torch.Tensor, torch.Tensor]:
        quantized, scale = quantize_rows(weight, self._context.dtype)
        if not bool(torch.isfinite(scale).all()):
            raise ModelError(f"{where}: a row of the weights holds infinities, NaN or values beyond the model's dtype")
        device = self._context.device
        return part.of_weight(quantized).to(device), part.of_rows(scale).to(device)


@final
class Int8Embedding(EmbeddingWeights):
    """A table whose rows are int8 with a scale each; as a tied head it multiplies like a linear layer."""

    def __init__(self, spec: LayerSpec, context: QuantContext) -> None:
        self._linear = Int8Linear(spec, context)
        self._part = rank_part(spec, spec.shards[0].name)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self._linear.load(shard, parameter, tensor)

    def finalize(self) -> None:
        self._linear.finalize()

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._part.looked_up(token_ids, self._linear.product.rows)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear.product(x)

    @property
    def num_bytes(self) -> int:
        return self._linear.num_bytes
