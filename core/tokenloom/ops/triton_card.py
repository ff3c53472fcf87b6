"""Which GPU a device is, in the words of tuning tables, and what it can multiply."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import final

import torch

__all__ = ["INTERPRETER", "Card", "architecture_of", "card_of", "has_e4m3"]

INTERPRETER = "interpreter"
"""What Triton's interpreter on a CPU is called."""

_INTERPRETED_PROCESSORS = 4
_FIRST_WITH_E4M3 = 89
_AMD_WITH_E4M3 = ("gfx950", "gfx1200", "gfx1201")


@final
@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU ("sm_90", "gfx942") or `INTERPRETER`, and how many programs it runs at once."""

    name: str
    num_processors: int


@cache  # every product asks
def card_of(device: torch.device) -> Card:
    """The card behind a device. The interpreter has some processors, so that it splits sequences and sums."""
    if device.type != "cuda":
        return Card(INTERPRETER, _INTERPRETED_PROCESSORS)
    return Card(architecture_of(device), torch.cuda.get_device_properties(device).multi_processor_count)


def architecture_of(device: torch.device) -> str:
    """The name of the card behind a device."""
    if device.type != "cuda":
        return INTERPRETER
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def has_e4m3(card: str) -> bool:
    """Whether a card has float8 of the kind e4m3fn: sm_89 was the first, and MI300 (gfx942) has another kind."""
    is_new_enough = card.startswith("sm_") and int(card.removeprefix("sm_")) >= _FIRST_WITH_E4M3
    return is_new_enough or card in _AMD_WITH_E4M3 or card == INTERPRETER
