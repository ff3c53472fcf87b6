"""What the heads of the EAGLE family are built from: an attention part over any input, and loading by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, final

import torch

from tokenloom.errors import ModelError, did_you_mean
from tokenloom.interfaces.attention import AttentionLayer, AttentionMetadata
from tokenloom.interfaces.draft_memory import DraftKVGroup, DraftPass
from tokenloom.interfaces.quant import Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext
from tokenloom.loader.weight_file import WeightFile
from tokenloom.loader.weights_digest import quick_digest
from tokenloom.model_config import ModelConfig
from tokenloom.models.layers import LayerFactory
from tokenloom.models.projected_heads import ProjectedHeads
from tokenloom.models.rotary_cache import RotationTables
from tokenloom.models.skip_list import SkipList
from tokenloom.ops.table import build_op_table

__all__ = ["HeadAttention", "HeadTensors", "embedding_of", "head_factory", "kv_group_of"]


def head_factory(context: DrafterContext, quantizer: Quantizer) -> LayerFactory:
    """Makes a head's layers in the target's dtype, with the target's operations; `quantizer` stores what it covers."""
    ops = build_op_table(context.device, context.operations, deterministic=context.deterministic)
    return LayerFactory(
        quantizer, SkipList(), context.dtype, context.device, context.parallel, ops, context.max_model_len
    )


def embedding_of(
    tensors: HeadTensors, factory: LayerFactory, config: ModelConfig, context: DrafterContext
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Token ids [T] -> embeddings [T, H]: the head's own where its checkpoint holds one, else the target's."""
    if "embed_tokens.weight" not in tensors:
        return context.embed
    return factory.embedding("embed_tokens", config.vocab_size, config.hidden_size, tied=False).lookup


def kv_group_of(config: ModelConfig) -> DraftKVGroup:
    """KV memory of the one layer of a head: its entry at t depends on token t + 1."""
    return DraftKVGroup(
        num_layers=1,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        lookahead=1,
        window=config.windows[0],
        num_heads=config.num_heads,
        has_soft_cap=config.attn_soft_cap is not None,
    )


@final
class HeadAttention:
    """Grouped-query attention whose queries, keys and values come from an input of any size.

    Args:
        config: sizes of the layer, rotary embedding, norms.
        factory: makes the layers.
        name: what the projections' names begin with.
        in_features: size of the input; the output has config.hidden_size.
    """

    def __init__(self, config: ModelConfig, factory: LayerFactory, name: str, in_features: int) -> None:
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._layer = AttentionLayer(
            layer_index=0,
            group_id=0,
            softmax_scale=config.head_dim**-0.5 if config.softmax_scale is None else config.softmax_scale,
            window=config.windows[0],
            soft_cap=config.attn_soft_cap,
        )
        # Apart, for most of the time only keys and values are wanted.
        self._q = factory.linear(f"{name}.q_proj", in_features, {"q_proj": q_size}, has_bias=config.qkv_bias)
        self._kv = factory.linear(
            f"{name}.kv_proj", in_features, {"k_proj": kv_size, "v_proj": kv_size}, has_bias=config.qkv_bias
        )
        qk_norm = (
            factory.head_norms(name, config.head_dim, config.num_heads, config.rms_norm_eps)
            if config.has_qk_norm
            else None
        )
        self._heads = ProjectedHeads(config, factory.ops, qk_norm)
        self._keys_and_values = ProjectedHeads(config, factory.ops, qk_norm, keys_only=True)
        self._output = factory.linear(
            f"{name}.o_proj", q_size, {"o_proj": config.hidden_size}, has_bias=config.output_bias
        )
        longest = factory.max_model_len or config.max_position_embeddings
        self._tables = RotationTables(config.ropes[:1], longest, factory.dtype, factory.device)

    def __call__(self, x: torch.Tensor, draft_pass: DraftPass) -> torch.Tensor:
        """[T, in_features], normed -> [T, H]; writes the K and V of the new entries."""
        (rotation,) = self._tables.lookup(draft_pass.positions)
        projected = torch.cat((self._q.apply(x), self._kv.apply(x)), dim=-1)  # [T, (Hq + 2 * Hkv) * D]
        queries, keys, values = self._heads(projected, rotation)
        kv, metadata = self._write(keys, values, draft_pass)
        attended = draft_pass.attention.forward(queries, kv, self._layer, metadata)  # [T, Hq, D]
        return self._output.apply(attended.flatten(1))

    def store(self, x: torch.Tensor, draft_pass: DraftPass) -> None:
        """Writes the K and V of the new entries, whose input is [T, in_features]."""
        (rotation,) = self._tables.lookup(draft_pass.positions)
        _, keys, values = self._keys_and_values(self._kv.apply(x), rotation)
        self._write(keys, values, draft_pass)

    def _write(
        self, keys: torch.Tensor, values: torch.Tensor, draft_pass: DraftPass
    ) -> tuple[Sequence[torch.Tensor], AttentionMetadata]:
        """Returns the memory that they are in, and what the attention is told of the pass."""
        (metadata,), (kv,) = draft_pass.metadata, draft_pass.kv
        draft_pass.attention.write_kv(kv, keys, values, metadata)
        return kv, metadata


@final
class HeadTensors:
    """The tensors of a head's files under the names that its layers have.

    Args:
        folder: for messages.
        files: which file holds each stored tensor.
        names: name in the layers -> name in the file.
    """

    def __init__(self, folder: Path, files: Mapping[str, WeightFile], names: Mapping[str, str]) -> None:
        self._folder = folder
        self._files = files
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @property
    def digest(self) -> str:
        """Identifies weights and config.json."""
        headers = [(path, file.header()) for path, file in {file.path: file for file in self._files.values()}.items()]
        return quick_digest([*headers, (self._folder / "config.json", b"")])

    def view(self, name: str) -> torch.Tensor:
        """A tensor as it is stored. Raises ModelError where there is none."""
        if name not in self._names:
            self._refuse(f"lacks the tensor {name!r}.{did_you_mean(name, self._names)}")
        stored = self._names[name]
        return self._files[stored].view(stored)

    def load(self, factory: LayerFactory) -> int:
        """Fills all layers that the factory made; returns their bytes.

        Raises:
            ModelError: a tensor is missing, unknown or of the wrong shape.
        """
        # A quantizer says itself what it needs beside the weight: the files of heads hold nothing else.
        wanted = [
            (target, name)
            for target in factory.targets
            for name in dict.fromkeys((*(f"{part}.weight" for part in target.parts), *target.required()))
        ]
        known = {name for _, name in wanted}
        unknown = sorted(set(self._names) - known)
        if unknown:
            self._refuse(f"holds {len(unknown)} tensors that the head has no place for, first {unknown[0]!r}")
        for target, name in wanted:
            tensor, shape = self.view(name), target.shape(name)
            if tuple(tensor.shape) != shape or not tensor.is_floating_point():
                self._refuse(
                    f"has {name!r} as {tensor.dtype} of shape {list(tensor.shape)}; its config and the target ask for "
                    f"{list(shape or ())}"
                )
            target.load(name, tensor.to(target.load_dtype, copy=True))
        for target in factory.targets:
            target.finalize()
        return sum(target.num_bytes for target in factory.targets)

    def _refuse(self, what: str) -> NoReturn:
        raise ModelError(f"{self._folder} {what}")
