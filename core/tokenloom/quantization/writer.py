"""The contract of a checkpoint format that can be written: its tensors, its settings, and what it cannot hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from tokenloom.errors import ConfigError
from tokenloom.quantization.rounded_weight import RoundedWeight, RoundingScheme

__all__ = ["CheckpointWriter", "Making", "usual_group_size"]

_USUAL_SIZES = (128, 64, 32)


@dataclass(frozen=True, slots=True)
class Making:
    """What the settings of a checkpoint tell of how it was made.

    Attributes:
        scheme: of all layers that are rounded.
        rounds_activations: whether they are run with int8 inputs.
        skipped: full dotted names of linear layers that stay plain, without the head.
        act_order: whether columns were rounded in an order of their own.
        static_groups: whether groups are those of columns in order all the same.
        damping: of GPTQ; None for other methods.
        version: of this program.
    """

    scheme: RoundingScheme
    rounds_activations: bool
    skipped: Sequence[str]
    act_order: bool
    static_groups: bool
    damping: float | None
    version: str


class CheckpointWriter(ABC):
    """One format. Holds no state."""

    name: str
    """What `format=` calls it."""
    allowed_bits: tuple[int, ...]
    is_symmetric_usually: bool
    stores_order: bool
    """Whether the group of each column can be stored, as groups in the order of rounding need."""
    takes_short_groups: bool = False
    """Whether the last group of a row may have fewer columns than the others."""
    takes_activations: bool = False
    """Whether int8 activations can be asked for."""
    plugin: str
    """The quant plugin that reads it."""

    @abstractmethod
    def scale_dtype(self, model_dtype: torch.dtype) -> torch.dtype:
        """In which scales are stored, in a model of `model_dtype`."""

    @abstractmethod
    def tensors(self, weight: RoundedWeight, making: Making) -> dict[str, torch.Tensor]:
        """The tensors of one of the checkpoint's layers by parameter: what stands in for its "weight"."""

    @abstractmethod
    def settings(self, making: Making) -> dict[str, Any]:
        """`quantization_config` of config.json."""

    def check(self, sizes: Mapping[str, tuple[int, int]], scheme: RoundingScheme) -> None:
        """Refuses what cannot be stored, before anything is computed.

        Args:
            sizes: (output features, input features) of each of the checkpoint's layers, by full dotted name.
            scheme: that they are to be rounded to.

        Raises:
            ConfigError: names the first layer that does not fit, its size, and what would.
        """
        if scheme.bits not in self.allowed_bits:
            allowed = ", ".join(map(str, self.allowed_bits))
            raise ConfigError(
                f"bits={scheme.bits}: format={self.name} stores weights of {allowed} bits; try one of these, or "
                "format=gptq, which stores 2, 3, 4 and 8"
            )
        for name, (num_rows, num_columns) in sizes.items():
            if num_columns % scheme.width(num_columns) and not self.takes_short_groups:
                remedy = f"group_size={usual_group_size([num_columns])}"
                raise ConfigError(
                    f"group_size={scheme.group_size} does not divide the {num_columns} input features of {name}, as "
                    f"format={self.name} needs; try {remedy}, format=gptq, or leave the layer plain: skip=[{name}]"
                )
            self.check_words(name, num_rows, num_columns, scheme.bits)

    @abstractmethod
    def check_words(self, name: str, num_rows: int, num_columns: int, bits: int) -> None:
        """Refuses sizes that do not fill words, where the format needs that; raises ConfigError."""

    def refuse_size(self, name: str, what: str, size: int, multiple: int) -> NoReturn:
        """Raises the ConfigError for a size that is no multiple of what words hold."""
        raise ConfigError(
            f"format={self.name} needs a multiple of {multiple} {what} features, and {name} has {size}; try "
            f"format=compressed-tensors, or leave the layer plain: skip=[{name}]"
        )


def usual_group_size(input_features: Iterable[int]) -> int:
    """The group size that users get who name none: the largest usual one that divides all layers' input features."""
    features = list(input_features)
    return next((size for size in _USUAL_SIZES if all(each % size == 0 for each in features)), -1)
