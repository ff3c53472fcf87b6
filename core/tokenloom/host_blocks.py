"""Blocks that move before a step, next to the weights: to host memory and back, and within the device; bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.batch import BlockCopy, BlockExport, BlockImport
from tokenloom.interfaces.attention import AttentionBackend, AttentionLayer

__all__ = ["HostBlocks", "StoredLayer", "stored_layers"]

_NO_MEMORY = ("can't allocate memory", "not enough memory")


@final
@dataclass(frozen=True, slots=True)
class StoredLayer:
    """One layer's cache tensors, the backend that knows their layout, and the KV group whose blocks they hold."""

    group_id: int
    attention: AttentionBackend
    kv: Sequence[torch.Tensor]


def stored_layers(
    attention: AttentionBackend, layers: Sequence[AttentionLayer], kv: Sequence[Sequence[torch.Tensor]]
) -> tuple[StoredLayer, ...]:
    """Of a model whose layers all share a backend; `kv[i]` holds the cache tensors of layers[i]."""
    return tuple(StoredLayer(layer.group_id, attention, tensors) for layer, tensors in zip(layers, kv, strict=True))


@final
class HostBlocks:
    """Copies per request: for each layer, its stored quantities over the exported blocks of the layer's KV group."""

    def __init__(self, layers: Sequence[StoredLayer], block_size: int) -> None:
        """`layers`: all whose blocks may move, a drafter's too; `block_size` is in tokens."""
        self._block_size = block_size
        self._layers = tuple(layers)
        self._device = layers[0].kv[0].device if layers else torch.device("cpu")
        self._content: dict[str, list[tuple[torch.Tensor, ...]]] = {}

    def export(self, moves: Sequence[BlockExport]) -> tuple[str, ...]:
        """Copies blocks to the host; returns the requests whose copy found no memory."""
        lost: list[str] = []
        for move in moves:
            try:
                self._content[move.request_id] = self._copies(move)
            except (torch.OutOfMemoryError, MemoryError):
                lost.append(move.request_id)
            except RuntimeError as error:
                # torch says it in these words when the CPU has none left.
                if not any(words in str(error) for words in _NO_MEMORY):
                    raise
                lost.append(move.request_id)
        return tuple(lost)

    def copy(self, moves: Sequence[BlockCopy]) -> None:
        """Copies blocks within the device, as if all sources had been read first."""
        if not moves:
            return
        offsets = torch.arange(self._block_size, device=self._device)
        for layer in self._layers:
            source, target = (
                (torch.tensor(ids, device=self._device)[:, None] * self._block_size + offsets).flatten()
                for ids in (
                    [move.sources[layer.group_id] for move in moves],
                    [move.targets[layer.group_id] for move in moves],
                )
            )
            layer.attention.copy_slots(layer.kv, source, target)

    def restore(self, moves: Sequence[BlockImport]) -> None:
        """Fills blocks from the host, and forgets those requests' copies."""
        for move in moves:
            content = self._content.pop(move.request_id)
            sources = [torch.tensor(indices, dtype=torch.int64) for indices in move.sources]
            targets = [torch.tensor(ids, dtype=torch.int64, device=self._device) for ids in move.block_ids]
            for layer, copies in zip(self._layers, content, strict=True):
                if targets[layer.group_id].numel():
                    chosen = [copy[sources[layer.group_id]].to(self._device) for copy in copies]
                    layer.attention.import_blocks(layer.kv, targets[layer.group_id], chosen)

    def drop(self, request_ids: Sequence[str]) -> None:
        """Forgets copies; those that were lost are not there."""
        for request_id in request_ids:
            self._content.pop(request_id, None)

    def _copies(self, move: BlockExport) -> list[tuple[torch.Tensor, ...]]:
        ids = [torch.tensor(blocks, dtype=torch.int64, device=self._device) for blocks in move.block_ids]
        copies = []
        for layer in self._layers:
            exported = layer.attention.export_blocks(layer.kv, ids[layer.group_id])
            copies.append(tuple(tensor.to("cpu") for tensor in exported))
        return copies
