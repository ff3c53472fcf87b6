"""A small int8 quantizer with a switch for each kind of bug that the conformance suite must catch.

Import it as `from tests.testing.planted_quant import quant_info`. With `bug="none"` it is right.
"""

from __future__ import annotations

from typing import Literal, final

import torch

from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.interfaces.quant import (
    EmbeddingWeights,
    LayerSpec,
    LinearWeights,
    QuantConfig,
    QuantContext,
    Quantizer,
)

__all__ = ["ZERO_POINT", "PlantedQuantConfig", "PlantedQuantizer", "pack_nibbles", "quant_info", "unpack_nibbles"]

ZERO_POINT = 8
"""Of the packed format: a nibble n stands for the level n - 8."""


def pack_nibbles(values: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K] below 16 -> uint8 [N, K / 2], the even columns in the low half."""
    return values[:, ::2] | (values[:, 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack_nibbles`."""
    return torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)


def quant_info(
    flags: frozenset[str] = frozenset({"deterministic"}), dtypes: tuple[str, ...] | None = None
) -> PluginInfo:
    """The declaration; it may claim less than the quantizer can."""
    return PluginInfo(
        kind="quant",
        name="planted",
        config="tests.testing.planted_quant:PlantedQuantConfig",
        contract=(1, 0),
        summary="A quantizer with a bug to choose.",
        capabilities=Capabilities(devices=("cpu",), dtypes=dtypes, flags=flags),
    )


@final
class PlantedQuantConfig(QuantConfig):
    """Which bug is in it, and settings that change rounding."""

    bug: str = "none"
    levels: Literal[127, 63] = 127
    rounds_activations: bool = False
    include_embedding: bool = True

    def build(self, context: QuantContext) -> PlantedQuantizer:
        return PlantedQuantizer(self, context)


@final
class PlantedQuantizer(Quantizer):
    """Covers linear layers and embeddings."""

    def __init__(self, config: PlantedQuantConfig, context: QuantContext) -> None:
        self._config = config
        self._context = context
        self._num_asked = 0
        self._by_size: dict[tuple[int, int], _Linear] = {}

    def covers(self, spec: LayerSpec) -> bool:
        bug = self._config.bug
        self._num_asked += 1
        if bug == "covers experts":
            return True
        if bug == "covers nothing":
            return False
        if bug == "covers by turns" and self._num_asked % 3 == 0:
            return False
        if bug == "skip list by substring" and any(entry in spec.name for entry in self._config.skip):
            return False
        return spec.kind == "linear" or (spec.kind == "embedding" and self._config.include_embedding)

    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        linear = _Linear(spec, self._context, self._config)
        if self._config.bug == "one buffer for all layers of a size":
            return self._by_size.setdefault((spec.out_features, spec.in_features), linear)
        return linear

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        return _Embedding(spec, self._context, self._config)

    @property
    def fingerprint(self) -> str:
        config = self._config
        if config.bug == "fingerprint is constant":
            return "planted"
        if config.bug == "fingerprint leaves out the activations":
            return f"planted:{config.levels}:{config.include_embedding}"
        if config.bug == "fingerprint of the object":
            return f"planted:{id(self)}"
        if config.bug == "fingerprint is empty":
            return ""
        return f"planted:{config.levels}:{config.rounds_activations}:{config.include_embedding}"


