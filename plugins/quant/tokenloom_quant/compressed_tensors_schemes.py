"""The settings of compressed-tensors: which group of layers is stored how. Whatever cannot be read is refused by name.

Source: `QuantizationConfig`, `QuantizationScheme` and `QuantizationArgs` of the compressed-tensors project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError

__all__ = ["SchemeTable", "WeightScheme"]

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", "mixed-precision")
_STRATEGIES = ("tensor", "channel", "group", "block")
_LINEAR, _REGEX = "Linear", "re:"


def _preset(bits: int, strategy: str, activations: Mapping[str, Any] | None = None, **more: Any) -> Mapping[str, Any]:
    return {"weights": {"num_bits": bits, "strategy": strategy, **more}, "input_activations": activations}


_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "W8A16": _preset(8, "channel"),
    "W4A16": _preset(4, "group", group_size=128),
    "W4A16_ASYM": _preset(4, "group", group_size=128, symmetric=False),
    "W8A8": _preset(8, "channel", {"num_bits": 8, "strategy": "token", "dynamic": True}),
    "INT8": _preset(8, "channel", {"num_bits": 8, "strategy": "token", "dynamic": True}),
    "FP8": _preset(8, "tensor", {"num_bits": 8, "type": "float", "strategy": "tensor"}, type="float"),
    "FP8_DYNAMIC": _preset(
        8, "channel", {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}, type="float"
    ),
    "FP8_BLOCK": _preset(
        8,
        "block",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": True},
        type="float",
        block_structure=[128, 128],
    ),
}
"""Schemes that a group may name instead of spelling them out."""


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How the layers of a group are stored.

    Attributes:
        kind: of numbers.
        bits: of a number.
        strategy: what shares a scale.
        group_size: input features that share one, where strategy is "group".
        block: rows and columns that share one, where strategy is "block".
        is_symmetric: whether there are no zero points.
        is_reordered: whether the group of each input feature is stored.
        activations: "full" leaves them as they are; "dynamic" rounds each row by itself, "static" with a stored scale.
        has_zero_activation: whether a zero point of activations is stored.
    """

    kind: Literal["int", "float"]
    bits: int
    strategy: str
    group_size: int
    block: tuple[int, int]
    is_symmetric: bool
    is_reordered: bool
    activations: Literal["full", "dynamic", "static"]
    has_zero_activation: bool


