"""Keys of `tokenloom quantize`, and the plan that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tokenloom.compose import ComposedConfig
from tokenloom.errors import ConfigError
from tokenloom.settings_base import Settings, UserPath

if TYPE_CHECKING:
    from tokenloom.quantization.method import RoundingMethod
    from tokenloom.quantization.plan import QuantizePlan

__all__ = ["MODEL_KEYS", "QuantizeSettings", "check_settings", "plan_of"]

MODEL_KEYS = ("model", "model.source", "model.revision")

MethodName = Literal["rtn", "gptq", "awq", "smoothquant"]
_CALIBRATED = ("calibration", "num_samples", "sample_tokens", "seed")
_KEYS_OF: Mapping[MethodName, Sequence[str]] = {
    "rtn": (),
    "gptq": (*_CALIBRATED, "damping", "act_order", "static_groups"),
    "awq": (*_CALIBRATED, "ratios", "clip"),
    "smoothquant": (*_CALIBRATED, "alpha"),
}
"""Keys that not every method reads."""


class QuantizeSettings(Settings):
    """Keys of `tokenloom quantize`."""

    output: UserPath = Field(description="Folder to write to.")
    method: MethodName = Field(
        default="gptq",
        description="rtn rounds to nearest; gptq makes up for each rounding in the weights that are left; awq scales "
        "input features by what goes through them; smoothquant is for int8 weights with int8 activations.",
    )
    format: Literal["compressed-tensors", "awq", "gptq"] = Field(
        default="compressed-tensors", description="Format of the checkpoint; 2 and 3 bits need gptq."
    )
    bits: Literal[2, 3, 4, 8] | None = Field(
        default=None, description="Bits of a weight; null is 4, and 8 for smoothquant."
    )
    group_size: Annotated[int, Field(ge=-1)] | None = Field(
        default=None,
        description="Input features that share a scale, -1 for all; null is 128, 64 or 32, the first that fits, or -1.",
    )
    symmetric: bool | None = Field(
        default=None, description="No zero points; null is what the format usually has, false for method=awq."
    )
    skip: tuple[str, ...] = Field(
        default=(), description="Layers to leave plain: full dotted names or prefixes, e.g. model.layers.0.mlp."
    )
    calibration: UserPath | None = Field(
        default=None, description="Text file to run; null takes docstrings of Python's standard library."
    )
    num_samples: Annotated[int, Field(ge=1)] = Field(default=64, description="Sequences of the text that are run.")
    sample_tokens: Annotated[int, Field(ge=2)] = Field(default=2048, description="Tokens of each.")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Decides which sequences are taken.")
    damping: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.01, description="gptq: share of the mean diagonal added to the Gram matrix; doubled while it fails."
    )
    act_order: bool = Field(default=True, description="gptq: round the columns with the largest inputs first.")
    static_groups: bool = Field(
        default=True, description="gptq: groups of columns as they stand, whatever the order; readers need no g_idx."
    )
    ratios: Annotated[int, Field(ge=1, le=1000)] = Field(default=20, description="awq: exponents that are tried.")
    clip: bool = Field(default=True, description="awq: also search how far the range of each group may shrink.")
    alpha: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="smoothquant: share of magnitude that weights take over; null solves by layer."
    )
    evaluate: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Windows of tokenloom eval's own text on which model and original are compared for the model card.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Dtype of what is not rounded; auto keeps the model's, bfloat16 for a GGUF file."
    )
    max_shard_gb: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=5.0, description="Most gigabytes (10^9 bytes) of tensors in one file."
    )


def check_settings(config: ComposedConfig) -> None:
    """Refuses what the settings alone show to be wrong.

    Raises:
        ConfigError: a key is set that the method does not read, or values contradict each other.
    """
    settings = config.extras_of(QuantizeSettings)
    read = _KEYS_OF[settings.method]
    owners = {
        key: [method for method, keys in _KEYS_OF.items() if key in keys] for keys in _KEYS_OF.values() for key in keys
    }
    for key, methods in owners.items():
        is_set = any(
            name.split(".")[0] == key and source.startswith("override ") for name, source in config.sources.items()
        )
        if is_set and key not in read:
            raise ConfigError(
                f"{key}: method={settings.method} does not read it, only method={' and '.join(methods)}; leave it out"
            )
    if settings.group_size == 0:
        raise ConfigError("group_size=0: it must be above 0, or -1 for all input features")
    if settings.method == "smoothquant":
        for key, value, only in (("bits", settings.bits, 8), ("group_size", settings.group_size, -1)):
            if value not in (None, only):
                raise ConfigError(f"{key}={value}: method=smoothquant makes int8 weights by row, {key}={only}")
        if settings.symmetric is False:
            raise ConfigError("symmetric=false: method=smoothquant makes int8 weights without zero points")


def plan_of(settings: QuantizeSettings) -> QuantizePlan:
    """What to do, by the settings."""
    import torch

    from tokenloom.quantization.formats import WRITERS
    from tokenloom.quantization.plan import USUAL_GROUPS, QuantizePlan
    from tokenloom.quantization.rounded_weight import RoundingScheme

    is_w8a8, writer = settings.method == "smoothquant", WRITERS[settings.format]
    is_symmetric = settings.symmetric
    if is_symmetric is None:
        is_symmetric = writer.is_symmetric_usually and settings.method != "awq"
    bits = settings.bits or (8 if is_w8a8 else 4)
    group_size = settings.group_size or (-1 if is_w8a8 else USUAL_GROUPS)
    return QuantizePlan(
        method=_method(settings),
        writer=writer,
        scheme=RoundingScheme(bits, group_size, is_symmetric, torch.float32),
        dtype=None if settings.dtype == "auto" else getattr(torch, settings.dtype),
        skip=settings.skip,
        calibration=None if settings.calibration is None else Path(settings.calibration),
        num_samples=settings.num_samples,
        sample_tokens=settings.sample_tokens,
        seed=settings.seed,
        max_shard_bytes=int(settings.max_shard_gb * 1e9),
    )


def _method(settings: QuantizeSettings) -> RoundingMethod:
    from tokenloom.quantization.awq import AWQ
    from tokenloom.quantization.gptq import GPTQ
    from tokenloom.quantization.rtn import RoundToNearest
    from tokenloom.quantization.smoothquant import SmoothQuant

    match settings.method:
        case "rtn":
            return RoundToNearest()
        case "gptq":
            is_static = settings.act_order and settings.static_groups
            return GPTQ(settings.damping, settings.act_order, is_static)
        case "awq":
            return AWQ(settings.ratios, settings.clip)
        case "smoothquant":
            return SmoothQuant(settings.alpha)