@final
class _Linear(LinearWeights):
    """w = q * scale, one scale a row; with `rounds_activations` x is rounded to a scale a row as well."""

    def __init__(self, spec: LayerSpec, context: QuantContext, config: PlantedQuantConfig) -> None:
        self._spec = spec
        self._context = context
        self._config = config
        self._bug = config.bug
        self._loaded: dict[str, torch.Tensor] = {}
        self._levels: dict[str, torch.Tensor] = {}
        self._scales: dict[str, torch.Tensor] = {}
        self._biases: dict[str, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []
        self._true = torch.empty(0)
        self._quantized = torch.empty(0)
        self._scale = torch.empty(0)
        self._bias: torch.Tensor | None = None

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        if self._bug == "halves the caller's tensor":
            tensor.mul_(0.5)
        if self._bug == "bfloat16 read as float16" and tensor.dtype == torch.bfloat16:
            tensor = tensor.view(torch.float16)
        if parameter == "bias":
            self._biases[shard] = tensor
        elif parameter == "qweight":
            zero_point = ZERO_POINT - (self._bug == "packed zero point one too low")
            self._levels[shard] = unpack_nibbles(tensor).to(torch.int8) - zero_point
        elif parameter == "scales":
            self._scales[shard] = tensor.to(self._context.dtype)
        else:
            self._loaded[shard] = tensor.float()

    def finalize(self) -> None:
        names = [shard.name for shard in self._spec.shards]
        if self._bug == "shards in the order of loading":
            names = list(self._loaded)
        if self._bug == "shards by name" and len(names) > 1:
            names = sorted(names)
        weight = torch.empty(0)
        if self._levels:
            self._quantized = torch.cat([self._levels[name] for name in names])
            self._scale = torch.cat([self._scales[name] for name in names])
        else:
            weight = torch.cat([self._loaded[name] for name in names])
            self._round(weight)
        if self._spec.has_bias:
            biases = [self._biases[name] for name in names]
            self._bias = torch.cat(biases).to(self._context.dtype)
            if self._bug == "caller's memory kept" and len(biases) == 1:
                self._bias = biases[0]
        if self._bug == "keeps what was loaded":
            self._kept = [weight]
        if self._spec.kind == "embedding":
            self._true = weight if self._bug == "lookup of the true weights" else torch.empty(0)
        for parts in (self._loaded, self._levels, self._scales, self._biases):
            parts.clear()

    def _round(self, weight: torch.Tensor) -> None:
        levels = self._config.levels
        largest = weight.abs().amax(dim=1, keepdim=True)
        if self._bug == "one scale per layer":
            largest = largest.amax().expand_as(largest).clone()
        if self._bug == "one scale for two rows":
            largest[1::2] = largest[: len(largest) // 2 * 2 : 2]
        scale = (largest / levels).to(self._context.dtype).clamp_min(1e-7)
        if self._bug == "scale of zeros is NaN":
            scale = torch.where(largest == 0, torch.nan, scale)
        quantized = (weight / scale.float()).round().clamp(-levels, levels)
        if self._bug == "zero point one too high":
            quantized += 1
        if self._bug == "rounds down":
            quantized = (weight / scale.float()).floor()
        if self._bug == "last columns ignored":
            quantized[:, weight.shape[1] // 16 * 16 :] = 0
        self._quantized, self._scale = quantized.to(torch.int8), scale

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        if self._bug == "rows read as if contiguous":
            x = x.as_strided(x.shape, (x.shape[1], 1))
        if self._bug == "input scaled in place" and x.shape[0]:
            x.mul_(2.0)
            x = x / 2.0 if x.shape[0] < 64 else x.mul_(0.5 + 2.0**-9)
        rows = x.double()
        if self._config.rounds_activations and x.shape[0]:
            rows = self._rounded(rows)
        if self._bug == "wrong for many rows" and x.shape[0] > 32:
            rows = rows.roll(1, dims=1)
        if self._bug == "wrong for very many rows" and x.shape[0] > 128:
            rows = rows.roll(1, dims=1)
        if self._bug == "fails without rows":
            assert rows.amax() < float("inf")
        weight = self.table()
        if self._bug == "scale forgotten by few rows" and x.shape[0] == 1:
            weight = weight * 1.01
        result = rows @ weight.T
        if self._bug == "sums depend on the batch":
            result = result * (1.0 + 2.0**-22 * x.shape[0])
        result = self._with_bias(result)
        return result.float() if self._bug == "result in float32" else result.to(x.dtype)

    def _rounded(self, rows: torch.Tensor) -> torch.Tensor:
        largest = rows.abs().amax(dim=1, keepdim=True)
        if self._bug == "activation scale over the batch":
            largest = largest.amax()
        scale = (largest / 127).clamp_min(1e-9)
        return (rows / scale).round() * scale

    def _with_bias(self, result: torch.Tensor) -> torch.Tensor:
        if self._bias is None or self._bug == "bias dropped":
            return result
        if self._bug == "bias dropped by many rows" and result.shape[0] > 32:
            return result
        return result + self._bias.double() * (2 if self._bug == "bias added twice" else 1)

    def table(self) -> torch.Tensor:
        """fp64 [N, K]: the weights that count."""
        return self._quantized.double() * self._scale.double()

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        table = self._true.double() if self._true.numel() else self.table()
        if self._bug == "lookup without scale":
            table = self._quantized.double()
        if self._bug == "lookup in float32":
            return table[token_ids].float()
        return table[token_ids].to(self._context.dtype)

    @property
    def num_bytes(self) -> int:
        stored = [self._quantized, self._scale, *([] if self._bias is None else [self._bias])]
        if self._bug == "bytes without scales":
            stored.pop(1)
        if self._bug == "bytes counted as elements":
            return sum(tensor.numel() for tensor in stored)
        return sum(tensor.nbytes for tensor in stored)


@final
class _Embedding(EmbeddingWeights):
    """A table that is stored like a linear layer."""

    def __init__(self, spec: LayerSpec, context: QuantContext, config: PlantedQuantConfig) -> None:
        self._linear = _Linear(spec, context, config)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self._linear.load(shard, parameter, tensor)

    def finalize(self) -> None:
        self._linear.finalize()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear.apply(x)

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._linear.lookup(token_ids)

    @property
    def num_bytes(self) -> int:
        return self._linear.num_bytes
