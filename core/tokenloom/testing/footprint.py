"""How much memory an object holds on to: to see that a plugin forgets what is gone."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

__all__ = ["footprint_bytes"]

_NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType)


def footprint_bytes(root: object) -> int:
    """Bytes of all objects that can be reached from `root`, code and modules left out."""
    seen: dict[int, object] = {id(root): root}
    todo, total = [root], 0
    while todo:
        current = todo.pop()
        total += sys.getsizeof(current)
        for other in gc.get_referents(current):
            if id(other) not in seen and not isinstance(other, _NOT_ITS_OWN):
                seen[id(other)] = other
                todo.append(other)
    return total
