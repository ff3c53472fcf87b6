"""What the quant suites share: the layers to try, how they are loaded, and the weights that a layer really uses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from tokenloom.interfaces.quant import (
    EmbeddingWeights,
    LayerSpec,
    LinearWeights,
    QuantConfig,
    QuantContext,
    Quantizer,
    Shard,
)
from tokenloom.testing.held_memory import held_tensor_bytes
from tokenloom.testing.numeric_device import default_dtype, numeric_device
from tokenloom.testing.suite import PluginSuite

__all__ = ["QuantCases"]

HALF_AN_INT8_STEP = 0.5 / 127 * 1.02
"""Rounding to 255 levels, with a scale that is itself rounded."""

DOWN, QKV, EMBED, HEAD = (
    "model.layers.0.mlp.down_proj",
    "model.layers.0.self_attn.qkv_proj",
    "model.embed_tokens",
    "lm_head",
)


class QuantCases(PluginSuite):
    """Builds quantizers and layers for the quant suites.

    Attributes:
        device: "cpu" or "cuda"; None takes the CPU if the plugin declares it, else CUDA if the machine has it.
        max_relative_error: most that rounding may change a weight, relative to the largest of its row (output
            feature). The default fits 8 bits with a scale a row; 0 for a lossless storage.
        max_activation_error: most that rounding may change an activation, relative to the largest of its row (token).
        in_multiple, out_multiple: K and N of this format's layers are multiples of these (group and pack sizes).
        checkpoint, stored_types: as in `QuantContext`, for a format that reads its settings there.
        other_settings: settings to compare fingerprints of, beside those that follow from bool and Literal fields.
    """

    kind: ClassVar[str] = "quant"
    device: ClassVar[str | None] = None
    max_relative_error: ClassVar[float] = HALF_AN_INT8_STEP
    max_activation_error: ClassVar[float] = 0.0
    in_multiple: ClassVar[int] = 1
    out_multiple: ClassVar[int] = 1
    checkpoint: ClassVar[Mapping[str, Any]] = {}
    stored_types: ClassVar[frozenset[str]] = frozenset()
    other_settings: ClassVar[Sequence[Mapping[str, Any]]] = ()

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: ARG002  (a hook)
        """The tensors by which a checkpoint of this format holds a shard's weight: parameter name -> tensor. A
        quantizer that reads packed weights overrides it with its packing.

        Args:
            spec: the layer.
            weight: fp32 [N of the shard, K]; some row may be all zeros.
        """
        return {"weight": weight}

    def held_bytes(self, weights: LinearWeights) -> int:
        """Bytes of memory that a layer keeps. Overridden where some of it is not in tensors that Python can see."""
        return held_tensor_bytes(weights)

    def numeric_device(self) -> torch.device:
        """Where the tests run."""
        return numeric_device(self.capabilities, self.device)

    def make_quantizer(self, dtype: torch.dtype, *, deterministic: bool = False, **changes: Any) -> Quantizer:
        """Builds the plugin."""
        config = self.make_config(**changes)
        assert isinstance(config, QuantConfig), f"{self.info.config} is no QuantConfig"
        context = QuantContext(dtype, self.numeric_device(), self.checkpoint, deterministic, self.stored_types)
        return config.build(context)

    def exact_dtype(self) -> torch.dtype:
        """The most exact declared dtype."""
        return default_dtype(self.capabilities)

    def linear_spec(self, name: str, in_features: int, *sizes: int, has_bias: bool = False) -> LayerSpec:
        """A linear layer whose sizes are rounded up to what the format can have; its shards are q, k, v or one."""
        names = ("q_proj", "k_proj", "v_proj") if len(sizes) > 1 else (name.rpartition(".")[2],)
        shards = tuple(Shard(part, _round_up(size, self.out_multiple)) for part, size in zip(names, sizes, strict=True))
        return LayerSpec(
            name=name,
            kind="linear",
            in_features=_round_up(in_features, self.in_multiple),
            out_features=sum(shard.out_features for shard in shards),
            shards=shards,
            has_bias=has_bias,
            axis="output",
        )

    def linear_specs(self, has_bias: bool = False) -> list[LayerSpec]:
        """Plain and fused layers of odd sizes, one of them a single output feature."""
        sizes = ((DOWN, 33, (40,)), (QKV, 17, (48, 7, 1)), (DOWN, 130, (24,)), (DOWN, 64, (16,)), (DOWN, 576, (9,)))
        return [self.linear_spec(name, columns, *rows, has_bias=has_bias) for name, columns, rows in sizes]

    def embedding_spec(self) -> LayerSpec:
        """A tied embedding."""
        rows, columns = _round_up(50, self.out_multiple), _round_up(33, self.in_multiple)
        return LayerSpec(EMBED, "embedding", columns, rows, (Shard("embed_tokens", rows),), axis="output", tied=True)

    def weight_of(self, spec: LayerSpec, seed: int = 0) -> torch.Tensor:
        """fp32 [N, K] with rows of very different size, as models have them."""
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(spec.out_features, spec.in_features, generator=generator)
        return weight * torch.logspace(-2, 0.5, spec.out_features)[:, None]

    def bias_of(self, spec: LayerSpec) -> torch.Tensor:
        """fp32 [N]."""
        return torch.randn(spec.out_features, generator=torch.Generator().manual_seed(7))

    def random_rows(self, spec: LayerSpec, num_rows: int, dtype: torch.dtype) -> torch.Tensor:
        """[num_rows, K] activations."""
        x = torch.randn(num_rows, spec.in_features, generator=torch.Generator().manual_seed(num_rows))
        return x.to(device=self.numeric_device(), dtype=dtype)

    def tensors_of(
        self, spec: LayerSpec, seed: int = 0, weight: torch.Tensor | None = None
    ) -> list[tuple[str, str, torch.Tensor]]:
        """All (shard, parameter, tensor) that a checkpoint holds for a layer, in order; of `weight_of` by default."""
        found: list[tuple[str, str, torch.Tensor]] = []
        weight = self.weight_of(spec, seed) if weight is None else weight
        start, bias = 0, self.bias_of(spec)
        for shard in spec.shards:
            rows = slice(start, start + shard.out_features)
            tensors = self.make_tensors(spec, weight[rows].clone())
            found += [(shard.name, parameter, tensor) for parameter, tensor in tensors.items()]
            if spec.has_bias:
                found.append((shard.name, "bias", bias[rows].clone()))
            start += shard.out_features
        return found

    def load(self, weights: LinearWeights, tensors: Iterable[tuple[str, str, torch.Tensor]]) -> None:
        """Loads and finalizes."""
        for shard, parameter, tensor in tensors:
            weights.load(shard, parameter, tensor)
        weights.finalize()

    def make_linear(self, spec: LayerSpec, dtype: torch.dtype, *, deterministic: bool = False) -> LinearWeights:
        """A layer that holds `weight_of(spec)`."""
        weights = self.make_quantizer(dtype, deterministic=deterministic).create_linear(spec)
        self.load(weights, self.tensors_of(spec))
        return weights

    def make_embedding(self, dtype: torch.dtype) -> EmbeddingWeights:
        """A table that holds `weight_of(embedding_spec())`; skips where embeddings are not covered."""
        spec, quantizer = self.embedding_spec(), self.make_quantizer(dtype)
        if not quantizer.covers(spec):
            pytest.skip(f"quant={self.info.name} does not cover embeddings with these settings")
        weights = quantizer.create_embedding(spec)
        self.load(weights, self.tensors_of(spec))
        return weights

    def require_linear(self) -> None:
        """Skips the running test where no linear layer is covered."""
        if not self.make_quantizer(self.exact_dtype()).covers(self.linear_spec(DOWN, 64, 16)):
            pytest.skip(f"quant={self.info.name} covers no linear layer with these settings")

    def effective_weight(self, weights: LinearWeights, spec: LayerSpec, dtype: torch.dtype) -> torch.Tensor:
        """fp64 [N, K]: the weights that `apply` of a layer without bias uses, by multiplying rows of the identity."""
        assert not spec.has_bias, f"{spec.name} has a bias, which would be taken for weights"
        identity = torch.eye(spec.in_features, device=self.numeric_device(), dtype=dtype)
        products = [weights.apply(identity[start : start + 64]) for start in range(0, spec.in_features, 64)]
        return torch.cat(products).double().T.cpu()

    def check_product(
        self, result: torch.Tensor, x: torch.Tensor, effective: torch.Tensor, bias: torch.Tensor | None, case: str
    ) -> None:
        """Asserts that `result` is x @ effective.T + bias, but for the roundings of dtype and activations.

        The bound is each element's own: a large row in the batch lends no tolerance to the others.
        """
        rows, wanted_shape = x.double().cpu(), (x.shape[0], effective.shape[0])
        assert result.dtype == x.dtype, f"{case}: dtype {result.dtype}, expected that of x, {x.dtype}"
        assert tuple(result.shape) == wanted_shape, f"{case}: shape {tuple(result.shape)}, expected {wanted_shape}"
        wanted = rows @ effective.T
        size = rows.abs() @ effective.abs().T
        if bias is not None:
            rounded = bias.to(x.dtype).double()
            wanted, size = wanted + rounded, size + rounded.abs()
        bound = max(1.5 * torch.finfo(x.dtype).eps, 2e-6) * size + 1e-6
        largest = rows.abs().amax(dim=1, keepdim=True) if rows.numel() else rows[:, :1]
        bound = bound + self.max_activation_error * largest * effective.abs().sum(dim=1)
        excess = (result.double().cpu() - wanted).abs() - bound
        if not bool((excess <= 0).all()):
            row, column = divmod(int(torch.where(excess.isnan(), torch.inf, excess).argmax()), wanted_shape[1])
            raise AssertionError(
                f"{case}: {int((~(excess <= 0)).sum())} of {excess.numel()} values are wrong; the worst, at row {row}, "
                f"feature {column}, is {float(result[row, column]):.6g} and must be {float(wanted[row, column]):.6g} "
                f"within {float(bound[row, column]):.3g}"
            )


def _round_up(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple


def orders(count: int) -> Iterable[tuple[int, ...]]:
    """Some orders in which `count` tensors may come: all of few, else reversed and rotated."""
    if count <= 3:
        return itertools.permutations(range(count))
    return (tuple(reversed(range(count))), tuple((index + count // 2) % count for index in range(count)))
