"""Fixed scales of keys and values: read from a checkpoint or from a file, for every layer, or refused by name."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast, final

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.checkpoint.kv_scale_names import KEY_SCALES, VALUE_SCALES, is_kv_scale
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.attention import AttentionConfig, AttentionLayer, KVForm, KVScales, KVScaleSource
from tokenloom.interfaces.contract import PluginChoice

__all__ = ["FORM_KEY", "FixedKVScales", "load_kv_scales", "read_kv_scales"]

FORM_KEY = "kv_dtype"
"""Where a file's metadata say what its scales are for."""
_FROM_CHECKPOINT = "checkpoint"
_REMEDY = "try attention.kv_scales=token_head, which finds scales as tokens are stored, or tokenloom calibrate-kv"


@final
@dataclass(frozen=True, slots=True)
class FixedKVScales:
    """The scales that a model's keys and values are stored with, by layer; none where they are found as tokens come.

    Attributes:
        by_layer: by the number of the layer.
        remarks: what users should know of scales that are not used.
    """

    by_layer: Mapping[int, KVScales] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """What tells blocks that were stored with these scales from others; empty without any."""
        digest = hashlib.sha256()
        for layer, each in sorted(self.by_layer.items()):
            digest.update(f"{layer}".encode() + each.key.cpu().numpy().tobytes() + each.value.cpu().numpy().tobytes())
        return digest.hexdigest() if self.by_layer else ""


def load_kv_scales(
    attention: PluginChoice, checkpoint: Checkpoint, layers: Sequence[AttentionLayer], device: torch.device
) -> FixedKVScales:
    """The scales that the attention plugin's settings name; see `read_kv_scales`. Says it if the checkpoint's own are
    left unused."""
    config = cast(AttentionConfig, attention.config)
    source = config.fixed_kv_scales()
    if source is not None:
        return FixedKVScales(read_kv_scales(source, checkpoint, [layer.layer_index for layer in layers], device))
    if not any(map(is_kv_scale, checkpoint.tensor_names())):
        return FixedKVScales()
    form = _form_of_checkpoint(checkpoint)
    words = f"attention.kv_dtype={form} attention.kv_scales={_FROM_CHECKPOINT}"
    remedy = f"{words} takes them" if _can_take(config, form) else f"it has no {words}, which would take them"
    remark = f"leaves the checkpoint's scales of keys and values unused; {remedy}"
    print(f"tokenloom: attention={attention.name} {remark}", file=sys.stderr, flush=True)
    return FixedKVScales(remarks=(remark,))


def _can_take(config: AttentionConfig, form: KVForm) -> bool:
    """Whether the plugin has the settings that take a checkpoint's scales of this form."""
    try:
        type(config).model_validate({"kv_dtype": form, "kv_scales": _FROM_CHECKPOINT})
    except ValidationError:
        return False
    return True


def read_kv_scales(
    source: KVScaleSource, checkpoint: Checkpoint, layers: Sequence[int], device: torch.device
) -> dict[int, KVScales]:
    """The scales of each layer, by its number. None is ever made up.

    Args:
        source: where they are, and what they have to be for.
        checkpoint: of the model.
        layers: numbers of the layers.
        device: where they go.

    Raises:
        ConfigError: the file cannot be read.
        ModelError: a layer has no scales, others than numbers above zero, or they are for another form.
    """
    num_heads = checkpoint.config.num_kv_heads
    if source.place == _FROM_CHECKPOINT:
        _check_form(source, _form_of_checkpoint(checkpoint), str(checkpoint.path))
        names, where = checkpoint.tensor_names(), str(checkpoint.path)
        return {
            layer: _of_layer(layer, frozenset(names), checkpoint.load, where, num_heads, device) for layer in layers
        }
    path = Path(source.place)
    tensors, form = _read_file(path)
    _check_form(source, form, str(path))
    return {
        layer: _of_layer(layer, frozenset(tensors), tensors.__getitem__, str(path), num_heads, device)
        for layer in layers
    }


def _of_layer(
    layer: int,
    names: frozenset[str],
    load: Callable[[str], torch.Tensor],
    where: str,
    num_heads: int,
    device: torch.device,
) -> KVScales:
    def scale(candidates: Sequence[str], what: str) -> torch.Tensor:
        below = f"model.layers.{layer}.self_attn."
        name = next((below + each for each in candidates if below + each in names), None)
        if name is None:
            _refuse(where, f"has no scale of the {what} of layer {layer} ({below}{candidates[0]})")
        found = load(name).float().flatten()
        if found.numel() not in (1, num_heads):
            _refuse(where, f"{name} must be one number, or one for each of {num_heads} heads, got {found.numel()}")
        if not bool((found.isfinite() & (found > 0)).all()):
            _refuse(where, f"{name} must be above 0, got {found.tolist()}")
        return found.expand(num_heads).contiguous().to(device)  # [Hkv]

    return KVScales(scale(KEY_SCALES, "keys"), scale(VALUE_SCALES, "values"))


def _form_of_checkpoint(checkpoint: Checkpoint) -> KVForm:
    """What a checkpoint's scales are for: by its kv_cache_scheme, or 8-bit floats, the only form without one."""
    scheme = (checkpoint.quantization or {}).get("kv_cache_scheme")
    return "int8" if isinstance(scheme, Mapping) and scheme.get("type", "int") == "int" else "fp8_e4m3"


def _check_form(source: KVScaleSource, found: str | None, where: str) -> None:
    if found != source.form:
        raise ModelError(
            f"{where} holds scales of keys and values for {found or 'an unknown form'}, got attention.kv_dtype="
            f"{source.form}; set that to what they are for, or {_REMEDY}"
        )


def _read_file(path: Path) -> tuple[dict[str, torch.Tensor], str | None]:
    try:
        with safe_open(path, "pt") as file:
            form = (file.metadata() or {}).get(FORM_KEY)
            return {name: file.get_tensor(name) for name in file.keys()}, form  # noqa: SIM118  (no mapping)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"attention.kv_scales={path}: {error}; name a file that tokenloom calibrate-kv wrote, checkpoint or "
            "token_head"
        ) from error


def _refuse(where: str, what: str) -> NoReturn:
    raise ModelError(f"{where} {what}; {_REMEDY}")
