"""How much memory an object holds on to: to see that a plugin forgets what is gone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
import torch

__all__ = ["bytes_leaked", "footprint_bytes"]

_NOT_ITS_OWN = (type, ModuleType, BuiltinFunctionType)
_ALLOWED_BYTES = 4
"""A turn: a counter that grows by a digit, not a reference that is kept."""


def footprint_bytes(root: object) -> int:
    """Bytes of all objects that can be reached from `root`: tensors and arrays included, code and modules left out."""
    seen: dict[int, object] = {id(root): root}
    storages: dict[tuple[str, int], int] = {}
    todo, total = [root], 0
    while todo:
        current = todo.pop()
        total += sys.getsizeof(current)
        if isinstance(current, torch.Tensor):
            storage = current.untyped_storage()
            storages[(str(current.device), storage.data_ptr())] = storage.nbytes()
        for other in _referents(current):
            if id(other) not in seen and not isinstance(other, _NOT_ITS_OWN):
                seen[id(other)] = other
                todo.append(other)
    return total + sum(storages.values())


def bytes_leaked(root: object, use: Callable[[int], object], count: int) -> int:
    """Bytes by which `root` grows with each use once it has been used many times; 0 if it settles.

    What it keeps in bounds, such as a memo of the latest few, may fill in the first half, which is not counted.

    Args:
        root: the object.
        use: is called with 0, 1, 2, ...; after each call, everything of that call could be forgotten.
        count: how often in all; rounded up to an even number.
    """
    half = -(-count // 2)
    for number in range(half):
        use(number)
    before = footprint_bytes(root)
    for number in range(half, 2 * half):
        use(number)
    grown = (footprint_bytes(root) - before) // half
    return grown if grown > _ALLOWED_BYTES else 0


def _referents(current: object) -> list[object]:
    if isinstance(current, FunctionType):
        # Its module is not its own, what it closes over is.
        return [*(current.__closure__ or ()), *(current.__defaults__ or ())]
    found = gc.get_referents(current)
    if isinstance(current, np.ndarray):
        # numpy does not tell the garbage collector what an array holds.
        found += [current.base, *(current.flat if current.dtype == object else ())]
    return found
