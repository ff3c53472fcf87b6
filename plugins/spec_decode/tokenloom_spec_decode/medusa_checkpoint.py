"""Reads Medusa heads from disk, in either published layout.

    FasterDecoding   medusa_lm_head.safetensors or .pt     {head}.{layer}.linear.weight / .bias, {head}.{layers}.weight
    vLLM             model.safetensors or pytorch_model.bin  blocks.{head}.layers.{layer}.weight / .bias,
                     lm_heads.{head}.weight, lm_head.weight for all heads, token_map

A head without an output matrix of its own uses the target's. A `token_map` says which ids of the target the rows of
output matrices stand for; without such a matrix, which rows of the target's are used. config.json may state
`medusa_head_accuracies`: per head the share of its best, second best, ... guess that was right when it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.loader.pickled_file import PickledFile
from tokenloom.loader.weight_file import SafetensorsFile, WeightFile

__all__ = ["MEDUSA_FILES", "HeadLayer", "MedusaWeights", "TargetSizes", "read_medusa"]

MEDUSA_FILES: tuple[str, ...] = (
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
    "model.safetensors",
    "pytorch_model.bin",
)
"""The first of these that is there counts."""

_BLOCK = re.compile(
    r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.(weight|bias)|blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)"
)
_OUTPUT = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.weight|lm_heads\.(\d+)\.weight")
_SHARED_OUTPUT, _TOKEN_MAP = "lm_head.weight", "token_map"
_UNITS_AT_ONCE = 64


@final
@dataclass(frozen=True, slots=True)
class HeadLayer:
    """One residual layer, x + SiLU(x W^T + b): weight [H, H], bias [H] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@final
@dataclass(frozen=True, slots=True)
class TargetSizes:
    """What heads are checked against: H and V of the target, and where and in which dtype they are to run."""

    hidden_size: int
    vocab_size: int
    dtype: torch.dtype
    device: torch.device


