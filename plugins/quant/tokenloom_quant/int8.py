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
from tokenloom_quant.int8_product import Int8Product, quantize_rows

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
        self._rows: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # per shard: q and scale
        self._biases: dict[str, torch.Tensor] = {}
        self._product: Int8Product | None = None

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        """As in the contract. Raises ModelError for packed parameters and for weights that are not finite numbers."""
        where = f"quant=int8, layer {self._spec.name}, shard {shard}"
        if parameter == "bias":
            self._biases[shard] = tensor.to(device=self._context.device, dtype=self._context.dtype)
            return
        if parameter != "weight" or not tensor.is_floating_point():
            raise ModelError(
                f"{where}: needs a plain 'weight' to round, got {parameter!r} of {tensor.dtype}; the checkpoint is "
                "quantized already: choose the quant plugin that reads its format"
            )
        quantized, scale = quantize_rows(tensor, self._context.dtype)
        if not bool(torch.isfinite(scale).all()):
            raise ModelError(f"{where}: a row of the weights holds infinities, NaN or values beyond the model's dtype")
        self._rows[shard] = (quantized.to(self._context.device), scale.to(self._context.device))

    def finalize(self) -> None:
        names = [shard.name for shard in self._spec.shards]
        missing = [name for name in names if name not in self._rows]
        if missing:
            raise ModelError(f"quant=int8, layer {self._spec.name}: no weight came for {', '.join(missing)}")
        self._product = Int8Product(
            torch.cat([self._rows[name][0] for name in names]),
            torch.cat([self._rows[name][1] for name in names]),
            torch.cat([self._biases[name] for name in names]) if self._spec.has_bias else None,
            deterministic=self._context.deterministic,
        )
        self._rows.clear()
        self._biases.clear()

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


@final
class Int8Embedding(EmbeddingWeights):
    """A table whose rows are int8 with a scale each; as a tied head it multiplies like a linear layer."""

    def __init__(self, spec: LayerSpec, context: QuantContext) -> None:
        self._linear = Int8Linear(spec, context)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self._linear.load(shard, parameter, tensor)

    def finalize(self) -> None:
        self._linear.finalize()

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._linear.product.rows(token_ids)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear.product(x)

    @property
    def num_bytes(self) -> int:
        return self._linear.num_bytes
