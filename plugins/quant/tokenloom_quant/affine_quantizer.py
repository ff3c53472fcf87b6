"""The quantizer of formats that are read from checkpoints: it looks at machine and dtype, the format does the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, final

import torch

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ConfigError
from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, QuantContext, Quantizer
from tokenloom.ops.native import why_not_buildable
from tokenloom_quant.affine_format import CheckpointFormat
from tokenloom_quant.affine_layers import CheckpointLinear, CheckpointStorage
from tokenloom_quant.native_products import NativeProducts
from tokenloom_quant.packed_products import PackedProducts

__all__ = ["PLUGINS_BY_METHOD", "CheckpointQuantizer", "StoredAs", "checkpoint_settings"]

StoredAs = Literal["auto", "packed", "dense"]
"""auto multiplies packed weights where a product takes them exactly and dequantizes the others."""

_PACKED_DTYPES = (torch.float32, torch.bfloat16)
PLUGINS_BY_METHOD: Mapping[str, str] = {
    "awq": "awq",
    "gptq": "gptq",
    "compressed-tensors": "compressed_tensors",
    "fp8": "fp8",
    "bitsandbytes": "bitsandbytes",
}
"""The plugin that reads checkpoints of each quant_method."""


@final
class CheckpointQuantizer(Quantizer):
    """Layers as a checkpoint of `weight_format` has them.

    Args:
        plugin: the plugin's name.
        weight_format: reads the tensors.
        context: as in the contract.
        stored_as: how weights are kept.

    Raises:
        ConfigError: weights are to stay packed, and no product can take them on this device or in this dtype.
        NativeBuildError: the packed products cannot be built on this machine, though a compiler is there.
    """

    def __init__(
        self, plugin: str, weight_format: CheckpointFormat, context: QuantContext, stored_as: StoredAs
    ) -> None:
        self._format = weight_format
        products = None if stored_as == "dense" else _products(context)
        obstacle = products if isinstance(products, str) else None
        if obstacle is not None and stored_as == "packed":
            raise ConfigError(f"quant={plugin} quant.weights=packed: {obstacle}; try quant.weights=auto")
        self._storage = CheckpointStorage(
            plugin,
            context.dtype,
            context.device,
            context.deterministic,
            products=None if isinstance(products, str) else products,
            requires_packed=stored_as == "packed",
        )
        if obstacle is not None:
            self._storage.tell(f"keeps no weights packed: {obstacle}")
        settings = json.dumps(dict(context.checkpoint), sort_keys=True, default=str)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
        self._fingerprint = f"{plugin}:{'dense' if self._storage.products is None else 'packed'}:{digest}"

    def covers(self, spec: LayerSpec) -> bool:
        return spec.kind == "linear" and self._format.covers(spec)

    def create_linear(self, spec: LayerSpec) -> CheckpointLinear:
        return CheckpointLinear(spec, self._format, self._storage)

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        raise AssertionError(f"quantized checkpoints keep embeddings as they are, but {spec.name} was to be stored")

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(self._storage.told)


def checkpoint_settings(plugin: str, method: str, context: QuantContext) -> Fields:
    """The checkpoint's `quantization_config`, which must be of `method`.

    Raises:
        ConfigError: it is of another, or the checkpoint is not quantized; says which plugin to choose.
    """
    settings: Mapping[str, Any] = context.checkpoint
    found = settings.get("quant_method")
    if not settings:
        raise ConfigError(
            f"quant={plugin} reads checkpoints with quant_method={method!r}, and this one is not quantized (or is "
            "a GGUF file); try quant=none, quant=int8 or quant=int4"
        )
    if found != method:
        other = PLUGINS_BY_METHOD.get(str(found))
        hint = f"; try quant={other}" if other else f"; known are {', '.join(PLUGINS_BY_METHOD)}"
        raise ConfigError(f"quant={plugin} reads checkpoints with quant_method={method!r}, got {found!r}{hint}")
    return Fields(settings, Path("quantization_config"))


def _products(context: QuantContext) -> PackedProducts | str:
    """The products of packed weights for this device, or why there are none."""
    if context.operations == "triton":
        # Triton is there on Linux only.
        from tokenloom_quant.triton_low_bit.products import TritonProducts

        return TritonProducts(context.device, deterministic=context.deterministic)
    if context.device.type != "cpu":
        return f"packed products on {context.device.type} are Triton's, got engine.operations={context.operations}"
    if context.dtype not in _PACKED_DTYPES:
        return f"packed products compute in float32 or bfloat16, got {str(context.dtype).removeprefix('torch.')}"
    return why_not_buildable() or NativeProducts()