@final
@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """All heads.

    Attributes:
        layers: per head, its residual layers.
        outputs: per head [rows, H], equal objects where heads share one; None where the target's head is used.
        token_ids: int64 [rows]: the target's id for each row of the outputs, or the rows of the target's head that are
            used; None where rows are ids.
        accuracies: per head, as config.json states them; () if it does not.
    """

    layers: tuple[tuple[HeadLayer, ...], ...]
    outputs: tuple[torch.Tensor | None, ...]
    token_ids: torch.Tensor | None
    accuracies: tuple[tuple[float, ...], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, shared ones counted once."""
        tensors = [layer.weight for head in self.layers for layer in head]
        tensors += [layer.bias for head in self.layers for layer in head if layer.bias is not None]
        tensors += [output for output in self.outputs if output is not None]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    def with_target_rows(self, compute_logits: Callable[[torch.Tensor], torch.Tensor]) -> MedusaWeights:
        """The same, with copies of the target's rows where heads guess some of its tokens with its own matrix.

        Logits of the unit vectors are the matrix. A soft cap leaves such small numbers nearly as they are, and never
        changes their order.

        Args:
            compute_logits: the target's head, [n, H] -> [n, V].
        """
        if self.token_ids is None or all(output is not None for output in self.outputs):
            return self
        weight = self.layers[0][0].weight
        units = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        pieces = [compute_logits(piece)[:, self.token_ids] for piece in torch.split(units, _UNITS_AT_ONCE)]
        rows = torch.cat(pieces).T.to(weight.dtype).contiguous()  # [rows, H]
        return replace(self, outputs=tuple(rows if output is None else output for output in self.outputs))


def read_medusa(folder: Path, target: TargetSizes) -> MedusaWeights:
    """Reads and checks the heads of a folder.

    Raises:
        ModelError: there are none, a tensor is missing, unknown or does not fit the target.
    """
    path = next((folder / name for name in MEDUSA_FILES if (folder / name).is_file()), None)
    if path is None:
        raise ModelError(f"{folder} holds no Medusa heads: none of {', '.join(MEDUSA_FILES)}")
    file: WeightFile = SafetensorsFile(path) if path.suffix == ".safetensors" else PickledFile(path)
    try:
        return _Reader(file, target).read(_accuracies(folder))
    finally:
        file.close()


def _accuracies(folder: Path) -> tuple[tuple[float, ...], ...]:
    """`medusa_head_accuracies` of config.json, if that is there."""
    path, key = folder / "config.json", "medusa_head_accuracies"
    stated = read_json(path).get(key) if path.exists() else None
    if stated is None:
        return ()
    is_right = isinstance(stated, list) and all(
        isinstance(shares, list) and shares and all(isinstance(s, int | float) and 0 <= s <= 1 for s in shares)
        for shares in stated
    )
    if not is_right:
        raise ModelError(f"{path}: {key!r} must be a list of shares from 0 to 1 for each head, got {stated!r:.80}")
    return tuple(tuple(float(share) for share in shares) for shares in stated)


@final
class _Reader:
    """Sorts one file's tensors by head and layer."""

    def __init__(self, file: WeightFile, target: TargetSizes) -> None:
        self._file = file
        self._target = target
        self._blocks: dict[int, dict[tuple[int, str], str]] = {}
        self._outputs: dict[int, str] = {}

    def read(self, accuracies: Sequence[tuple[float, ...]]) -> MedusaWeights:
        self._sort()
        count = len(self._blocks)
        if not count or sorted(self._blocks) != list(range(count)) or not set(self._outputs) <= set(self._blocks):
            numbers = sorted({*self._blocks, *self._outputs})
            raise ModelError(f"{self._file.path} must hold heads 0, 1, ... with a layer each, got heads {numbers}")
        if len(accuracies) > count:
            raise ModelError(
                f"{self._file.path.parent}: config.json states the accuracies of {len(accuracies)} heads; the file "
                f"holds {count}"
            )
        token_ids = self._token_ids()
        num_rows = None if token_ids is None else len(token_ids)
        shared = self._output(_SHARED_OUTPUT, num_rows) if _SHARED_OUTPUT in self._file.names() else None
        outputs = tuple(
            self._output(self._outputs[head], num_rows) if head in self._outputs else shared for head in range(count)
        )
        lacking = [head for head in range(count) if outputs[head] is None]
        if token_ids is not None and 0 < len(lacking) < count:
            raise ModelError(
                f"{self._file.path}: heads {lacking} have no output matrix for the rows of {_TOKEN_MAP!r}, while "
                "others have; all must have one, or none, which then take the target's rows"
            )
        layers = tuple(self._layers(self._blocks[head]) for head in range(count))
        return MedusaWeights(layers, outputs, token_ids, tuple(accuracies))

    def _sort(self) -> None:
        for name in self._file.names():
            block, output = _BLOCK.fullmatch(name), _OUTPUT.fullmatch(name)
            if block is not None:
                head, layer, parameter = (part for part in block.groups() if part is not None)
                self._blocks.setdefault(int(head), {})[int(layer), parameter] = name
            elif output is not None:
                self._outputs[int(next(part for part in output.groups() if part is not None))] = name
            elif name not in (_SHARED_OUTPUT, _TOKEN_MAP):
                raise ModelError(
                    f"{self._file.path} holds a tensor {name!r} that no Medusa head has; expected are names such as "
                    "'0.0.linear.weight' and '0.1.weight', or 'blocks.0.layers.0.weight' and 'lm_heads.0.weight'"
                )

    def _layers(self, names: Mapping[tuple[int, str], str]) -> tuple[HeadLayer, ...]:
        size, numbers = self._target.hidden_size, sorted({layer for layer, _ in names})
        lacking = [layer for layer in range(len(numbers)) if (layer, "weight") not in names]
        if lacking:
            held = ", ".join(names.values())
            raise ModelError(f"{self._file.path}: a head lacks the weight of layer {lacking[0]}; it has {held}")
        return tuple(
            HeadLayer(
                self._tensor(names[layer, "weight"], (size, size)),
                self._tensor(names[layer, "bias"], (size,)) if (layer, "bias") in names else None,
            )
            for layer in numbers
        )

    def _output(self, name: str, num_rows: int | None) -> torch.Tensor:
        """An output matrix [rows, H]; rows beyond the vocabulary, which pad it, are left out."""
        stored = self._file.view(name)
        target, is_padded = self._target, num_rows is None and stored.shape[0] > self._target.vocab_size
        expected = (stored.shape[0] if is_padded else num_rows or target.vocab_size, target.hidden_size)
        return self._tensor(name, expected)[: target.vocab_size].contiguous()

    def _token_ids(self) -> torch.Tensor | None:
        if _TOKEN_MAP not in self._file.names():
            return None
        ids, num_tokens = self._file.view(_TOKEN_MAP), self._target.vocab_size
        is_list = ids.dim() == 1 and len(ids) > 0 and not (ids.is_floating_point() or ids.dtype == torch.bool)
        if not is_list or not 0 <= int(ids.min()) <= int(ids.max()) < num_tokens:
            raise ModelError(
                f"{self._file.path}: {_TOKEN_MAP!r} must list token ids from 0 to {num_tokens - 1}, got {ids.dtype} of "
                f"shape {list(ids.shape)}"
            )
        if len(set(ids.tolist())) < len(ids):
            raise ModelError(f"{self._file.path}: {_TOKEN_MAP!r} names a token twice")
        return ids.to(device=self._target.device, dtype=torch.int64)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        stored = self._file.view(name)
        if tuple(stored.shape) != shape or not stored.is_floating_point():
            raise ModelError(
                f"{self._file.path}: tensor {name!r} is {stored.dtype} of shape {list(stored.shape)}; heads for this "
                f"target (hidden size {self._target.hidden_size}, {self._target.vocab_size} tokens) have {list(shape)}"
            )
        return stored.to(device=self._target.device, dtype=self._target.dtype, copy=True)
