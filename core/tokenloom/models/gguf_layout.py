"""How GGUF files hold a family of models: the names of its tensors, and what its metadata means as a config.json.

A file's metadata is translated into config.json's words, and the family's own `read_config` reads those. So a GGUF file
and a Hugging Face folder of one model give one config, and a family says only what is special about its files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError

__all__ = [
    "LLAMA_LAYER_NAMES",
    "GGUFFacts",
    "GGUFLayout",
    "bias_values",
    "mlp_bias_values",
    "shortest_decimal",
    "swa_layer_types",
]

LLAMA_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""{GGUF's part of a layer: Hugging Face's}, as most families have it."""

_FLOAT32_MAX = 3.4e38


@final
class GGUFFacts:
    """What a file says of its model: metadata under the prefix of its architecture, and which tensors it has.

    Getters take the key without the prefix; their errors name the whole key. See `Fields` for defaults.
    """

    def __init__(self, fields: Fields, architecture: str, tensor_names: Collection[str]) -> None:
        self.path = fields.path
        self._fields = fields
        self._prefix = architecture
        self._tensor_names = tensor_names

    def key(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def all_keys(self) -> tuple[str, ...]:
        """Every key of the architecture that has a value, without the prefix."""
        start = f"{self._prefix}."
        return tuple(key.removeprefix(start) for key in self._fields.keys if key.startswith(start))

    def value(self, name: str) -> Any:
        """What the file says, of whatever type; None where it says nothing."""
        return self._fields.raw(self.key(name))

    def has_tensor(self, name: str) -> bool:
        return name in self._tensor_names

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        return self._fields.integer(self.key(name), default, minimum=minimum, maximum=maximum)

    def uniform_integer(self, name: str, default: int | None = None) -> int:
        return self._fields.uniform_integer(self.key(name), default)

    def number(self, name: str, default: float | None = None) -> float:
        """A number as a config.json has it: 1e-06, where the file's float32 is 9.99999997e-07."""
        return shortest_decimal(self._fields.number(self.key(name), default))

    def text(self, name: str, default: str | None = None) -> str:
        return self._fields.text(self.key(name), default)


def _nothing_more(_facts: GGUFFacts, _values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class GGUFLayout:
    """The facts of one family.

    Attributes:
        layer_names: {GGUF's part of a layer: Hugging Face's}.
        interleaves_rotary_rows: rows of q and k are stored with rotary pairs as neighbours (architecture `llama`).
        rotates_in_part: `rope.dimension_count` may be less than a head.
        norm_offset: what the file adds to every norm weight (1 for Gemma); taken away when a tensor is loaded.
        keys: metadata keys, without prefix, that this family has beyond the common ones. Any other key is refused, for
            it might change the arithmetic.
        config_values: gives entries of config.json that join or replace the common ones, its second argument.
        windowed_family: name of the family that reads the config instead where the file states a window.
    """

    layer_names: Mapping[str, str] = field(default_factory=lambda: LLAMA_LAYER_NAMES)
    interleaves_rotary_rows: bool = False
    rotates_in_part: bool = False
    norm_offset: float = 0.0
    keys: tuple[str, ...] = ()
    config_values: Callable[[GGUFFacts, Mapping[str, Any]], Mapping[str, Any]] = _nothing_more
    windowed_family: str | None = None


def bias_values(facts: GGUFFacts) -> dict[str, Any]:
    """`attention_bias` of config.json, by whether the file has such tensors."""
    return {"attention_bias": facts.has_tensor("blk.0.attn_q.bias")}


def mlp_bias_values(facts: GGUFFacts) -> dict[str, Any]:
    """`mlp_bias` of config.json, by whether the file has such tensors."""
    return {"mlp_bias": facts.has_tensor("blk.0.ffn_up.bias")}


def swa_layer_types(facts: GGUFFacts, num_layers: int, default_period: int) -> list[str]:
    """`layer_types` of config.json: which layers have a window.

    The file says so for each layer, or gives a period, the last layer of which has full attention.

    Raises:
        ModelError: the list has another length than the model.
    """
    name = "attention.sliding_window_pattern"
    pattern = facts.value(name)
    if isinstance(pattern, list):
        if len(pattern) != num_layers or not all(isinstance(windowed, bool) for windowed in pattern):
            raise ModelError(
                f"{facts.path}: {facts.key(name)!r} must be a period or {num_layers} times true or false, one for each "
                f"layer, got {len(pattern)} values: {str(pattern)[:80]}"
            )
    else:
        period = facts.integer(name, default_period)
        pattern = [(layer + 1) % period != 0 for layer in range(num_layers)]
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


def shortest_decimal(value: float) -> float:
    """The shortest number that float32 stores as `value`; a value beyond float32 stays as it is."""
    if not abs(value) < _FLOAT32_MAX:
        return value
    stored = struct.pack("<f", value)
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next(number for number in candidates if struct.pack("<f", number) == stored)
