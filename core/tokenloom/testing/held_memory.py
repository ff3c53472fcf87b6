"""How much tensor memory an object keeps alive, found by following its references."""

from __future__ import annotations

import gc
import logging
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

import torch

__all__ = ["held_tensor_bytes"]

_ENDS = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType, logging.Logger, torch.dtype)
"""Where following stops: what lies behind belongs to the program, not to the object."""


def held_tensor_bytes(holder: object) -> int:
    """Bytes of all distinct tensor storages that `holder` reaches through its attributes and containers."""
    storages: dict[tuple[str, int], int] = {}
    seen: set[int] = set()
    pending: list[object] = [holder]
    while pending:
        found = pending.pop()
        if id(found) in seen or isinstance(found, _ENDS):
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            storage = found.untyped_storage()
            storages[(str(found.device), storage.data_ptr())] = storage.nbytes()
        pending += gc.get_referents(found)
    return sum(storages.values())