@final
class SchemeTable:
    """The scheme of each layer, by its full dotted name; a group that names a layer comes before one for all.

    Raises:
        ModelError: something in the settings has no counterpart here.
    """

    def __init__(self, settings: Fields) -> None:
        self._path = settings.path
        self._check_whole(settings)
        groups = settings.group("config_groups")
        if groups is None or not groups.keys:
            raise ModelError(f"{self._path} lacks 'config_groups', which say how layers are stored")
        self._by_target: list[tuple[str, WeightScheme | None]] = []
        for name in groups.keys:
            self._add_group(name, groups.raw(name))

    def scheme_of(self, part: str) -> WeightScheme | None:
        """None if its weights are not quantized."""
        for target, scheme in self._by_target:
            if target == part or (target.startswith(_REGEX) and re.match(target.removeprefix(_REGEX), part)):
                return scheme
        return next((scheme for target, scheme in self._by_target if target == _LINEAR), None)

    def _check_whole(self, settings: Fields) -> None:
        self._check_format(settings.text("format", "dense"))
        status = settings.text("quantization_status", "compressed")
        if status != "compressed":
            self._refuse(f"has the quantization_status {status!r}", "save it compressed")
        kv_scheme = settings.group("kv_cache_scheme")
        if kv_scheme is not None:
            self._check_kv_scheme(kv_scheme)
        sparsity = settings.group("sparsity_config")
        if sparsity is not None and sparsity.text("format", "dense") != "dense":
            self._refuse(f"is stored sparse ({sparsity.text('format')!r})", "save it without sparse compression")
        if settings.has("transform_config") and settings.raw("transform_config"):
            self._refuse("has a transform_config, rotations at run time", "take a checkpoint without them")

    def _check_kv_scheme(self, scheme: Fields) -> None:
        """Scales of keys and values are attention's business; what they are for must be something that it has."""
        form = scheme.integer("num_bits", 8), scheme.flag("symmetric", True), _strategy(scheme)
        if form not in ((8, True, "tensor"), (8, True, "attn_head")):
            self._refuse(
                f"has a kv_cache_scheme of {form[0]} bits by {form[2]!r}, symmetric={form[1]}",
                "readable are symmetric ones of 8 bits by 'tensor' or 'attn_head'",
            )

    def _check_format(self, name: str) -> None:
        if name not in _FORMATS:
            self._refuse(f"is stored as {name!r}", f"readable are {', '.join(_FORMATS)}")

    def _add_group(self, name: str, group: Any) -> None:
        if isinstance(group, list):  # a preset by its name, and its targets
            if name not in _PRESETS:
                self._refuse(f"names the scheme {name!r}", f"known are {', '.join(_PRESETS)}")
            group = {**_PRESETS[name], "targets": group}
        if not isinstance(group, dict):
            raise ModelError(f"{self._path}: group {name!r} must be an object, got {group!r}")
        fields = Fields(group, self._path)
        if fields.has("format"):
            self._check_format(fields.text("format"))
        if fields.has("output_activations"):
            self._refuse(f"group {name!r} has output_activations", "take a checkpoint without them")
        weights = fields.group("weights")
        scheme = None if weights is None else self._scheme(name, weights, fields.group("input_activations"))
        for target in fields.texts("targets"):
            if target[:1].isupper() and target != _LINEAR:
                self._refuse(f"group {name!r} is for the layers {target!r}", f"readable are those of {_LINEAR!r}")
            if target.startswith(_REGEX):
                _check_regex(target.removeprefix(_REGEX), f"{self._path}: group {name!r}")
            self._by_target.append((target, scheme))

    def _scheme(self, group: str, weights: Fields, activations: Fields | None) -> WeightScheme:
        kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
        strategy = _strategy(weights)
        group_size = weights.integer("group_size", -1, minimum=-1) if strategy == "group" else -1
        if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
            self._refuse(f"group {group!r} has weights of {bits}-bit {kind}", "readable are int 4, int 8 and float 8")
        if strategy not in _STRATEGIES or (strategy == "block" and kind == "int") or group_size == 0:
            self._refuse(f"group {group!r} has weights by {strategy!r}", f"readable are {', '.join(_STRATEGIES)}")
        assert kind in ("int", "float"), kind
        rounding = self._activations(group, kind, bits, activations)
        order = weights.raw("actorder")
        return WeightScheme(
            kind="int" if kind == "int" else "float",
            bits=bits,
            strategy="channel" if strategy == "group" and group_size == -1 else strategy,
            group_size=group_size,
            block=self._block(weights) if strategy == "block" else (1, 1),
            is_symmetric=weights.flag("symmetric", True),
            is_reordered=order is True or order in ("group", "dynamic"),
            activations=rounding,
            has_zero_activation=activations is not None and not activations.flag("symmetric", True),
        )

    def _activations(
        self, group: str, kind: str, bits: int, activations: Fields | None
    ) -> Literal["full", "dynamic", "static"]:
        if activations is None:
            return "full"
        found = activations.text("type", "int"), activations.integer("num_bits", 8)
        if found != (kind, bits) or bits != 8:
            self._refuse(
                f"group {group!r} has {found[1]}-bit {found[0]} activations with {bits}-bit {kind} weights",
                "readable are both in 8 bits of one type, or weights alone",
            )
        if activations.raw("dynamic") not in (None, True, False):
            self._refuse(f"group {group!r} has dynamic={activations.raw('dynamic')!r}", "readable are true and false")
        is_dynamic, strategy = activations.flag("dynamic", False), _strategy(activations)
        if kind == "float":
            return "dynamic" if is_dynamic else "static"
        is_symmetric = activations.flag("symmetric", True)
        if is_dynamic and (strategy != "token" or not is_symmetric):
            self._refuse(
                f"group {group!r} has dynamic activations by {strategy!r}, symmetric={is_symmetric}",
                "readable are symmetric ones by 'token'",
            )
        if not is_dynamic and strategy != "tensor":
            self._refuse(f"group {group!r} has static activations by {strategy!r}", "readable are those by 'tensor'")
        return "dynamic" if is_dynamic else "static"

    def _block(self, weights: Fields) -> tuple[int, int]:
        value = weights.raw("block_structure")
        sizes = value.split("x") if isinstance(value, str) else value
        if not isinstance(sizes, list) or len(sizes) != 2 or not all(str(size).isdecimal() for size in sizes):
            raise ModelError(f"{self._path}: 'block_structure' must be two sizes, such as [128, 128], got {value!r}")
        rows, columns = (int(size) for size in sizes)
        if rows < 1 or columns < 1:
            raise ModelError(f"{self._path}: 'block_structure' must be two sizes above 0, got {value!r}")
        return rows, columns

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise ModelError(f"quant=compressed_tensors cannot read this checkpoint: it {what}; {instead}")


def _strategy(args: Fields) -> str:
    """What shares a scale; without a word for it, the size of groups tells."""
    if args.has("strategy"):
        return args.text("strategy")
    if not args.has("group_size"):
        return "tensor"
    return "channel" if args.integer("group_size", minimum=-1) == -1 else "group"


def _check_regex(pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ModelError(f"{where} has the target {pattern!r}, no regular expression: {error}") from error
