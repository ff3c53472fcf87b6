"""How a drafter's own weights are stored: by a quant plugin, as the target's own weights may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tokenloom.errors import ConfigError
from tokenloom.interfaces.quant import QuantConfig, QuantContext, Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext
from tokenloom.plugins import default_registry
from tokenloom.settings_validation import validated

__all__ = ["DEFAULT_HEAD_QUANT", "draft_quantizer", "head_quant"]

DEFAULT_HEAD_QUANT = "default"
_NATIVE_QUANT = "int8_dynamic", {"group_size": 64}
"""Halves what each pass of a head reads. Measured: half the time of its products, and as many drafts right."""


def head_quant(name: str, context: DrafterContext) -> tuple[str, Mapping[str, Any]]:
    """The quant plugin for a head, and its settings. By default there is one where native operations compute."""
    if name != DEFAULT_HEAD_QUANT:
        return name, {}
    return _NATIVE_QUANT if context.operations == "native" else ("none", {})


def draft_quantizer(
    name: str,
    context: DrafterContext,
    checkpoint: Mapping[str, Any] | None = None,
    stored_types: frozenset[str] = frozenset(),
    settings: Mapping[str, Any] | None = None,
) -> Quantizer:
    """Builds a quant plugin for a drafter.

    Args:
        name: the plugin.
        context: of the drafter.
        checkpoint, stored_types: of its checkpoint, as in `QuantContext`; by default of one that is not quantized.
        settings: of the plugin, instead of its defaults.

    Raises:
        ConfigError: there is no such plugin, or it cannot store weights for the target's dtype and device, or not of
            such a checkpoint.
    """
    label = f"spec_decode.quant={name}"
    try:
        plugin = default_registry().get("quant", name)
    except ConfigError as error:
        raise _of_drafter(error) from error
    can = plugin.info.capabilities
    dtype, device = str(context.dtype).removeprefix("torch."), context.device.type
    if (can.dtypes is not None and dtype not in can.dtypes) or (can.devices and device not in can.devices):
        raise ConfigError(f"{label} cannot store weights for {dtype} on {device}; try spec_decode.quant=none")
    config = validated(default_registry().load_config_class("quant", name), settings or {}, label)
    quant_context = QuantContext(
        dtype=context.dtype,
        device=context.device,
        checkpoint=checkpoint or {},
        deterministic=context.deterministic,
        stored_types=stored_types,
        operations=context.operations,
    )
    try:
        return cast(QuantConfig, config).build(quant_context)
    except ConfigError as error:
        raise _of_drafter(error) from error


def _of_drafter(error: ConfigError) -> ConfigError:
    """Plugins speak of quant=, which is the target's key."""
    return ConfigError(f"the drafter's weights, where quant= stands for spec_decode.quant=: {error}")
