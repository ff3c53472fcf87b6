"""Fills a model's layers from a checkpoint: one tensor at a time, each layer packed as soon as it is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.checkpoint.kv_scale_names import is_kv_scale
from tokenloom.errors import ModelError, did_you_mean
from tokenloom.models.load_targets import LoadTarget

__all__ = ["LoadProgress", "ignore_progress", "load_tensor", "load_weights"]

LoadProgress = Callable[[str, int, int], None]
"""Called as progress(stage, done, total) before each tensor and once at the end; counts of tensors."""


def ignore_progress(*_: object) -> None:
    """A `LoadProgress` that tells nobody."""


_STAGE = "loading weights"
_NUM_NAMED = 3  # how many tensors an error lists


def load_weights(
    targets: Sequence[LoadTarget],
    checkpoint: Checkpoint,
    progress: LoadProgress,
    is_elsewhere: Callable[[str], bool],
) -> None:
    """Loads every tensor of the checkpoint into the target that it belongs to.

    Args:
        targets: those of the model, or of the part of it that is wanted.
        checkpoint: where the tensors are; read in file order.
        progress: is told how far loading is.
        is_elsewhere: whether a tensor belongs to a part of the model that is not loaded here.

    Raises:
        ModelError: a tensor is missing, unknown, or of the wrong shape; nothing was loaded in the first two cases.
    """
    owners = {part: target for target in targets for part in target.parts}
    names = [name for name in checkpoint.tensor_names() if not (is_elsewhere(name) or is_kv_scale(name))]
    _check_names(names, owners, targets, checkpoint)
    pending = Counter(id(owners[_part(name)]) for name in names)
    for done, name in enumerate(names):
        progress(_STAGE, done, len(names))
        target = owners[_part(name)]
        load_tensor(name, target, checkpoint)
        pending[id(target)] -= 1
        if pending[id(target)] == 0:
            target.finalize()
    progress(_STAGE, len(names), len(names))


def load_tensor(name: str, target: LoadTarget, checkpoint: Checkpoint) -> None:
    """Hands one tensor to its target, decoded or, where the target takes blocks of that type, as it is stored.

    Raises:
        ModelError: it is of the wrong shape, or cannot be read.
    """
    shape = target.shape(name)
    if target.stored_types and checkpoint.stored_type(name) in target.stored_types:
        stored = checkpoint.load_stored(name)
        if shape is not None:
            checkpoint.expect(name, torch.empty(stored.shape, device="meta"), shape)
        target.load(f"{_part(name)}.{stored.type_name}", stored.blocks)
        return
    tensor = checkpoint.load(name, target.load_dtype)
    if shape is not None:
        checkpoint.expect(name, tensor, shape)
    target.load(name, tensor)


def _part(name: str) -> str:
    return name.rpartition(".")[0]


def _check_names(
    names: Sequence[str], owners: dict[str, LoadTarget], targets: Sequence[LoadTarget], checkpoint: Checkpoint
) -> None:
    held = frozenset(names)
    held_parts = {_part(name) for name in names}
    missing = [name for target in targets for name in target.required() if name not in held]
    empty = [part for target in targets for part in target.parts if part not in held_parts]
    missing += [part for part in empty if not any(name.startswith(f"{part}.") for name in missing)]
    unknown = [name for name in names if not _is_known(name, owners)]
    if not missing and not unknown:
        return
    problems = []
    if missing:
        problems.append(f"lacks {_some(missing)}")
    if unknown:
        problems.append(f"holds {_some(unknown)} that the model has no place for")
    hint = _quantization_hint(checkpoint) or (did_you_mean(missing[0], unknown) if missing else "")
    raise ModelError(f"{checkpoint.path} {' and '.join(problems)}.{hint}")


def _is_known(name: str, owners: dict[str, LoadTarget]) -> bool:
    target = owners.get(_part(name))
    return target is not None and target.accepts(name)


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:_NUM_NAMED])
    more = f", ... ({len(names)} tensors)" if len(names) > _NUM_NAMED else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {listed}{more}"


def _quantization_hint(checkpoint: Checkpoint) -> str:
    if checkpoint.quantization is None:
        return ""
    method = checkpoint.quantization.get("quant_method", "unknown")
    return (
        f" Its weights are quantized (quant_method={method!r}): choose a quant plugin that reads this format, or "
        "quant=auto, which takes the one that does"
    )
