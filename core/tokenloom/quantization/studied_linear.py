"""Linear layers that can be watched, left out and given other weights while a calibration text runs through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, final

import torch
from torch.nn import functional

from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights, Quantizer
from tokenloom.quantization.rounded_weight import round_rows

__all__ = ["StudiedLinear", "StudyingQuantizer"]


@final
class StudiedLinear(LinearWeights):
    """One linear layer, its shards below each other.

    Attributes:
        original: the weight as the checkpoint has it, [N, K].
        bias: fp32 [N] or None.
        is_multiplying: whether `apply` gives the product; else zeros, where nobody looks at the result.
        rounds_activations: whether rows are rounded to int8 before the product.
        observer: is told of each input [T, K].
        replayed: an input to take in place of the one that `apply` is given.
    """

    def __init__(self, spec: LayerSpec, dtype: torch.dtype) -> None:
        self.spec = spec
        self.original = torch.empty(0)
        self.bias: torch.Tensor | None = None
        self.is_multiplying = True
        self.rounds_activations = False
        self.observer: Callable[[torch.Tensor], None] | None = None
        self.replayed: torch.Tensor | None = None
        self._dtype = dtype
        self._loaded: dict[str, dict[str, torch.Tensor]] = {"weight": {}, "bias": {}}
        self._running = torch.empty(0)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self._loaded[parameter][shard] = tensor

    def finalize(self) -> None:
        if self._loaded["weight"] and next(iter(self._loaded["weight"].values())).is_meta:
            return  # the head, which no layer needs
        self.original = torch.cat([self._loaded["weight"][shard.name] for shard in self.spec.shards])
        if self._loaded["bias"]:
            self.bias = torch.cat([self._loaded["bias"][shard.name] for shard in self.spec.shards]).float()
        self._loaded.clear()
        self.use(self.original)

    def use(self, weight: torch.Tensor) -> None:
        """Multiplies by `weight` [N, K] from now on."""
        self._running = weight.to(self._dtype)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        if self.replayed is not None:
            x = self.replayed
        if self.observer is not None:
            self.observer(x)
        if not self.is_multiplying:
            return x.new_zeros(x.shape[0], self.spec.out_features)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(round_rows(x) if self.rounds_activations else x, self._running, bias)

    @property
    def num_bytes(self) -> int:
        return self._running.nbytes


@final
class StudyingQuantizer(Quantizer):
    """Makes every linear layer a `StudiedLinear`, by its full dotted name in `linears`; embeddings hold nothing."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.linears: dict[str, StudiedLinear] = {}

    def covers(self, spec: LayerSpec) -> bool:
        return True

    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        self.linears[spec.name] = StudiedLinear(spec, self._dtype)
        return self.linears[spec.name]

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        return _NoEmbedding()

    @property
    def fingerprint(self) -> str:
        return "studied"


@final
class _NoEmbedding(EmbeddingWeights):
    """Stands where a model has its embedding, and is never asked."""

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        assert tensor.is_meta, "the embedding was read"

    def finalize(self) -> None:
        """Holds nothing."""

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        _refuse()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        _refuse()

    @property
    def num_bytes(self) -> int:
        return 0


def _refuse() -> NoReturn:
    raise AssertionError("a layer that is studied alone has no embedding")
