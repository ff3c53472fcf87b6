"""Blocks of a checkpoint that a quantizer takes as they are stored, and those that it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import gguf
import pytest
import torch
from gguf.quants import quantize

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights, Quantizer
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.build import build_model
from tokenloom.parallel import ParallelContext

Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0


@final
@dataclass
class Loaded(EmbeddingWeights):
    """Remembers what came: (shard, parameter, shape, dtype)."""

    came: list[tuple[str, str, tuple[int, ...], torch.dtype]] = field(default_factory=list)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self.came.append((shard, parameter, tuple(tensor.shape), tensor.dtype))

    def finalize(self) -> None:
        pass

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids.float()

    @property
    def num_bytes(self) -> int:
        return 0


@final
class Keeping(Quantizer):
    """Covers every layer, and takes blocks of the types it is given."""

    def __init__(self, *stored_types: str) -> None:
        self._stored_types = frozenset(stored_types)
        self.layers: dict[str, Loaded] = {}

    def covers(self, spec: LayerSpec) -> bool:
        return True

    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        return self.create_embedding(spec)

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        return self.layers.setdefault(spec.name, Loaded())

    @property
    def stored_types(self) -> frozenset[str]:
        return self._stored_types

    @property
    def fingerprint(self) -> str:
        return "keeping"


def _load(path: Path, quantizer: Quantizer, skip: tuple[str, ...] = ()) -> None:
    checkpoint = open_checkpoint(path)
    try:
        build_model(
            checkpoint,
            quantizer=quantizer,
            dtype=torch.float32,
            device=torch.device("cpu"),
            parallel=ParallelContext(),
            skip=skip,
        )
    finally:
        checkpoint.close()


def _rows(num_rows: int, size: int, kind: gguf.GGMLQuantizationType) -> Conversion:
    """One matrix of the file's blocks of four bits replaced by another one."""
    data = quantize(torch.ones(num_rows, size).numpy(), kind)
    return Conversion(kind=Q4_1, raw_tensors={"blk.1.ffn_down.weight": (kind, data)})


def test_blocks_of_a_type_that_is_taken_come_as_they_are(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tied=True)
    path = write_gguf(folder, tmp_path / "model.gguf", _rows(64, 128, Q8_0))
    keeping = Keeping("Q4_1", "Q2_K")
    _load(path, keeping)
    layer = "model.layers.1"
    assert keeping.layers["model.embed_tokens"].came == [("embed_tokens", "Q4_1", (256, 2 * 20), torch.uint8)]
    assert sorted(keeping.layers[f"{layer}.self_attn.qkv_proj"].came) == [
        ("k_proj", "Q4_1", (32, 2 * 20), torch.uint8),
        ("q_proj", "Q4_1", (64, 2 * 20), torch.uint8),
        ("v_proj", "Q4_1", (32, 2 * 20), torch.uint8),
    ]
    assert keeping.layers[f"{layer}.mlp.down_proj"].came == [("down_proj", "weight", (64, 128), torch.float32)]


def test_without_a_wish_all_blocks_are_decoded(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tied=True)
    path = write_gguf(folder, tmp_path / "model.gguf", Conversion(kind=Q4_1))
    for keeping in (Keeping(), Keeping("Q8_0")):
        _load(path, keeping)
        came = [tensor for layer in keeping.layers.values() for tensor in layer.came]
        assert {(parameter, dtype) for _, parameter, _, dtype in came} == {("weight", torch.float32)}


def test_skipped_layers_are_decoded(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tied=True)
    path = write_gguf(folder, tmp_path / "model.gguf", Conversion(kind=Q4_1))
    keeping = Keeping("Q4_1")
    _load(path, keeping, skip=("model.layers.1",))
    assert "model.layers.0.mlp.down_proj" in keeping.layers
    assert "model.layers.1.mlp.down_proj" not in keeping.layers


def test_blocks_of_a_wrong_shape_are_refused_by_their_numbers(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tied=True)
    path = write_gguf(folder, tmp_path / "model.gguf", _rows(64, 96, Q4_1))
    with pytest.raises(ModelError, match=r"down_proj\.weight' has shape \[64, 96\].*asks for \[64, 128\]"):
        _load(path, Keeping("Q4_1"))
